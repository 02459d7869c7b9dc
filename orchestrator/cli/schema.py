"""`dynspec schema`: the JSON Schema of the experiment file, for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.given import path_of
from orchestrator.errors import UsageError

MODELINE = "# yaml-language-server: $schema=dynspec.schema.json"


def register(app: typer.Typer) -> None:
    app.command(
        epilog=f"Example: dynspec schema -o dynspec.schema.json, then as the first line of an experiment: {MODELINE}"
    )(schema)


def schema(
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            parser=path_of("--output"),
            help="Write it there instead of printing.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="On one line.")] = False,
    as_md: Annotated[bool, typer.Option("--md", help="The keys as a table for people instead.")] = False,
) -> int:
    """JSON Schema of the experiment file, for editors.

    Editors with a YAML language server complete and check keys when the file's first line names the schema.
    """
    from orchestrator.cli.files import write
    from orchestrator.schema import experiment_schema, key_table

    if as_json and as_md:
        raise UsageError("--json and --md are two forms of the same; name one")
    text = key_table() if as_md else json.dumps(experiment_schema(), indent=None if as_json else 1) + "\n"
    if output is None:
        print(text, end="")
        return 0
    write(output, text)
    if as_md:
        print(f"{output}: written")
        return 0
    print(
        f"{output}: written. First line of an experiment beside it: # yaml-language-server: $schema={output.name}"
    )
    return 0

"""doctor and init: what a node is good for, asked before anything is planned there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.given import path_of, word_of
from orchestrator.cli.interrupting import only_reading
from orchestrator.cli.nodes import AsJson, HostKey, KnownHosts, NodeName, SshConfig
from orchestrator.errors import UsageError

Python = Annotated[
    str | None,
    typer.Option(
        "--python",
        metavar="PATH",
        parser=word_of("--python"),
        help="The interpreter that serves; without it, usual places.",
    ),
]
Cwd = Annotated[
    str,
    typer.Option("--cwd", metavar="DIR", parser=word_of("--cwd"), help="The folder that it serves from."),
]


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: dynspec doctor blackwell-1 experiments/k25-eagle3.yaml")(doctor)
    app.command(
        epilog="\b\nExample: dynspec init blackwell-1 --python ~/venv/bin/python3 -o experiments/mine.yaml"
    )(init)


@only_reading()
def doctor(
    node: NodeName,
    experiment: Annotated[
        Path | None,
        typer.Argument(
            metavar="[EXPERIMENT.yaml]",
            parser=path_of("EXPERIMENT.yaml"),
            help="Say of each arm whether it can run there.",
        ),
    ] = None,
    python: Python = None,
    cwd: Cwd = "~",
    ssh_config: SshConfig = None,
    known_hosts: KnownHosts = None,
    host_key: HostKey = None,
    as_json: AsJson = False,
) -> int:
    """What a node is good for; reads only.

    Connection, disk, GPUs and who holds them, the SGLang that would serve, patches that fit it, native adaptive
    speculation; with an experiment, the arms that cannot run there and why. 0 all well, 3 busy, 4 something does not
    fit.
    """
    from orchestrator.cli.doctor import as_value, lines, look
    from orchestrator.cli.files import load
    from orchestrator.cli.nodes import Way

    checked = load(experiment) if experiment is not None else None
    way = Way(node, ssh_config, known_hosts, host_key)
    report = look(way, checked.experiment if checked is not None else None, python, cwd)
    if as_json:
        print(json.dumps(as_value(report)))
    else:
        print("\n".join(lines(report)))
    return report.exit_code


@only_reading()
def init(
    node: NodeName,
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            parser=word_of("--output"),
            help="Default: NODE.yaml here; - prints it.",
        ),
    ] = None,
    python: Python = None,
    cwd: Cwd = "~",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    ssh_config: SshConfig = None,
    known_hosts: KnownHosts = None,
    host_key: HostKey = None,
    as_json: AsJson = False,
) -> int:
    """A commented experiment for a node, after asking it what it has.

    Interpreter, tree, GPUs and a served model are filled in where the node tells them; what is left is marked <--.
    """
    from orchestrator.cli.files import write
    from orchestrator.cli.init import file_for
    from orchestrator.cli.nodes import Way
    from orchestrator.store import safe_name

    path = None if output == "-" else Path(output or f"{safe_name(node)}.yaml")
    if path is not None and path.exists() and not force:
        raise UsageError(
            f"{path} is there already", help="choose another with -o, or replace it with --force"
        )
    found = file_for(Way(node, ssh_config, known_hosts, host_key), python, cwd)
    if path is not None:
        write(path, found.text)
    if as_json:
        shown = {"file": str(path) if path else None, "text": found.text, "left": list(found.left)}
        print(json.dumps({"schema": 1, **shown}))
    elif path is None:
        print(found.text, end="")
    else:
        print(f"{path}: written for {node}. Still to fill in: {', '.join(found.left) or 'nothing'}")
        print(f"next: dynspec validate {path}, then dynspec plan {path}")
    return 0

"""report and demo."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.completing import run_ids
from orchestrator.cli.given import Kept, Results


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: dynspec report 20260101-120000-demo-1a2b")(report)
    app.command(epilog="Example: dynspec demo")(demo)


def report(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A run id, or the path of a run folder.", autocompletion=run_ids),
    ],
    results: Kept = Path("results"),
    html: Annotated[bool, typer.Option("--html", help="Write report.html.")] = False,
    md: Annotated[bool, typer.Option("--md", help="Write report.md, and print it.")] = False,
    junit: Annotated[bool, typer.Option("--junit", help="Write junit.xml.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json.")] = False,
) -> int:
    """Summary and report anew from the records.

    summary.json, summary.csv, bench_serving.jsonl and the experiment's report formats are written always.
    """
    from orchestrator.records.begun import begun, newer_rules
    from orchestrator.records.results import write_reports
    from orchestrator.report import markdown
    from orchestrator.store import RunStore

    store = RunStore.open(results, run)
    asked = [name for name, wanted in (("html", html), ("md", md), ("junit", junit)) if wanted]
    refused: list[OSError] = []
    checked = begun(store)
    summary, info = write_reports(
        store, checked.experiment, formats=asked, unwritten=refused.append, notes=newer_rules(checked)
    )
    if as_json:
        print(json.dumps(summary))
    elif md:
        print(markdown.render(summary, info), end="")
    else:
        from orchestrator.cli.screen import report_path, show_report

        show_report(summary, info)
        if (path := report_path(store.folder)) is not None:
            print(f"report: {path}")
    return _told(refused, store.folder)


def _told(refused: list[OSError], folder: Path) -> int:
    """What was asked for and could not be written is said last, and is a failure: what is printed is whole."""
    if not refused:
        return 0
    why = "; ".join(dict.fromkeys(error.strerror or str(error) for error in refused))
    print(
        f"dynspec: {len(refused)} of the report's files cannot be written into {folder}: {why}",
        file=sys.stderr,
    )
    print("-> what is printed above is whole; --json and --md print it for elsewhere", file=sys.stderr)
    return 1


def demo(
    results: Results = Path("results"),
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the embedded node's folder for a look, and say where it is.")
    ] = False,
    node_only: Annotated[
        bool,
        typer.Option(
            "--node-only",
            help="Only start the node, say how to use it, and leave it up until Ctrl-C: your own YAML without a GPU.",
        ),
    ] = False,
) -> int:
    """The whole loop on an embedded node, simulated.

    A real SSH connection on loopback, SGLang's real source files, and an engine that is simulated and says so.
    """
    from orchestrator.cli.demo import run_demo, run_node

    return run_node(keep=keep) if node_only else run_demo(results, keep=keep)

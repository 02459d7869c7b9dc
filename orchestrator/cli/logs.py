"""`dynspec logs`: what a run told, and what its servers logged; followed while it is running."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.completing import run_ids
from orchestrator.cli.given import Kept
from orchestrator.errors import UsageError


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: dynspec logs 20260101-120000-demo-1a2b --arm eagle3 --boot 2")(logs)


def logs(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A run id, or the path of a run folder.", autocompletion=run_ids),
    ],
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Until the run ends; of a live run the server log too.")
    ] = False,
    arm: Annotated[
        str | None, typer.Option("--arm", metavar="NAME", help="The server log of this arm instead.")
    ] = None,
    boot: Annotated[int, typer.Option("--boot", metavar="N", help="Which boot of the arm.", min=1)] = 1,
    results: Kept = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="Events as they are, one a line.")] = False,
) -> int:
    """What a run did, event by event; -f follows it.

    Reads the run folder. With -f, a run that is still going on shows the log of its server as well, read from the
    node over a connection of its own. With --arm, the collected log of one boot.
    """
    from orchestrator.cli.following import EventPrinter, follow_run, server_log_text
    from orchestrator.store import RunStore

    if arm is not None and (follow or as_json):
        raise UsageError("--arm prints one collected log; it goes with neither -f nor --json")
    store = RunStore.open(results, run)
    if arm is not None:
        print(server_log_text(store, arm, boot), end="")
        return 0
    printer = EventPrinter(store, as_json=as_json)
    printer.print_new()
    if follow:
        follow_run(store, printer)
    printer.require_something()
    return 0

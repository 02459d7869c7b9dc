"""status, stop, restore: from any machine, without an experiment and without a results folder."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

NodeName = Annotated[
    str, typer.Argument(metavar="NODE", help="A Host of ~/.ssh/config, user@host[:port], or local.")
]
SshConfig = Annotated[
    str | None, typer.Option("--ssh-config", metavar="FILE", help="Instead of ~/.ssh/config.")
]
KnownHosts = Annotated[
    str | None, typer.Option("--known-hosts", metavar="FILE", help="Instead of ~/.ssh/known_hosts.")
]
Force = Annotated[bool, typer.Option("--force", help="Take over from a live holder; says whose run it ends.")]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: dynspec status blackwell-1")(status)
    app.command(epilog="Example: dynspec stop alice@10.0.0.5:2222")(stop)
    app.command(epilog="Example: dynspec restore blackwell-1")(restore)


def status(
    node: NodeName, ssh_config: SshConfig = None, known_hosts: KnownHosts = None, as_json: AsJson = False
) -> int:
    """Lock, lease, journal, server, GPU processes."""
    from orchestrator.cli.node_text import status_lines
    from orchestrator.store import plain

    with _connected(node, ssh_config, known_hosts) as client:
        found = client.status()
    if as_json:
        print(json.dumps({"schema": 1, **plain(found)}))
    else:
        print("\n".join(status_lines(node, found)))
    return 0


def stop(
    node: NodeName,
    ssh_config: SshConfig = None,
    known_hosts: KnownHosts = None,
    force: Force = False,
    as_json: AsJson = False,
) -> int:
    """End the run on a node; files are put back too."""
    return _give_back(node, ssh_config, known_hosts, force, as_json)


def restore(
    node: NodeName,
    ssh_config: SshConfig = None,
    known_hosts: KnownHosts = None,
    force: Force = False,
    as_json: AsJson = False,
) -> int:
    """Put every changed file back.

    What dynspec started is stopped first. Safe to repeat; from any machine.
    """
    return _give_back(node, ssh_config, known_hosts, force, as_json)


def _give_back(node: str, ssh_config: str | None, known_hosts: str | None, force: bool, as_json: bool) -> int:
    from orchestrator.runner.restore import restore_node

    with _connected(node, ssh_config, known_hosts) as client:
        done = restore_node(client, node, force=force)
    if as_json:
        print(json.dumps({"schema": 1, "runs": [dict(run) for run in done]}))
        return 0
    if not done:
        print(f"{node}: nothing to restore: no open journal, no server of ours")
    for run in done:
        print(_run_line(node, run))
    return 0


def _run_line(node: str, run: dict[str, Any]) -> str:
    files = ", ".join(run["restored"]) or "no file had been changed"
    return f"{node}: run {run['run_id']}: stopped {run['stopped'] or 'nothing'}; put back: {files}; verified"


def _connected(node: str, ssh_config: str | None, known_hosts: str | None) -> Any:
    from orchestrator.remote.transport import ConnectSettings
    from orchestrator.runner.prepare import connect_to

    return connect_to(node, ConnectSettings(known_hosts=known_hosts, ssh_config=ssh_config))

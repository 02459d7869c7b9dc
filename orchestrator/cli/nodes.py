"""status, stop, restore: from any machine, without an experiment and without a results folder."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from orchestrator.cli.completing import node_names
from orchestrator.cli.given import word_of
from orchestrator.cli.interrupting import only_reading
from orchestrator.errors import UsageError
from orchestrator.path_lists import below

NodeName = Annotated[
    str,
    typer.Argument(
        metavar="NODE",
        help="A Host of ~/.ssh/config, user@host[:port], or local.",
        autocompletion=node_names,
    ),
]
SshConfig = Annotated[
    str | None,
    typer.Option(
        "--ssh-config", metavar="FILE", parser=word_of("--ssh-config"), help="Instead of ~/.ssh/config."
    ),
]
KnownHosts = Annotated[
    str | None,
    typer.Option(
        "--known-hosts",
        metavar="FILE",
        parser=word_of("--known-hosts"),
        help="Instead of ~/.ssh/known_hosts.",
    ),
]
HostKey = Annotated[
    str | None, typer.Option("--host-key", metavar="KEY", help="The one accepted key: 'ssh-ed25519 AAAA...'.")
]
Force = Annotated[bool, typer.Option("--force", help="Take over from a live holder; says whose run it ends.")]
KeepForeign = Annotated[
    bool,
    typer.Option(
        "--keep-foreign", help="Leave files that somebody else changed meanwhile, and close the journal."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


@dataclass(frozen=True)
class Way:
    """How to reach the node, as typed."""

    node: str
    ssh_config: str | None
    known_hosts: str | None
    host_key: str | None

    @property
    def typed(self) -> bool:
        """Whether anything beside the name was given."""
        return any((self.ssh_config, self.known_hosts, self.host_key))


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: dynspec status blackwell-1")(status)
    app.command(epilog="Example: dynspec stop alice@10.0.0.5:2222")(stop)
    app.command(epilog="Example: dynspec restore blackwell-1")(restore)


@only_reading()
def status(
    node: NodeName,
    ssh_config: SshConfig = None,
    known_hosts: KnownHosts = None,
    host_key: HostKey = None,
    as_json: AsJson = False,
) -> int:
    """Lock, lease, journal, server, GPU processes.

    70 where a run that nobody holds any more left files changed or processes; the last line puts that right.
    """
    from orchestrator.cli.node_text import left_behind, status_lines
    from orchestrator.errors import NodeDirty
    from orchestrator.store import plain

    way = Way(node, ssh_config, known_hosts, host_key)
    with connected(way) as client:
        found = client.status()
    if as_json:
        print(json.dumps({"schema": 1, **plain(found)}))
    else:
        print("\n".join(status_lines(node, found)))
    left = left_behind(found)
    if left:
        raise NodeDirty(
            f"{node} is not as it was before {', '.join(left)}, and nobody holds it",
            restore_command=_restore_command(way),
        ).after_answer()
    return 0


def stop(
    node: NodeName,
    ssh_config: SshConfig = None,
    known_hosts: KnownHosts = None,
    host_key: HostKey = None,
    force: Force = False,
    as_json: AsJson = False,
) -> int:
    """End the run on a node; files are put back too.

    A live run needs --force, unless it was detached: then this is its Ctrl-C.
    """
    way = Way(node, ssh_config, known_hosts, host_key)
    return _give_back(way, force=force, as_json=as_json, verb="stop")


def restore(
    node: NodeName,
    ssh_config: SshConfig = None,
    known_hosts: KnownHosts = None,
    host_key: HostKey = None,
    force: Force = False,
    keep_foreign: KeepForeign = False,
    as_json: AsJson = False,
) -> int:
    """Put every changed file back.

    What dynspec started is stopped first. Safe to repeat; from any machine.
    """
    way = Way(node, ssh_config, known_hosts, host_key)
    return _give_back(way, force=force, keep_foreign=keep_foreign, as_json=as_json, verb="restore")


def _give_back(way: Way, *, force: bool, as_json: bool, verb: str, keep_foreign: bool = False) -> int:
    from orchestrator.runner.guarding import is_detached, person
    from orchestrator.runner.restore import restore_node

    again = _restore_command(way)
    with connected(way) as client:
        if verb == "stop" and not force:
            lock = client.status().lock
            force = lock is not None and is_detached(lock)
        done = restore_node(
            client, again, force=force, keep_foreign=keep_foreign, by=f"`dynspec {verb}` from {person()}"
        )
    if as_json:
        print(json.dumps({"schema": 1, "runs": done}))
        return 0
    if not done:
        print(f"{way.node}: nothing to {verb}: no open journal, no server of ours")
    for run in done:
        print(_run_line(way.node, run))
    return 0


def _restore_command(way: Way) -> str:
    from orchestrator.model.experiment import Node
    from orchestrator.runner.restore import restore_command

    known_hosts = way.known_hosts or Node.known_hosts
    return restore_command(
        Node(way.node, "", known_hosts=known_hosts, host_key=way.host_key, ssh_config=way.ssh_config)
    )


def _run_line(node: str, run: dict[str, Any]) -> str:
    count = len(run["stopped"])
    stopped = (
        f"stopped {count} {'process' if count == 1 else 'processes'}" if count else "nothing was running"
    )
    files = below(run["restored"], where="all with --json") or "no file had been changed"
    foreign = below(run["kept"], where="all with --json")
    kept = f"; left as somebody else changed them: {foreign}" if foreign else ""
    patched = ""
    if run["patched"]:
        held = below(run["patched"], where="all with --json")
        verb = "holds" if len(run["patched"]) == 1 else "hold"
        patched = (
            f"\n  warning: {held} still {verb} a patch of dynspec; install the package again to be rid of it"
        )
    return f"{node}: run {run['run_id']}: {stopped}; put back and verified: {files}{kept}{patched}"


def _check_options(way: Way) -> None:
    """Named as they were typed: there may be no experiment whose keys could be corrected."""
    from orchestrator.model.host_key import PIN_FORM, HostKey

    if way.ssh_config is not None and not os.path.isfile(os.path.expanduser(way.ssh_config)):
        raise UsageError(f"--ssh-config: no file {way.ssh_config}", help="name the ssh configuration to read")
    if way.host_key is not None and HostKey.parse(way.host_key) is None:
        raise UsageError(f"--host-key: {way.host_key!r} is no public key", help=PIN_FORM)


def connected(way: Way) -> Any:
    from orchestrator.remote.transport import ConnectSettings
    from orchestrator.runner.prepare import connect_to

    _check_options(way)
    settings = ConnectSettings(known_hosts=way.known_hosts, host_key=way.host_key, ssh_config=way.ssh_config)
    return connect_to(way.node, settings)

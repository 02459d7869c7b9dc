"""What `dynspec demo` needs of the embedded node: the node, and the experiment keys that lead to it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.demo.node import DemoNode, NodeOptions

# Above this the time a step takes is no longer the simulated one: two small cores are kept busy by the streams alone.
SPEED = 2.0
NOTICE = (
    "SIMULATED node: a real SSH connection on loopback and SGLang's real source files, but no GPU and no model. "
    "Times come from a parameter file and run {speed:g} times faster than it says."
)


@dataclass(frozen=True)
class RunningNode:
    """`overrides`: key paths of an experiment with the values that make it run on this node, for `--set`.

    `notice`: the line to show before anything else.
    """

    node: DemoNode
    overrides: dict[str, str]
    notice: str


def free_port() -> int:
    """A port that nobody holds now: the node shares the loopback of this machine with everything else on it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def how_to_use(node: DemoNode, experiment: Path) -> list[str]:
    """What to type in another terminal while the node is up. `experiment`: a file that runs there as it is."""
    ways = {"node.host": node.host, "node.ssh_config": node.ssh_config, "node.python": "~/venv/bin/python3"}
    sets = " ".join(f"--set {key}={value}" for key, value in ways.items())
    return [
        f"node    {node.host}, until Ctrl-C here; its home folder is {node.home}",
        "models  /models/demo-8b, with /models/demo-8b-eagle3 as its draft",
        "In another terminal:",
        f"  cp {experiment} mine.yaml      # an experiment that runs there: change what you like",
        "  dynspec plan mine.yaml",
        "  dynspec run mine.yaml",
        f"  dynspec doctor {node.host} --ssh-config {node.ssh_config} --python '~/venv/bin/python3'",
        f"  dynspec status {node.host} --ssh-config {node.ssh_config}",
        "A file that is written for another node, with the models above in it:",
        f"  dynspec run FILE {sets}",
    ]


def kept(node: DemoNode) -> str:
    """Where the files of a node that has ended are."""
    return (
        f"kept: {node.root} (home/ is the node's home folder, client/ the way to it). The node itself has ended; "
        "one that stays up to try things on: dynspec demo --node-only"
    )


@contextmanager
def demo_node(
    *, keep: bool = False, speed: float = SPEED, options: NodeOptions | None = None
) -> Iterator[RunningNode]:
    """An embedded node that runs while the context lasts. `keep` leaves its folder for a look."""
    chosen = options or NodeOptions(keep=keep, engine_env={"DYNSPEC_DEMO_SPEED": f"{speed:g}"})
    with DemoNode(chosen) as node:
        overrides = {
            "node.host": node.host,
            "node.ssh_config": str(node.ssh_config),
            "node.known_hosts": str(node.known_hosts),
            "server.port": str(free_port()),
        }
        yield RunningNode(node, overrides, NOTICE.format(speed=speed))

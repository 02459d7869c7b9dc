"""make bench-ssh: how many round trips lie between connecting and the launch of `dynspec run`, over a real sshd.

The command line itself runs as a process, `--json`, on a node that has never seen it: connect, agent uploaded, facts,
lock, facts again, smoke, arguments, three files of a real SGLang tree patched (`spec_banner`: 320 KB of server_args.py
and both EAGLE workers), GPU check, start. What is timed is the space between its own events, from `connect` to the
wait for the server, which then ends by itself. Near and far by turns, `--runs` times each; far has 25 ms each way
(tundelay.c: from the SYN on; on a machine with other work a longer `--delay-ms` tells the trips from the noise):

    round trips = (median far - median near) / (2 x delay)

The bar is 25. Floor, everything on one ssh's stdin: 17; fabric step by step: 61; Ansible: 121.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.e2e.controller import Place
from tests.e2e.node import SshNode, experiment
from tests.sshd import Sshd, find_sshd, free_port

BAR = 25.0
NEAR, FAR = "198.18.7.1", "198.18.7.2"  # RFC 2544: for benchmarks, routed nowhere
FIRST, LAST = (
    "connect",
    "ready",
)  # the clock stops when the run begins to wait for a server that it has started

Laps = dict[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--delay-ms", type=float, default=25.0, help="each way (25)")
    asked = parser.parse_args()
    if problem := cannot_run():
        print(f"bench-ssh cannot run here: {problem}", file=sys.stderr)
        return 2
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dynspec-bench-")))
        line = (str(build_link(folder)), str(asked.delay_ms), NEAR, FAR)
        near = stack.enter_context(site(folder / "near", "127.0.0.1", ()))
        far = stack.enter_context(site(folder / "far", FAR, line))
        # By turns, so that what else this machine does falls on both.
        laps = [(near(), far()) for _ in range(asked.runs + 1)][1:]  # the first one warms caches and imports
    return report([pair[0] for pair in laps], [pair[1] for pair in laps], 2 * asked.delay_ms / 1000)


def handshake_s(sshd: Sshd) -> float:
    """Median time of a TCP handshake: one round trip of the line as it is."""
    times = []
    for _ in range(9):
        began = time.perf_counter()
        socket.create_connection((sshd.address, sshd.port)).close()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def cannot_run() -> str:
    if os.geteuid() != 0:
        return "it makes a network namespace and TUN devices, which needs root"
    if find_sshd() is None or shutil.which("cc") is None:
        return "it needs OpenSSH's sshd and a C compiler"
    return "" if Path("/dev/net/tun").exists() else "there is no /dev/net/tun"


def build_link(folder: Path) -> Path:
    program = folder / "tundelay"
    subprocess.run(["cc", "-O2", "-o", str(program), str(Path(__file__).with_name("tundelay.c"))], check=True)
    return program


@contextmanager
def site(folder: Path, address: str, wrapper: tuple[str, ...]) -> Iterator[Callable[[], Laps]]:
    """A node at `address`; call the value for one run on it."""
    with SshNode(folder / "sshd", address=address, wrapper=wrapper) as node:
        print(f"line to {address}: a TCP handshake takes {handshake_s(node.sshd) * 1000:.1f} ms")
        yield lambda: one_run(node, folder)


def one_run(node: SshNode, folder: Path) -> Laps:
    """One first run on this node: its agent is not there yet, and its server fails as soon as it may."""
    shutil.rmtree(node.registry, ignore_errors=True)
    place = Place(Path(tempfile.mkdtemp(dir=folder)))
    env = {"DYNSPEC_DEMO_SPEED": "20", "DYNSPEC_DEMO_LOAD_S": "0", "DYNSPEC_DEMO_FAULT": "exit-during-load"}
    file = place.write(experiment(node, free_port(), server={"env": env}))
    with place.start("run", file, "--json") as running:
        done = running.wait()
        began = dict(running.phases())
    assert done.code == 1, done.text
    assert not node.problems(), node.problems()
    names = list(began)
    names = names[names.index(FIRST) : names.index(LAST) + 1]
    return {name: began[after] - began[name] for name, after in itertools.pairwise(names)}


def report(near: list[Laps], far: list[Laps], rtt_s: float) -> int:
    print(f"{'phase':22} {'near, s':>9} {'far, s':>9} {'round trips':>12}")
    for name in near[0]:
        print_row(name, [run[name] for run in near], [run[name] for run in far], rtt_s)
    totals = [sum(run.values()) for run in near], [sum(run.values()) for run in far]
    trips = print_row("total", *totals, rtt_s)
    spread = f"{min(totals[1]):.3f} to {max(totals[1]):.3f} s"
    print(
        f"runs each: {len(near)}; a round trip: {rtt_s * 1000:.0f} ms; spread far: {spread}; bar: {BAR:.0f} trips"
    )
    return 0 if trips <= BAR else 1


def print_row(name: str, near: list[float], far: list[float], rtt_s: float) -> float:
    at_near, at_far = statistics.median(near), statistics.median(far)
    trips = (at_far - at_near) / rtt_s
    print(f"{name:22} {at_near:9.3f} {at_far:9.3f} {trips:12.1f}")
    return trips


if __name__ == "__main__":
    sys.exit(main())

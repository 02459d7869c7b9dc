"""make bench-ssh: how many round trips lie between connecting and the launch, over a real sshd and a real agent.

A run does what `dynspec run` does before a server loads its model: connect, upload the agent to a fresh home, status,
facts, read the files to patch, take the node, facts again, smoke, apply two files of 20 and 320 KB, GPU check, start.
It is timed on plain loopback and over a link with 25 ms each way (tundelay.c: from the SYN on), `--runs` times each:

    round trips = (median at 50 ms - median at 0) / 50 ms

The bar is 25. Floor, everything on one ssh's stdin: 17; fabric step by step: 61; Ansible: 121.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from orchestrator.agent import pack
from orchestrator.load import pack as load_pack
from orchestrator.remote.bootstrap import Blob
from orchestrator.remote.node import Node

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.sshd import Sshd, find_sshd

BAR = 25.0
DELAY_MS = 25.0
RTT_S = 2 * DELAY_MS / 1000
NEAR, FAR = "198.18.7.1", "198.18.7.2"  # RFC 2544: for benchmarks, routed nowhere
PACKAGE = "toyserve"
SIZES = {"worker.py": 20_000, "server_args.py": 320_000}
RUN_ID = "20260101-000000-bench-0000"

Laps = dict[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    if problem := cannot_run():
        print(f"bench-ssh cannot run here: {problem}", file=sys.stderr)
        return 2
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dynspec-bench-")))
        line = (str(build_link(folder)), str(DELAY_MS), NEAR, FAR)
        near = stack.enter_context(site(folder / "near", "127.0.0.1", ()))
        far = stack.enter_context(site(folder / "far", FAR, line))
        # By turns, so that what else this machine does falls on both.
        laps = [(near(), far()) for _ in range(runs + 1)][1:]  # the first one warms caches and imports
    return report([pair[0] for pair in laps], [pair[1] for pair in laps])


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
    folder.mkdir()
    with Sshd(folder, address=address, wrapper=wrapper) as sshd:
        tree = write_tree(sshd.home / "site")
        print(f"line to {address}: a TCP handshake takes {handshake_s(sshd) * 1000:.1f} ms")
        yield lambda: one_run(sshd, tree)


def write_tree(site: Path) -> Path:
    """A package with files of the sizes in question, which compress as SGLang's do (about 5 to 1)."""
    words = random.Random(1)
    package = site / PACKAGE
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = '1'\n")
    for name, size in SIZES.items():
        lines: list[str] = []
        while sum(map(len, lines)) < size:
            name_of, default = f"field_{words.randrange(1 << 20):x}", words.randrange(1 << 14)
            lines.append(f"    {name_of}: int = {default}  # one more argument\n")
        (package / name).write_text("class Arguments:\n" + "".join(lines))
    return package


def one_run(sshd: Sshd, package: Path) -> Laps:
    shutil.rmtree(sshd.dynspec_home, ignore_errors=True)
    originals = {name: (package / name).read_bytes() for name in SIZES}
    stopwatch = Stopwatch()
    agent = Blob(pack.name(), pack.build_zipapp())
    with stopwatch.lap("connect, upload"):
        node = Node.connect(
            sshd.name,
            settings=sshd.settings(),
            blobs=[agent, Blob.of("loadgen", load_pack.build_zipapp())],
            python=sys.executable,
        )
    try:
        launch(node, package, stopwatch)
    finally:
        node.unwind(stop_s=5, reason="bench")
        node.goodbye()
        node.close()
    assert originals == {name: (package / name).read_bytes() for name in SIZES}, "the files did not come back"
    return stopwatch.laps


def launch(node: Node, package: Path, stopwatch: Stopwatch) -> None:
    place = {"python": sys.executable, "cwd": str(package.parent), "env": {}, "package": PACKAGE}
    workdir = str(package.parents[1] / ".dynspec/work")
    asked = {**place, "files": list(SIZES), "port": 39999, "workdir": workdir}
    with stopwatch.lap("agent's start, status"):
        node.status()
    with stopwatch.lap("facts"):
        facts = node.facts(**asked)
    assert facts.tree is not None, facts.tree_problem
    with stopwatch.lap("read"):
        node.contents(facts.tree.files)
    with stopwatch.lap("guard"):
        node.guard(run_id=RUN_ID, holder="bench", workdir=workdir, lease_s=120)
    with stopwatch.lap("facts again, read"):
        facts = node.facts(**asked)
        assert facts.tree is not None
        files = node.contents(facts.tree.files)
    patched = {Path(path).name: patch(data) for path, data in files.items()}
    with stopwatch.lap("smoke"):
        smoke = node.smoke(
            **place,
            workdir=workdir,
            run_id=RUN_ID,
            package_path=facts.tree.path,
            files=patched,
            modules=[f"{PACKAGE}.worker", f"{PACKAGE}.server_args"],
        )
    assert [result.state for result in smoke.imports] == ["loaded", "loaded"], smoke
    with stopwatch.lap("apply"):
        node.apply("bench", [change(path, data) for path, data in files.items()])
    with stopwatch.lap("GPU check"):
        node.free(policy="own", rules=[], gpus="all", timeout_s=30)
    with stopwatch.lap("start"):
        node.start(
            ["sleep", "60"],
            cwd="~",
            env={},
            log=f"{workdir}/{RUN_ID}/logs/bench-1.log",
            port=39999,
            arm="bench",
            boot=1,
        )


def patch(data: bytes) -> bytes:
    return data + b"\nSTART_LINE = 'patched'\n"


def change(path: str, before: bytes) -> Mapping[str, object]:
    after = patch(before)
    digests = {
        "before_sha256": hashlib.sha256(before).hexdigest(),
        "after_sha256": hashlib.sha256(after).hexdigest(),
    }
    return {"path": path, "data": after, **digests}


class Stopwatch:
    def __init__(self) -> None:
        self.laps: Laps = {}

    @contextmanager
    def lap(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.laps[name] = time.perf_counter() - began


def report(near: list[Laps], far: list[Laps]) -> int:
    print(f"{'':22} {'0 ms, s':>9} {'50 ms, s':>9} {'round trips':>12}")
    for name in near[0]:
        print_row(name, [run[name] for run in near], [run[name] for run in far])
    totals = [sum(run.values()) for run in near], [sum(run.values()) for run in far]
    trips = print_row("total", *totals)
    spread = f"{min(totals[1]):.3f} to {max(totals[1]):.3f} s"
    print(f"runs each: {len(near)}; spread at 50 ms: {spread}; bar: {BAR:.0f} round trips")
    return 0 if trips <= BAR else 1


def print_row(name: str, near: list[float], far: list[float]) -> float:
    at_0, at_50 = statistics.median(near), statistics.median(far)
    trips = (at_50 - at_0) / RTT_S
    print(f"{name:22} {at_0:9.3f} {at_50:9.3f} {trips:12.1f}")
    return trips


if __name__ == "__main__":
    sys.exit(main())

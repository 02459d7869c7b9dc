"""With a real GPU and the real nvidia-smi: holders are seen, memory is waited for, strangers are spared."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.client import Client, Refused, alive, eventually
from tests.agent.conftest import Node

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/dev/nvidia0").exists(), reason="no NVIDIA GPU on this machine"),
]

HOLD = """
import ctypes, os, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(int({gib} * 2**30))) == 0
print("holding", os.getpid(), flush=True)
time.sleep(600)
"""
WORKER = "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"


def server(gib: int) -> str:
    """A launcher whose worker leaves the tree and then takes the memory."""
    body = "".join(f"        {line}\n" for line in HOLD.format(gib=gib).strip().splitlines())
    return f"{WORKER}{body}    os._exit(0)\nimport time\ntime.sleep(600)\n"


@pytest.fixture
def client(node: Node) -> Client:
    client = node.client()
    node.guard(client)
    return client


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process of nobody's run with 2 GiB."""
    process = subprocess.Popen([sys.executable, "-c", HOLD.format(gib=2)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"holding")
    yield process.pid
    process.kill()
    process.wait()


def test_the_memory_of_a_worker_that_left_the_tree_is_free_after_stop(node: Node, client: Client) -> None:
    node.start(client, server(gib=40))
    line = eventually(lambda: [x for x in client.ask("server")["log_tail"] if x.startswith("holding")], 60)[0]
    pid = int(line.split()[1])
    seen = client.ask("holders", gpus="all")
    held = {fact["pid"]: fact for fact in seen["holders"]}[pid]
    assert held["kind"] == "C"
    assert held["memory_mib"] > 40 * 1024
    assert seen["gpus"][0]["memory_used_mib"] > 40 * 1024
    stopped = client.ask("stop", timeout_s=10, gpu_free_s=30, gpus="all")
    print("gpu_wait_s", stopped["gpu_wait_s"], stopped)
    assert pid in stopped["stopped"]
    after = client.ask("holders", gpus="all")
    assert after["holders"] == []
    assert after["gpus"][0]["memory_used_mib"] < 1024
    assert client.ask("free", policy="own", rules=[], gpus=None, timeout_s=10)["stopped"] == []


def test_a_stranger_is_spared_by_own_and_ended_when_listed(client: Client, stranger: int) -> None:
    with pytest.raises(Refused) as refused:
        client.ask("free", policy="own", rules=[], gpus=None, timeout_s=5)
    assert [fact["pid"] for fact in refused.value.details["holders"]] == [stranger]
    assert alive(stranger)
    rules = [{"user": None, "command": "libcuda"}]
    done = client.ask("free", policy="listed", rules=rules, gpus=[0], timeout_s=20)
    assert [fact["pid"] for fact in done["stopped"]] == [stranger]
    assert not alive(stranger)


def test_samples_of_a_real_gpu_have_numbers(node: Node, client: Client) -> None:
    path = node.workdir / "run-1" / "gpu.csv"
    client.ask("sample", interval_s=0.5, path=str(path))
    lines = eventually(lambda: (found := path.read_text().splitlines()) and len(found) > 4 and found)
    client.ask("sample", interval_s=1, path=None)
    assert [float(cell) for cell in lines[1].split(",")[4:6]][1] >= 0
    assert lines[1].split(",")[3].startswith("GPU-")


def test_no_call_of_the_tool_is_slow(client: Client) -> None:
    import time

    before = time.monotonic()
    assert client.ask("holders", gpus="all")["problem"] is None
    print("holders took", time.monotonic() - before)
    assert time.monotonic() - before < 5
    assert os.path.exists("/dev/nvidia0")

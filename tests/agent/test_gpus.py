"""GPUs and who holds them: odd outputs are never "free", and nobody is ended who may not be."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.agent import free, gpus, holders, ports, procs, release
from orchestrator.agent.gpus import OpenDevices, Picture, Unreadable
from orchestrator.agent.wire import AgentError
from tests.agent.client import Client, Refused, alive, eventually
from tests.agent.conftest import Node

HERE = Path(__file__).parent / "nvidia_smi"
CAPTURED = (HERE / "h200-one-process.xml").read_text()
UNREADABLE: list[dict[str, str]] = yaml.safe_load((HERE / "unreadable.yaml").read_text())


def listing(*processes: tuple[int, str, str], used: str = "0 MiB", gpus: int = 1) -> str:
    """The tool's XML: (pid, type, memory) on GPU 0; further GPUs are idle."""
    inner = "".join(
        f"<process_info><pid>{pid}</pid><type>{kind}</type><process_name>python3</process_name>"
        f"<used_memory>{memory}</used_memory></process_info>"
        for pid, kind, memory in processes
    )
    cards = [_gpu(0, used, inner), *(_gpu(index, "0 MiB", "") for index in range(1, gpus))]
    return f'<?xml version="1.0" ?><nvidia_smi_log>{"".join(cards)}</nvidia_smi_log>'


def _gpu(index: int, used: str, inner: str) -> str:
    memory = f"<fb_memory_usage><total>80000 MiB</total><used>{used}</used></fb_memory_usage>"
    return f"<gpu><product_name>Toy</product_name><uuid>GPU-{index}</uuid>{memory}<processes>{inner}</processes></gpu>"


# -- parsers


def test_a_real_capture_is_read() -> None:
    picture = gpus.parse(CAPTURED)
    assert picture.problem is None
    gpu = picture.gpus[0]
    assert (gpu.index, gpu.name, gpu.driver) == (0, "NVIDIA H200", "580.159.04")
    assert (gpu.memory_total_mib, gpu.memory_used_mib) == (143771, 2575)
    process = picture.processes[0]
    assert (process.pid, process.kind, process.gpu, process.memory_mib) == (454, "C", gpu.uuid, 2566)


def test_warnings_before_the_xml_are_skipped() -> None:
    assert gpus.parse("WARNING: infoROM is corrupted at gpu 0000:00:06.0\n" + CAPTURED).gpus[0].index == 0


@pytest.mark.parametrize(
    "memory", ["[N/A]", "N/A", "[Not Supported]", "[Insufficient Permissions]", "", "12 GiB"]
)
def test_memory_that_is_not_told_is_unknown_and_not_zero(memory: str) -> None:
    picture = gpus.parse(listing((7, "C", memory), used=memory))
    assert picture.gpus[0].memory_used_mib is None
    assert picture.processes[0].memory_mib is None


@pytest.mark.parametrize("case", UNREADABLE, ids=[case["name"] for case in UNREADABLE])
def test_what_cannot_be_read_is_refused_with_the_reason(case: dict[str, str]) -> None:
    with pytest.raises(Unreadable) as refused:
        gpus.parse(case["output"])
    assert case["says"] in str(refused.value)


@settings(max_examples=300, deadline=None)
@given(cut=st.integers(0, len(CAPTURED)), junk=st.text(max_size=30), at=st.integers(0, len(CAPTURED)))
def test_a_damaged_listing_is_read_or_refused_but_never_a_traceback(cut: int, junk: str, at: int) -> None:
    text = CAPTURED[:at] + junk + CAPTURED[at:cut] if at < cut else CAPTURED[:cut] + junk
    with contextlib.suppress(Unreadable):
        assert isinstance(gpus.parse(text), Picture)


def test_an_open_device_tells_computing_from_drawing() -> None:
    assert gpus.devices_of_links({"/dev/nvidia0", "/dev/nvidia-uvm", "/dev/nvidiactl"}) == ("fd", {0})
    assert gpus.devices_of_links({"/dev/nvidia0", "/dev/nvidia12", "/dev/nvidia-modeset"}) == ("G", {0, 12})
    assert gpus.devices_of_links({"/dev/nvidiactl", "/dev/null", "/dev/nvidia-caps/nvidia-cap1"}) is None


def test_devices_are_found_in_the_descriptors_of_processes(tmp_path: Path) -> None:
    for pid, links in ((7, ["/dev/nvidia1", "/dev/nvidia-uvm"]), (8, ["/dev/null"]), (9, ["/dev/nvidia0"])):
        folder = tmp_path / str(pid) / "fd"
        folder.mkdir(parents=True)
        for number, link in enumerate(links):
            (folder / str(number)).symlink_to(link)
    assert gpus.device_holders(str(tmp_path)) == {7: ("fd", {1}), 9: ("G", {0})}


@pytest.mark.parametrize(
    ("minors", "wanted", "holds"),
    [
        ({"GPU-0": 3, "GPU-1": 0}, [0], True),
        ({"GPU-0": 3, "GPU-1": 0}, [1], False),
        ({"GPU-0": 3, "GPU-1": 0}, [0, 1], True),
        ({"GPU-0": 3, "GPU-1": 0}, None, True),
        ({"GPU-0": 3}, [1], True),
        ({}, [1], True),
    ],
    ids=["its GPU", "another GPU", "both", "all", "number not told", "no number told"],
)
def test_who_is_not_listed_holds_the_gpus_whose_devices_it_has_open(
    minors: dict[str, int], wanted: list[int] | None, holds: bool
) -> None:
    cards = [gpus.Gpu(index, f"GPU-{index}", "H200", 1000, 0, None) for index in (0, 1)]
    opened = {os.getppid(): OpenDevices("fd", frozenset([3]))}
    found = holders.facts(Picture(cards, [], minors=minors), opened, wanted)
    assert [fact["pid"] for fact in found] == ([os.getppid()] if holds else [])


def test_a_process_on_two_gpus_is_one_holder_with_the_memory_of_both() -> None:
    both = [gpus.GpuProcess(os.getpid(), "C", f"GPU-{index}", 1000, "python3") for index in (0, 1)]
    cards = [gpus.Gpu(index, f"GPU-{index}", "Toy", 80000, 1000, None) for index in (0, 1)]
    found = holders.facts(Picture(cards, both), {os.getpid(): OpenDevices("fd", frozenset([0]))}, None)
    assert [(fact["pid"], fact["memory_mib"]) for fact in found] == [(os.getpid(), 2000)]
    assert holders.facts(Picture(cards, both[:1]), {}, [1]) == []


def test_a_pid_of_another_container_is_a_holder_that_cannot_be_identified() -> None:
    absent = 2**22 + 5
    picture = gpus.parse(listing((absent, "C", "100 MiB")))
    fact = holders.facts(picture, {}, None)[0]
    assert (fact["start_time"], fact["user"], fact["command"]) == (0, "?", "python3")


TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0
   1: 0100007F:7530 0100007F:A1B2 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0 100 0 0 10 0
   2: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 0 100 0 0 10 0
   odd line
"""


def test_only_a_listening_socket_makes_a_port_busy() -> None:
    assert ports.listening_inodes(TCP.splitlines(), 30000) == {4711}
    assert ports.listening_inodes(TCP.splitlines(), 30001) == set()
    six = TCP.replace("0100007F:7530", "00000000000000000000000001000000:7530")
    assert ports.listening_inodes(six.splitlines(), 30000) == {4711}


def test_the_thousands_of_connections_that_a_load_leaves_behind_are_never_all_in_memory(
    tmp_path: Path,
) -> None:
    closed = "   9: 0100007F:7530 0100007F:A1B2 06 00000000:00000000 03:00000FA0 00000000  0  0 0 3 0\n"
    table = tmp_path / "tcp"
    table.write_text(TCP + closed * 5_000)
    tracemalloc.start()
    try:
        assert ports.inodes(30000, [str(table)]) == {4711}
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < table.stat().st_size / 8


@pytest.mark.parametrize("command", ["plain", "two words", "paren ) S 1", "(((", "new\nline"])
def test_a_stat_line_is_read_whatever_the_command_is_called(command: str) -> None:
    line = f"42 ({command}) S 7 8 9 0 -1 4194304 1 0 0 0 2 1 0 0 20 0 3 0 123456 1000 10 18446744073709551615"
    stat = procs.parse_stat(line)
    assert (stat.pid, stat.command, stat.state, stat.parent, stat.group, stat.session) == (
        42,
        command,
        "S",
        7,
        8,
        9,
    )
    assert (stat.threads, stat.start_time) == (3, 123456)


@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=120))
def test_a_foreign_stat_line_is_a_value_error_at_most(text: str) -> None:
    with contextlib.suppress(ValueError):
        procs.parse_stat(text)


# -- memory after the end


def picture(used: int | None, *processes: tuple[int, int | None]) -> Picture:
    listed = [gpus.GpuProcess(pid, "C", "GPU-0", memory, "p") for pid, memory in processes]
    return Picture([gpus.Gpu(0, "GPU-0", "Toy", 80000, used, None)], listed)


RELEASE: list[tuple[str, Picture, dict[int, int | None], bool]] = [
    ("idle", picture(0), {}, True),
    ("as before", picture(3000), {0: 2900}, True),
    ("still charged to nobody", picture(70000), {0: 10}, False),
    ("still charged to nobody, nothing known before", picture(70000), {}, False),
    ("our pid still listed", picture(500, (7, 400)), {0: 0}, False),
    ("somebody else's memory is theirs", picture(70000, (8, 69500)), {0: 10}, True),
    ("memory not told: the list of processes decides", picture(None), {0: None}, True),
]


@pytest.mark.parametrize(("name", "seen", "before", "released"), RELEASE, ids=[row[0] for row in RELEASE])
def test_memory_counts_as_free_only_when_nobody_of_ours_has_it(
    name: str, seen: Picture, before: dict[int, int | None], released: bool
) -> None:
    assert (release.still_charged(seen, {7}, before, None) is None) == released


# -- who may be ended


def holder(**over: Any) -> dict[str, Any]:
    fact = {
        "pid": 4_000_000,
        "start_time": 5,
        "user": "alice",
        "command": "python -m sglang.launch_server",
        "kind": "C",
    }
    return {**fact, **over}


def request(policy: str, *rules: tuple[str | None, str | None]) -> free.Request:
    return free.Request(policy, [free.Rule(*rule) for rule in rules], None, 1.0)


ALLOWED: list[tuple[str, free.Request, dict[str, Any], bool]] = [
    ("own ends a recorded process", request("own"), holder(pid=4_000_001), True),
    ("own ends nobody else", request("own"), holder(), False),
    (
        "a recorded pid of another start time is somebody else",
        request("own"),
        holder(pid=4_000_001, start_time=6),
        False,
    ),
    ("wait ends nobody else", request("wait"), holder(), False),
    ("listed by user and command", request("listed", ("alice", "sglang")), holder(), True),
    ("listed user, other command", request("listed", ("alice", "vllm")), holder(), False),
    ("other user, listed command", request("listed", ("bob", "sglang")), holder(), False),
    ("listed by user alone", request("listed", ("alice", None)), holder(), True),
    ("part of a user name is not the user", request("listed", ("ali", None)), holder(), False),
    ("all ends a stranger", request("all"), holder(), True),
    ("all spares the display", request("all"), holder(kind="G"), False),
    ("all spares init", request("all"), holder(pid=1), False),
    ("all spares ourselves", request("all"), holder(pid=os.getpid()), False),
    ("all spares our parents", request("all"), holder(pid=os.getppid()), False),
    ("all spares what cannot be seen from here", request("all"), holder(start_time=0), False),
]


@pytest.mark.parametrize(("name", "asked", "fact", "allowed"), ALLOWED, ids=[row[0] for row in ALLOWED])
def test_the_policy_decides_who_may_be_ended(
    name: str, asked: free.Request, fact: dict[str, Any], allowed: bool
) -> None:
    assert free.allowed(asked, {(4_000_001, 5)}, fact) == allowed


def test_a_rule_for_everybody_is_refused() -> None:
    with pytest.raises(AgentError) as refused:
        free.parse({"policy": "listed", "rules": [{"user": None, "command": ""}]})
    assert refused.value.code == "bad_request"


# -- the deed, with real processes


@pytest.fixture
def client(node: Node) -> Client:
    client = node.client()
    node.guard(client)
    return client


Spawn = Callable[..., int]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Starts bystanders; their pids."""
    started: list[subprocess.Popen[bytes]] = []

    def start(source: str = "import time; time.sleep(300)") -> int:
        process = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE)
        started.append(process)
        return process.pid

    yield start
    for process in started:
        process.kill()
        process.wait()


def freed(client: Client, policy: str, *, timeout_s: float = 5, **args: Any) -> dict[str, Any]:
    return client.ask("free", policy=policy, timeout_s=timeout_s, **{"rules": [], "gpus": None, **args})


def busy(client: Client, policy: str, **args: Any) -> Refused:
    with pytest.raises(Refused) as refused:
        freed(client, policy, **args)
    assert refused.value.code == "busy"
    return refused.value


def show_while_alive(node: Node, pid: int, memory: str = "70000 MiB") -> None:
    """A tool that lists the process as long as it lives (a zombie is gone for the driver)."""
    node.fake_nvidia_smi(listing((pid, "C", memory), used=memory))
    (node.folder / "idle.xml").write_text(listing())
    node.fake_tool(
        f"state=$(sed 's/.*) //' /proc/{pid}/stat 2>/dev/null | cut -c1); "
        f'case "$state" in ""|Z) cat {node.folder}/idle.xml;; *) cat {node.folder}/gpus.xml;; esac'
    )


def test_a_node_without_gpus_is_free(client: Client) -> None:
    assert freed(client, "own")["stopped"] == []


def test_with_nobody_there_nobody_is_ended_and_the_run_goes_on(node: Node, client: Client) -> None:
    node.fake_nvidia_smi(listing())
    assert freed(client, "all")["stopped"] == []
    assert client.ask("verify") == {"files": []}


def test_a_stranger_is_listed_and_spared_by_default(node: Node, client: Client, spawn: Spawn) -> None:
    pid = spawn()
    show_while_alive(node, pid)
    refused = busy(client, "own")
    assert [(fact["pid"], fact["memory_mib"]) for fact in refused.details["holders"]] == [(pid, 70000)]
    assert f"pid {pid}" in refused.message
    assert "70000 MiB" in refused.message
    assert alive(pid)


def test_one_who_may_not_be_ended_spares_all(node: Node, client: Client, spawn: Spawn) -> None:
    mine, other = spawn("import time  # sglang\ntime.sleep(300)"), spawn()
    node.fake_nvidia_smi(listing((mine, "C", "10 MiB"), (other, "C", "10 MiB"), used="20 MiB"))
    refused = busy(client, "listed", rules=[{"user": procs.user_name(os.geteuid()), "command": "sglang"}])
    assert [fact["pid"] for fact in refused.details["holders"]] == [other]
    assert alive(mine)


def test_a_listed_process_is_ended_and_its_end_is_proven(node: Node, client: Client, spawn: Spawn) -> None:
    pid = spawn("import signal, time  # sglang\nsignal.signal(15, signal.SIG_IGN)\ntime.sleep(300)")
    eventually(lambda: "sglang" in procs.command_line(pid))
    time.sleep(0.2)
    show_while_alive(node, pid)
    done = freed(client, "listed", timeout_s=3, rules=[{"user": None, "command": "sglang"}])
    assert [fact["pid"] for fact in done["stopped"]] == [pid]
    assert not alive(pid)


def test_the_display_neither_blocks_nor_ends(node: Node, client: Client, spawn: Spawn) -> None:
    pid = spawn()
    node.fake_nvidia_smi(listing((pid, "G", "300 MiB"), used="300 MiB"))
    assert freed(client, "all")["stopped"] == []
    assert alive(pid)


def test_waiting_ends_when_the_stranger_leaves(node: Node, client: Client, spawn: Spawn) -> None:
    pid = spawn("import time; time.sleep(1.2)")
    show_while_alive(node, pid)
    assert freed(client, "wait", timeout_s=10)["stopped"] == []


def test_waiting_has_an_end_too(node: Node, client: Client, spawn: Spawn) -> None:
    pid = spawn()
    show_while_alive(node, pid)
    assert [fact["pid"] for fact in busy(client, "wait", timeout_s=1).details["holders"]] == [pid]
    assert alive(pid)


def test_other_gpus_do_not_matter(node: Node, client: Client, spawn: Spawn) -> None:
    pid = spawn()
    node.fake_nvidia_smi(listing((pid, "C", "70000 MiB"), used="70000 MiB", gpus=2))
    assert freed(client, "own", gpus=[1])["stopped"] == []
    assert busy(client, "own", gpus=[0]).details["holders"][0]["pid"] == pid
    with pytest.raises(Refused) as refused:
        freed(client, "own", gpus=[2])
    assert refused.value.code == "mismatch"


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo Failed to initialize NVML: Insufficient Permissions", "Insufficient Permissions"),
        ("echo Unable to determine the device handle >&2; exit 9", "exit status 9: Unable"),
        ("exit 9", "exit status 9"),
        ("printf '\\377\\376'", "no XML"),
    ],
)
def test_a_tool_that_cannot_say_never_means_free(node: Node, client: Client, script: str, says: str) -> None:
    node.fake_tool(script)
    for policy in free.POLICIES:
        with pytest.raises(Refused) as refused:
            freed(client, policy, timeout_s=1)
        assert refused.value.code == "failed"
        assert says in refused.value.message


def test_a_tool_that_hangs_has_its_own_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nsleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    before = time.monotonic()
    picture = gpus.read(timeout_s=0.3)
    assert picture.problem is not None
    assert "no answer within 0.3 s" in picture.problem
    assert time.monotonic() - before < 20


def test_memory_that_lingers_is_waited_for_with_a_limit_and_numbers(node: Node, client: Client) -> None:
    """The tool shows 70 GB while the server lives, goes on for a second after its end, then none."""
    server = node.folder / "server.pid"
    node.fake_tool(
        f"last={node.folder}/last; pid=$(cat {server} 2>/dev/null); busy=no\n"
        'if [ -n "$pid" ] && [ -d /proc/$pid ]; then touch $last; busy=yes; fi\n'
        "age=$(( $(date +%s%N) - $(date -r $last +%s%N 2>/dev/null || echo 0) ))\n"
        "if [ $age -lt 1000000000 ]; then busy=yes; fi\n"
        f"cat {node.folder}/$busy.xml"
    )
    (node.folder / "yes.xml").write_text(listing(used="70000 MiB"))
    (node.folder / "no.xml").write_text(listing(used="12 MiB"))
    pid = node.start(client, "import time; time.sleep(300)")["pid"]
    server.write_text(str(pid))
    assert client.ask("holders", gpus="all")["gpus"][0]["memory_used_mib"] == 70000
    stopped = client.ask("stop", timeout_s=3, gpu_free_s=5, gpus=None)
    assert 0.3 < stopped["gpu_wait_s"] < 4
    node.fake_nvidia_smi(listing(used="12 MiB"))
    node.start(client, "import time; time.sleep(300)")
    node.fake_nvidia_smi(listing(used="70000 MiB"))
    with pytest.raises(Refused) as refused:
        client.ask("stop", timeout_s=3, gpu_free_s=0.5, gpus=None)
    assert refused.value.code == "timeout"
    assert "GPU 0 has 70000 MiB in use that no process accounts for (limit 524)" in refused.value.message
    assert client.ask("unwind", stop_s=2, reason="done")["verified"], "late memory is no dirty node"


def test_samples_are_taken_until_they_are_stopped(node: Node, client: Client) -> None:
    """The guardian itself stands for its server on the GPU; this process is somebody else's."""
    node.fake_tool(
        f"""case "$1" in --query-compute-apps*) echo "GPU-0, $PPID"; echo "GPU-0, {os.getpid()}"; exit;; esac
        echo '0, GPU-0, 37, 1200, 350.10, 1980, 61'; echo '1, GPU-1, 0, 3, [N/A], 210, 30'"""
    )
    path = node.workdir / "run-1" / "logs" / "gpu.csv"
    assert client.ask("sample", interval_s=0.1, path=str(path))["note"] is None
    lines = eventually(lambda: (found := path.read_text().splitlines()) and len(found) > 6 and found)
    client.ask("sample", interval_s=1, path=None)
    assert lines[0].startswith("utc_s,elapsed_s,foreign_pids,xids,index,uuid,utilization.gpu,memory.used")
    assert lines[1].split(",")[2] == str(os.getpid())
    assert lines[1].split(",")[4:] == ["0", "GPU-0", "37", "1200", "350.10", "1980", "61"]
    size = path.stat().st_size
    time.sleep(0.3)
    assert path.stat().st_size == size


def test_without_a_tool_samples_are_noted_as_missing(client: Client, node: Node) -> None:
    note = client.ask("sample", interval_s=1, path=str(node.workdir / "run-1" / "gpu.csv"))["note"]
    assert "no nvidia-smi" in note


def test_a_device_without_a_tool_is_a_problem_and_not_a_node_without_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus.read() == Picture([], [])
    assert gpus.read(devices=str(tmp_path / "nvidia[0-9]*")).problem is None
    (tmp_path / "nvidia0").touch()
    problem = gpus.read(devices=str(tmp_path / "nvidia[0-9]*")).problem
    assert problem is not None
    assert "no nvidia-smi" in problem


def test_signals_reach_only_the_process_that_was_meant(spawn: Spawn) -> None:
    pid = spawn()
    identity = procs.identity_of(pid)
    assert identity is not None
    assert not procs.send((pid, identity[1] + 1), signal.SIGKILL)
    assert alive(pid)
    procs.send_group(os.getpgrp(), {identity}, signal.SIGKILL)
    assert alive(pid), "our own group is never signalled"
    assert procs.send(identity, signal.SIGKILL)
    eventually(lambda: not procs.is_alive(identity))


OLD_DRIVER = """
case "$1" in
  *{unknown}*) echo 'Field "{unknown}" is not a valid field to query.'; exit 2;;
  *clocks_throttle_reasons.active*) echo '0, GPU-0, 37, 1200, 350.10, 1980, 61, 0x0000000000000004';;
  *) echo '0, GPU-0, 37, 1200, 350.10, 1980, 61';;
esac
"""


@pytest.mark.parametrize(
    ("unknown", "column"),
    [
        ("clocks_event_reasons.active", "clocks_throttle_reasons.active"),
        ("reasons.active", "temperature.gpu"),
    ],
)
def test_why_clocks_are_low_is_asked_in_the_words_that_the_driver_has(
    node: Node, client: Client, unknown: str, column: str
) -> None:
    node.fake_tool(OLD_DRIVER.replace("{unknown}", unknown))
    path = node.workdir / "run-1" / "logs" / "gpu.csv"
    client.ask("sample", interval_s=0.1, path=str(path))
    lines = eventually(lambda: (found := path.read_text().splitlines()) and len(found) > 3 and found)
    client.ask("sample", interval_s=1, path=None)
    assert lines[0].split(",")[-1] == column
    assert {len(line.split(",")) for line in lines} == {len(lines[0].split(","))}


def test_a_tool_that_fails_at_first_leaves_a_gap_and_no_wrong_columns(node: Node, client: Client) -> None:
    count = node.folder / "count"
    node.fake_tool(
        f"echo x >> {count}; [ $(wc -l < {count}) -gt 3 ] || exit 9; echo '0, GPU-0, 1, 2, 3, 4, 5, 0x1'"
    )
    path = node.workdir / "run-1" / "logs" / "gpu.csv"
    client.ask("sample", interval_s=0.1, path=str(path))
    lines = eventually(lambda: (found := path.read_text().splitlines()) and len(found) > 2 and found)
    assert lines[0].endswith(",clocks_event_reasons.active")


def test_a_sampler_that_is_started_again_goes_on_without_a_second_header(node: Node, client: Client) -> None:
    node.fake_tool("echo '0, GPU-0, 37, 1200, 350.10, 1980, 61, 0x0000000000000001'")
    path = node.workdir / "run-1" / "logs" / "gpu.csv"
    for count in (2, 4):
        client.ask("sample", interval_s=0.1, path=str(path))
        eventually(lambda count=count: path.exists() and len(path.read_text().splitlines()) > count)
    client.ask("sample", interval_s=1, path=None)
    assert sum(line.startswith("utc_s") for line in path.read_text().splitlines()) == 1

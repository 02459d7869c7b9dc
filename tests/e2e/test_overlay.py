"""`node.patch_mode: overlay` from the command line to the report: the installed package is read and nothing else."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.demo.node import NodeOptions
from tests.e2e.controller import MEASURED, Place
from tests.e2e.node import EAGLE3, Picture, SshNode, experiment
from tests.sshd import free_port

pytestmark = [pytest.mark.sshd, pytest.mark.wheels]

ARMS = {"plain": {"args": EAGLE3}, "banner": {"extends": "plain", "patches": ["spec_banner"]}}
WORDS = ["--set", "node.patch_mode=overlay"]


def picture(folder: Path) -> Picture:
    """Everything there with its times: a write, a chmod, a link or a rename would show in them."""
    found: Picture = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        info = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (content, info.st_mode, info.st_nlink, info.st_mtime_ns, info.st_ctime_ns)
    return found


@contextmanager
def read_only(folder: Path) -> Iterator[bool]:
    """Nobody may write there; true where the file system forbids it even to root."""
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.rglob("*")]}
    for path, mode in modes.items():
        path.chmod(mode & ~0o222)
    sealed = subprocess.run(["chattr", "-R", "+i", folder], capture_output=True, check=False).returncode == 0
    try:
        yield sealed
    finally:
        if sealed:
            subprocess.run(["chattr", "-R", "-i", folder], check=True)
        for path, mode in modes.items():
            path.chmod(mode)


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def test_a_read_only_package_is_measured_with_two_ranks_and_is_not_touched(
    fresh_node: Callable[..., SshNode], place: Place
) -> None:
    node = fresh_node(NodeOptions(gpus=2))
    path = place.write(experiment(node, free_port(), server={"args": {"tp-size": 2}}, arms=ARMS))
    with read_only(node.package) as sealed:
        before = picture(node.package)
        if sealed:
            in_place = place.run("run", path)
            assert (in_place.code, "cannot be replaced" in in_place.err) == (4, True), in_place.text
        done = place.run("run", path, *WORDS, "--results", str(place.folder / "overlay"))
        assert done.code in MEASURED, done.text
        assert picture(node.package) == before
    assert node.problems() == []
    assert list(node.workdir.iterdir()) == []
    (folder,) = (place.folder / "overlay").iterdir()
    assert json.loads((folder / "plan.json").read_text())["plan"]["patch_mode"] == "overlay"
    _every_rank_ran_from_the_overlay(folder, f"{node.workdir}/{folder.name}/overlay")


def _every_rank_ran_from_the_overlay(folder: Path, root: str) -> None:
    seen = {event["arm"]: event for event in events(folder, "overlay")}
    assert set(seen) == {"plain", "banner"}
    for event in seen.values():
        assert (event["root"], event["problems"]) == (root, [])
        assert {process["state"] for process in event["processes"]} == {"overlay"}
        commands = [process["command"] for process in event["processes"]]
        assert len(commands) == 2, commands
        assert any("sglang::scheduler_TP1" in command for command in commands)
    worker = f"{root}/sglang/srt/speculative/eagle_worker"
    info = json.loads((folder / "arms" / "banner" / "boot-1" / "server_info.json").read_text())
    (file,) = info["worker_seen"]["files"]
    assert file.startswith(worker)
    log = (folder / "arms" / "banner" / "boot-1" / "server.log").read_text()
    assert log.count(f"file={worker}") == 2  # one line a rank
    assert "dynspec:" not in (folder / "arms" / "plain" / "boot-1" / "server.log").read_text()


def test_plan_says_which_mode_and_touches_nothing(node: SshNode, place: Place) -> None:
    path = place.write(experiment(node, free_port()))
    in_place = place.run("plan", path)
    assert "patches  in place: files of the installed package are changed" in in_place.out
    done = place.run("plan", path, *WORDS)
    assert done.code == 0, done.text
    for words in (
        "patches  overlay: a copy of the package serves all arms; installed files are only read",
        "files below the copy for spec_banner (removed at the end):\n         srt/server_args.py, ",
        "put spec_banner into the overlay",
        "remove the overlay; the installed files were only read",
        "[undo: remove the overlay]",
    ):
        assert words in done.out, done.text
    assert str(node.package / "srt") not in done.out
    assert node.problems() == []


def test_a_killed_controller_and_a_restore_leave_no_overlay(
    node: SshNode, place: Place, elsewhere: Place
) -> None:
    before = picture(node.package)
    made = experiment(node, free_port(), node={"patch_mode": "overlay"})
    made["server"]["env"]["DYNSPEC_DEMO_SPEED"] = "2"
    made["sweep"].update(output_tokens=256, requests_per_slot=100)
    with place.start("run", place.write(made), "--json") as run:
        run.wait_event("point")
        (overlay,) = node.workdir.glob("*/overlay")
        assert (overlay / "sglang" / "srt" / "server_args.py").is_file()
        run.kill()
    reach = ["--ssh-config", str(node.sshd.ssh_config), "--known-hosts", str(node.sshd.known_hosts)]
    restored = elsewhere.run("restore", node.name, *reach)
    assert restored.code == 0, restored.text
    assert not overlay.exists()
    assert picture(node.package) == before
    assert node.problems() == []


def test_who_serves_from_the_installed_package_is_no_obstacle(node: SshNode, place: Place) -> None:
    command = [str(node.demo.python), "-c", "import time; time.sleep(300)", "sglang.launch_server"]
    other = subprocess.Popen(command, cwd="/", env={"PATH": "/bin"})
    try:
        path = place.write(experiment(node, free_port()))
        _until_it_runs(other.pid, node.demo.python)
        in_place = place.run("run", path)
        assert (in_place.code, f"pid {other.pid}" in in_place.err) == (3, True), in_place.text
        done = place.run("run", path, *WORDS)
        assert done.code in MEASURED, done.text
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def _until_it_runs(pid: int, python: Path) -> None:
    deadline = time.monotonic() + 5
    while os.path.realpath(f"/proc/{pid}/exe") != os.path.realpath(python):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_package_in_the_folder_it_is_started_in_is_refused_with_the_reason(
    node: SshNode, place: Place
) -> None:
    shadow = node.home / "serve" / "sglang"
    shadow.symlink_to(node.package)
    try:
        done = place.run("run", place.write(experiment(node, free_port())), *WORDS)
    finally:
        shadow.unlink()
    assert done.code == 4, done.text
    assert "the folder that the server is started in has its own" in done.err
    assert "node.cwd" in done.err
    assert not list(place.results.iterdir())


def test_without_a_patch_there_is_nothing_to_lay(node: SshNode, place: Place) -> None:
    path = place.write(experiment(node, free_port(), arms={"plain": {}}))
    done = place.run("run", path, *WORDS)
    assert done.code in MEASURED, done.text
    assert events(place.run_folder(), "overlay") == []

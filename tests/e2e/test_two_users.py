"""A node that somebody else uses: busy is told at once, foreign processes are left alone, and from any folder one can
see, stop and restore what dynspec did."""

from __future__ import annotations

import json
import resource
import signal
import time
from typing import Any

import pytest

from tests.e2e.conftest import Measured
from tests.e2e.controller import MEASURED, Place, Running
from tests.e2e.node import Foreign, SshNode, experiment
from tests.sshd import free_port

pytestmark = [pytest.mark.sshd, pytest.mark.wheels]

BUSY_S = 2.0


def _long(node: SshNode, rounds: int = 200) -> dict[str, Any]:
    """A run whose only point takes 0.3 s a round, so that there is time to look at it."""
    made = experiment(node, free_port())
    made["server"]["env"]["DYNSPEC_DEMO_SPEED"] = "4"
    made["sweep"].update(concurrency=[2], output_tokens=256, requests_per_slot=rounds)
    return made


def _reach(node: SshNode) -> list[str]:
    return ["--ssh-config", str(node.sshd.ssh_config), "--known-hosts", str(node.sshd.known_hosts)]


def _children_cpu_s() -> float:
    """Of all commands that have ended so far. What other work the machine has does not count."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _at_its_point(run: Running) -> None:
    run.wait_event("point")
    time.sleep(0.3)


def test_a_second_run_is_refused_at_once_and_the_first_does_not_notice(
    node: SshNode, place: Place, elsewhere: Place, measured: Measured
) -> None:
    with place.start("run", place.write(_long(node, rounds=30)), "--json") as first:
        _at_its_point(first)
        files, server = node.files(), node.server_pid()
        before_s = _children_cpu_s()
        second = elsewhere.run("run", elsewhere.write(experiment(node, free_port())))
        busy_s = _children_cpu_s() - before_s
        assert (node.files(), node.server_pid()) == (files, server)
        done = first.wait()
    assert second.code == 3, second.text
    assert done.code in MEASURED, done.text
    run_id = place.run_folder().name
    assert f"in use by run {run_id}" in second.errors[0]
    assert "--lock-wait" in second.err
    assert not list(elsewhere.results.iterdir())
    (point,) = [event for event in done.events if event["event"] == "point_done"]
    assert (point["ok"], point["failed"]) == (60, 0)
    print(f"measured: second run refused after {second.seconds:.2f} s on this machine as it is")
    measured("processor time until a second run is refused", busy_s, BUSY_S)


def test_a_second_run_can_wait_its_turn(node: SshNode, place: Place, elsewhere: Place) -> None:
    with place.start("run", place.write(_long(node, rounds=30)), "--json") as first:
        _at_its_point(first)
        words = ["run", elsewhere.write(experiment(node, free_port())), "--lock-wait", "60s", "--json"]
        with elsewhere.start(*words) as second:
            note = second.wait_event("note")[1]
            assert "waiting up to 60 s" in note["text"]
            assert first.wait().code in MEASURED
            assert second.wait().code in MEASURED


def test_ctrl_c_ends_the_waiting_and_leaves_the_holder_alone(
    node: SshNode, place: Place, elsewhere: Place
) -> None:
    with place.start("run", place.write(_long(node, rounds=30)), "--json") as first:
        _at_its_point(first)
        words = ["run", elsewhere.write(experiment(node, free_port())), "--lock-wait", "60s", "--json"]
        with elsewhere.start(*words) as second:
            second.wait_event("note")
            second.send(signal.SIGINT)
            assert second.wait(10).code == 130
        assert first.wait().code in MEASURED


def test_status_names_the_holder_from_anywhere(node: SshNode, place: Place, elsewhere: Place) -> None:
    reach = _reach(node)
    free = elsewhere.run("status", node.name, *reach)
    assert (free.code, "nobody holds the lock" in free.out) == (0, True), free.text
    with place.start("run", place.write(_long(node)), "--json") as run:
        _at_its_point(run)
        told = elsewhere.run("status", node.name, *reach)
        as_json = json.loads(elsewhere.run("status", node.name, *reach, "--json").out)
        server = node.server_pid()
        run.send(signal.SIGTERM)
        assert run.wait().code == 143
    run_id = place.run_folder().name
    assert f"run {run_id}" in told.out
    assert f"server pid {server}" in told.out
    assert (as_json["lock"]["run_id"], as_json["lock"]["state"]) == (run_id, "live")


@pytest.mark.parametrize("command", ["stop", "restore"])
def test_a_live_run_is_ended_from_elsewhere_only_by_force(
    command: str, node: SshNode, place: Place, elsewhere: Place
) -> None:
    reach = _reach(node)
    with place.start("run", place.write(_long(node)), "--json") as run:
        _at_its_point(run)
        refused = elsewhere.run(command, node.name, *reach)
        assert refused.code == 3, refused.text
        assert "--force" in refused.err
        taken = elsewhere.run(command, node.name, *reach, "--force", "--json")
        assert taken.code == 0, taken.text
        (ended,) = json.loads(taken.out)["runs"]
        assert node.lock_holder() is None
        done = run.wait(20)
    assert len(ended["restored"]) == 3
    assert ended["stopped"]
    assert ended["run_id"] == place.run_folder().name
    assert done.code == 1, done.text
    assert "the run was ended from outside" in done.text


def test_a_foreign_process_on_the_gpu_is_named_and_left_alone(
    node: SshNode, place: Place, foreign: Foreign
) -> None:
    entry = foreign.hold_gpu()
    try:
        done = place.run("run", place.write(experiment(node, free_port())))
        assert done.code == 3, done.text
        assert f"pid {foreign.pid}" in done.err
        assert "sglang.launch_server --model-path /models/theirs" in done.err
        assert "node.free" in done.err
        assert foreign.alive
        assert node.problems() == []
    finally:
        entry.unlink()
    assert not list(place.results.iterdir())


def test_a_file_that_somebody_else_edits_during_the_run_is_not_overwritten(
    node: SshNode, place: Place, elsewhere: Place
) -> None:
    target = node.package / "srt" / "server_args.py"
    original = target.read_bytes()
    with place.start("run", place.write(_long(node)), "--json") as run:
        _at_its_point(run)
        theirs = target.read_bytes() + b"\n# edited by hand\n"
        target.write_bytes(theirs)
        run.send(signal.SIGTERM)
        done = run.wait()
    assert done.code == 70, done.text
    command = done.errors[-1]
    assert command.startswith(f"dynspec restore {node.name} --ssh-config ")
    assert target.read_bytes() == theirs
    again = elsewhere.run(*command.split()[1:])
    assert again.code == 70, again.text
    assert str(target) in again.err
    assert again.errors[-1] == command
    kept = elsewhere.run(*command.split()[1:], "--keep-foreign")
    assert kept.code == 0, kept.text
    assert f"left as somebody else changed them: {target}" in kept.out
    target.write_bytes(original)
    assert elsewhere.run(*command.split()[1:]).out.endswith("no open journal, no server of ours\n")

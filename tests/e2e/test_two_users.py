"""A node that somebody else uses: busy is told at once, foreign processes are left alone, and from any folder one can
see, stop and restore what dynspec did."""

from __future__ import annotations

import json
import re
import resource
import signal
import time
from pathlib import Path
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


def test_while_a_run_goes_on_others_are_refused_wait_their_turn_or_give_up_waiting(
    node: SshNode, place: Place, elsewhere: Place, measured: Measured
) -> None:
    path = elsewhere.write(experiment(node, free_port()))
    with place.start("run", place.write(_long(node, rounds=40)), "--json") as first:
        _at_its_point(first)
        files, server = node.files(), node.server_pid()
        waiting = [elsewhere.start("run", path, "--lock-wait", "60s", "--json") for _ in range(2)]
        with waiting[0] as patient, waiting[1] as impatient:
            before_s = _children_cpu_s()
            refused = elsewhere.run("run", path)
            busy_s = _children_cpu_s() - before_s
            assert "waiting up to 60 s" in patient.wait_event("note")[1]["text"]
            impatient.wait_event("note")
            impatient.send(signal.SIGINT)
            assert impatient.wait().code == 130
            assert (node.files(), node.server_pid()) == (files, server)
            done = first.wait()
            assert patient.wait().code in MEASURED
    assert done.code in MEASURED, done.text
    assert refused.code == 3, refused.text
    assert f"in use by run {place.run_folder().name}" in refused.errors[0]
    assert "--lock-wait" in refused.err
    (point,) = [event for event in done.events if event["event"] == "point_done"]
    assert (point["ok"], point["failed"]) == (80, 0)
    print(f"measured: second run refused after {refused.seconds:.2f} s on this machine as it is")
    measured("processor time until a second run is refused", busy_s, BUSY_S)


def test_a_live_run_is_seen_from_elsewhere_and_ended_only_by_force(
    node: SshNode, place: Place, elsewhere: Place
) -> None:
    reach = _reach(node)
    free = elsewhere.run("status", node.name, *reach)
    assert (free.code, "nobody holds the lock" in free.out) == (0, True), free.text
    with place.start("run", place.write(_long(node)), "--json") as run:
        _at_its_point(run)
        run_id, server = place.run_folder().name, node.server_pid()
        told = elsewhere.run("status", node.name, *reach)
        as_json = json.loads(elsewhere.run("status", node.name, *reach, "--json").out)
        refused = elsewhere.run("restore", node.name, *reach)
        taken = elsewhere.run("restore", node.name, *reach, "--force", "--json")
        assert node.lock_holder() is None
        done = run.wait()
    assert (told.code, f"run {run_id}" in told.out) == (0, True), told.text
    assert f"server pid {server}" in told.out
    assert (as_json["lock"]["run_id"], as_json["lock"]["state"]) == (run_id, "live")
    assert (refused.code, "--force" in refused.err) == (3, True), refused.text
    assert taken.code == 0, taken.text
    (ended,) = json.loads(taken.out)["runs"]
    assert (ended["run_id"], len(ended["restored"]), server in ended["stopped"]) == (run_id, 3, True)
    assert done.code == 130, done.text
    assert "ended by `dynspec restore` from " in done.text


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
    path = place.write(_long(node))
    with place.start("run", path, "--json") as run:
        _at_its_point(run)
        theirs = target.read_bytes() + b"\n# edited by hand\n"
        target.write_bytes(theirs)
        run.send(signal.SIGTERM)
        done = run.wait()
    assert done.code == 70, done.text
    command = done.errors[-1]
    assert command.startswith(f"dynspec restore {node.name} --ssh-config ")
    assert re.search(rf"without dynspec at hand: ssh -F \S+ {node.name} ", done.text)
    assert target.read_bytes() == theirs
    again = elsewhere.run(*command.split()[1:])
    assert again.code == 70, again.text
    for told in (done.text, again.err):
        assert "It still holds a patch of dynspec" in told
        assert f"to keep what is there now: {command} --keep-foreign" in told
        (copy,) = re.findall(rf"on the node: cp (\S+) {target}, then", told)
        assert Path(copy).read_bytes() == original
    assert again.errors[-1] == command
    status = elsewhere.run("status", node.name, *_reach(node))
    assert (status.code, status.errors[-1]) == (70, command), status.text
    assert f"files that are not as they were: {target}\n" in status.out
    kept = elsewhere.run(*command.split()[1:], "--keep-foreign")
    assert kept.code == 0, kept.text
    assert f"left as somebody else changed them: {target}" in kept.out
    assert f"warning: {target} still holds a patch of dynspec" in kept.out
    assert place.run("status", node.name, *_reach(node)).code == 0
    planned = place.run("plan", path)
    assert (planned.code, "already carries spec_banner" in planned.err) == (4, True), planned.text
    target.write_bytes(original + b"\n# edited by hand\n")
    doctor = place.run("doctor", node.name, path, *_reach(node))
    assert "changed by hand before this run: srt/server_args.py" in doctor.out
    target.write_bytes(original)
    assert elsewhere.run(*command.split()[1:]).out.endswith("no open journal, no server of ours\n")

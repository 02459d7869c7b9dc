"""`sweep.share_boot`: arms that differ only in their threshold are one server, switched between their points."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.controller import MEASURED, Place
from tests.e2e.node import EAGLE3, SshNode, experiment
from tests.sshd import free_port

pytestmark = [pytest.mark.sshd, pytest.mark.wheels]

THRESHOLD = "speculative-disable-batch-threshold"
ARMS = {
    "plain": {"args": {**EAGLE3, THRESHOLD: 0}, "patches": ["dynamic_disable"]},
    "two": {"extends": "plain", "args": {THRESHOLD: 2}},
    "baseline": {},
    "four": {"extends": "plain", "args": {THRESHOLD: 4}},
}


def _shared(node: SshNode, **server_env: str) -> dict[str, Any]:
    sweep = {"concurrency": [1, 3], "output_tokens": 24, "repeats": 2, "share_boot": True, "min_requests": 4}
    made = experiment(node, free_port(), arms=ARMS, sweep=sweep)
    made["server"]["env"].update(server_env)
    return made


def _events(folder: Path, kind: str) -> list[dict[str, Any]]:
    found = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    return [event for event in found if event["event"] == kind]


def test_arms_that_differ_only_in_the_threshold_share_boots_and_say_so(node: SshNode, place: Place) -> None:
    path = place.write(_shared(node))
    done = place.run("run", path)
    assert done.code in MEASURED, done.text
    assert node.problems() == []
    folder = place.run_folder()
    assert [(event["arm"], event["boot"]) for event in _events(folder, "started")] == [
        ("plain", 1),
        ("baseline", 1),
        ("baseline", 2),
        ("plain", 2),
    ]
    switched = [(event["boot"], event["arm"], event["threshold"]) for event in _events(folder, "switched")]
    assert sorted(switched) == sorted(
        (boot, arm, value) for boot in (1, 2) for arm, value in (("plain", 0), ("two", 2), ("four", 4))
    )
    canaries = {event["text"] for event in _events(folder, "canary")}
    assert all(re.search(r"all answered, [1-9]\d* plain and 0 speculative steps$", text) for text in canaries)
    to, fro = ([arm for boot, arm, _ in switched if boot == number] for number in (1, 2))
    assert to == fro[::-1]
    _every_point_ran_at_its_own_threshold(folder)
    summary = json.loads((folder / "summary.json").read_text())
    assert all("within-boot contrast" in " ".join(summary["arms"][arm]["notes"]) for arm in ("two", "four"))
    assert summary["arms"]["baseline"]["notes"] == []


def _every_point_ran_at_its_own_threshold(folder: Path) -> None:
    """By the counters of the server: none of its steps was of the other kind."""
    for arm, threshold in (("plain", 0), ("two", 2), ("four", 4)):
        for boot in (1, 2):
            for index, concurrency in enumerate((1, 3)):
                name = f"arms/{arm}/boot-{boot}/point-{index:02d}-c{concurrency}.meta.json"
                meta = json.loads((folder / name).read_text())
                assert meta["shared_boot"]["started_as"] == "plain"
                assert meta["shared_boot"]["threshold"] == threshold
                before, after = (meta[key][0]["dynspec_stats"] for key in ("server_before", "server_after"))
                assert before["threshold"] == after["threshold"] == threshold
                steps = {key: after[key] - before[key] for key in ("plain_steps", "spec_steps")}
                # the last steps of a load, with fewer requests, may be on the other side
                assert steps["plain_steps" if concurrency > threshold else "spec_steps"] > 0
                if concurrency <= threshold:
                    assert steps["plain_steps"] == 0
                if threshold == 0:
                    assert steps["spec_steps"] == 0


def test_the_plan_shows_one_server_and_its_switches(node: SshNode, place: Place) -> None:
    path = place.write(_shared(node))
    done = place.run("plan", path, "--set", "sweep.repeats=1")
    assert done.code == 0, done.text
    assert "start plain, boot 1 of 1, shared by" in done.out
    assert "switch to four: threshold 4, when nothing runs, read back from every rank" in done.out
    assert done.out.count("--enable-speculative-threshold-switch") == 1
    assert "plain, two, four share boots" in done.out


def test_a_run_goes_on_inside_a_shared_boot_and_leaves_the_arms_that_were_not_chosen_to_do(
    node: SshNode, place: Place
) -> None:
    path = place.write(_shared(node))
    words = ["run", path, "--set", "sweep.repeats=1", "--arm", "plain", "--arm", "two"]
    with place.start(*words, "--arm", "baseline", "--json") as run:
        _, second = run.wait_event("switched", threshold=2)
        run.wait_event("point_done", arm=second["arm"])
        run.send(2)
        assert run.wait().code == 130
    folder = place.run_folder()
    kept = _records(folder)
    assert 0 < len(kept) < 4
    done = place.run(*words, "--resume", folder.name)
    assert (done.code, done.errors[0]) == (
        6,
        "dynspec: the chosen arms are measured, and 1 boot of baseline is still to do",
    ), done.text
    assert "the only boot of baseline is missing; go on with: dynspec run" in " ".join(done.out.split())
    whole = _records(folder)
    assert len(whole) == 4
    assert whole | kept == whole
    plan, outcome = (json.loads((folder / f"{name}.json").read_text())[name] for name in ("plan", "outcome"))
    assert [(item["arm"], item["concurrency"]) for item in plan["left"]] == [("baseline", 1), ("baseline", 3)]
    assert outcome["state"] == "partial"
    assert set(yaml.safe_load((folder / "experiment.lock.yaml").read_text())["lock"]["arms"]) == {
        "plain",
        "two",
        "baseline",
    }


def _records(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("point-*[0-9].jsonl")}

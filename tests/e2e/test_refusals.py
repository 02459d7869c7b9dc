"""What does not fit is refused while nothing was touched, and what only looks touches nothing."""

from __future__ import annotations

import json
import shutil
import textwrap
from pathlib import Path

import pytest

from orchestrator.patchset import find_patch
from tests.e2e.controller import CHECKOUT, MEASURED, Place
from tests.e2e.node import EAGLE3, SshNode, differences, experiment
from tests.sshd import free_port

pytestmark = [pytest.mark.sshd, pytest.mark.wheels]


def test_plan_and_dry_run_touch_nothing_at_either_end(node: SshNode, place: Place) -> None:
    path = place.write(experiment(node, free_port()))
    before = {item: item.stat().st_mtime_ns for item in place.folder.rglob("*")}
    planned = place.run("plan", path)
    assert planned.code == 0, planned.text
    for words in ("put spec_banner in place", "start banner, boot 1 of 1", "stop banner", "unlock the node"):
        assert words in planned.out
    assert place.run("run", path, "--dry-run").lines[-4:] == planned.lines[-4:]
    as_json = json.loads(place.run("plan", path, "--json").out)
    assert [boot["arm"] for boot in as_json["plan"]["boots"]] == ["banner"]
    new = set(place.folder.rglob("*")) - set(before) - set(place.folder.glob("stderr-*"))
    assert new == set()
    assert not node.workdir.exists()
    assert not (node.registry / "runs").exists() or not list((node.registry / "runs").iterdir())
    assert node.problems() == []


def test_smoke_reports_every_level_and_leaves_the_tree_alone(node: SshNode, place: Place) -> None:
    done = place.run("smoke", place.write(experiment(node, free_port())))
    assert done.code == 0, done.text
    assert "compiled 3 of 3 files" in done.out
    assert "import not possible on this node: torch is not installed" in done.out
    assert node.problems() == []
    assert not list(node.workdir.glob("*"))  # nor the folder itself, where no run has been


def test_a_tree_that_was_patched_by_hand_is_refused_and_named(node: SshNode, place: Place) -> None:
    patch = find_patch("spec_banner")
    target = patch.targets[0]
    file = node.package / target.path
    original = file.read_text()
    file.write_text(target.edit(original, unique=True))
    try:
        before = node.files()
        done = place.run("run", place.write(experiment(node, free_port())))
        assert done.code == 4, done.text
        assert target.path in done.err
        assert "already" in done.err
        assert differences(before, node.files()) == []
        node.wait_until_free(10.0)  # an agent ends when its channel does
    finally:
        file.write_text(original)
    assert not list(place.results.iterdir())


def test_a_tree_of_unknown_hashes_needs_consent_and_then_runs(node: SshNode, place: Place) -> None:
    file = node.package / "srt" / "server_args.py"
    original = file.read_text()
    file.write_text(original + "\n# a local change far from every anchor\n")
    try:
        before = node.files()
        made = experiment(node, free_port())
        refused = place.run("run", place.write(made))
        assert refused.code == 4, refused.text
        assert "allow_unlisted" in refused.err
        assert differences(before, node.files()) == []
        allowed = place.run("run", place.write(made), "--set", "node.allow_unlisted=true")
        assert allowed.code in MEASURED, allowed.text
        assert differences(before, node.files()) == []
    finally:
        file.write_text(original)


BROKEN = {
    "does-not-compile": ("return text + '\\ndef broken(:\\n'", "SyntaxError"),
    "undefined-name": ("return text + '\\nWRONG = never_defined_anywhere\\n'", "never_defined_anywhere"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_patch_that_breaks_the_file_is_refused_before_anything_is_touched(
    kind: str, node: SshNode, place: Place
) -> None:
    body, word = BROKEN[kind]
    checkout = _checkout_with_patch(place.folder / "checkout", body)
    made = experiment(node, free_port(), arms={"broken": {"patches": ["broken"]}})
    made["node"]["allow_unlisted"] = True
    done = place.run("run", place.write(made), PYTHONPATH=str(checkout))
    assert done.code == 4, done.text
    assert word in done.err
    assert "srt/server_args.py" in done.err
    assert node.problems() == []


def _checkout_with_patch(folder: Path, body: str) -> Path:
    """A copy of the program that carries one patch more."""
    shutil.copytree(
        CHECKOUT / "orchestrator", folder / "orchestrator", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copytree(CHECKOUT / "patches", folder / "patches")
    broken = folder / "patches" / "broken"
    broken.mkdir()
    manifest = """\
        schema: 1
        name: broken
        summary: a patch with a fault
        package: sglang
        workers: []
        flags: []
        targets:
          - {path: srt/server_args.py, patcher: patcher.py}
        versions: {}
        """
    (broken / "manifest.yaml").write_text(textwrap.dedent(manifest))
    (broken / "patcher.py").write_text(f"def patch(path, text):\n    {body}\n")
    return folder


def test_an_argument_that_the_tree_does_not_know_is_refused(node: SshNode, place: Place) -> None:
    made = experiment(node, free_port(), arms={"typo": {"args": {**EAGLE3, "speculative-num-stepz": 3}}})
    done = place.run("run", place.write(made))
    assert done.code == 4, done.text
    assert "speculative-num-stepz" in done.err
    assert node.problems() == []


def test_a_bad_file_a_bad_arm_and_a_bad_key_never_connect(node: SshNode, place: Place) -> None:
    connections = node.sshd.log.read_text().count("Connection from")
    path = place.write(experiment(node, 30000))
    assert place.run("run", "nothing.yaml").code == 2
    assert place.run("run", path, "--set", "sweep.concurency=[1]").code == 2
    wrong = place.run("run", path, "--arm", "banana")
    assert (wrong.code, "arms of e2e: banner" in wrong.err) == (2, True), wrong.text
    (place.folder / "results").write_text("in the way")
    assert place.run("run", path).code == 2
    assert node.sshd.log.read_text().count("Connection from") == connections


def test_one_arm_can_be_run_alone_with_values_set_on_the_command_line(node: SshNode, place: Place) -> None:
    arms = {"plain": {}, "banner": {"patches": ["spec_banner"]}}
    path = place.write(experiment(node, free_port(), arms=arms))
    values = ("--set", "sweep.concurrency=[3]", "--set", "sweep.load_from=controller")
    done = place.run("run", path, "--arm", "plain", *values, "--json")
    assert done.code in MEASURED, done.text
    points = [event for event in done.events if event["event"] == "point_done"]
    assert [(event["arm"], event["concurrency"]) for event in points] == [("plain", 3)]
    assert done.events[-1]["event"] == "outcome"
    assert "applied" not in [event["event"] for event in done.events]
    folder = place.run_folder()
    assert "concurrency: [3]" in (folder / "experiment.lock.yaml").read_text()
    (meta,) = folder.glob("arms/plain/boot-1/point-*.meta.json")
    load = json.loads(meta.read_text())["load"]
    assert abs(load["node_clock_ahead_s"]) < 1, "both clocks are this machine's"

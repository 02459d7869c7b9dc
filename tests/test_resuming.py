"""`--resume` on one machine: what of a run folder is kept, what it may be gone on with, and who may go on with it."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.cli import files
from orchestrator.errors import DoesNotFit, NodeBusy, NothingToClaim, UsageError
from orchestrator.load.prompts import digest_of
from orchestrator.model.experiment import Arm, Experiment, Load, Prompts
from orchestrator.model.plan import Plan, RunPoint
from orchestrator.records.begun import begun_experiment, goes_on_with
from orchestrator.records.driver import FILE_NAME, Driver, abandoned, driver_of
from orchestrator.records.gating import require_finished
from orchestrator.records.kept import look
from orchestrator.records.lockfile import joined, stored_lock
from orchestrator.records.sameness import changes, experiment_changes
from orchestrator.records.served import stored_plan
from orchestrator.records.summary import make_summary
from orchestrator.records.typed import KEY, Typed, typed_left
from orchestrator.redact import Redactor
from orchestrator.runner.events import Events
from orchestrator.runner.finish import Ending, Finished
from orchestrator.runner.options import RunOptions
from orchestrator.runner.resume import Resumed, resume
from orchestrator.runner.runlock import RunLock
from orchestrator.runner.session import run_experiment
from orchestrator.store import LOCK_FILE, RunStore, require_writable
from tests.run_folders import write_run

RUN = "20260101-000000-trial-0001"
POINT = "arms/eagle3/boot-1/point-01-c4"
INFO = "arms/eagle3/boot-1/server_info.json"


@pytest.fixture
def run(tmp_path: Path) -> RunStore:
    """Two arms, one boot each, three points."""
    return write_run(tmp_path, RUN, boots=1, arms=("baseline", "eagle3"))


def _gone_on_with(run: RunStore, *arms: str) -> Resumed:
    options = RunOptions(results=run.folder.parent, resume=run.run_id, arms=arms)
    with RunLock() as held:
        return resume(options, begun_experiment(run), Redactor({}), held)


# -- what is kept


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _of_an_older_version(run: RunStore) -> None:
    """Its meta file has no digest, and the last record is half written."""
    path = run.folder / f"{POINT}.meta.json"
    meta = json.loads(path.read_text())
    del meta["records_sha256"]
    path.write_text(json.dumps(meta))
    _cut(run.folder / f"{POINT}.jsonl")


def _copied(run: RunStore) -> None:
    other = run.folder / "arms/baseline/boot-1/point-01-c4"
    for suffix in (".meta.json", ".jsonl"):
        (run.folder / f"{POINT}{suffix}").write_bytes(other.with_name(other.name + suffix).read_bytes())


DAMAGE: dict[str, tuple[Callable[[RunStore], object], str]] = {
    "records cut short": (lambda run: _cut(run.folder / f"{POINT}.jsonl"), "is not what was stored"),
    "records cut short, no digest": (_of_an_older_version, "is not what was stored"),
    "records gone": (lambda run: (run.folder / f"{POINT}.jsonl").unlink(), "point-01-c4.jsonl is missing"),
    "killed between the two files": (
        lambda run: (run.folder / f"{POINT}.meta.json").unlink(),
        "it was being stored when the run ended",
    ),
    "meta file cut short": (lambda run: _cut(run.folder / f"{POINT}.meta.json"), "cannot be read"),
    "meta file of another kind": (
        lambda run: (run.folder / f"{POINT}.meta.json").write_text('{"arm": 1, "boot": []}'),
        "cannot be read",
    ),
    "a point of another arm in its place": (_copied, "it says that it is baseline/boot-1/point-01-c4"),
}


@pytest.mark.parametrize(("damage", "why"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_point_is_named_and_measured_again_and_the_others_are_kept(
    run: RunStore, damage: Callable[[RunStore], object], why: str
) -> None:
    damage(run)
    kept = look(run)
    (dropped,) = kept.dropped
    assert dropped.what == "eagle3/boot-1/point-01-c4"
    assert why in dropped.why
    assert ("eagle3", 1, 1) not in kept.done.points
    assert len(kept.done.points) == 5
    assert "points kept: 5: baseline boot 1 (c=1, 4, 16); eagle3 boot 1 (c=1, 16)" in list(kept.lines())
    kept.set_aside()
    assert look(run).dropped == ()
    assert [(p.arm, p.index) for p in run.points()].count(("eagle3", 1)) == 0


def test_a_boot_whose_server_info_is_half_written_is_measured_again(run: RunStore) -> None:
    _cut(run.folder / INFO)
    kept = look(run)
    assert {arm for arm, _, _ in kept.done.points} == {"baseline"}
    assert all("server_info.json of its boot cannot be read" in item.why for item in kept.dropped)
    kept.set_aside()
    assert not (run.folder / INFO).exists()


def test_a_boot_folder_with_nothing_but_a_half_written_file_is_in_nobodys_way(run: RunStore) -> None:
    folder = run.folder / "arms/eagle3/boot-2"
    folder.mkdir()
    (folder / "server_info.json").write_text('{"max_running')
    kept = look(run)
    assert [str(item) for item in kept.dropped] == ["eagle3/boot-2/server_info.json: it cannot be read"]
    assert len(kept.points) == 6


@pytest.mark.parametrize("lost", ["facts.json", "plan.json", "events.jsonl", "outcome.json"])
@pytest.mark.parametrize("how", ["missing", "cut short", "of a wrong shape"])
def test_a_run_goes_on_without_a_file_that_it_writes_anew(run: RunStore, lost: str, how: str) -> None:
    path = run.folder / lost
    if how == "missing":
        path.unlink(missing_ok=True)
    else:
        path.write_text('{"outcome": {"exit_co' if how == "cut short" else '{"plan": {"arms": [3]}}')
    assert len(_gone_on_with(run).done.points) == 6
    assert stored_plan(Plan((), (), (), {}, (), None, arms=(Arm("eagle3", {}, {}),)), run)["arms"]


def test_after_a_torn_last_line_the_next_event_stands_on_a_line_of_its_own(run: RunStore) -> None:
    path = run.folder / "events.jsonl"
    path.write_text('{"t": "x", "event": "poi')
    run.mend_events()
    run.event("note", {"text": "next"})
    assert json.loads(path.read_text().splitlines()[-1])["text"] == "next"


def test_a_file_in_the_place_of_a_boots_folder_is_refused_before_a_server_is_started(run: RunStore) -> None:
    folder = run.folder / "arms/eagle3/boot-1"
    folder.rename(run.folder / "elsewhere")
    folder.touch()
    with pytest.raises(UsageError, match="arms/eagle3/boot-1 is no folder") as refused:
        _gone_on_with(run)
    assert "move it away" in str(refused.value.help)


def test_what_is_lost_of_a_folder_is_told_beside_what_is_kept(run: RunStore) -> None:
    assert not _gone_on_with(run).lost
    for point in run.points():
        run.event(
            "point_done",
            {
                "arm": point.arm,
                "boot": point.boot,
                "index": point.index,
                "concurrency": point.concurrency,
            },
        )
    _cut(run.folder / f"{POINT}.meta.json")
    (run.folder / "plan.json").write_bytes(b"\xff")
    assert [line.split(":")[0] for line in _gone_on_with(run).lines()] == [
        "points kept",
        "measured again",
        "lost",
    ]
    shutil.rmtree(run.folder / "arms")
    assert list(_gone_on_with(run).lines())[:3] == [
        "points kept: 0",
        "lost: plan.json is damaged: it is unknown which boots, patches and workers were planned, and what the plan "
        "warned of; arms are taken as written, and no worker can be found to be the wrong one",
        "lost: arms is missing: 6 measurements are left out, and the server logs and samples of its boots are unknown",
    ]


def test_a_truncated_experiment_is_the_run_folders_damage(run: RunStore) -> None:
    path = run.folder / "experiment.lock.yaml"
    path.write_text(path.read_text().partition("server:")[0])
    with pytest.raises(
        UsageError, match=r"^the run folder is damaged: .*experiment\.lock\.yaml is not"
    ) as wrong:
        begun_experiment(run)
    assert "server" in str(wrong.value.details)


def test_a_run_without_its_experiment_is_refused_by_the_files_name(run: RunStore) -> None:
    begun = begun_experiment(run)
    (run.folder / "experiment.lock.yaml").unlink()
    with RunLock() as lock, pytest.raises(UsageError, match=r"experiment\.lock\.yaml is missing"):
        resume(RunOptions(results=run.folder.parent, resume=RUN), begun, Redactor({}), lock)


def test_a_finished_run_is_gone_on_with_only_where_points_were_lost(run: RunStore) -> None:
    run.write_json("outcome.json", {"outcome": {"exit_code": 0}})
    with pytest.raises(UsageError, match="is finished") as refused:
        _gone_on_with(run)
    assert refused.value.help == f"dynspec report {run.folder}"  # which lies in no ./results
    with pytest.raises(UsageError, match=r"is finished, and was begun without other$"):
        _gone_on_with(run, "other", "other", "eagle3")
    _cut(run.folder / f"{POINT}.jsonl")
    assert len(_gone_on_with(run).done.points) == 5


# -- what it may be gone on with

LOCK: dict[str, Any] = {
    "dynspec": "0.1.0",
    "host": "gpu-1",
    "kernel": "6.1",
    "gpus": ["NVIDIA B200 (GPU-a), driver 580.1", "NVIDIA B200 (GPU-b), driver 580.1"],
    "tree": {"path": "/venv/sglang", "version": "0.5.11", "baseline": "git 1a2b3c", "changed": 0},
    "python": {"path": "/venv/bin/python3", "version": "3.12.3"},
    "prompts_sha256": "a" * 64,
    "files": {"srt/a.py": "b" * 64},
    "patch_sets": {"dynamic": {"srt/a.py": "c" * 64}},
    "arms": {"eagle3": {"args": {"tp": 8}, "patches": []}},
}
FATAL = [
    (("tree", "version"), "0.5.12", "SGLang: 0.5.11, now 0.5.12"),
    (("tree", "baseline"), "git 9f9f9f", "source of the tree: git 1a2b3c, now git 9f9f9f"),
    (("tree", "changed"), 2, "hand-made changes of the tree: 0, now 2"),
    (("python", "version"), "3.11.9", "Python: 3.12.3, now 3.11.9"),
    (("prompts_sha256",), "d" * 64, "prompts: aaaaaaaaaaaa, now dddddddddddd"),
    (("files", "srt/a.py"), "d" * 64, "file srt/a.py: bbbbbbbbbbbb, now dddddddddddd"),
    (("patch_sets", "dynamic"), {"srt/a.py": "d" * 64}, "patch set dynamic: {srt/a.py: cccccccccccc}"),
    (("arms", "eagle3", "args"), {"tp": 4}, "arguments of arm eagle3: {args: {tp: 8}"),
    (("gpus",), LOCK["gpus"][:1], "GPUs: 2 x NVIDIA B200, now 1 x NVIDIA B200"),
    (("gpus",), ["H200 (x), driver 580.1"] * 2, "GPUs: 2 x NVIDIA B200, now 2 x H200"),
    (("gpus",), [word.replace("580.1", "590") for word in LOCK["gpus"]], "driver: 580.1, now 590"),
]
TOLD = [
    (("host",), "gpu-2", "host: gpu-1, now gpu-2"),
    (("kernel",), "6.8", "kernel: 6.1, now 6.8"),
    (("dynspec",), "0.2.0", "dynspec: 0.1.0, now 0.2.0"),
    (("tree", "path"), "/opt/sglang", "place of the tree: /venv/sglang, now /opt/sglang"),
    (("gpus",), [re.sub(r"GPU-\w", "GPU-z", word) for word in LOCK["gpus"]], None),
    (("files",), {"srt/other.py": "d" * 64}, None),
    (("arms",), {}, None),
]


def _with(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    lock = copy.deepcopy(LOCK)
    *parents, last = path
    place = lock
    for key in parents:
        place = place[key]
    place[last] = value
    return lock


def test_on_the_same_node_nothing_is_said() -> None:
    found = changes(LOCK, LOCK)
    assert (found.fatal, found.told) == ((), ())


@pytest.mark.parametrize(("path", "value", "words"), FATAL)
def test_a_change_that_decides_numbers_refuses_and_is_named(
    path: tuple[str, ...], value: Any, words: str
) -> None:
    (told,) = changes(LOCK, _with(path, value)).fatal
    assert told.startswith(words)


@pytest.mark.parametrize(("path", "value", "words"), TOLD)
def test_another_machine_of_the_same_kind_is_told_and_goes_on(
    path: tuple[str, ...], value: Any, words: str | None
) -> None:
    found = changes(LOCK, _with(path, value))
    assert (found.fatal, found.told) == ((), (words,) if words else ())


WRITTEN: list[tuple[Callable[[Experiment], Experiment], list[str]]] = [
    (lambda e: e, []),
    (lambda e: replace(e, node=replace(e.node, host="gpu-2")), []),
    (lambda e: replace(e, name="other"), ["name: trial, now other"]),
    (lambda e: replace(e, sweep=replace(e.sweep, repeats=2)), ["sweep.repeats: 1, now 2"]),
    (
        lambda e: replace(e, sweep=replace(e.sweep, idle_timeout_s=9.0)),
        ["sweep.idle_timeout: 2m, now 9s"],
    ),
    (lambda e: _with_args(e, "tp", 8), ["server.args.tp: absent, now 8"]),
    (lambda e: _with_env(e, "TOKEN", "hush"), ["arms.baseline.env.TOKEN: differs"]),
    (
        lambda e: replace(e, arms=e.arms[::-1]),
        ["arms: [baseline, eagle3, dynamic], now [dynamic, eagle3, baseline]"],
    ),
    (
        lambda e: replace(e, arms=(e.arms[0], replace(e.arms[2], name="other", only_by=""))),
        [
            "arms: [baseline, eagle3, dynamic], now [baseline, other]"
        ],  # and no key of arms that are not in both
    ),
    (lambda e: replace(e, arms=_preset(e)), ["arms: [baseline, eagle3, dynamic], now {preset: speculation}"]),
    (
        lambda e: _with_args(e, "disable-cuda-graph", True),
        ["server.args.disable-cuda-graph: absent, now true"],
    ),
    (
        lambda e: replace(e, sweep=replace(e.sweep, load=Load("open", arrival="poisson", rate_per_s=8.0))),
        ["sweep.load: closed, now {open: poisson, rate: 8/s}"],
    ),
    (
        lambda e: replace(e, sweep=replace(e.sweep, warmup_requests_per_slot=2)),
        ["sweep.warmup.requests_per_slot: 1, now 2"],
    ),
    (
        lambda e: replace(e, sweep=replace(e.sweep, prompts=Prompts("file", kinds=(), path="a.jsonl"))),
        [
            "sweep.prompts.source: builtin, now file",
            "sweep.prompts.kinds: [",
            "sweep.prompts.seed: 1000, now abs",
            "sweep.prompts.file: absent, now a.jsonl",
        ],
    ),
]


def _with_args(experiment: Experiment, key: str, value: Any) -> Experiment:
    """As the file is read: each arm inherits what the server has."""
    arms = tuple(replace(arm, args={**arm.args, key: value}) for arm in experiment.arms)
    server = replace(experiment.server, args={**experiment.server.args, key: value})
    return replace(experiment, server=server, arms=arms)


def _preset(experiment: Experiment) -> tuple[Arm, ...]:
    return (*experiment.arms[:2], replace(experiment.arms[2], only_by="patch"))


def _with_env(experiment: Experiment, key: str, value: str) -> Experiment:
    first, *others = experiment.arms
    return replace(experiment, arms=(replace(first, env={**first.env, key: value}), *others))


@pytest.mark.parametrize(("change", "words"), WRITTEN)
def test_another_experiment_is_refused_by_key_and_both_values(
    run: RunStore, change: Callable[[Experiment], Experiment], words: list[str]
) -> None:
    begun = begun_experiment(run)
    found = experiment_changes(begun, change(begun))
    assert [told[: len(word)] for told, word in zip(found, words, strict=True)] == words


def test_how_long_a_server_may_take_to_start_measures_nothing(run: RunStore) -> None:
    begun = begun_experiment(run)
    ready = replace(begun.server.ready, timeout_s=7200.0)
    assert experiment_changes(begun, replace(begun, server=replace(begun.server, ready=ready))) == ()


def test_a_run_of_tune_is_repeated_as_a_whole(run: RunStore) -> None:
    path = run.folder / "experiment.lock.yaml"
    stored = yaml.safe_load(path.read_text())
    path.write_text(
        yaml.safe_dump({**stored, "arms": {"always-speculate": {}, "always-plain": {}}}, sort_keys=False)
    )
    options = RunOptions(results=run.folder.parent, resume=run.run_id)
    with RunLock() as lock, pytest.raises(UsageError, match="is one of dynspec tune") as refused:
        resume(options, begun_experiment(run), Redactor({}), lock)
    assert refused.value.help == "dynspec tune EXPERIMENT.yaml (it is repeated as a whole)"
    (run.folder / "outcome.json").unlink(missing_ok=True)
    (run.folder / f"{POINT}.meta.json").unlink()
    with pytest.raises(NothingToClaim) as cut_short:
        require_finished(run)
    assert cut_short.value.help == refused.value.help
    run.write_json("plan.json", {**run.read_json("plan.json"), KEY: Typed("e.yaml", ("a=1",))})
    assert goes_on_with(run) == "dynspec tune e.yaml --set a=1 (it is repeated as a whole)"


def test_of_a_preset_the_keys_that_can_be_written_are_told_once(run: RunStore) -> None:
    begun = begun_experiment(run)
    begun = replace(begun, arms=_preset(begun))
    now = replace(begun, arms=tuple(replace(arm, args={**arm.args, "x": 1}) for arm in begun.arms))
    assert experiment_changes(begun, now) == ("arms.args.x: absent, now 1",)


def test_what_differs_stands_in_the_refusal(run: RunStore) -> None:
    now = replace(begun_experiment(run), name="other")
    options = RunOptions(results=run.folder.parent, resume=run.run_id)
    with RunLock() as lock, pytest.raises(DoesNotFit) as refused:
        resume(options, now, Redactor({}), lock)
    assert refused.value.details == ("name: trial, now other",)


def test_what_an_older_folder_does_not_say_is_not_compared() -> None:
    assert changes({"host": "gpu-1"}, LOCK).fatal == ()


def test_kept_points_are_never_mixed_with_points_of_another_setup(run: RunStore) -> None:
    kept = look(run)
    with pytest.raises(DoesNotFit, match="was measured on something else") as refused:
        Resumed(RUN, run, kept, LOCK).check(_with(("tree", "version"), "0.5.12"))
    assert refused.value.details == ("SGLang: 0.5.11, now 0.5.12",)
    assert Resumed(RUN, run, begun=LOCK).check(_with(("tree", "version"), "0.5.12")) == ()


def test_a_lock_file_without_its_block_is_told(run: RunStore) -> None:
    assert stored_lock(run) == {}
    (told,) = _gone_on_with(run).check(LOCK)
    assert "does not say what the kept points were measured on" in told


def test_prompts_are_told_apart_by_what_they_hold(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('"one"\n')
    named = Prompts(source="file", path="prompts.jsonl")
    before = digest_of(named, tmp_path)
    file.write_text('"two"\n')
    assert digest_of(named, tmp_path) != before
    assert digest_of(Prompts(kinds=("coding",))) != digest_of(Prompts(kinds=("agentic",)))
    file.unlink()
    with pytest.raises(UsageError, match=r"cannot read .*prompts\.jsonl"):
        digest_of(named, tmp_path)


# -- with which arms


def test_a_part_with_fewer_arms_leaves_the_rest_of_the_run_to_do(run: RunStore) -> None:
    for path in run.folder.glob("arms/baseline/boot-1/point-02-*"):
        path.unlink()
    part = _gone_on_with(run, "eagle3", "eagle3")
    assert part.left == (RunPoint("baseline", 1, 2, 16),)
    assert list(part.lines())[-2:] == [
        "arms to go on with: eagle3",
        "left to do after this: 1 boot of baseline",
    ]
    plan = Plan((), (), (), {}, (), None, arms=(Arm("eagle3", {}, {}),))
    typed = Typed("my exp.yaml", ("sweep.repeats=1",))
    run.write_json("plan.json", {KEY: typed, "plan": stored_plan(plan, run, part.left)})
    found = _ended(run, part)
    assert (found.outcome.exit_code, found.outcome.state) == (6, "partial")
    assert found.error is not None
    assert found.error.message == "the chosen arms are measured, and 1 boot of baseline is still to do"
    assert found.error.help == f"dynspec run 'my exp.yaml' --resume {run.folder} --set sweep.repeats=1"
    assert found.info is not None
    assert found.info.unfinished is not None
    assert found.info.unfinished.missing == {"baseline": 1}
    with pytest.raises(NothingToClaim, match=r"did not come to its end \(partial\)"):
        require_finished(run)
    assert _gone_on_with(run).left == _gone_on_with(run, "baseline", "eagle3").left == ()


def _ended(run: RunStore, part: Resumed) -> Finished:
    events = Events((), Redactor({}))
    events.attach(run)
    return Ending(begun_experiment(run), run, events, "2026-01-01T00:00:00Z", True, left=part.left).finish(
        None, None
    )


def test_an_arm_that_a_part_leaves_alone_and_that_was_never_measured_is_missed(run: RunStore) -> None:
    shutil.rmtree(run.folder / "arms/baseline")
    part = _gone_on_with(run, "eagle3")
    plan = Plan((), (), (), {}, (), None, arms=(Arm("eagle3", {}, {}),))
    run.write_json("plan.json", {"plan": stored_plan(plan, run, part.left)})
    assert make_summary(run, begun_experiment(run))["arms"]["baseline"]["points"] == []


@pytest.mark.parametrize("told", [None, [], {"experiment": 1}, {"experiment": "e.yaml", "overrides": 3}])
def test_what_was_typed_is_not_known_where_its_record_is_damaged(run: RunStore, told: object) -> None:
    run.write_json("plan.json", {KEY: told, "plan": {}})
    assert typed_left(run) is None
    assert goes_on_with(run) == f"dynspec run {run.folder / LOCK_FILE} --resume {run.folder}"


def test_without_a_choice_a_run_goes_on_with_the_arms_that_it_began_with(run: RunStore) -> None:
    assert [arm.name for arm in begun_experiment(run).arms] == ["baseline", "eagle3", "dynamic"]
    assert _gone_on_with(run).arms == ("baseline", "eagle3")
    with pytest.raises(UsageError, match=rf"^run {RUN} was begun without dynamic$") as refused:
        _gone_on_with(run, "eagle3", "dynamic")  # as of a finished one
    assert refused.value.help == f"more arms are measured by a new run: dynspec run {run.folder / LOCK_FILE}"
    (run.folder / "plan.json").write_text("{")
    assert _gone_on_with(run).arms == ()  # all: nothing else is known
    path = run.folder / "experiment.lock.yaml"
    path.write_text(f"{path.read_text()}\nlock: {{arms: {{eagle3: {{}}}}}}\n")
    assert _gone_on_with(run).arms == ("eagle3",)


def test_arms_of_one_server_go_on_together(tmp_path: Path) -> None:
    run = write_run(tmp_path, RUN, boots=1, arms=("baseline", "dynamic"))
    path = run.folder / "experiment.lock.yaml"
    arms = path.read_text().partition("sweep:")[0]
    four = "  four: {extends: dynamic, args: {speculative-disable-batch-threshold: 4}}"
    path.write_text(f"{arms}{four}\nsweep: {{concurrency: [1, 4, 16], share_boot: true, repeats: 1}}\n")
    shared = {"arm": "dynamic", "boot": 1, "shares": ["dynamic", "four"]}
    run.write_json("plan.json", {"plan": {"boots": [{"arm": "baseline", "boot": 1}, shared]}})
    with pytest.raises(UsageError, match="dynamic and four share boots in run ") as refused:
        _gone_on_with(run, "baseline", "four")
    assert refused.value.help == "add --arm dynamic, or leave --arm away"
    assert {point.arm for point in _gone_on_with(run, "baseline").left} == {"four"}
    assert _gone_on_with(run, "dynamic", "four").left == ()


def test_what_arms_were_measured_on_is_kept_where_a_part_leaves_them_alone() -> None:
    now = _with(("arms",), {"baseline": {"args": {}}}) | {"files": {}, "kernel": "6.8"}
    assert joined(LOCK, now) == LOCK | {"kernel": "6.8", "arms": {**LOCK["arms"], **now["arms"]}}


# -- who may go on with it


def test_a_run_under_way_is_refused_by_pid_and_goes_on_undamaged(run: RunStore) -> None:
    with RunLock() as first:
        first.take(run.folder)
        before = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
        with pytest.raises(NodeBusy, match=rf"is under way: pid {os.getpid()} on ") as refused:
            _gone_on_with(run)
        assert refused.value.exit_code == 3
        assert "Ctrl-C in its terminal ends it, or dynspec stop NODE --force" in refused.value.help
        assert before == {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
    assert _gone_on_with(run).run_id == RUN


def test_the_driver_of_a_run_is_known_while_its_process_lives(run: RunStore) -> None:
    assert driver_of(run.folder) is None
    with RunLock(detached=True) as lock:
        lock.take(run.folder)
        lock.take(run.folder)
        driver = driver_of(run.folder)
        assert driver is not None
        assert (driver.pid, driver.detached) == (os.getpid(), True)
    assert driver_of(run.folder) is None


@pytest.mark.parametrize("told", ["", "{", "[]", '{"pid": "7", "host": 3, "detached": 1}'])
def test_a_lock_that_is_held_counts_whatever_stands_in_its_file(run: RunStore, told: str) -> None:
    with RunLock() as lock:
        lock.take(run.folder)
        (run.folder / FILE_NAME).write_text(told)
        assert driver_of(run.folder) == Driver()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (os.mkfifo, "not a regular file"),
        (os.mkdir, "Is a directory"),
        (lambda path: path.symlink_to(path), "a link"),
    ],
)
def test_what_is_no_file_in_the_place_of_the_lock_is_named_and_not_waited_for(
    run: RunStore, make: Callable[[Path], None], why: str
) -> None:
    make(run.folder / FILE_NAME)
    assert driver_of(run.folder) is None
    assert not abandoned(run.folder)
    with pytest.raises(UsageError, match=f"{FILE_NAME} can't be locked: {why}$") as refused:
        _gone_on_with(run)
    assert refused.value.help.startswith("remove it, unless another dynspec drives this run")


# -- a folder that cannot keep what a run writes


def test_a_run_whose_results_cannot_be_kept_is_refused_before_any_node_is_asked() -> None:
    checked = files.load(Path("experiments/demo.yaml"), ["node.host=nobody.invalid"])
    options = RunOptions(results=Path("/proc"))  # there, and nothing can be made in it
    with pytest.raises(UsageError, match="/proc can't keep the results of a run: ") as refused:
        run_experiment(checked, options, base=Path(), environ={}, listeners=())
    assert refused.value.help == "name another folder with --results"


def test_a_folder_is_proven_writable_without_a_trace(tmp_path: Path) -> None:
    require_writable(tmp_path / "deeper" / "still", help="")
    assert list((tmp_path / "deeper" / "still").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file can't keep the results of a run: File exists"):
        require_writable(tmp_path / "file", help="")

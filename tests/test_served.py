"""What a run folder keeps of how arms were served, also when a later part of the run leaves some of them alone."""

from __future__ import annotations

from pathlib import Path

from orchestrator.model.experiment import Arm
from orchestrator.model.plan import Plan, WorkerPath
from orchestrator.model.result import PointResult
from orchestrator.records.served import SHARED_KEY, Home, home_of, served_arms, shared_arms, stored_plan
from orchestrator.redact import Redactor
from orchestrator.store import RunStore
from tests.plan_cases import experiment

NATIVE = {"speculative-algorithm": "EAGLE3", "speculative-adaptive": True, "cuda-graph-bs": (1, 2)}


def plan(*arms: Arm, **more: dict[str, str]) -> Plan:
    paths = {arm.name: WorkerPath("v2", "because") for arm in arms}
    return Plan((), (), (), paths, (), None, arms=arms, **more)  # type: ignore[arg-type]


def store(folder: Path) -> RunStore:
    return RunStore.create(folder, "run", Redactor({}))


def test_an_arm_is_read_back_as_it_was_served(tmp_path: Path) -> None:
    kept = stored_plan(plan(Arm("banner", NATIVE, {"A": "b"})), store(tmp_path))
    found = {arm.name: arm for arm in served_arms(kept, experiment([]))}
    assert found["banner"].args == NATIVE
    assert found["banner"].patches == ()
    assert found["eagle3"] == experiment([]).arm("eagle3")


def test_a_run_of_an_earlier_version_served_its_arms_as_written() -> None:
    assert served_arms({}, experiment([])) == experiment([]).arms


def test_a_resumed_part_keeps_what_an_earlier_part_said_of_the_arms_that_it_leaves_alone(
    tmp_path: Path,
) -> None:
    folder = store(tmp_path)
    first = plan(Arm("banner", NATIVE, {}), modes={"banner": "natively"}, unsupported={"x": "why"})
    folder.write_json("plan.json", {"plan": stored_plan(first, folder)})
    kept = stored_plan(plan(Arm("eagle3", {}, {})), folder)
    assert [arm["name"] for arm in kept["arms"]] == ["eagle3", "banner"]
    assert (kept["modes"], kept["unsupported"]) == ({"banner": "natively"}, {"x": "why"})
    assert set(kept["worker_paths"]) == {"eagle3", "banner"}


def point(arm: str, host: str | None) -> PointResult:
    extra: dict[str, object] = {} if host is None else {SHARED_KEY: {"started_as": host, "boot": 1}}
    return PointResult(arm, 1, 0, 1, {}, 1, 0, 1, 0, "x", extra=extra)


def test_arms_are_a_group_only_by_the_marks_of_their_points() -> None:
    marked = [point("a", "a"), point("b", "a"), point("c", None), point("d", "d"), point("b", "a")]
    assert shared_arms(marked) == (("a", "b"),)


def test_log_and_samples_of_a_shared_boot_lie_where_it_was_started() -> None:
    assert home_of({SHARED_KEY: {"started_as": "a", "boot": 1}}, "b", 3) == Home("a", 1)
    assert home_of({}, "b", 3) == Home("b", 3)

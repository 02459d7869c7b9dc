"""`dynspec tune`: the experiment that it makes of the user's, and the answer from the records of its run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from orchestrator.analysis.summary import HEADLINE, contrast_json
from orchestrator.analysis.tune import PLAIN, SPECULATING, Tuned, tuned
from orchestrator.errors import NothingToClaim, UsageError
from orchestrator.model.experiment import ArgValue, Arm, EnvValue, Experiment, SecretRef
from orchestrator.model.speculation import DYNAMIC_PATCH, SWITCH_FLAG, THRESHOLD_FLAG
from orchestrator.records.points import read_points
from orchestrator.report.lost import advice_on
from orchestrator.store import RunStore

TUNE_FILE = "tune.json"
ALWAYS = 1_000_000  # requests; no batch is larger
NEVER = 0
_NAME_CHARS = 59  # a name has 64 at most


def tuning_overrides(experiment: Experiment, name: str | None) -> tuple[str, ...]:
    """`--set` words that make two arms of one switchable server out of arm `name` (None: the one with the patch)."""
    if experiment.sweep.load.kind != "closed":
        raise UsageError(
            f"dynspec tune measures at fixed concurrencies, and sweep.load is {experiment.sweep.load.kind}",
            help="--set sweep.load=closed",
        )
    arm = chosen_arm(experiment, name)
    arms = {SPECULATING: _written(experiment, arm, ALWAYS), PLAIN: _written(experiment, arm, NEVER)}
    return (
        f"arms={json.dumps(arms)}",
        f"name={json.dumps(f'{experiment.name[:_NAME_CHARS]}-tune')}",
        "sweep.share_boot=true",
        "sweep.repeats=1",
        "gate=null",
    )


def without_own_notes(warnings: tuple[str, ...]) -> tuple[str, ...]:
    """Without those on the two thresholds, which nobody wrote and which are as they are meant."""
    own = tuple(f"--set arms.{arm}.args.{THRESHOLD_FLAG}:" for arm in (SPECULATING, PLAIN))
    return tuple(text for text in warnings if not text.startswith(own))


def chosen_arm(experiment: Experiment, name: str | None) -> Arm:
    """The named arm, else the first with the dynamic_disable patch, else the first that speculates."""
    speculating = [arm for arm in experiment.arms if arm.speculates and arm.only_by != "native"]
    if name is not None:
        found = [arm for arm in speculating if arm.name == name]
    else:
        found = [arm for arm in speculating if DYNAMIC_PATCH in arm.patches] or speculating
    if not found:
        known = ", ".join(arm.name for arm in speculating) or "none"
        what = "no arm speculates" if name is None else f"{name} is no arm that speculates"
        raise UsageError(f"{what}, so there is no threshold to find", help=f"arms that speculate: {known}")
    return found[0]


def _written(experiment: Experiment, arm: Arm, threshold: int) -> dict[str, Any]:
    """The arm as the file would write it: everything it has, null for what it took away from the server's."""
    own = {key: _arg(value) for key, value in arm.args.items() if key != SWITCH_FLAG}
    env = {key: _env(value) for key, value in arm.env.items()}
    return {
        "args": {**_removed(experiment.server.args, own), **own, THRESHOLD_FLAG: threshold},
        "env": {**_removed(experiment.server.env, env), **env},
        "patches": [*arm.patches, *([] if DYNAMIC_PATCH in arm.patches else [DYNAMIC_PATCH])],
    }


def _removed(server: Mapping[str, object], own: Mapping[str, object]) -> dict[str, None]:
    return {key: None for key in server if key not in own}


def _arg(value: ArgValue) -> Any:
    """A float as the word that it becomes: YAML readers disagree on some spellings of numbers."""
    if isinstance(value, tuple):
        return [_arg(item) for item in value]
    return repr(value) if isinstance(value, float) else value


def _env(value: EnvValue) -> Any:
    return {"from_env": value.from_env} if isinstance(value, SecretRef) else value


def answer(store: RunStore, experiment: Experiment, metric: str = HEADLINE) -> Tuned:
    """From the records, written to tune.json beside them. Raises NothingToClaim where they decide nothing."""
    points = read_points(store, experiment).points
    found = tuned(points, experiment.arm(SPECULATING), metric)
    store.write_json(TUNE_FILE, {"tune": tuned_json(found, metric)})
    return found


def undecided(found: Tuned) -> NothingToClaim | None:
    """Exit 6, where more repetitions or other concurrencies are needed."""
    if found.recommendation.advice != "none":
        return None
    more = "more repetitions (--blocks), more requests a slot, or concurrencies further apart"
    lacking = (
        found.evidence.kind in ("untested", "nothing") or "has no valid pair" in found.recommendation.why
    )
    return NothingToClaim(
        f"no threshold can be told: {found.recommendation.why}",
        help=advice_on(found.causes) if lacking and found.causes else more,
    )


def tuned_json(found: Tuned, metric: str) -> dict[str, Any]:
    """`changes`: always speculating against always plain, as shares."""
    return {
        "metric": metric,
        "recommendation": asdict(found.recommendation),
        "crossings": [asdict(crossing) for crossing in found.evidence.crossings],
        "changes": [
            {"concurrency": c, "verdict": found.call_at(c), **contrast_json(change)}
            for c, change in found.evidence.changes.items()
        ],
        "invalid": list(found.invalid),
    }

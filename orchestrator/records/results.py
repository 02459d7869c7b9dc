"""From the records in a run folder to summary, claims and report files, without a node: at the end of a run and again
with `dynspec report`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from orchestrator.analysis.gate import GateResult, gate_json, gate_of_json
from orchestrator.analysis.summary import unclaimable
from orchestrator.errors import DynspecError, NothingToClaim, Regression, UsageError
from orchestrator.model.experiment import Experiment
from orchestrator.model.result import Outcome, RunInfo
from orchestrator.records.damage import damage
from orchestrator.records.gating import gate_run, remember_good
from orchestrator.records.info import run_info
from orchestrator.records.missing import measured_and_gone
from orchestrator.records.summary import Summary, make_summary
from orchestrator.report.files import report_files
from orchestrator.store import GATE, SUMMARY, RunStore, from_here


@dataclass(frozen=True)
class Conclusion:
    """What the records of a run say. `error`: why the run is no plain success, Regression or NothingToClaim."""

    summary: Summary
    gate: GateResult | None
    error: DynspecError | None


def claim_error(summary: Summary) -> NothingToClaim | None:
    """Exit 6 where an arm has no valid point, or two arms that are to be compared have none in common.

    One boot an arm is no fault: its numbers are estimates by intent, and every report says so.
    """
    reasons = unclaimable(summary)
    if not reasons:
        return None
    return NothingToClaim(
        "measured, but nothing can be claimed",
        details=reasons,
        help="the report says for each point what speaks against it",
    )


def conclude(store: RunStore, experiment: Experiment) -> Conclusion:
    """Summary, gate if the experiment has one, and what they come to: a regression outranks a missing claim."""
    summary = make_summary(store, experiment)
    claim = claim_error(summary)
    if experiment.gate is None:
        return Conclusion(summary, None, claim)
    try:
        result = gate_run(store, experiment, summary, experiment.gate)
    except NothingToClaim as missing:
        return Conclusion(summary, None, claim or missing)
    except UsageError as wrong:  # a reference that is not there; what was measured stays measured
        return Conclusion(summary, None, claim or NothingToClaim(f"gate: {wrong.message}", help=wrong.help))
    verdict = result.error()
    return Conclusion(summary, result, verdict if isinstance(verdict, Regression) else claim or verdict)


def write_reports(
    store: RunStore,
    experiment: Experiment,
    *,
    conclusion: Conclusion | None = None,
    outcome: Outcome | None = None,
    formats: Iterable[str] = (),
    unwritten: Callable[[OSError], None] | None = None,
    notes: Iterable[str] = (),
) -> tuple[Summary, RunInfo]:
    """Writes summary.json and the report files: the experiment's formats and `formats`.

    `conclusion`, `outcome`: of a run that is just ending; else they are found in the folder: a gate is judged once,
    against the reference of that day. `unwritten` is told of each file that cannot be written; without it the first one
    raises. `notes`: what else must be known of the run. Returns what a terminal report needs.
    """
    found = conclusion or Conclusion(make_summary(store, experiment), stored_gate(store), None)
    if conclusion is None:
        _require_some_point(store, found.summary)
    info = run_info(store, experiment, outcome, found.gate)
    info = replace(info, warnings=(*notes, *info.warnings))
    values = {SUMMARY: found.summary}
    if conclusion is not None and found.gate is not None:
        values[GATE] = gate_json(found.gate)
    wanted = dict.fromkeys((*experiment.report.formats, *formats))
    texts = report_files(found.summary, info, wanted, found.gate)
    writing = [partial(store.write_json, name, value) for name, value in values.items()]
    writing += [partial(store.write, name, text) for name, text in texts.items()]
    for write in writing:
        try:
            write()
        except OSError as error:
            if unwritten is None:
                raise
            unwritten(error)
    return found.summary, info


def _require_some_point(store: RunStore, summary: Summary) -> None:
    """What an earlier report said is not replaced by one that can say nothing."""
    lost = 0 if any(arm["points"] for arm in summary["arms"].values()) else measured_and_gone(store)
    if lost:
        raise UsageError(
            f"no measurement is left in {from_here(store.folder)}: {lost} that were made are gone",
            details=tuple(f"Lost: {text}" for text in damage(store)),
            help=f"put {from_here(store.folder)}/arms back; {SUMMARY} and the reports are left as they are",
        )


def stored_gate(store: RunStore) -> GateResult | None:
    """None as well where it cannot be read, which the report says (`records.damage`)."""
    if not (store.folder / GATE).is_file():
        return None
    try:
        return gate_of_json(store.read_json(GATE))
    except (UsageError, KeyError, TypeError):
        return None


def keep_as_good(
    store: RunStore, experiment: Experiment, conclusion: Conclusion, outcome: Outcome
) -> Path | None:
    """After a passed gate: the pointer `last-good/<experiment>@<host>` names this run. None where it does not."""
    passed = conclusion.gate is not None and conclusion.gate.state == "pass" and outcome.exit_code == 0
    return remember_good(store, experiment) if passed else None

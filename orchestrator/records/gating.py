"""The gate on stored runs: which runs are the reference, are they alike, and which one was good last."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.analysis.gate import GateResult, gate
from orchestrator.analysis.setups import Difference, Setup, differences, setup_of
from orchestrator.analysis.summary import unclaimable
from orchestrator.errors import NothingToClaim, PhaseFailed, UsageError
from orchestrator.model.experiment import Experiment, Gate
from orchestrator.model.result import ENDED
from orchestrator.plain_file import read_plain
from orchestrator.plain_text import clean, os_words
from orchestrator.records.begun import begun_experiment, goes_on_with
from orchestrator.records.info import is_simulated
from orchestrator.records.naming import run_word
from orchestrator.records.summary import Summary, make_summary
from orchestrator.records.unfinished import under_way
from orchestrator.store import FACTS, OUTCOME, PLAN, RunStore, from_here, replace_file, safe_name

LAST_GOOD, ROLLING = "last-good", "rolling"
POINTED = (LAST_GOOD, ROLLING)
KEPT = 10  # runs that passed, for the rolling set


def gate_run(store: RunStore, experiment: Experiment, summary: Summary, rule: Gate) -> GateResult:
    """`store` against `rule.against`: a run id or path, last-good, or rolling (the last runs that passed)."""
    references = _references(store, experiment, summary, rule.against)
    mine = setup_of_run(store, experiment, summary)
    summaries: dict[str, Summary] = {}
    unlike: dict[str, Difference] = {}
    for other in references:
        begun = begun_experiment(other)
        theirs = make_summary(other, begun)  # both sides by the same definitions
        common = [arm for arm in summary["arms"] if arm in theirs["arms"]]
        found = differences(setup_of_run(other, begun, theirs), mine, common, same_place=True)
        unlike.update((str(item), item) for item in found)
        summaries[other.run_id] = theirs
    ordered = sorted(unlike.values(), key=lambda item: not item.blocks)
    return gate(summary, summaries, rule, ordered)


def require_finished(store: RunStore) -> None:
    """Raises NothingToClaim (exit 6) for a run that was cut short: what it lost cannot be seen in what it has."""
    state = cut_short(store)
    if driver := under_way(store):
        raise NothingToClaim(
            f"gate: {store.run_id} is under way ({driver}), so it can neither pass nor be a reference yet",
            help=f"when it has ended: dynspec gate {run_word(store)}",
        )
    if state:
        raise NothingToClaim(
            f"gate: {store.run_id} did not come to its end ({state}), so it can neither pass nor be a reference",
            help=goes_on_with(store),
        )


def require_reference(results: Path, experiment: Experiment, run_id: str = "") -> None:
    """Raises UsageError where `gate.against` names no run, or `run_id` itself: before anything is measured."""
    rule = experiment.gate
    if rule is None or rule.against in POINTED:
        return
    try:
        other = RunStore.open(results, rule.against)
    except UsageError as error:
        raise UsageError(f"gate.against: {error.message}", help=error.help) from None
    _refuse_itself(other, rule.against, run_id)


def _refuse_itself(other: RunStore, against: str, run_id: str) -> None:
    if other.run_id == run_id:
        raise UsageError(f"gate: {against} is the run itself, and no run is worse than itself")


def cut_short(store: RunStore) -> str:
    """How a run ended that did not come to its end; empty for one that did."""
    outcome = store.section_left(OUTCOME, "outcome")
    if outcome.get("state") in ENDED:
        return ""
    driver = under_way(store)
    return outcome.get("state") or (f"it is under way, {driver}" if driver else "it has no outcome")


def setup_of_run(store: RunStore, experiment: Experiment, summary: Summary) -> Setup:
    facts = store.section(FACTS, "facts")
    return setup_of(experiment, facts, summary, simulated=is_simulated(store))


def _references(store: RunStore, experiment: Experiment, summary: Summary, against: str) -> list[RunStore]:
    results = store.folder.parent
    if against not in POINTED:
        other = RunStore.open(results, against)
        _refuse_itself(other, against, store.run_id)
        _require_ended(other)
        return [other]
    wanted = 1 if against == LAST_GOOD else KEPT
    good = good_runs(results, experiment)
    others = [run for run in good if run != store.run_id][:wanted]
    if not others:
        raise _no_reference(store, experiment, summary, itself=store.run_id in good)
    return [RunStore.open(results, run) for run in others]


def _require_ended(other: RunStore) -> None:
    """Raises NothingToClaim for a reference that may still get what it lacks, or has lost it."""
    if state := cut_short(other):
        raise NothingToClaim(
            f"gate: {other.run_id} did not come to its end ({state}), so it cannot be a reference",
            help=f"{goes_on_with(other)}; to look at what there is of both: dynspec compare",
        )


def _no_reference(
    store: RunStore, experiment: Experiment, summary: Summary, *, itself: bool
) -> NothingToClaim:
    if itself:
        return NothingToClaim(
            f"gate: {store.run_id} is itself the reference (last-good), and no other run has passed yet",
            help=f"nothing to do: the next run of {experiment.name} on {experiment.node.host} is set against it",
        )
    missing = f"gate: no run of {experiment.name} on {experiment.node.host} has passed yet, so there is no reference"
    if reasons := unclaimable(summary):
        return NothingToClaim(
            f"{missing}; this run claims nothing, so it cannot be one",
            details=tuple(reasons),
            help="the report says for each point what speaks against it",
        )
    return NothingToClaim(
        missing,
        help=f"if this run is fit to be one: dynspec gate {run_word(store)} --accept",
    )


def pointer(results: Path, experiment: Experiment) -> Path:
    """`last-good/<experiment>@<host>` names the last run that passed its gate."""
    return results / LAST_GOOD / f"{safe_name(experiment.name)}@{safe_name(experiment.node.host)}"


def good_runs(results: Path, experiment: Experiment) -> list[str]:
    """Ids of runs that passed and still exist, the last one first."""
    path = pointer(results, experiment)
    named = [*_lines(path), *reversed(_lines(_history(path)))]
    return [run for run in dict.fromkeys(named) if _is_run(results, run)]


def pointer_problem(results: Path, experiment: Experiment, against: str) -> str:
    """Why the reference is not the run that the pointer should name, and what it is instead; empty if it is."""
    path = pointer(results, experiment)
    wrong = _wrong_pointer(results, path) if against in POINTED else ""
    if not wrong:
        return ""
    left = good_runs(results, experiment)
    instead = f"the last run before it that passed is {left[0]}" if left else "no other run has passed"
    return f"{from_here(path)} {wrong}; {instead}"


def _wrong_pointer(results: Path, path: Path) -> str:
    try:
        named = read_plain(path).decode("utf-8", "replace").split()
    except FileNotFoundError:
        return "is gone" if _lines(_history(path)) else ""
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if not named:
        return "is empty"
    return "" if _is_run(results, named[0]) else f"names {clean(named[0])[:80]}, and there is no such run"


def remember_good(store: RunStore, experiment: Experiment) -> Path:
    """Point last-good at this run; the runs before it stay known for the rolling set.

    Raises PhaseFailed, with what to do later, where that cannot be written.
    """
    results = store.folder.parent
    path = pointer(results, experiment)
    history = [*reversed(good_runs(results, experiment)), store.run_id]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(_history(path), list(dict.fromkeys(history))[-KEPT:])
        _write(path, [store.run_id])
    except OSError as error:
        raise PhaseFailed(
            f"{store.run_id} is not the reference (last-good): {from_here(path)} cannot be written: {os_words(error)}",
            help=f"once it can be: dynspec gate {run_word(store)} --accept",
        ) from None
    return path


def _history(path: Path) -> Path:
    return path.with_name(f"{path.name}.history")


def _is_run(results: Path, run: str) -> bool:
    """By its id alone: what was damaged may hold anything, also a path."""
    try:
        return safe_name(run) == run and (results / run / PLAN).is_file()
    except OSError:  # a name that is too long
        return False


def _lines(path: Path) -> list[str]:
    try:
        return read_plain(path).decode("utf-8", "replace").split()
    except OSError:  # told by `pointer_problem`
        return []


def _write(path: Path, lines: Sequence[str]) -> None:
    replace_file(path, "".join(f"{line}\n" for line in lines).encode())

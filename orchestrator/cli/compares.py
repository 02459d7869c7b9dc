"""compare and gate: stored runs against each other, no node."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.completing import run_ids
from orchestrator.cli.given import Kept
from orchestrator.errors import PhaseFailed, UsageError

if TYPE_CHECKING:
    from orchestrator.model.experiment import Experiment, Gate
    from orchestrator.store import RunStore

AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: dynspec compare 20260102-030405-k25-1a2b 20260101-030405-k25-3c4d")(compare)
    app.command(epilog="Example: dynspec gate 20260102-030405-k25-1a2b --against last-good")(gate)


def compare(
    run_a: Annotated[str, typer.Argument(metavar="RUN_A", help="A run id, or the path of a run folder.")],
    run_b: Annotated[str, typer.Argument(metavar="RUN_B", help="What it is set against.")],
    results: Kept = Path("results"),
    metric: Annotated[str, typer.Option("--metric", metavar="NAME", help="What is compared.")] = "output_tps",
    as_json: AsJson = False,
) -> int:
    """Arm by arm: better, worse, or inside the noise.

    Differences of the set-ups come first. Runs of unequal work are not compared, nor are those without a point that
    counts in both (exit 6).
    """
    from orchestrator.analysis.compare import compare_runs, require_like, require_something
    from orchestrator.cli.compare_text import comparison_json, comparison_lines
    from orchestrator.records.gating import cut_short, setup_of_run
    from orchestrator.records.summary import make_summary
    from orchestrator.store import RunStore

    name = _known(metric)
    stores = [RunStore.open(results, run) for run in (run_a, run_b)]
    if stores[0].folder == stores[1].folder:
        raise UsageError(
            f"{run_a} and {run_b} are one run, which is like itself", help="name two runs: RUN_A RUN_B"
        )
    begun = [_begun(store) for store in stores]
    sums = [make_summary(store, experiment) for store, experiment in zip(stores, begun, strict=True)]
    setups = [setup_of_run(*item) for item in zip(stores, begun, sums, strict=True)]
    found = compare_runs(sums[0], sums[1], (setups[0], setups[1]), metric=name)
    require_like(found)
    ids = stores[0].run_id, stores[1].run_id
    unfinished = {store.run_id: state for store in stores if (state := cut_short(store))}
    if as_json:
        print(json.dumps({**comparison_json(*ids, found), "unfinished": unfinished}))
    else:
        print("\n".join(comparison_lines(*ids, found, unfinished)))
    require_something(found)
    return 0


def gate(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A run id, or the path of a run folder.", autocompletion=run_ids),
    ],
    against: Annotated[
        str | None,
        typer.Option(
            metavar="RUN|last-good|rolling",
            help="Default: the experiment's gate.against, else last-good. rolling: the last runs that passed.",
        ),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="Default: the experiment's, else output_tps.")
    ] = None,
    max_drop: Annotated[
        str | None, typer.Option(metavar="PERCENT", help="Largest drop that passes, e.g. 3%.")
    ] = None,
    accept: Annotated[
        bool, typer.Option("--accept", help="Make this run the reference (last-good) without comparing it.")
    ] = False,
    results: Kept = Path("results"),
    as_json: AsJson = False,
) -> int:
    """Did this run get worse? 0 passed, 5 a regression, 6 nothing can be said.

    A run that passes becomes last-good. The first run of an experiment on a host has no reference: look at it, then
    take it as one with --accept.
    """
    if accept and (against or metric or max_drop) is not None:
        raise UsageError("--accept compares nothing: it goes with neither --against, --metric nor --max-drop")
    from orchestrator.records.gating import require_finished
    from orchestrator.store import RunStore

    store = RunStore.open(results, run)
    require_finished(store)
    experiment = _begun(store)
    rule = _rule(experiment, against, metric, max_drop)
    return _accept(store, experiment, as_json) if accept else _gate(store, experiment, rule, as_json)


def _begun(store: RunStore) -> Experiment:
    """The experiment of a run; rules of today that it breaks are told, and refuse nothing."""
    from orchestrator.records.begun import begun, newer_rules

    checked = begun(store)
    for text in newer_rules(checked):
        _note(f"{store.run_id}: {text}")
    return checked.experiment


def _gate(store: RunStore, experiment: Experiment, rule: Gate, as_json: bool) -> int:
    from orchestrator.analysis.gate import gate_json
    from orchestrator.records.gating import gate_run, pointer_problem, remember_good
    from orchestrator.records.results import claim_error
    from orchestrator.records.summary import make_summary
    from orchestrator.report.gate_text import gate_lines

    _note(pointer_problem(store.folder.parent, experiment, rule.against))
    summary = make_summary(store, experiment)
    result = gate_run(store, experiment, summary, rule)
    _keep(store, gate_json(result))
    error = result.error() or claim_error(summary)
    if as_json:
        print(json.dumps(gate_json(result)))
    else:
        print("\n".join(gate_lines(store.run_id, result)))
    if error is not None:
        raise error.after_answer()
    try:
        remember_good(store, experiment)
    except PhaseFailed as unwritten:  # the run itself passed
        _note(f"{unwritten.message}; {unwritten.help}")
    return 0


def _keep(store: RunStore, answer: dict[str, Any]) -> None:
    """For later reports of the run; one that is only read is judged all the same."""
    from orchestrator.plain_text import os_words
    from orchestrator.store import GATE

    try:
        store.write_json(GATE, answer)
    except OSError as error:
        _note(
            f"{GATE} of {store.run_id} cannot be written, so its reports will not have this: {os_words(error)}"
        )


def _note(text: str) -> None:
    if text:
        print(f"dynspec: note: {text}", file=sys.stderr)


def _accept(store: RunStore, experiment: Experiment, as_json: bool) -> int:
    from orchestrator.records.gating import remember_good
    from orchestrator.records.results import claim_error
    from orchestrator.records.summary import make_summary

    error = claim_error(make_summary(store, experiment))
    if error is not None:
        raise error
    path = remember_good(store, experiment)
    print(json.dumps({"schema": 1, "last_good": store.run_id}) if as_json else f"{path}: {store.run_id}")
    return 0


def _rule(experiment: Experiment, against: str | None, metric: str | None, max_drop: str | None) -> Gate:
    """The experiment's gate with what the command line says instead."""
    from dataclasses import replace

    from orchestrator.cli.words import share
    from orchestrator.model.experiment import Gate

    rule = experiment.gate or Gate()
    if against is not None:
        rule = replace(rule, against=against)
    if metric is not None:
        rule = replace(rule, metric=_known(metric))
    return rule if max_drop is None else replace(rule, max_drop=share(max_drop, "--max-drop"))


def _known(metric: str) -> str:
    from orchestrator.config.tables import GATE_METRICS

    if metric not in GATE_METRICS:
        raise UsageError(f"no metric {metric!r} to compare", help=f"one of: {', '.join(GATE_METRICS)}")
    return metric

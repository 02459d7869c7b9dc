"""tune: the best threshold of the dynamic_disable patch, from one boot."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import files
from orchestrator.cli.given import Results
from orchestrator.cli.runs import AsJson, ExperimentPath, LockWait, Overrides
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.analysis.tune import Tuned

_NOTHING: list[str] = []
_CALLS = {"better": "faster", "worse": "slower", "inconclusive": "not told apart"}
_THEN = {
    "off": ". Leave the speculative arguments out; that saves the draft's memory too",
    "on": ". No threshold is needed",
}
LEAST_BLOCKS = 2  # one says nothing about noise
MOST_BLOCKS = 100  # as many as sweep.repeats may be


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: dynspec tune experiments/k25-eagle3-dynamic.yaml --arm dynamic-v2")(tune)


def tune(
    experiment: ExperimentPath,
    arm: Annotated[
        str | None,
        typer.Option(
            "--arm", metavar="NAME", help="The arm whose server is tuned; default: the one with the patch."
        ),
    ] = None,
    overrides: Overrides = _NOTHING,
    blocks: Annotated[
        int, typer.Option("--blocks", metavar="N", help="Repetitions of the sweep, 2 to 100.")
    ] = 5,
    lock_wait: LockWait = None,
    yes: Annotated[bool, typer.Option("--yes", help="Consent to node.free: all.")] = False,
    results: Results = Path("results"),
    as_json: AsJson = False,
) -> int:
    """The best threshold, from one boot.

    One server, started once with the dynamic_disable patch and its run-time switch. At each concurrency of the sweep it
    always speculates and never does, in random order, again and again. Answers a threshold with its interval, "never
    speculate", or "always speculate"; exit code 6 where the numbers decide nothing.
    """
    from orchestrator.cli.screen import screen_for
    from orchestrator.cli.words import lock_wait_s
    from orchestrator.records.typed import Typed
    from orchestrator.runner.options import RunOptions
    from orchestrator.runner.session import run_experiment
    from orchestrator.runner.tuning import answer, tuned_json, tuning_overrides, undecided, without_own_notes

    if blocks < LEAST_BLOCKS:
        raise UsageError(f"--blocks {blocks}: one repetition says nothing about noise", help="--blocks 5")
    if blocks > MOST_BLOCKS:
        text = f"--blocks {blocks}: {LEAST_BLOCKS} to {MOST_BLOCKS} repetitions can be asked for"
        raise UsageError(text, help="--blocks 5")
    written = files.load(experiment, overrides).experiment
    checked = files.load(experiment, (*overrides, *tuning_overrides(written, arm)))
    checked = replace(checked, warnings=without_own_notes(checked.warnings))
    wait_s = lock_wait_s(lock_wait)
    screen = screen_for(as_json, checked.experiment)
    options = RunOptions(
        results=results,
        lock_wait_s=wait_s,
        yes=yes,
        blocks=blocks,
        typed=Typed(str(experiment), tuple(overrides)),
        watchers=screen.watchers,
    )
    try:
        finished = run_experiment(
            checked, options, base=experiment.parent, environ=os.environ, listeners=(screen.listen,)
        )
    finally:
        screen.close()
    screen.finish(finished)
    code = finished.outcome.exit_code
    if code not in (0, 6) or finished.store is None or finished.summary is None:
        return code
    found = answer(finished.store, checked.experiment)
    if as_json:
        print(json.dumps({"event": "tuned", **tuned_json(found, finished.summary["metric"])}))
    else:
        print("\n".join(["", *answer_lines(found)]))
    error = undecided(found)
    if error is not None:
        raise error.after_answer()
    return code


def answer_lines(found: Tuned) -> list[str]:
    """The answer first, then its evidence, then what to write where."""
    return [_answer(found), "", *_evidence(found), *_use(found)]


def _answer(found: Tuned) -> str:
    from orchestrator.report.questions import tune_words

    lead, why = tune_words(asdict(found.recommendation))
    return f"{lead[0].lower()}{lead[1:]}: {why}{_THEN.get(found.recommendation.advice, '')}"


def _evidence(found: Tuned) -> list[str]:
    from orchestrator.report.text import percent, percent_range, plural

    lines = [f"{found.evidence.metric}, always speculating against never, repeated in one boot:"]
    for concurrency, change in found.evidence.changes.items():
        spread = percent_range(change.low and change.low - 1, change.high and change.high - 1)
        shown = f"{percent(change.ratio - 1):>8}  {spread}"
        pairs = plural(min(change.n_a, change.n_b), "pair")
        told = f"{shown:<28} {pairs:<8} {_CALLS[found.call_at(concurrency)]}"
        lines.append(f"  concurrency {concurrency:>4}  {told}")
    lines += [f"  not counted: {text}" for text in found.left_out]
    return [*lines, "  what differs from boot to boot is not in these intervals"]


def _use(found: Tuned) -> list[str]:
    advice = found.recommendation
    if advice.advice != "threshold":
        return []
    lines = [
        "",
        f"up to SGLang 0.5.12, with the patch: speculative-disable-batch-threshold: {advice.threshold}",
    ]
    if advice.native_config is None:
        return [
            *lines,
            f"from 0.5.14 on there is no --speculative-adaptive-config for it: {advice.native_why_not}",
        ]
    return [
        *lines,
        "from 0.5.14 on, as the file of --speculative-adaptive-config:",
        json.dumps(advice.native_config),
    ]

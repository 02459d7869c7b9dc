"""run, plan, validate, smoke."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import files
from orchestrator.cli.given import Kept, Results, path_of
from orchestrator.cli.interrupting import only_reading
from orchestrator.errors import DynspecError, UsageError

if TYPE_CHECKING:
    from orchestrator.cli.screen import Screen
    from orchestrator.config import Checked
    from orchestrator.runner.options import RunOptions

_EXPERIMENT = path_of("EXPERIMENT.yaml")
ExperimentPath = Annotated[
    Path, typer.Argument(metavar="EXPERIMENT.yaml", parser=_EXPERIMENT, help="The experiment file.")
]
Overrides = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY.PATH=VALUE", help="Replace one value of the experiment; repeatable."),
]
Arms = Annotated[list[str], typer.Option("--arm", metavar="NAME", help="Only this arm; repeatable.")]
LockWait = Annotated[
    str | None,
    typer.Option(
        "--lock-wait",
        metavar="TIME",
        help="Wait this long for a busy node, e.g. 10m. Default: the experiment's limits.lock_wait.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
_NOTHING: list[str] = []


def register(app: typer.Typer) -> None:
    app.command(
        epilog="\b\nExample: dynspec run experiments/k25-eagle3.yaml --arm baseline --set sweep.repeats=1"
    )(run)
    app.command(epilog="Example: dynspec plan experiments/k25-eagle3.yaml")(plan)
    app.command(epilog="Example: dynspec validate experiments/default.yaml")(validate)
    app.command(epilog="Example: DYNSPEC_EXPERIMENT=experiments/k25-eagle3.yaml dynspec smoke")(smoke)


def run(
    experiment: ExperimentPath,
    arm: Arms = _NOTHING,
    overrides: Overrides = _NOTHING,
    resume: Annotated[
        str | None, typer.Option(metavar="RUN_ID", help="Keep finished points of this run and go on.")
    ] = None,
    lock_wait: LockWait = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="The same as: dynspec plan.")] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Go on without this terminal, once the node is locked.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Consent to node.free: all.")] = False,
    results: Results = Path("results"),
    as_json: AsJson = False,
    report_to: Annotated[str | None, typer.Option("--report-to", hidden=True)] = None,
) -> int:
    """The whole loop, and the node given back.

    Lock, patch, smoke, launch, ready, canary, sweep, stop, restore, verify, unlock, collect, report. With --resume, a
    detached run that is still under way is shown; Ctrl-C then closes the view alone.
    """
    if dry_run:
        if resume is not None or detach:
            raise UsageError("--dry-run plans a whole run: it goes with neither --resume nor --detach")
        return plan(experiment, arm, overrides, results, as_json)
    from orchestrator.cli import attached, detached
    from orchestrator.cli.again import RunCommand
    from orchestrator.cli.screen import screen_for
    from orchestrator.cli.words import lock_wait_s
    from orchestrator.runner.options import RunOptions

    checked = files.load(experiment, overrides)
    command = RunCommand(experiment, tuple(arm), tuple(overrides), results)
    options = RunOptions(
        results=results,
        arms=tuple(arm),
        resume=resume,
        lock_wait_s=lock_wait_s(lock_wait),
        yes=yes,
        typed=command.typed,
        detached=detach,
    )
    if report_to is not None:
        screen = detached.DetachedScreen(report_to, command)
        return _drive(checked, replace(options, accepted=screen.accepted), experiment.parent, screen)
    if detach:
        words = ["--lock-wait", lock_wait] if lock_wait is not None else []
        words += [*(["--resume", resume] if resume is not None else []), *(["--yes"] * yes)]
        return detached.launch(command, tuple(words), checked.experiment.node, as_json=as_json)
    if resume is not None and (found := attached.detached_run(results, resume)) is not None:
        return attached.attach(*found, command, as_json=as_json)
    return _drive(
        checked,
        options,
        experiment.parent,
        screen_for(as_json, checked.experiment, tuple(arm), command),
    )


def _drive(checked: Checked, options: RunOptions, base: Path, screen: Screen) -> int:
    """The run, in this process. Its lock is held until its last line is shown."""
    from orchestrator.runner.runlock import RunLock
    from orchestrator.runner.session import run_experiment

    with RunLock(detached=options.detached, arms=options.arms) as lock:
        try:
            finished = run_experiment(
                checked,
                replace(options, lock=lock, watchers=screen.watchers),
                base=base,
                environ=os.environ,
                listeners=(screen.listen,),
            )
        finally:
            screen.close()
        screen.finish(finished)
    return finished.outcome.exit_code


@only_reading()
def plan(
    experiment: ExperimentPath,
    arm: Arms = _NOTHING,
    overrides: Overrides = _NOTHING,
    results: Kept = Path("results"),
    as_json: AsJson = False,
) -> int:
    """Every step with its undo; changes nothing."""
    from orchestrator.plan import render_plan
    from orchestrator.records.gating import require_reference
    from orchestrator.runner.prepare import connect, prepare
    from orchestrator.store import plain

    checked = files.load(experiment, overrides)
    require_reference(results, checked.experiment)
    node = connect(checked.experiment)
    try:
        prepared = prepare(node, checked.experiment, arm, yes=True)
    finally:
        node.close()
    if as_json:
        print(json.dumps({"schema": 1, "plan": plain(prepared.plan)}, indent=1))
        return 0
    for text in (
        *(f"note: {warning}" for warning in checked.warnings),
        *render_plan(prepared.plan, prepared.facts),
    ):
        print(text)
    return 0


def validate(
    experiment: ExperimentPath,
    overrides: Overrides = _NOTHING,
    results: Annotated[
        Path | None,
        typer.Option(
            "--results",
            metavar="DIR",
            parser=path_of("--results"),
            help="Where run folders are: gate.against must be there.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Parses and checks; no connection."""
    from orchestrator.records.gating import require_reference
    from orchestrator.report.text import plural

    try:
        checked = files.load(experiment, overrides)
        if results is not None:
            require_reference(results, checked.experiment)
    except DynspecError as error:
        if not as_json:
            raise
        print(json.dumps({"schema": 1, "valid": False, "problems": [error.message, *error.details]}))
        return error.exit_code
    found = checked.experiment
    points = len(found.sweep.concurrency)
    if as_json:
        print(json.dumps({"schema": 1, "valid": True, "warnings": list(checked.warnings)}))
        return 0
    arms = f"{plural(len(found.arms), 'arm')} ({', '.join(arm.name for arm in found.arms)})"
    boots = f"{plural(found.sweep.repeats, 'boot')}{' each' if len(found.arms) > 1 else ''}"
    print(f"{experiment}: valid. {arms}, {plural(points, 'point')}, {boots}, on {found.node.host}")
    for warning in checked.warnings:
        print(f"  note: {warning}")
    return 0


@only_reading()
def smoke(
    experiment: Annotated[
        Path | None,
        typer.Argument(
            metavar="[EXPERIMENT.yaml]",
            parser=_EXPERIMENT,
            help="Default: $DYNSPEC_EXPERIMENT, else experiments/default.yaml.",
        ),
    ] = None,
    arm: Arms = _NOTHING,
    overrides: Overrides = _NOTHING,
    as_json: AsJson = False,
) -> int:
    """Try each patch set in an overlay copy.

    Touched files compile, have no undefined names and import in the interpreter, environment and folder that will
    serve; the file that loads is the patched one; that tree's own parser takes the arms' arguments. No live server
    sees it.
    """
    from orchestrator.redact import Redactor
    from orchestrator.runner.arguments import check_arguments
    from orchestrator.runner.events import Events
    from orchestrator.runner.prepare import connect, inspect
    from orchestrator.runner.smoke import smoke_patch_set
    from orchestrator.store import new_run_id

    path = experiment or files.default_experiment()
    checked = files.load(path, overrides)
    found: list[dict[str, Any]] = []
    events = Events((lambda record: found.append(dict(record)),), Redactor({}))
    node = connect(checked.experiment)
    failure: DynspecError | None = None
    try:
        seen = inspect(node, checked.experiment, arm)
        run_id = new_run_id(f"smoke-{checked.experiment.name}")
        names = [item.name for item in seen.arms]
        check_arguments(node, seen.experiment, seen.facts, names, seen.sets)
        for patch_set in seen.sets:
            try:
                smoke_patch_set(node, seen.experiment, seen.facts, patch_set, run_id, events, names)
            except DynspecError as error:
                failure = failure or error
        node.clean(run_id=run_id, workdir=checked.experiment.node.workdir)
    finally:
        node.close()
    _show_smoke(found, as_json)
    if failure is not None:
        raise failure.after_answer()
    return 0


def _show_smoke(found: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"schema": 1, "patch_sets": found}))
        return
    for record in found:
        print(f"{record['patch_set']}:")
        for line in record["lines"]:
            print(f"  {line}")
        for warning in record["warnings"]:
            print(f"  warning, not a failure: {warning}", file=sys.stderr)

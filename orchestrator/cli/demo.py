"""`dynspec demo`: the normal run, against an embedded node that lives as long as the command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.cli.files import load
from orchestrator.cli.screen import screen_for
from orchestrator.config import Checked
from orchestrator.demo.command import RunningNode, demo_node, how_to_use, kept
from orchestrator.errors import Interrupted, NothingToClaim
from orchestrator.patchset.load import patches_folder
from orchestrator.runner.options import RunOptions
from orchestrator.runner.session import run_experiment
from orchestrator.runner.signals import watching_signals

AFTERWARDS = (
    "next: your own YAML without a GPU: dynspec demo --node-only; on a node of yours: dynspec doctor NODE"
)


def run_demo(results: Path, *, keep: bool) -> int:
    """Returns the exit code of the run; but points that are not valid are no fault of a demo, whose numbers claim
    nothing: on a busy machine the load generator runs late, and the report says so."""
    path = _demo_file()
    with _node(keep=keep) as running:
        print(running.notice, flush=True)
        checked = _demo_experiment(running)
        screen = screen_for(False, checked.experiment)
        try:
            finished = run_experiment(
                checked,
                RunOptions(results=results, watchers=screen.watchers),
                base=path.parent,
                environ=os.environ,
                listeners=(screen.listen,),
            )
        finally:
            screen.close()
        screen.finish(finished)
    print(kept(running.node) if keep else AFTERWARDS)
    code = finished.outcome.exit_code
    return 0 if code == NothingToClaim.exit_code else code


@contextmanager
def _node(*, keep: bool) -> Iterator[RunningNode]:
    """The node, whose files go with it whenever a signal comes: while it starts, too, and while it ends."""
    with watching_signals() as gate, demo_node(keep=keep) as running:
        try:
            yield running
        finally:
            gate.disarm()


def _demo_file() -> Path:
    return patches_folder().parent / "experiments" / "demo.yaml"


def _demo_experiment(running: RunningNode) -> Checked:
    """The demo's own, with the way to this node."""
    return load(_demo_file(), [f"{key}={value}" for key, value in running.overrides.items()])


def run_node(*, keep: bool) -> int:
    """The embedded node alone, until a signal, with an experiment that runs there."""
    with _node(keep=keep) as running:
        experiment = running.node.root / "demo.yaml"
        text = _demo_experiment(running).experiment.source.partition("\n")[2]  # its first line tells of --set
        experiment.write_text(
            f"# Runs on the node of `dynspec demo --node-only` while that is up.\n{text}", encoding="utf-8"
        )
        with suppress(Interrupted):
            print(running.notice)
            print("\n".join(how_to_use(running.node, experiment)), flush=True)
            running.node.wait()
    print(kept(running.node) if keep else "the node has ended, and its files are gone")
    return 0

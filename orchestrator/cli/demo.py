"""`dynspec demo`: the normal run, against an embedded node that lives as long as the command."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.cli.files import load
from orchestrator.cli.screen import screen_for
from orchestrator.demo.command import demo_node
from orchestrator.errors import NothingToClaim
from orchestrator.patchset.load import patches_folder
from orchestrator.runner.options import RunOptions
from orchestrator.runner.session import run_experiment


def run_demo(results: Path, *, keep: bool) -> int:
    """Returns the exit code of the run; but points that are not valid are no fault of a demo, whose numbers claim
    nothing: on a busy machine the load generator runs late, and the report says so."""
    path = patches_folder().parent / "experiments" / "demo.yaml"
    with demo_node(keep=keep) as running:
        print(running.notice, flush=True)
        checked = load(path, [f"{key}={value}" for key, value in running.overrides.items()])
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
    code = finished.outcome.exit_code
    return 0 if code == NothingToClaim.exit_code else code

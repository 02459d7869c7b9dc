"""`dynspec demo`: the normal run, against an embedded node that lives as long as the command."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.cli.files import load
from orchestrator.cli.screen import screen_for
from orchestrator.demo.node import DemoNode, NodeOptions
from orchestrator.patchset.load import patches_folder
from orchestrator.runner.options import RunOptions
from orchestrator.runner.session import run_experiment


def run_demo(results: Path, *, keep: bool) -> int:
    """Returns the exit code of the run."""
    print(
        "building the embedded node: SSH on loopback, SGLang's real source files, a SIMULATED engine (no GPU)",
        flush=True,
    )
    with DemoNode(NodeOptions(keep=keep)) as node:
        path = patches_folder().parent / "experiments" / "demo.yaml"
        checked = load(path, [f"node.ssh_config={node.ssh_config}", f"node.known_hosts={node.known_hosts}"])
        screen = screen_for(as_json=False)
        finished = run_experiment(
            checked,
            RunOptions(results=results),
            base=path.parent,
            environ=os.environ,
            listeners=(screen.listen,),
        )
        screen.finish(finished)
        if keep:
            print(f"\nthe node's folder: {node.root}")
    return finished.outcome.exit_code

"""experiment.lock.yaml: the experiment as it was run, still a valid one, plus what it was run on under `lock:`."""

from __future__ import annotations

import platform
from typing import Any

import yaml

from orchestrator.model.experiment import Experiment
from orchestrator.runner.prepare import Prepared
from orchestrator.version import VERSION


def lock_text(experiment: Experiment, prepared: Prepared) -> str:
    """The experiment's own text, comments and all, then the lock block."""
    block = yaml.safe_dump({"lock": _lock(prepared)}, sort_keys=False, allow_unicode=True)
    return f"{experiment.source.rstrip()}\n\n# What this ran on. Ignored when the file is run again.\n{block}"


def _lock(prepared: Prepared) -> dict[str, Any]:
    facts = prepared.facts
    tree = facts.tree
    assert tree is not None
    return {
        "dynspec": VERSION,
        "controller_python": platform.python_version(),
        "host": facts.host,
        "kernel": facts.kernel,
        "gpus": [f"{gpu.name} ({gpu.uuid}), driver {gpu.driver}" for gpu in facts.gpus],
        "tree": {"path": tree.path, "version": tree.version, "editable": tree.editable},
        "python": {"path": tree.python, "version": tree.python_version},
        "files": {fact.path: fact.sha256 for fact in tree.files},
        "patch_sets": {
            item.name: {edit.path: edit.after_sha256 for edit in item.edits}
            for item in prepared.plan.patch_sets
        },
    }

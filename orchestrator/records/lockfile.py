"""experiment.lock.yaml: the experiment as it was run, still a valid one, plus what it was run on under `lock:`."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from typing import Any

import yaml

from orchestrator.model.experiment import Experiment
from orchestrator.model.facts import Facts, Tree
from orchestrator.model.plan import Plan
from orchestrator.plain_file import read_plain
from orchestrator.store import LOCK_FILE, RunStore, plain
from orchestrator.version import VERSION


def lock_text(experiment: Experiment, lock: dict[str, Any]) -> str:
    """The experiment's own text, comments and all, then the lock block."""
    block = yaml.safe_dump({"lock": lock}, sort_keys=False, allow_unicode=True)
    return f"{experiment.source.rstrip()}\n\n# What this ran on. Ignored when the file is run again.\n{block}"


def stored_lock(store: RunStore) -> dict[str, Any]:
    """The lock block of a run folder; empty where it cannot be read."""
    try:
        found = yaml.safe_load(read_plain(store.folder / LOCK_FILE).decode("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    lock = found.get("lock") if isinstance(found, dict) else None
    return lock if isinstance(lock, dict) else {}


def lock_of(facts: Facts, plan: Plan, prompts_sha256: str) -> dict[str, Any]:
    """Everything that the numbers depend on beside the experiment itself."""
    tree = facts.tree
    assert tree is not None
    lock = {
        "dynspec": VERSION,
        "controller_python": platform.python_version(),
        "host": facts.host,
        "kernel": facts.kernel,
        "gpus": [f"{gpu.name} ({gpu.uuid}), driver {gpu.driver}" for gpu in facts.gpus],
        "tree": {
            "path": tree.path,
            "version": tree.version,
            "editable": tree.editable,
            **_source(tree),
        },
        "python": {"path": tree.python, "version": tree.python_version},
        "prompts_sha256": prompts_sha256,
        "files": {fact.path: fact.sha256 for fact in tree.files},
        "patch_sets": {
            item.name: {edit.path: edit.after_sha256 for edit in item.edits} for item in plan.patch_sets
        },
        "arms": {arm.name: {"args": dict(arm.args), "patches": list(arm.patches)} for arm in plan.arms},
    }
    as_stored: dict[str, Any] = json.loads(json.dumps(plain(lock)))  # YAML reads back no tuples
    return as_stored


def joined(begun: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """What this part of a run is measured on, and what an earlier one said of arms that this part leaves alone."""
    by_name = [key for key in ("files", "patch_sets", "arms") if isinstance(begun.get(key), dict)]
    return {**now, **{key: {**begun[key], **now[key]} for key in by_name}}


def _source(tree: Tree) -> dict[str, Any]:
    """What the files were compared with, and how many differed from it; nothing where that cannot be told."""
    seen = tree.pristine
    if seen is None or seen.problem is not None:
        return {}
    return {"baseline": seen.baseline, "changed": seen.changed_count}

"""Plan tables -> values: an experiment with --set words, facts with changes laid over them, patch sets by hashes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from orchestrator.config import load_experiment
from orchestrator.model.experiment import Experiment
from orchestrator.model.facts import Facts, FileFact, Gpu, JournalFact, LockFact, PortFact, ProcessFact, Tree
from orchestrator.model.plan import Edit, PatchSet, Plan
from orchestrator.plan import Done, build_plan

FOLDER = Path(__file__).parent / "plans"
BANNER = {
    "spec_banner": {"srt/server_args.py": ["aa", "a1"], "srt/speculative/eagle_worker_v2.py": ["cc", "c1"]}
}


def table(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = yaml.safe_load((FOLDER / name).read_text())
    return rows


def experiment(words: list[str]) -> Experiment:
    text = (FOLDER / "experiment.yaml").read_text()
    return load_experiment(text, name="experiment.yaml", overrides=words).experiment


def facts(changes: dict[str, Any]) -> Facts:
    values = laid_over(yaml.safe_load((FOLDER / "facts.yaml").read_text()), changes)
    tree, lock = values["tree"], values["lock"]
    if tree is not None:
        values["tree"] = Tree(**tree | {"files": tuple(FileFact(**item) for item in tree["files"])})
    values["lock"] = LockFact(**lock) if lock is not None else None
    values["port"] = PortFact(**values["port"])
    for key, kind in (
        ("gpus", Gpu),
        ("holders", ProcessFact),
        ("tree_processes", ProcessFact),
        ("journals", JournalFact),
    ):
        values[key] = tuple(kind(**item) for item in values[key])
    return Facts(**values)


def laid_over(base: Any, changes: Any) -> Any:
    """Mappings key by key, lists by index where the change is a mapping of indices, anything else replaced."""
    if isinstance(base, dict) and isinstance(changes, dict):
        return base | {key: laid_over(base.get(key), value) for key, value in changes.items()}
    if isinstance(base, list) and isinstance(changes, dict):
        return [laid_over(item, changes.get(index, item)) for index, item in enumerate(base)]
    return changes


def patch_sets(edits: dict[str, dict[str, list[str]]]) -> tuple[PatchSet, ...]:
    found = [PatchSet("original", (), (), ())]
    for name, files in edits.items():
        items = [
            Edit(path, f"/home/bob/venv/sglang/{path}", before, after, "text")
            for path, (before, after) in files.items()
        ]
        found.append(PatchSet(name, (name,), tuple(items), ()))
    return tuple(found)


def plan_of(row: dict[str, Any]) -> Plan:
    options = dict(row.get("options", {}))
    if "done" in options:
        options["done"] = Done(frozenset((arm, boot, index) for arm, boot, index in options["done"]))
    return build_plan(
        experiment(row.get("set", [])),
        facts(row.get("facts", {})),
        patch_sets(row.get("edits", BANNER)),
        **options,
    )

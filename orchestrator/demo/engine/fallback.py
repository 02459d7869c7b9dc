"""Speculate or not, step by step: the state machine that the dynamic-disable patch put into the tree."""

from __future__ import annotations

import ast
import logging
from types import SimpleNamespace
from typing import Any

from . import added, patched
from .graphs import captured_sizes
from .resolve import Resolved
from .tree import Tree

_CLASSES = {"v1": "EAGLEWorker", "v2": "EAGLEWorkerV2"}
_WINDOW = 16  # places of the lazy catch-up ring; only shown
_PLAIN_FILE = "srt/speculative/dynspec/plain.py"


class Fallback:
    """The tree's `policy.Switch` of one rank, with the counters that only a real worker would fill."""

    def __init__(self, switch: Any, worker: str, draft_sync: str) -> None:
        self._switch = switch
        self._worker = worker
        self._draft_sync = draft_sync
        self._behind = 0  # tokens of plain steps that a lazy draft has not seen

    @classmethod
    def of(cls, tree: Tree, resolved: Resolved, rank: int, log: logging.Logger) -> Fallback | None:
        """None without a threshold, and where the worker in use is not the one that is hooked: then it speculates
        at every batch size and nothing says so, as the release would. Raises CannotLoad for a hook without its module.
        """
        if resolved.threshold is None or not resolved.speculates or not _attached(tree, resolved.worker):
            return None
        policy: Any = added.load(tree.package, added.NAMESPACE + ".policy")
        arguments: Any = added.load(tree.package, added.NAMESPACE + ".arguments")
        policy.logger = log
        args = SimpleNamespace(**resolved.args)
        sync = arguments.draft_sync_of(args, SimpleNamespace())
        switchable = bool(args.enable_speculative_threshold_switch)
        switch = policy.Switch(resolved.worker, resolved.threshold, sync, switchable, rank)
        switch.counters["plain_graph_bs"] = _plain_sizes(resolved, switchable)
        switch.counters["window"] = _WINDOW if sync == "lazy" else 0
        return cls(switch, resolved.worker, sync)

    def announce(self, tree: Tree, log: logging.Logger) -> None:
        """The start-up line of this rank, as the tree words it."""
        attributes = {
            "kind": self._worker,
            "switch": self._switch,
            "draft_sync": self._draft_sync,
            "counters": self._switch.counters,
            "graphs": SimpleNamespace(batch_sizes=self._switch.counters["plain_graph_bs"]),
        }
        patched.run_statements(
            tree.package / _PLAIN_FILE, "PlainDecode", "announce", attributes, {"logger": log}
        )

    def decide(self, batch: int) -> bool:
        """True: the step that comes next speculates."""
        speculate = not self._switch.decide(batch)
        if speculate and self._behind:
            self._switch.counters["catchup_extends"] += 1
            self._switch.counters["catchup_tokens"] += self._behind
            self._behind = 0
        return speculate

    def count(self, batch: int, tokens: int, speculated: bool) -> None:
        if speculated:
            self._switch.count_verified(batch, tokens)
            return
        self._switch.count_plain(tokens)
        self._switch.counters["plain_graph_steps"] += 1
        if self._draft_sync == "lazy":
            self._behind += tokens

    @property
    def threshold(self) -> int:
        return int(self._switch.threshold)

    def set_threshold(self, value: Any) -> str | None:
        """From the next step on; the reason if it is refused."""
        refusal: str | None = self._switch.set_threshold(value)
        return refusal

    @property
    def counters(self) -> dict[str, Any]:
        return dict(self._switch.counters)


def _plain_sizes(resolved: Resolved, switchable: bool) -> list[int]:
    """Batch sizes with a captured plain graph: those above the threshold, all if it can be switched."""
    lowest = 1 if switchable or resolved.threshold is None else resolved.threshold + 1
    return [size for size in captured_sizes(resolved.args) if size >= lowest]


def _attached(tree: Tree, worker: str) -> bool:
    """Whether the worker's file holds the patch's hook for this kind: `attach(self, "v2")`."""
    file = tree.worker_file(worker)
    if not file.is_file():
        return False
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "attach"
        and any(isinstance(item, ast.Constant) and item.value == worker for item in node.args)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    )

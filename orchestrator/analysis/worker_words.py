"""Which speculative worker a server says that it uses, read off its start-up log. Pure: lines in, a value out.

Strongest first: one line per rank of a carried patch (`dynspec: worker=EAGLEWorkerV2 tp_rank=0 ...`, `dynspec: ready
rank=0 worker=v2 ...`), the patch's line on the arguments (`dynspec: arguments choose path=v2`), SGLang's own lines on
the choice (0.5.8 to 0.5.23). From 0.5.14 on a server with overlap says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.model.plan import WorkerPath

_RANK_LINES = (
    re.compile(r"dynspec: worker=(?P<worker>\w+) tp_rank=(?P<rank>\d{1,9})\b(?:.* file=(?P<file>\S+))?"),
    re.compile(r"dynspec: ready rank=(?P<rank>\d{1,9})\b worker=(?P<worker>\w+)"),
)
_CHOICE = re.compile(r"dynspec: arguments choose path=(v[12])\b")
_SGLANG = (
    (re.compile(r"Spec v1 is used for"), "v1"),
    (re.compile(r"Overlap scheduler is disabled when spec v2 is off"), "v1"),
    (re.compile(r"Spec v2 is enabled\b"), "v2"),
    (re.compile(r"Overlap spec v2 is enabled\b"), "v2"),
    (re.compile(r"Non-overlap \(synchronous\) spec v2 is used"), "v2"),
)


@dataclass(frozen=True)
class WorkerSeen:
    """`worker`: v1, v2, or None where the server does not say (or its ranks disagree). `said`: the line it is from.

    `ranks` are those that logged a start-up line of a patch; `files` the worker files that they named.
    """

    worker: str | None
    said: str = ""
    ranks: tuple[int, ...] = ()
    files: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()  # more than one: the ranks disagree


def read_worker(lines: Iterable[str]) -> WorkerSeen:
    """What the start-up lines of one boot say."""
    ranks: dict[int, tuple[str, str]] = {}  # rank -> worker, line
    files: dict[str, None] = {}
    weaker: dict[int, tuple[str, str]] = {}  # strength -> worker, line; the last word of each strength counts
    for line in lines:
        if match := _first(_RANK_LINES, line):
            ranks[int(match["rank"])] = (_short(match["worker"]), line.strip())
            if file := match.groupdict().get("file"):
                files[file] = None
        elif match := _CHOICE.search(line):
            weaker[0] = (match[1], line.strip())
        else:
            for pattern, worker in _SGLANG:
                if pattern.search(line):
                    weaker[1] = (worker, line.strip())
    named = tuple(sorted({worker for worker, _ in ranks.values()}))
    if ranks:
        agreed = named[0] if len(named) == 1 else None
        return WorkerSeen(agreed, ranks[min(ranks)][1], tuple(sorted(ranks)), tuple(files), named)
    if weaker:
        word, said = weaker[min(weaker)]
        return WorkerSeen(word, said, workers=(word,))
    return WorkerSeen(None)


def _first(patterns: Iterable[re.Pattern[str]], line: str) -> re.Match[str] | None:
    return next((match for pattern in patterns if (match := pattern.search(line))), None)


def _short(name: str) -> str:
    """v1 or v2, of the word itself or of a class name such as EAGLEWorkerV2."""
    return name if name in ("v1", "v2") else "v2" if name.endswith("V2") else "v1"


def contradiction(seen: WorkerSeen, predicted: WorkerPath, tensor_parallel: int) -> str:
    """Why the server is not what the plan says; empty where it is, or where it does not say."""
    if len(seen.workers) > 1:
        return f"the ranks use different workers: {', '.join(seen.workers)}"
    if (
        seen.worker is not None
        and predicted.worker in ("v1", "v2", "none")
        and seen.worker != predicted.worker
    ):
        expected = "no speculative worker" if predicted.worker == "none" else f"worker {predicted.worker}"
        return f"the server uses worker {seen.worker} where {expected} was expected ({predicted.why}): {seen.said}"
    if seen.ranks and len(seen.ranks) != tensor_parallel:
        told = ", ".join(map(str, seen.ranks))
        return f"{len(seen.ranks)} of {tensor_parallel} ranks logged the patch's start-up line (rank {told})"
    return ""

"""Measurements that do not count, and why: where they leave no verdict, the answer must blame them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.model.result import RunInfo
from orchestrator.report.shapes import Summary
from orchestrator.report.text import levels, listed

# finding -> (what happened, what to do about it)
_TOO_BUSY = ("the machine that makes the load was too busy", "run again while it is idle")
_OTHERS = ("another process was on the GPU", "run again when the GPU is free")
_REQUESTS = ("requests failed", "read the server's log")
_WORDS = {
    "client_bound": _TOO_BUSY,
    "gpu_shared": _OTHERS,
    "throttled": ("the GPU slowed itself down", "look at its power limit and cooling"),
    "gpu_xid": ("the GPU driver reported an error", "read the kernel's log"),
    "failed_requests": _REQUESTS,
    "no_output": _REQUESTS,
    "warmup_failed": ("warm-up requests failed", "read the server's log"),
    "no_requests": ("no request was sent", "read the server's log"),
    "records_damaged": ("its records were changed after the run", "measure again"),
    "admission_limit": ("the server admits too few requests", "set max-running-requests in all arms"),
    "concurrency_not_reached": ("the concurrency was not reached", "raise sweep.requests_per_slot"),
    "few_requests": ("too few requests were sent", "raise sweep.requests_per_slot"),
    "no_steady_window": ("the load was never steady", "raise sweep.requests_per_slot"),
    "short_outputs": ("outputs differ in length", "set sweep.ignore_eos"),
    "tokens_missing": ("the server tells no token counts", "choose another sweep.endpoint"),
}
_OTHER = ("what was measured is not what was asked for", "the reasons are below")


def advice_on(names: Sequence[str]) -> str:
    """What to do about findings, the most frequent first."""
    return _WORDS.get(names[0], _OTHER)[1]


@dataclass(frozen=True)
class Lost:
    """`measurements` of `of` (one point in one boot each) do not count; `names`: the findings, most frequent first."""

    measurements: int
    of: int
    names: tuple[str, ...]
    arms: tuple[str, ...] = ()

    @property
    def cause(self) -> str:
        return _WORDS.get(self.names[0], _OTHER)[0]

    @property
    def advice(self) -> str:
        return advice_on(self.names)

    @property
    def count(self) -> str:
        share = f"{self.measurements} of {self.of} measurements of {listed(self.arms)}"
        return f"{share} do not count ({listed(self.names[:3])})"


def lost(summary: Summary, arms: Iterable[str]) -> Lost | None:
    """Over all points and boots of `arms`; None where every measurement counts."""
    wanted = tuple(dict.fromkeys(arms))
    boots = [
        boot
        for arm in wanted
        for point in summary["arms"].get(arm, {}).get("points", ())
        for boot in point["boots"]
    ]
    bad = [boot for boot in boots if not boot["valid"]]
    names = Counter(name for boot in bad for name in {reason.split(":")[0] for reason in boot["reasons"]})
    if not names:
        return None
    return Lost(len(bad), len(boots), tuple(name for name, _ in names.most_common()), wanted)


def uncounted(summary: Summary, arms: Iterable[str], concurrencies: Sequence[int]) -> str:
    """Concurrencies without a pair that counts, and why: 4 and 16 do not count (client_bound), 48 was not measured."""
    points = [
        point
        for arm in arms
        for point in summary["arms"].get(arm, {}).get("points", ())
        if point["concurrency"] in concurrencies
    ]
    measured = sorted({point["concurrency"] for point in points})
    absent = sorted(set(concurrencies) - set(measured))
    names = Counter(
        reason.split(":")[0]
        for point in points
        for reason in {reason for boot in point["boots"] for reason in boot["reasons"]}
    )
    why = f" ({listed([name for name, _ in names.most_common(3)])})" if names else ""
    told = [f"{levels(measured)} {'do' if len(measured) > 1 else 'does'} not count{why}"] if measured else []
    told += [f"{levels(absent)} {'were' if len(absent) > 1 else 'was'} not measured"] if absent else []
    return ", ".join(told)


def lost_records(summary: Summary, info: RunInfo, arms: list[str]) -> list[str]:
    """Arms that were measured, and of which no record is left."""
    gone = [text for text in info.damage if "left out" in text]
    empty = [arm for arm in arms if not summary["arms"].get(arm, {}).get("points")]
    return [arm for arm in empty if any(text.startswith((f"arms/{arm} ", f"arms/{arm}/")) for text in gone)]

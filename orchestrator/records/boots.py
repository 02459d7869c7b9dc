"""What each boot of a stored run left behind: its server log, its GPU samples, and how it failed."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.analysis.failure import failure_card, replay_command
from orchestrator.analysis.trace import Trace, boot_trace, of_gpus, read_log
from orchestrator.model.experiment import Gpus
from orchestrator.model.result import BootTrace, FailureCard
from orchestrator.records.events import boot_order, events_of
from orchestrator.records.planned import plan_left
from orchestrator.store import GPU_SAMPLES, LOCK_FILE, PACKED_LOG, SERVER_LOG, RunStore, from_here


@contextmanager
def open_log(folder: Path) -> Iterator[Iterator[str] | None]:
    """Lines of a boot's server log, packed or not; None where there is none. Of a damaged pack, what can be read."""
    if (folder / SERVER_LOG).is_file():
        with (folder / SERVER_LOG).open(encoding="utf-8", errors="replace") as lines:
            yield lines
    elif (folder / PACKED_LOG).is_file():
        with gzip.open(folder / PACKED_LOG, "rt", encoding="utf-8", errors="replace") as lines:
            yield _readable(lines)
    else:
        yield None


def _readable(lines: Iterable[str]) -> Iterator[str]:
    with suppress(OSError, EOFError, zlib.error):
        yield from lines


def traces(store: RunStore, gpus: Gpus) -> tuple[BootTrace, ...]:
    """Each boot over time, in the order in which the boots ran, with samples of these GPUs."""
    found = []
    for arm, boot in dict.fromkeys(boot_order(store)):
        folder = (store.folder / store.boot_path(arm, boot, SERVER_LOG)).parent
        samples = folder / GPU_SAMPLES
        with open_log(folder) as log:
            text = samples.read_text(encoding="utf-8", errors="replace") if samples.is_file() else ""
            found.append(boot_trace(arm, boot, log or (), of_gpus(text.splitlines(), gpus)))
    return tuple(trace for trace in found if trace.running or trace.gpu)


def logged(store: RunStore) -> Iterator[tuple[str, int, Trace]]:
    """(arm, boot, what its server log says), in the order in which the boots ran; only boots that left a log."""
    for arm, boot in dict.fromkeys(boot_order(store)):
        with open_log((store.folder / store.boot_path(arm, boot, SERVER_LOG)).parent) as log:
            if log is not None:
                yield arm, boot, read_log(log)


@dataclass(frozen=True)
class FailedBoot:
    """A boot that ended otherwise than by a stop. `concurrency` None: not during a point."""

    arm: str
    boot: int
    concurrency: int | None
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""  # what the run saw


def failed_boots(store: RunStore, *, failed: bool) -> tuple[FailedBoot, ...]:
    """`failed`: the run ended in a failure, so the boot that was up then is one of them.

    A boot that a resumed run brought to its end is none, nor is one that was up when the connection was lost.
    """
    found: dict[tuple[str, int], FailedBoot] = {}
    up: FailedBoot | None = None
    for event in events_of(store):
        kind = event["event"]
        if kind == "started":
            up = FailedBoot(event["arm"], event["boot"], None)
            found.pop((up.arm, up.boot), None)
        elif up is None:
            continue
        elif kind in ("point", "point_done"):
            up = FailedBoot(up.arm, up.boot, event["concurrency"] if kind == "point" else None)
        elif kind == "boot_failed":
            seen = event.get("exit_code"), event.get("signal"), str(event.get("reason", ""))
            ended = FailedBoot(up.arm, up.boot, up.concurrency, *seen)
            found[up.arm, up.boot] = ended
            up = None
        elif kind in ("stopped", "connection_lost"):
            up = None
    if up is not None and failed:
        found[up.arm, up.boot] = up
    return tuple(found.values())


def failure_cards(store: RunStore, *, failed: bool) -> tuple[FailureCard, ...]:
    """One card for each failed boot, from its server log; `replay` runs just that point again."""
    cards = []
    patches = {arm["name"]: arm["patches"] for arm in plan_left(store).get("arms") or ()}
    for boot in failed_boots(store, failed=failed):
        folder = (store.folder / store.boot_path(boot.arm, boot.boot, SERVER_LOG)).parent
        experiment = str(from_here(store.folder / LOCK_FILE))
        with open_log(folder) as log:
            cards.append(
                failure_card(
                    log or (),
                    arm=boot.arm,
                    boot=boot.boot,
                    concurrency=boot.concurrency,
                    exit_code=boot.exit_code,
                    signal=boot.signal,
                    reason=boot.reason,
                    replay=replay_command(experiment, boot.arm, boot.concurrency),
                    run_id=store.run_id,
                    patched=bool(patches[boot.arm]) if boot.arm in patches else None,
                )
            )
    return tuple(cards)

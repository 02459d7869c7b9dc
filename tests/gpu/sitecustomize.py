"""Imported by every Python process whose path holds it: says when something stopped the process for long.

    GC_LOG_MS=20       log each garbage collection of 20 ms or more; costs nothing between collections
    STALL_LOG_MS=50    log where the main thread stood when it stayed in one place for 50 ms or more: a kernel that is
                       compiled or loaded, a copy that is waited for. A thread looks every 10 ms, so not for timing runs

tests/gpu/prepare.sh puts it beside the packages of the bundle, so that a stall in a server can be told by its log.
"""

import gc
import os
import sys
import threading
import time
import traceback

_GC_MS, _STALL_MS = (float(os.environ.get(name) or 0) for name in ("GC_LOG_MS", "STALL_LOG_MS"))
_LOOK_S = 0.01
_began = 0.0


def _say(text: str) -> None:
    print(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def _collected(phase: str, info: dict[str, int]) -> None:
    global _began
    if phase == "start":
        _began = time.perf_counter()
        return
    took_ms = (time.perf_counter() - _began) * 1e3
    if took_ms >= _GC_MS:
        _say(f"gc: generation {info['generation']}, {took_ms:.0f} ms")


def _watch() -> None:
    """A place is the innermost frame and its instruction; a late wake-up means that nobody else could run."""
    main, place, since, stack = threading.main_thread().ident, None, time.perf_counter(), ""
    while True:
        slept = time.perf_counter()
        time.sleep(_LOOK_S)
        now = time.perf_counter()
        frame = sys._current_frames().get(main)
        late_ms = (now - slept - _LOOK_S) * 1e3
        here = frame and (id(frame), frame.f_lasti)
        if here != place:
            stayed_ms = (slept - since) * 1e3
            if stack and stayed_ms >= _STALL_MS:
                _say(f"stall: {stayed_ms:.0f} ms in {stack}")
            place, since, stack = here, slept, ""
        if late_ms >= _STALL_MS:
            _say(f"stall: {late_ms:.0f} ms, nothing else ran, before {_places(frame)}")
        elif not stack and (now - since) * 1e3 >= _STALL_MS:
            stack = _places(frame)


def _places(frame: object) -> str:
    """The innermost places of a stack, newest first."""
    found = traceback.extract_stack(frame)[-8:]  # type: ignore[arg-type]
    return " < ".join(
        f"{place.name} {os.path.basename(place.filename)}:{place.lineno}" for place in reversed(found)
    )


if _GC_MS:
    gc.callbacks.append(_collected)
if _STALL_MS:
    threading.Thread(target=_watch, daemon=True, name="stall-log").start()

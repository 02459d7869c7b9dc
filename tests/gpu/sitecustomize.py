"""Imported by every Python process whose path holds it: says when the garbage collector stopped the process for long.

With GC_LOG_MS=20 in its environment a server logs each collection of 20 ms or more, so that a stall in the records of
a timing run can be told from a cold kernel. tests/gpu/prepare.sh puts it beside the packages of the bundle.
"""

import gc
import os
import sys
import time

_LIMIT_MS = float(os.environ.get("GC_LOG_MS") or 0)
_began = 0.0


def _report(phase: str, info: dict[str, int]) -> None:
    global _began
    if phase == "start":
        _began = time.perf_counter()
        return
    took_ms = (time.perf_counter() - _began) * 1e3
    if took_ms >= _LIMIT_MS:
        clock = time.strftime("%Y-%m-%d %H:%M:%S")
        print(f"[{clock}] gc: generation {info['generation']}, {took_ms:.0f} ms", file=sys.stderr, flush=True)


if _LIMIT_MS:
    gc.callbacks.append(_report)

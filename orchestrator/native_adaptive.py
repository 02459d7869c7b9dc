"""The batch threshold as SGLang's own adaptive speculation, from 0.5.14 on: no source patch.

Adaptive speculation picks the draft steps from a slot per batch size, and 0.5.14 accepts zero steps in a slot. Two
slots of one candidate each never move, so `{"1": [S], "N+1": [0]}` speculates with S steps up to N requests and not
at all above. Read in `adaptive_spec_params.py` of 0.5.14 and 0.5.23:

- a batch is padded to the next captured CUDA graph size *before* its slot is chosen, so with N between two captured
  sizes the batches just below N would land in the zero slot: N has to be a captured size, or at least the largest;
- S (`--speculative-num-steps`) must be a candidate of some slot and may not be 0, so "never speculate" keeps S in a
  slot that no batch reaches;
- only topk 1 has adaptive speculation; the server silently falls back to static speculation otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.errors import DoesNotFit
from orchestrator.model.experiment import Arm
from orchestrator.model.speculation import running_limit

_LARGEST_CAPTURED = 512  # no release captures larger batches by default
_UNREACHABLE = 1_000_000  # a batch size above any --max-running-requests
CONFIG_FLAG = "speculative-adaptive-config"


@dataclass(frozen=True)
class NativeAdaptive:
    """`config` is the adaptive configuration; `args` the server flags, without the path of the configuration."""

    config: Mapping[str, Mapping[str, Sequence[int]]]
    args: Mapping[str, int | bool]

    def to_json(self) -> str:
        """The text of the file for `--speculative-adaptive-config`."""
        return json.dumps(self.config, indent=2) + "\n"


def native_adaptive(
    threshold: int, num_steps: int, captured_batch_sizes: Sequence[int], *, topk: int = 1
) -> NativeAdaptive:
    """The adaptive configuration that speculates in batches of at most `threshold` requests.

    `num_steps` draft steps; `captured_batch_sizes` are the server's CUDA graph sizes (empty: graphs disabled or
    unpadded). Raises DoesNotFit where the native mode cannot do what the threshold says.
    """
    if threshold < 0:
        raise DoesNotFit(f"the threshold must be 0 or more, got {threshold}")
    if topk != 1:
        raise DoesNotFit(
            f"SGLang 0.5.14 and later have no native fallback for speculative-eagle-topk {topk}, only for 1",
            help="set speculative-eagle-topk: 1, or use 0.5.12.post1 with the dynamic_disable patch",
        )
    if num_steps < 1:
        raise DoesNotFit(f"speculative-num-steps must be 1 or more, got {num_steps}")
    _refuse_between_sizes(threshold, captured_batch_sizes)
    args = {
        "speculative-adaptive": True,
        "speculative-num-steps": num_steps,
        "speculative-eagle-topk": 1,
        "speculative-num-draft-tokens": num_steps + 1,
    }
    return NativeAdaptive(config=_slots(threshold, num_steps), args=args)


def default_batch_sizes(largest: int) -> tuple[int, ...]:
    """The sizes that SGLang captures for a speculating server with `--cuda-graph-max-bs largest` (0.5.14)."""
    sizes = [
        *range(1, 9),
        *range(10, 33, 2),
        *range(40, 65, 4),
        *range(72, 257, 8),
        *range(272, largest + 1, 16),
    ]
    return tuple(sorted({size for size in sizes if size <= largest} | {largest}))


def captured_batch_sizes(arm: Arm) -> tuple[int, ...]:
    """CUDA graph batch sizes by the arm's arguments, else SGLang's list; empty where nothing is padded to them."""
    if arm.args.get("disable-cuda-graph") is True or arm.args.get("disable-cuda-graph-padding") is True:
        return ()
    listed = arm.args.get("cuda-graph-bs-decode", arm.args.get("cuda-graph-bs"))
    if listed is not None:
        values = listed if isinstance(listed, tuple) else (listed,)
        return tuple(sorted(value for value in map(_whole, values) if value is not None))
    asked = _whole(arm.args.get("cuda-graph-max-bs-decode", arm.args.get("cuda-graph-max-bs")))
    return default_batch_sizes(min(asked or _LARGEST_CAPTURED, running_limit(arm) or _LARGEST_CAPTURED))


def _whole(value: object) -> int | None:
    try:
        return None if isinstance(value, bool) else int(str(value))
    except ValueError:
        return None


def _slots(threshold: int, num_steps: int) -> dict[str, dict[str, list[int]]]:
    if threshold == 0:
        return {"1": {"candidate_steps": [0]}, str(_UNREACHABLE): {"candidate_steps": [num_steps]}}
    return {"1": {"candidate_steps": [num_steps]}, str(threshold + 1): {"candidate_steps": [0]}}


def _refuse_between_sizes(threshold: int, captured: Sequence[int]) -> None:
    if not captured or threshold == 0 or threshold in captured or threshold >= max(captured):
        return
    below = max((size for size in captured if size < threshold), default=0)
    above = min(size for size in captured if size > threshold)
    raise DoesNotFit(
        f"threshold {threshold} is not a captured CUDA graph batch size: batches of {below + 1} to {threshold} are "
        f"padded to {above} and would not speculate",
        help=f"choose {below} or {above}, or add {threshold} to --cuda-graph-bs",
    )

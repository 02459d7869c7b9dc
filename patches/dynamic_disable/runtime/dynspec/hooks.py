"""What the hooked SGLang files call. One worker is registered per scheduler process; without one, all do nothing."""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger(__name__)

_KEY = "speculative_disable_batch_threshold"
_active: Any = None


def register(plain: Any) -> None:
    """Make `plain` (a PlainDecodeV1 or PlainDecodeV2) the one that the hooks serve."""
    global _active
    _active = plain


def resolve_future(future_map: Any, batch: Any) -> bool:
    """FutureMap.resolve_future: True if the coming step is plain, and this took care of its inputs."""
    return _active is not None and _active.resolve_future(future_map, batch)


def store_future(future_map: Any, future_indices: Any, draft_input: Any) -> bool:
    """FutureMap.store_to_map_for_new_batch: True if the result is of a plain step, and was stored."""
    return _active is not None and _active.store_future(future_map, future_indices, draft_input)


def on_resolved(reqs: list[Any], result: Any, accept_lens: list[int]) -> None:
    """The tokens of a v2 step arrived on the host: `accept_lens[i]` of them for `reqs[i]`."""
    if _active is not None:
        _active.on_resolved(reqs, result, accept_lens)


def set_internal_state(request: Any) -> Any:
    """Scheduler.set_internal_state: the answer if the request is about the threshold, else None.

    SGLang's own answer says `updated` whatever happened and logs all server arguments, keys included: this one
    says what happened, and shows and logs the threshold alone.
    """
    if _KEY not in request.server_args:
        return None
    refusal = _refusal(request.server_args)
    if refusal is None:
        _publish(request.server_args[_KEY])
        logger.info("dynspec: threshold=%d from the next step on", request.server_args[_KEY])
    else:
        logger.warning("dynspec: %s not changed: %s", _KEY, refusal)
    from sglang.srt.managers.io_struct import SetInternalStateReqOutput

    in_force = None if _active is None else _active.switch.threshold
    return SetInternalStateReqOutput(updated=refusal is None, server_args={_KEY: in_force})


def _refusal(values: dict[str, Any]) -> str | None:
    if _active is None:
        return "the server was started without --speculative-disable-batch-threshold"
    if len(values) != 1:
        return "it must be the only value of the request"
    return _active.switch.set_threshold(values[_KEY])  # type: ignore[no-any-return]


def _publish(threshold: int) -> None:
    from sglang.srt.server_args import get_global_server_args

    setattr(get_global_server_args(), _KEY, threshold)

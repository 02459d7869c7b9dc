"""Log probabilities of a v1 plain step: the v1 worker appends them to the requests itself."""

from __future__ import annotations

from typing import Any


def append_logprobs(reqs: list[Any], output: Any, token_ids: Any) -> None:
    """Append one sampled token's log probabilities to each request that asked, with its top and chosen ids."""
    values, tokens = _plain(output.next_token_logprobs), token_ids.tolist()
    for i, req in enumerate(reqs):
        if not req.return_logprob:
            continue
        req.output_token_logprobs_val.append(values[i])
        req.output_token_logprobs_idx.append(tokens[i])
        if req.top_logprobs_num > 0:
            req.output_top_logprobs_val.append(_plain(output.next_token_top_logprobs_val[i]))
            req.output_top_logprobs_idx.append(_plain(output.next_token_top_logprobs_idx[i]))
        if req.token_ids_logprob is not None:
            req.output_token_ids_logprobs_val.append(_plain(output.next_token_token_ids_logprobs_val[i]))
            req.output_token_ids_logprobs_idx.append(_plain(output.next_token_token_ids_logprobs_idx[i]))


def _plain(values: Any) -> Any:
    return values.tolist() if hasattr(values, "tolist") else values

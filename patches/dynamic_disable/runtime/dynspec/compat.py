"""Names that differ between SGLang 0.5.8 and 0.5.12.post1, looked up once at start-up.

By feature, not by version number: forks and source checkouts carry any version. A missing feature raises at start-up
with its name, so that no step runs half-fitted.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any


@dataclasses.dataclass(frozen=True)
class Compat:
    """bonus               field of EagleDraftInput with the last sampled token of each request
    bonus_buffer           the FutureMap buffer that relays it
    tokens_per_request     fields of EagleDraftInput set to the tokens per request of a draft extend
    result_has_stride      whether a result carries the stride of its token list (else the worker's is used)
    passed_through         fields of a target result that go into the step's result as they are
    graph_takes_backend    whether CudaGraphRunner takes its attention backend as an argument
    extend_input           EagleDraftExtendInput where draft extends have an input class of their own, else None
    accept_counts          fields of EagleDraftInput that count accepted tokens for a v1 draft extend
    of_prefills            fields of ModelWorkerBatch that say something of the last prefill alone
    verified_drafts        attribute of a v1 verify output: accepted drafts per request, bonus not included
    """

    bonus: str
    bonus_buffer: str
    tokens_per_request: tuple[str, ...]
    result_has_stride: bool
    passed_through: tuple[str, ...]
    graph_takes_backend: bool
    extend_input: Any
    accept_counts: tuple[str, ...]
    of_prefills: tuple[str, ...]
    verified_drafts: str


def probe() -> Compat:
    """Look up everything, or raise RuntimeError naming what this SGLang lacks."""
    from sglang.srt.managers.schedule_batch import ModelWorkerBatch
    from sglang.srt.managers.scheduler import GenerationBatchResult
    from sglang.srt.model_executor.cuda_graph_runner import CudaGraphRunner
    from sglang.srt.speculative import eagle_info

    draft = _fields(eagle_info.EagleDraftInput)
    result = _fields(GenerationBatchResult)
    verified = _fields(eagle_info.EagleVerifyOutput)
    bonus = _first(draft, "EagleDraftInput", "bonus_tokens", "verified_id")
    return Compat(
        bonus=bonus,
        bonus_buffer=f"{bonus}_buf",
        tokens_per_request=_present(
            draft,
            "num_tokens_per_req",
            "num_tokens_for_logprob_per_req",
            "num_tokens_per_batch",
            "num_tokens_for_logprob_per_batch",
        ),
        result_has_stride="speculative_num_draft_tokens" in result,
        passed_through=_present(
            result, "routed_experts_output", "indexer_topk_output", "expert_distribution_metrics"
        ),
        graph_takes_backend="attn_backend" in inspect.signature(CudaGraphRunner.__init__).parameters,
        extend_input=getattr(eagle_info, "EagleDraftExtendInput", None),
        accept_counts=_present(
            draft,
            "num_accepted_drafts",
            "num_accepted_tokens",
            "num_accepted_drafts_cpu",
            "num_accepted_tokens_cpu",
            "accept_length",
            "accept_length_cpu",
        ),
        of_prefills=_present(_fields(ModelWorkerBatch), "replace_embeds", "replace_positions"),
        verified_drafts=_first(
            verified,
            "EagleVerifyOutput",
            "num_correct_drafts_per_req_cpu",
            "num_accepted_drafts_per_req_cpu",
            "accept_length_per_req_cpu",
        ),
    )


def _fields(cls: Any) -> frozenset[str]:
    return frozenset(f.name for f in dataclasses.fields(cls))


def _present(names: frozenset[str], *wanted: str) -> tuple[str, ...]:
    return tuple(name for name in wanted if name in names)


def _first(names: frozenset[str], owner: str, *wanted: str) -> str:
    for name in wanted:
        if name in names:
            return name
    raise RuntimeError(f"dynspec: this SGLang's {owner} has none of {', '.join(wanted)}")

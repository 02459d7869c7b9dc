"""Command line options, and the combinations that are refused with the reason.

Checked twice: when ServerArgs is built, so that a launch fails before weights are loaded, and when the worker is
attached, since some arguments (LoRA adapters) are only derived later.
"""

from __future__ import annotations

from typing import Any

FLAG = "--speculative-disable-batch-threshold"
DRAFT_SYNCS = ("lazy", "step", "skip")

# attribute of ServerArgs, value that is fine, why anything else is refused
_REFUSED = (
    ("enable_dp_attention", False, "the decision is not agreed on between DP ranks"),
    ("device", "cuda", "only CUDA devices have the graphs that plain decode needs"),
    ("pp_size", 1, "plain decode does not pass hidden states between pipeline stages"),
    ("enable_lora", False, "a second set of CUDA graphs would re-create the LoRA batch buffers"),
    ("lora_paths", None, "a second set of CUDA graphs would re-create the LoRA batch buffers"),
    ("enable_two_batch_overlap", False, "the plain decode graphs are not split into two batches"),
    ("enable_pdmux", False, "PD multiplexing swaps attention backends itself"),
    ("disaggregation_mode", "null", "the draft state of a transferred request is not tracked"),
    ("enable_multi_layer_eagle", False, "MultiLayerEagleWorker is not hooked"),
    ("enable_hisparse", False, "hierarchical sparse attention maps slots in its own decode preparation"),
    ("speculative_adaptive", False, "adaptive speculation swaps the same graphs and backends"),
)
_HYBRID_CONFIGS = ("hybrid_gdn_config", "mamba2_config", "hybrid_lightning_config", "kimi_linear_config")


def add_cli_arguments(parser: Any) -> None:
    """The three options of this package on SGLang's parser."""
    parser.add_argument(
        FLAG,
        type=int,
        default=None,
        help="Run plain decode instead of EAGLE/EAGLE-3 speculation while a decode batch has more requests than "
        "this. 0: never speculate. Default: always speculate.",
    )
    parser.add_argument(
        "--speculative-disable-draft-sync",
        type=str,
        choices=DRAFT_SYNCS,
        default=None,
        help="How the draft model follows plain steps. lazy: catch up when speculation resumes (default with the "
        "overlap scheduler). step: run the draft after each plain step (default without). skip: not at all; "
        "fewer drafts are accepted after resuming.",
    )
    parser.add_argument(
        "--enable-speculative-threshold-switch",
        action="store_true",
        help="Allow /set_internal_state to change the threshold. Captures plain decode graphs for every batch "
        "size, not only those above the threshold.",
    )


def check_server_args(args: Any) -> None:
    """Raise ValueError naming every argument that does not go with the threshold."""
    threshold = args.speculative_disable_batch_threshold
    if threshold is None:
        for name in ("speculative_disable_draft_sync", "enable_speculative_threshold_switch"):
            if getattr(args, name):
                raise ValueError(f"--{name.replace('_', '-')} needs {FLAG}")
        return
    if threshold < 0:
        raise ValueError(f"{FLAG} must be 0 or more, got {threshold}")
    reasons = list(_reasons(args))
    if reasons:
        raise ValueError(f"{FLAG} does not work with these arguments: " + "; ".join(reasons))


def _reasons(args: Any) -> Any:
    if args.speculative_algorithm not in ("EAGLE", "EAGLE3"):
        yield f"speculative_algorithm={args.speculative_algorithm} (EAGLE or EAGLE3 is needed)"
    if args.speculative_disable_draft_sync == "lazy" and args.disable_overlap_schedule:
        yield "speculative_disable_draft_sync=lazy (needs the overlap scheduler, that is topk 1; use step or skip)"
    for name, fine, why in _REFUSED:
        value = getattr(args, name, fine)
        if value != fine and value not in (None, False, [], {}):
            yield f"{name}={value if isinstance(value, int | str) else 'set'} ({why})"


def check_model(target_runner: Any) -> None:
    """Raise ValueError for target models whose state is not in a KV cache alone."""
    for name in _HYBRID_CONFIGS:
        if getattr(target_runner, name, None) is not None:
            raise ValueError(f"{FLAG} does not work with hybrid or Mamba targets ({name})")
    if target_runner.model_config.is_encoder_decoder:
        raise ValueError(f"{FLAG} does not work with encoder-decoder targets")


def draft_sync_of(args: Any, target_runner: Any) -> str:
    """The draft sync in force: the asked one, else lazy under the overlap scheduler and step without it.

    Falls back to step where a catch-up extend has no tested positions (mrope) or slots (hybrid SWA pools).
    """
    asked = args.speculative_disable_draft_sync or ("step" if args.disable_overlap_schedule else "lazy")
    if asked == "lazy" and (
        getattr(target_runner, "model_is_mrope", False) or getattr(target_runner, "is_hybrid_swa", False)
    ):
        return "step"
    return str(asked)

"""Server arguments after SGLang's own rules (`ServerArgs._handle_speculative_decoding` and its neighbours).

Only the rules that decide what an experiment sees are kept: the worker path, the admission limit, the draft
sizes. Wording of the warnings follows the release, since tools read them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .graphs import captured_sizes
from .tree import THRESHOLD, Tree

EAGLE_LIKE = ("EAGLE", "EAGLE3", "STANDALONE")


@dataclass
class Resolved:
    """`args`: every ServerArgs field; `worker`: "v1", "v2" or "none"; `warnings`: log lines in order."""

    args: dict[str, Any]
    worker: str = "none"
    warnings: list[str] = field(default_factory=list)
    model: dict[str, Any] = field(default_factory=dict)

    @property
    def speculates(self) -> bool:
        return self.worker != "none"

    @property
    def threshold(self) -> int | None:
        value = self.args.get(THRESHOLD)
        return None if value is None else int(value)


def resolve(
    parsed: Mapping[str, Any], tree: Tree, env: Mapping[str, str], models: Path | None = None
) -> Resolved:
    """Raises ValueError where the release would. `models`: the folder that stands for `/models` on this node."""
    resolved = Resolved(args=dict(parsed))
    resolved.model = model_config(parsed["model_path"], models)
    _fill_defaults(resolved)
    _speculation(resolved, tree, env)
    for check in tree.argument_checks():
        check(SimpleNamespace(**resolved.args))
    _check_unsimulated(resolved)
    return resolved


def model_config(path: str, models: Path | None = None) -> dict[str, Any]:
    """`config.json` of a local model; an 8B-shaped Llama for a name that is not a path."""
    fallback = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
    }
    if not path.startswith(("/", "~", ".")):
        return fallback
    file = Path(os.path.expanduser(path)) / "config.json"
    if models is not None and path.startswith("/models/") and not file.is_file():
        file = models / path[len("/models/") :] / "config.json"
    if not file.is_file():
        raise ValueError(f"Can't load the configuration of '{path}': no config.json in that folder.")
    return {**fallback, **json.loads(file.read_text(encoding="utf-8"))}


def _fill_defaults(resolved: Resolved) -> None:
    args = resolved.args
    for name, value in {
        "tokenizer_path": args["model_path"],
        "served_model_name": args["model_path"],
        "device": "cuda",
        "random_seed": 20260101,
        "chunked_prefill_size": 8192,
        "page_size": 1,
        "mem_fraction_static": 0.83,
        "cuda_graph_max_bs": 256,
        "cuda_graph_bs": captured_sizes(args),
        "attention_backend": "fa3",
        "sampling_backend": "flashinfer",
    }.items():
        if name in args and args[name] is None:
            args[name] = value


def _speculation(resolved: Resolved, tree: Tree, env: Mapping[str, str]) -> None:
    args = resolved.args
    if args.get("speculative_algorithm") == "NEXTN":
        args["speculative_algorithm"] = "EAGLE"
    algorithm = args.get("speculative_algorithm")
    if algorithm is None:
        return
    if algorithm not in EAGLE_LIKE:
        raise ValueError(
            f"speculative algorithm {algorithm} is not simulated; EAGLE, EAGLE3 and STANDALONE are"
        )
    if args.get("max_running_requests") is None:
        args["max_running_requests"] = 48
        resolved.warnings.append(
            "Max running requests is reset to 48 for speculative decoding. "
            "You can override this by explicitly setting --max-running-requests."
        )
    _choose_worker(resolved, tree, env)
    if args.get("enable_mixed_chunk"):
        args["enable_mixed_chunk"] = False
        resolved.warnings.append(
            "Mixed chunked prefill is disabled because of using eagle speculative decoding."
        )
    _draft_sizes(resolved)


def _choose_worker(resolved: Resolved, tree: Tree, env: Mapping[str, str]) -> None:
    args = resolved.args
    wants_v2 = _switch(env, "SGLANG_ENABLE_SPEC_V2", tree.env_default("SGLANG_ENABLE_SPEC_V2", True))
    wide = (args.get("speculative_eagle_topk") or 1) > 1
    if not tree.has_v1_worker:
        resolved.worker = "v2"
        if args["disable_overlap_schedule"]:
            resolved.warnings.append(
                "Non-overlap (synchronous) spec v2 is used for eagle/eagle3/standalone speculative decoding."
            )
        return
    if not tree.silently_falls_back_to_v1:
        _choose_worker_before_0_5_11(resolved, wants_v2, wide)
        return
    reason = ""
    if not args["disable_overlap_schedule"]:
        if wide:
            reason = "spec v2 currently only supports topk = 1"
        elif not wants_v2:
            reason = "SGLANG_ENABLE_SPEC_V2=False"
        args["disable_overlap_schedule"] = bool(reason)
    if args["disable_overlap_schedule"]:
        resolved.worker = "v1"
        resolved.warnings.append(
            "Spec v1 is used for eagle/eagle3/standalone speculative decoding because "
            f"{reason or 'overlap schedule is disabled'}."
        )
    else:
        resolved.worker = "v2"
        resolved.warnings.append(
            "Spec v2 is enabled by default for eagle/eagle3/standalone speculative decoding."
        )


def _choose_worker_before_0_5_11(resolved: Resolved, wants_v2: bool, wide: bool) -> None:
    args = resolved.args
    args["disable_overlap_schedule"] = not wants_v2
    if not wants_v2:
        resolved.worker = "v1"
        resolved.warnings.append(
            "Overlap scheduler is disabled when spec v2 is off or using unsupported speculative algorithm. "
            "You can set env SGLANG_ENABLE_SPEC_V2=True to enable the experimental overlap scheduler. "
        )
        return
    if wide:
        raise ValueError("Spec v2 currently only supports topk = 1 for speculative decoding.")
    resolved.worker = "v2"
    resolved.warnings.append(
        "Spec v2 is enabled for eagle/eagle3 speculative decoding and overlap schedule is turned on."
    )


def _switch(env: Mapping[str, str], name: str, default: bool) -> bool:
    text = env.get(name)
    return default if text is None else text.strip().lower() in ("1", "true", "yes", "y")


def _draft_sizes(resolved: Resolved) -> None:
    args = resolved.args
    if args.get("speculative_num_steps") is None:
        if (
            args.get("speculative_eagle_topk") is not None
            or args.get("speculative_num_draft_tokens") is not None
        ):
            raise AssertionError("speculative_num_steps is needed with topk or num_draft_tokens")
        sizes = (5, 4, 8) if resolved.model["architectures"][0] == "LlamaForCausalLM" else (3, 1, 4)
        args["speculative_num_steps"], args["speculative_eagle_topk"] = sizes[:2]
        args["speculative_num_draft_tokens"] = sizes[2]
    args["speculative_eagle_topk"] = args.get("speculative_eagle_topk") or 1
    steps = args["speculative_num_steps"]
    if args["speculative_eagle_topk"] == 1 and args.get("speculative_num_draft_tokens") != steps + 1:
        resolved.warnings.append(
            "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 "
            "when speculative_eagle_topk == 1"
        )
        args["speculative_num_draft_tokens"] = steps + 1


def _check_unsimulated(resolved: Resolved) -> None:
    for name, plain in {"dp_size": 1, "pp_size": 1, "nnodes": 1, "disaggregation_mode": "null"}.items():
        if resolved.args.get(name, plain) != plain:
            raise ValueError(f"{name}={resolved.args[name]!r} is not simulated")

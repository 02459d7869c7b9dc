"""The `sglang` that the runtime imports in these tests: classes of a real release, models and graphs of `models`."""

from __future__ import annotations

import abc
import dataclasses
import enum
import functools
import sys
import types
import typing
from types import SimpleNamespace

import torch
from lift import definitions, has, load_runtime, source
from models import GARBAGE, Algorithm, DraftRunner, GraphRunner, fast_topk, no_context

# CPU tensors have no streams to be recorded on.
torch.Tensor.record_stream = lambda self, stream: None
INFO = "srt/speculative/eagle_info.py"
EXTEND_GRAPH = "srt/speculative/eagle_draft_extend_cuda_graph_runner.py"


def unwritten(shape, **more):
    """What torch.empty may give on a device: here memory never happens to be zero."""
    return torch.full(shape, GARBAGE, **more)


class Release:
    """The lifted classes of one release, installed as modules; `runtime` is the package under test."""

    def __init__(self, version: str, changes=types.MappingProxyType({})) -> None:
        self.version = version
        modes = definitions(
            version,
            "srt/model_executor/forward_batch_info.py",
            ("ForwardMode", "CaptureHiddenMode"),
            {"IntEnum": enum.IntEnum, "auto": enum.auto, "total_ordering": functools.total_ordering},
        )
        self.ForwardMode, self.CaptureHiddenMode = modes["ForwardMode"], modes["CaptureHiddenMode"]
        self.batch = definitions(
            version, "srt/managers/schedule_batch.py", ("ModelWorkerBatch",), {"dataclasses": dataclasses}
        )["ModelWorkerBatch"]
        self.result = definitions(
            version,
            "srt/managers/utils.py",
            ("GenerationBatchResult",),
            {"dataclasses": dataclasses, "dataclass": dataclasses.dataclass},
        )["GenerationBatchResult"]
        self.info = self._draft_classes()
        self.server_args = SimpleNamespace()
        self.install(changes)

    def _draft_classes(self):
        names = ["EagleDraftInput", "EagleVerifyOutput"]
        if has(self.version, INFO, "class EagleDraftExtendInput"):
            names += ["EagleDraftExtendInput", "_draft_runner_of"]
        types_ = definitions(
            self.version,
            "srt/speculative/spec_info.py",
            ("SpecInput", "SpecInputType"),
            {
                "ABC": abc.ABC,
                "abstractmethod": abc.abstractmethod,
                "IntEnum": enum.IntEnum,
                "auto": enum.auto,
            },
        )
        given = {
            **types_,
            "torch": torch,
            "dataclass": dataclasses.dataclass,
            "CaptureHiddenMode": self.CaptureHiddenMode,
            "EagleDraftInputV2Mixin": dataclasses.dataclass(type("EagleDraftInputV2Mixin", (), {})),
            "FutureIndices": self.future_classes()["FutureIndices"],
            "ClassVar": typing.ClassVar,
            "envs": SimpleNamespace(SGLANG_SPEC_ENABLE_STRICT_FILTER_CHECK=SimpleNamespace(get=lambda: True)),
        }
        return SimpleNamespace(**definitions(self.version, INFO, tuple(names), given))

    @functools.cache  # noqa: B019 - one per release of a test run
    def future_classes(self):
        """FutureIndices and the hooked FutureMap."""
        return definitions(
            self.version,
            "srt/managers/overlap_utils.py",
            ("FutureIndices", "FutureMap"),
            {
                "dataclass": dataclasses.dataclass,
                "torch": SimpleNamespace(
                    empty=unwritten,
                    **{n: getattr(torch, n) for n in ("arange", "int64", "get_device_module")},
                ),
                "spec_need_hidden_states": lambda: True,
            },
        )

    def install(self, changes) -> None:
        """Put the modules in place and load the runtime anew."""
        for name in [n for n in sys.modules if n == "sglang" or n.startswith("sglang.")]:
            del sys.modules[name]
        release = self

        class ForwardBatch:
            @staticmethod
            def init_new(batch, runner):
                forward_batch = ForwardBatch()
                forward_batch.__dict__.update(batch.__dict__)
                return forward_batch

        class ExtendGraphRunner:
            def __init__(self, worker) -> None:
                assert worker.speculative_num_steps == 0
                self.tokens_per_request = worker.speculative_num_steps + 1
                self.backend = worker.draft_extend_attn_backend

        class BackendFactory:
            def __init__(self, args, runner, topk, steps) -> None:
                assert isinstance(runner, DraftRunner)
                assert (steps, args.speculative_num_steps) == (0, 0)

            def create_draft_extend_backend(self):
                return SimpleNamespace()

        @dataclasses.dataclass
        class SetInternalStateReqOutput:
            updated: bool
            server_args: dict

        modules = {
            "managers.schedule_batch": {"ModelWorkerBatch": self.batch},
            "managers.scheduler": {"GenerationBatchResult": self.result},
            "managers.io_struct": {"SetInternalStateReqOutput": SetInternalStateReqOutput},
            "mem_cache.common": {"alloc_for_decode": lambda batch, token_per_req: self.alloc(batch)},
            "model_executor.cuda_graph_runner": {"CudaGraphRunner": GraphRunner},
            "model_executor.forward_batch_info": {
                "ForwardBatch": ForwardBatch,
                "ForwardMode": self.ForwardMode,
                "CaptureHiddenMode": self.CaptureHiddenMode,
            },
            "layers.moe.utils": {
                "speculative_moe_backend_context": no_context,
                "speculative_moe_a2a_backend_context": no_context,
            },
            "server_args": {"get_global_server_args": lambda: release.server_args},
            "speculative.spec_info": {"SpeculativeAlgorithm": Algorithm},
            "speculative.spec_utils": {"fast_topk": fast_topk},
            "speculative.draft_utils": {"DraftBackendFactory": BackendFactory},
            "speculative.eagle_draft_extend_cuda_graph_runner": {
                "EAGLEDraftExtendCudaGraphRunner": ExtendGraphRunner
            },
            "speculative.eagle_info": vars(self.info),
        }
        for path, members in modules.items():
            self._module(f"sglang.srt.{path}", members)
        self.runtime = load_runtime(changes)

    def _module(self, name: str, members) -> None:
        parent = ""
        for part in name.split("."):
            parent = f"{parent}.{part}".lstrip(".")
            if parent not in sys.modules:
                sys.modules[parent] = types.ModuleType(parent)
                sys.modules[parent].__path__ = []
        vars(sys.modules[name]).update({k: v for k, v in members.items() if not k.startswith("__")})

    def check_extend_graph(self, worker) -> None:
        """A replay prepares the backend that the draft-extend graph was captured with.

        Up to 0.5.10.post1 it prepares the one that the worker names at that time, since 0.5.11 the graph's own.
        """
        by_worker = "self.eagle_worker.draft_extend_attn_backend.init_forward_metadata_replay_cuda_graph"
        if has(self.version, EXTEND_GRAPH, by_worker):
            backend = worker.cuda_graph_runner_for_draft_extend.backend
            assert worker.draft_extend_attn_backend is backend, "a draft extend of another backend's metadata"

    def alloc(self, batch):
        """alloc_for_decode: set by the v1 world."""
        raise AssertionError("v2 never allocates in a step")

    @property
    def pre_claims(self) -> bool:
        """Whether prepare_for_decode counts the bonus token in kv_committed_len already."""
        return "kv_committed_len += 1" in source(self.version, "srt/speculative/eagle_info_v2.py")

    @property
    def bonus(self) -> str:
        return "bonus_tokens" if has(self.version, INFO, "bonus_tokens: ") else "verified_id"

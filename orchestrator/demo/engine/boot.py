"""From process start to the listening port: SGLang's start-up lines on a scripted clock, and the faults of a load."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import patched
from .fallback import Fallback
from .faults import Faults
from .gpu import Memory, OutOfMemory
from .resolve import Resolved
from .tree import Tree

LOAD_VARIABLE = "DYNSPEC_DEMO_LOAD_S"
_OOM = (
    "Scheduler hit an exception: Traceback (most recent call last):\n"
    '  File "sglang/srt/model_executor/model_runner.py", line 1411, in load_model\n'
    "    self.model = self.loader.load_model(\n"
    "torch.OutOfMemoryError: {}"
)


class Ended(Exception):
    """The process must end now with this exit code (negative: by that signal)."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit {code}")
        self.code = code


class Boot:
    """`seconds`: from start to listening, before `speed`. Ranks are real child processes, ended with the server."""

    def __init__(
        self,
        *,
        resolved: Resolved,
        tree: Tree,
        faults: Faults,
        memory: Memory,
        parameters: Mapping[str, Any],
        speed: float,
        env: Mapping[str, str],
        log: logging.Logger,
    ) -> None:
        self._resolved = resolved
        self._tree = tree
        self._faults = faults
        self._memory = memory
        self._figures = parameters["memory"]
        seconds = float(env.get(LOAD_VARIABLE, parameters["start"]["seconds"]))
        self._tick_s = seconds / speed / 20
        self._shards = int(parameters["start"]["shards"])
        self._main_log = log
        self._log = self.rank_log(0)
        self.ranks: list[subprocess.Popen[bytes]] = []

    @property
    def _tp(self) -> int:
        return int(self._resolved.args.get("tp_size") or 1)

    def rank_log(self, rank: int) -> logging.Logger:
        """The scheduler rank's own logger; with one rank its lines carry no rank."""
        return self._main_log.getChild(f"TP{rank}") if self._tp > 1 else self._main_log

    async def run(self) -> None:
        """Raises Ended when a fault or a lack of memory ends the start."""
        if self._faults.has("leak-secret"):
            self._log.info("environment: HF_TOKEN=%s", os.environ.get("HF_TOKEN"))
        self._check_ranks()
        self._spawn_ranks()
        self._log.info("Init torch distributed begin.")
        await self._ticks(2)
        self._log.info("Init torch distributed ends. elapsed=%.2f s, mem usage=0.51 GB", 2 * self._tick_s)
        await self._load_weights()
        self._allocate()
        await self._ticks(2)
        await self._capture()
        for rank in range(self._tp):
            self._say_patches(rank)
        limit = self._resolved.args.get("max_running_requests")
        self._log.info(
            "max_total_num_tokens=%d, chunked_prefill_size=%s, max_prefill_tokens=%s, "
            "max_running_requests=%s, context_len=%s, available_gpu_mem=%.2f GB",
            *(self.token_capacity, self._resolved.args.get("chunked_prefill_size")),
            *(self._resolved.args.get("max_prefill_tokens"), limit or self.default_running_limit),
            *(
                self._resolved.args.get("context_length") or self._resolved.model["max_position_embeddings"],
                9.1,
            ),
        )

    def _say_patches(self, rank: int) -> None:
        """The start-up lines that patches in the tree add on this rank."""
        log = self.rank_log(rank)
        patched.say_worker(self._resolved, self._tree, rank, log)
        fallback = Fallback.of(self._tree, self._resolved, rank, log)
        if fallback is not None:
            fallback.announce(self._tree, log)

    @property
    def token_capacity(self) -> int:
        """KV cache slots: what the memory fraction leaves beside the weights, or `--max-total-tokens`."""
        args = self._resolved.args
        budget_mib = self._memory.total_mib * float(args.get("mem_fraction_static") or 0.83)
        left_mib = budget_mib - self._weights_mib
        tokens = int(left_mib * 1024 * 1024 / (self._figures["token_bytes"] / self._tp))
        asked = args.get("max_total_tokens")
        return max(min(tokens, int(asked)) if asked else tokens, 1)

    @property
    def default_running_limit(self) -> int:
        """`resolve_max_num_reqs` of the release, for servers that do not set --max-running-requests."""
        context = self._resolved.args.get("context_length") or self._resolved.model["max_position_embeddings"]
        estimated = max(min(int(self.token_capacity / int(context) * 512), 4096), 2048)
        return max(min(estimated, self.token_capacity // 2), 1)

    @property
    def memory_usage(self) -> dict[str, Any]:
        """`memory_usage` of an internal state, GB and tokens."""
        kv_mib = self.token_capacity * self._figures["token_bytes"] / self._tp / 1024 / 1024
        return {
            "weight": round(self._weights_mib / 1024, 2),
            "kvcache": round(kv_mib / 1024, 2),
            "token_capacity": self.token_capacity,
            "graph": round(self._figures["graph_mib"] / 1024, 2),
        }

    @property
    def _weights_mib(self) -> float:
        draft = self._figures["draft_mib"] if self._resolved.speculates else 0
        return float(self._figures["weights_mib"] + draft) / self._tp

    async def _load_weights(self) -> None:
        free = (self._memory.total_mib - 600) / 1024
        self._log.info("Load weight begin. avail mem=%.2f GB", free)
        for shard in range(self._shards + 1):
            percent = 100 * shard // self._shards
            self._progress(
                f"Loading safetensors checkpoint shards: {percent:3d}% Completed | "
                f"{shard}/{self._shards} [00:{shard:02d}<00:{self._shards - shard:02d},  1.00it/s]"
            )
            if shard == self._shards // 2:
                await self._faults_of_load()
            await self._ticks(10 / (self._shards + 1))
        self._hold(int(self._weights_mib))
        used = self._weights_mib / 1024
        self._log.info(
            "Load weight end. elapsed=%.2f s, type=%s, dtype=torch.bfloat16, avail mem=%.2f GB, "
            "mem usage=%.2f GB.",
            *(10 * self._tick_s, self._resolved.model["architectures"][0], free - used, used),
        )
        if self._resolved.speculates and not self._resolved.args.get("speculative_draft_model_path"):
            self._log.error(
                "Scheduler hit an exception: Traceback (most recent call last):\n"
                '  File "sglang/srt/models/llama_eagle3.py", line 240, in load_weights\n'
                "KeyError: 'model.layers.0.input_layernorm.weight' "
                "(the target was loaded as the draft: no --speculative-draft-model-path)"
            )
            raise Ended(-signal.SIGKILL)

    async def _faults_of_load(self) -> None:
        if self._faults.has("exit-during-load") or self._faults.has("exit0-during-load"):
            self._log.error("RuntimeError: simulated fault: cannot read shard 3 of the checkpoint")
            raise Ended(self._faults.number("exit-during-load") or 0)
        if self._faults.has("oom-at-load"):
            self._out_of_memory("CUDA out of memory. Tried to allocate 2.00 GiB (simulated fault).")
        if self._faults.has("lost-lines"):
            sys.stdout.write("unflushed line 1\nunflushed line 2\nunflushed line 3\n")
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(self._faults.number("stuck-load") or 0)

    def _allocate(self) -> None:
        kv = self.memory_usage["kvcache"] / 2
        self._hold(
            int(self._memory.total_mib * float(self._resolved.args.get("mem_fraction_static") or 0.83))
        )
        self._log.info(
            "KV Cache is allocated. #tokens: %d, K size: %.2f GB, V size: %.2f GB",
            self.token_capacity,
            kv,
            kv,
        )
        self._log.info("Memory pool end. avail mem=%.2f GB", self._memory.total_mib * 0.12 / 1024)

    async def _capture(self) -> None:
        if self._resolved.args.get("disable_cuda_graph"):
            return
        sizes = [1, 2, 4, 8, 16, 32, 64]
        self._log.info("Capture cuda graph begin. This can take up to several minutes. avail mem=16.80 GB")
        self._log.info("Capture cuda graph bs %s", sizes)
        await self._ticks(4)
        self._log.info(
            "Capture cuda graph end. Time elapsed: %.2f s. mem usage=%.2f GB. avail mem=15.92 GB.",
            *(4 * self._tick_s, self._figures["graph_mib"] / 1024),
        )

    def _hold(self, mib: int) -> None:
        try:
            self._memory.hold(mib)
        except OutOfMemory as error:
            self._out_of_memory(str(error))

    def _out_of_memory(self, message: str) -> None:
        self._log.error(_OOM.format(message))
        self._main_log.error("Received sigquit from a child process. It usually means the child failed.")
        raise Ended(-signal.SIGKILL)

    def _progress(self, line: str) -> None:
        """A progress bar as tqdm writes it into a file: carriage return, no newline until it is full."""
        end = "\n" if "100%" in line else ""
        sys.stderr.write(f"\r{line}{end}")
        sys.stderr.flush()

    async def _ticks(self, count: float) -> None:
        """Twentieths of the start-up time."""
        await asyncio.sleep(count * self._tick_s)

    def _check_ranks(self) -> None:
        if self._memory.gpus is not None and self._tp > self._memory.gpus:
            self.rank_log(self._memory.gpus).error(
                "Scheduler hit an exception: RuntimeError: CUDA error: invalid device ordinal "
                "(tp_size=%d on a node with %d GPUs)",
                *(self._tp, self._memory.gpus),
            )
            raise Ended(-signal.SIGKILL)

    def _spawn_ranks(self) -> None:
        folder = self._memory.folder
        mib = int(self._memory.total_mib * float(self._resolved.args.get("mem_fraction_static") or 0.83))
        for rank in range(1, self._tp):
            words = [f"sglang::scheduler_TP{rank}", str(os.getpid())]
            if folder is not None:
                words += ["--gpu", str(folder), str(rank), str(mib)]
            self.ranks.append(_spawn(words))
        if self._faults.has("worker-escapes"):
            port = int(self._resolved.args["port"]) + 1
            _spawn(["sglang::escaped", str(os.getpid()), "--escape", str(port)]).wait()


def _spawn(words: list[str]) -> subprocess.Popen[bytes]:
    script = str(Path(__file__).with_name("rank.py"))
    return subprocess.Popen([sys.executable, script, *words], stdin=subprocess.DEVNULL)

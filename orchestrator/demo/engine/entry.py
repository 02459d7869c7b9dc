"""The process: arguments, log, start, serving, signals, and every way it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import SIMULATED, patched
from .adaptive import Slots
from .added import CannotLoad
from .boot import Boot, Ended
from .clock import Pacer
from .control import Routes
from .core import Engine
from .fallback import Fallback
from .faults import Faults, UnknownFault
from .flags import UnreadableTree, read_command_line
from .gpu import Memory
from .graphs import captured_sizes
from .prefix import PrefixCache
from .resolve import Resolved, resolve
from .scheduler import Chooser, Drafting, Limits, Scheduler, SchedulerCrash
from .timing import DraftShape, Timing
from .tree import Tree
from .web import listen

SPEED_VARIABLE = "DYNSPEC_DEMO_SPEED"
TIMING_VARIABLE = "DYNSPEC_DEMO_TIMING"
NODE_FILE = Path(__file__).with_name("node.json")


def main(package: Path, argv: Sequence[str]) -> None:
    """Serve the tree whose `sglang` package folder is `package`. Never returns normally while serving."""
    node = _node()
    for name, value in node.get("env", {}).items():
        os.environ.setdefault(name, value)
    tree = Tree(package)
    log = _logger()
    log.info("%s (sglang %s)", SIMULATED, tree.version)
    try:
        faults = Faults.from_env(os.environ)
        parsed = read_command_line(tree.server_args).parse(argv)
        models = Path(node["models_dir"]) if "models_dir" in node else None
        resolved = resolve(parsed, tree, os.environ, models)
    except (UnknownFault, UnreadableTree, CannotLoad, ValueError, AssertionError) as error:
        log.error("%s: %s", type(error).__name__, error)
        sys.exit(1)
    log.info("server_args=ServerArgs(%s)", ", ".join(f"{k}={v!r}" for k, v in resolved.args.items()))
    for line in resolved.warnings:
        log.warning(line)
    patched.say_arguments(resolved, tree, log)
    _end(asyncio.run(_Server(tree, resolved, faults, log).run()))


class _Formatter(logging.Formatter):
    """`[2026-01-01 12:00:00 TP1] text`: the last part of the logger's name where it is a rank."""

    def format(self, record: logging.LogRecord) -> str:
        rank = record.name.rpartition(".")[2]
        prefix = f" {rank}" if rank.startswith("TP") else ""
        return f"[{self.formatTime(record, '%Y-%m-%d %H:%M:%S')}{prefix}] {record.getMessage()}"


def _logger() -> logging.Logger:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    return logging.getLogger("sglang")


def _end(code: int) -> None:
    """Leave with that exit code; a negative one is the signal that kills, as SGLang kills its own tree."""
    sys.stdout.flush()
    sys.stderr.flush()
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


class _Server:
    """One server from load to end."""

    def __init__(self, tree: Tree, resolved: Resolved, faults: Faults, log: logging.Logger) -> None:
        self._tree = tree
        self._resolved = resolved
        self._faults = faults
        self._log = log
        self._timing = Timing.load(Path(os.environ.get(TIMING_VARIABLE) or _DEFAULT_TIMING))
        self._speed = float(os.environ.get(SPEED_VARIABLE, "1"))
        self._ended: asyncio.Future[int] | None = None
        self._boot = Boot(
            resolved=resolved,
            tree=tree,
            faults=faults,
            memory=Memory.of_node(_node(), 0),
            parameters=self._timing.parameters,
            speed=self._speed,
            env=os.environ,
            log=log,
        )
        self._rank_log = self._boot.rank_log(0)

    async def run(self) -> int:
        """The exit code."""
        self._ended = asyncio.get_event_loop().create_future()
        self._watch_signals()
        life = asyncio.ensure_future(self._live())
        done, _ = await asyncio.wait({life, self._ended}, return_when=asyncio.FIRST_COMPLETED)
        code = self._ended.result() if self._ended in done else life.result()
        for rank in self._boot.ranks:
            with contextlib.suppress(ProcessLookupError):
                rank.kill()
        return code

    def _watch_signals(self) -> None:
        loop = asyncio.get_event_loop()
        loop.add_signal_handler(signal.SIGTERM, self._on_term)
        loop.add_signal_handler(signal.SIGINT, self._finish, 0)

    def _on_term(self) -> None:
        self._log.warning("SIGTERM received. Draining requests and shutting down...")
        if not self._faults.has("slow-stop"):
            self._finish(0)

    def _finish(self, code: int) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(code)

    async def _live(self) -> int:
        try:
            await self._boot.run()
            await self._serve()
        except Ended as end:
            return end.code
        except (CannotLoad, ValueError) as error:
            self._rank_log.error("Scheduler hit an exception: %s: %s", type(error).__name__, error)
            return -signal.SIGKILL
        except SchedulerCrash as crash:
            self._rank_log.error("Scheduler hit an exception: %s", crash)
            self._log.error("SIGQUIT received. It usually means one child failed.")
            return -signal.SIGKILL
        return 0

    async def _serve(self) -> None:
        args = self._resolved.args
        engine = Engine(self._resolved, self._scheduler(), self._faults, self._tree.version)
        routes = Routes(engine, self._tree, self._boot.memory_usage, self._log)
        try:
            await listen(routes, args["host"], int(args["port"]), self._log)
        except OSError as error:
            self._log.error("[Errno %s] error while attempting to bind on %s", error.errno, args["port"])
            raise Ended(1) from error
        self._log.info("Uvicorn running on http://%s:%s (Press CTRL+C to quit)", args["host"], args["port"])
        await asyncio.sleep(0.3 / self._speed)
        engine.ready = True
        self._log.info("The server is fired up and ready to roll!")
        await engine.scheduler.run()

    def _scheduler(self) -> Scheduler:
        args = self._resolved.args
        drafting = self._drafting()
        fallback = self._chooser()
        return Scheduler(
            limits=Limits(
                running=int(args.get("max_running_requests") or self._boot.default_running_limit),
                tokens=self._boot.token_capacity,
                prefill_tokens=int(args.get("chunked_prefill_size") or 8192),
                log_interval=int(args.get("decode_log_interval") or 40),
            ),
            timing=self._timing,
            pacer=Pacer(self._speed),
            cache=PrefixCache(self._boot.token_capacity, enabled=not args.get("disable_radix_cache")),
            faults=self._faults,
            log=self._rank_log,
            drafting=drafting,
            fallback=fallback,
        )

    def _chooser(self) -> Chooser | None:
        """What decides between plain and speculative steps: the patch in the tree, or the release itself."""
        args = self._resolved.args
        if args.get("speculative_adaptive") and self._resolved.speculates:
            sizes = captured_sizes(args)
            steps = int(args["speculative_num_steps"])
            return Slots.read(args.get("speculative_adaptive_config"), steps, sizes, self._rank_log)
        return Fallback.of(self._tree, self._resolved, 0, self._rank_log)

    def _drafting(self) -> Drafting | None:
        if not self._resolved.speculates:
            return None
        args = self._resolved.args
        shape = DraftShape(
            int(args["speculative_num_steps"]),
            int(args["speculative_eagle_topk"]),
            int(args["speculative_num_draft_tokens"]),
            self._resolved.worker,
        )
        simulated = float(os.environ.get("SGLANG_SIMULATE_ACC_LEN") or -1)
        return Drafting(shape, self._timing.accept_rate(shape), simulated if simulated > 0 else None)


_DEFAULT_TIMING = Path(__file__).with_name("timing.json")


def _node() -> Mapping[str, Any]:
    """What the node builder left beside the engine: where simulated GPU memory is kept."""
    if not NODE_FILE.is_file():
        return {}
    found: dict[str, Any] = json.loads(NODE_FILE.read_text(encoding="utf-8"))
    return found

"""One server boot: ready, canary, points. What to conclude is decided by pure functions; this module looks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.analysis.evidence import expected_mode, step_counts, unmoved
from orchestrator.analysis.failure import DISK_FULL
from orchestrator.errors import DynspecError, PhaseFailed, RemoteError
from orchestrator.load.point import read_records
from orchestrator.model.experiment import Arm, Experiment
from orchestrator.model.plan import Canary, RunPoint, SwitchThreshold
from orchestrator.records.points import HEALTH_KEY, measured
from orchestrator.records.served import SHARED_KEY
from orchestrator.remote.node import Node
from orchestrator.remote.replies import LoadReply, ServerState
from orchestrator.runner.events import Events
from orchestrator.runner.health import HealthWatch
from orchestrator.runner.loading import Loads
from orchestrator.runner.local_load import load_from_here
from orchestrator.runner.readiness import Failed, Ready, Sight, exit_words, judge
from orchestrator.runner.switching import switch_threshold
from orchestrator.store import SERVER_INFO, RunStore

_POLL_S = 0.5
_LINE_CHARS = 300  # of a log line in a message; a server prints its hundreds of arguments in one
_GENERATE_TIMEOUT_S = 60.0
_HEALTH_TIMEOUT_S = 2.0  # while requests run: who waits longer would hold up the progress
_LAST_BREATH_S = 2.0  # requests fail a moment before the process that served them has ended
_STATE_KEYS = (  # of internal_states, per point; the rest stands once in server_info.json
    "avg_spec_accept_length",
    "last_gen_throughput",
    "dynspec_stats",
    "memory_usage",
    "effective_max_running_requests_per_dp",
)


@dataclass
class Boot:
    """A server that was just started, and where its results go."""

    experiment: Experiment
    arm: Arm
    number: int
    node: Node
    store: RunStore
    events: Events
    loads: Loads
    started_s: float = field(default_factory=time.monotonic)
    shared: dict[str, Any] | None = None  # the mark of points in a boot that several arms share

    @property
    def port(self) -> int:
        return self.experiment.server.port

    # -- ready -------------------------------------------------------------------------------------------
    def wait_ready(self) -> None:
        """Returns when the server has generated; raises PhaseFailed with the reason and the last log lines."""
        limits = self.experiment.server.ready
        shown = ""
        while True:
            sight = self._look()
            verdict = judge(sight, timeout_s=limits.timeout_s, silence_s=limits.silence_s)
            if isinstance(verdict, Ready):
                seconds = round(verdict.elapsed_s, 1)
                self.events.emit("ready", arm=self.arm.name, boot=self.number, seconds=seconds)
                break
            if isinstance(verdict, Failed):
                raise self._failure(verdict.reason, verdict.log_tail, sight)
            if verdict.progress != shown:
                shown = verdict.progress
                self.events.emit("loading", arm=self.arm.name, boot=self.number, text=shown)
            time.sleep(_POLL_S)
        info = self.server_info()
        self.store.write_json(self.store.boot_path(self.arm.name, self.number, SERVER_INFO), info)

    def _look(self) -> Sight:
        state = self.node.server()
        health = self._status("GET", "/health") if state.alive else None
        generated = self._generates() if health == 200 else None
        if generated is False:
            state = self._after_last_breath()  # the answer may be missing because the process is ending
        return _sight(state, time.monotonic() - self.started_s, health, generated)

    def _after_last_breath(self) -> ServerState:
        """The server's state once it had time to end, if it is about to."""
        deadline = time.monotonic() + _LAST_BREATH_S
        while (state := self.node.server()).alive and time.monotonic() < deadline:
            time.sleep(0.1)
        return state

    def _status(self, method: str, path: str, timeout_s: float = 5.0) -> int | None:
        try:
            return self.node.http(method, self.port, path, timeout_s=timeout_s).status
        except RemoteError:
            return None  # refused, reset or late: all mean "not yet" while the process lives

    def _generates(self) -> bool:
        """One short generation by ids through /generate: every model has ids, not every one a tokenizer."""
        left_s = self.experiment.server.ready.timeout_s - (time.monotonic() - self.started_s)
        timeout_s = min(_GENERATE_TIMEOUT_S, max(1.0, left_s))
        params = {"temperature": 0, "max_new_tokens": 2, "ignore_eos": True}
        body = json.dumps({"input_ids": [1, 2, 3], "sampling_params": params})
        try:
            reply = self.node.http("POST", self.port, "/generate", body, timeout_s=timeout_s)
            answer = json.loads(reply.body)
            return reply.status == 200 and int(answer["meta_info"]["completion_tokens"]) > 0
        except (RemoteError, ValueError, KeyError, TypeError):
            return False

    # -- what the server says of itself --------------------------------------------------------------------
    def server_info(self) -> dict[str, Any]:
        """`/server_info`, or `/get_server_info` of older releases; empty when neither answers."""
        for path in ("/server_info", "/get_server_info"):
            try:
                reply = self.node.http("GET", self.port, path, timeout_s=30.0)
                value = json.loads(reply.body) if reply.status == 200 else None
            except RemoteError:
                break  # no answer at all: another path has none either
            except ValueError:
                continue
            if isinstance(value, dict):
                return value
        return {}

    def flush_cache(self) -> bool:
        """True only when the server says that it flushed; it refuses while requests are pending."""
        return self._status("POST", "/flush_cache", timeout_s=30.0) == 200

    def post(self, path: str, body: str) -> int | None:
        """The status; raises RemoteError where there is none."""
        return self.node.http("POST", self.port, path, body, timeout_s=30.0).status

    def is_alive(self) -> bool:
        return self.node.server().alive

    # -- shared boots --------------------------------------------------------------------------------------
    def become(self, arm: Arm, step: SwitchThreshold) -> None:
        """The running server is `arm` from here on. Raises PhaseFailed unless every rank has its threshold."""
        problem = switch_threshold(self, step.threshold)
        if problem:
            self._raise_if_dead(f"the switch to {arm.name}", ending=True)
            raise self._failure(f"switch to {arm.name}: {problem}", self._tail())
        before = self.shared or {"started_as": self.arm.name, "boot": self.number, "place": 0}
        self.shared = {**before, "threshold": step.threshold, "place": before["place"] + 1}
        self.arm = arm
        self.events.emit("switched", arm=arm.name, boot=step.boot, threshold=step.threshold)

    # -- canary --------------------------------------------------------------------------------------------
    def canary(self, step: Canary) -> None:
        """A few short greedy requests per concurrency: code that imports may still crash at concurrency 10.

        A threshold that does not act is warned of before the sweep; its points will not count.
        """
        looks = []
        for position, concurrency in enumerate(step.concurrency):
            what = f"canary at concurrency {concurrency}"
            name = f"{self.arm.name}-{self.number}-canary-{position:02d}-c{concurrency}"
            before = self._counters(concurrency)
            self._all_answered(self.loads.canary(concurrency), name, self.experiment.limits.canary_s, what)
            looks.append((concurrency, step_counts(before, self._counters(concurrency))))
        words = f"concurrency {', '.join(map(str, step.concurrency))}: all answered"
        if counted := [steps for _, steps in looks if steps]:
            plain, speculative = (sum(side) for side in zip(*counted, strict=True))
            words += f", {plain} plain and {speculative} speculative steps"
        self.events.emit("canary", arm=self.arm.name, boot=self.number, text=words)
        for problem in unmoved(self.arm, looks):
            self._warn(f"canary: {problem}")

    def _counters(self, concurrency: int) -> list[dict[str, Any]]:
        """What the patch counts; not asked for where the arm has no threshold to act on."""
        wanted = expected_mode(self.arm, concurrency, "closed")
        return _states(self.server_info()) if wanted is not None else []

    def _all_answered(self, spec: dict[str, Any], name: str, timeout_s: float, what: str) -> None:
        reply = self._load(spec, name, timeout_s, what)
        failed = [record for record in _lines(reply) if not record["ok"]]
        self._raise_if_dead(what, ending=bool(failed))
        if failed:
            why = failed[0].get("error") or f"finish {failed[0].get('finish')}"
            raise self._failure(f"{what}: {len(failed)} requests failed, the first: {why}", self._tail())

    # -- points --------------------------------------------------------------------------------------------
    def run_point(self, step: RunPoint) -> None:
        """Warm up, flush, load, scrape, store. A failed request is data; a dead server ends the run."""
        limit_s = self.experiment.limits.point_s
        name = f"{step.arm}-{step.boot}-{step.index:02d}-c{step.concurrency}"
        where = {
            "arm": step.arm,
            "boot": step.boot,
            "index": step.index,
            "concurrency": step.concurrency,
        }
        self.events.emit("point", requests=self.loads.requests(step.index), **where)
        warmup = self.loads.warmup(step.index)
        if warmup is not None:
            self._all_answered(
                warmup, f"{name}-warmup", limit_s, f"warm-up at concurrency {step.concurrency}"
            )
        flushed = self.flush_cache()
        info = self.server_info()
        before = _states(info)
        what = f"concurrency {step.concurrency}"
        watch = HealthWatch(lambda: self._status("GET", "/health", _HEALTH_TIMEOUT_S), self._warn)
        reply = self._load(self.loads.point(step.index), name, limit_s, what, watch.look)
        metrics = measured(_lines(reply), reply.summary, self.experiment.sweep, step.concurrency)
        self._keep_if_dead(step, reply, what, ending=metrics.ok == 0)
        after = _states(self.server_info())
        meta = {
            "warmup_requests": len(warmup["requests"]["prompts"]) if warmup else 0,
            "bodies_sha256": self.loads.bodies(step.index),
            "flushed": flushed,
            "simulated": bool(info.get("simulated")),
            "load": reply.summary,
            "server_before": before,
            "server_after": after,
            **({HEALTH_KEY: {"asked": watch.asked, "unwell": watch.unwell}} if watch.asked else {}),
            **({SHARED_KEY: self.shared} if self.shared else {}),
        }
        self.store.write_point(step.arm, step.boot, step.index, step.concurrency, reply.records, meta)
        self.events.emit("point_done", metrics=metrics.metrics, ok=metrics.ok, failed=metrics.failed, **where)

    def _load(
        self,
        spec: dict[str, Any],
        name: str,
        timeout_s: float,
        what: str,
        look: Callable[[Mapping[str, Any]], None] = lambda data: None,
    ) -> LoadReply:
        """`look` gets each progress report as well."""

        def progress(data: Mapping[str, Any]) -> None:
            look(data)
            self.events.emit("progress", arm=self.arm.name, boot=self.number, what=what, **data)

        try:
            if self.experiment.sweep.load_from == "node":
                reply = self.node.load(spec, name, timeout_s, progress)
            else:
                reply = load_from_here(self.node, spec, timeout_s, progress)
        except RemoteError as error:
            self._raise_if_dead(what, ending=True)
            raise self._failure(f"{what}: {error.message}", self._tail()) from error
        return reply

    def _keep_if_dead(self, step: RunPoint, reply: LoadReply, what: str, *, ending: bool) -> None:
        """The records of a point that its server did not survive are kept, and never counted."""
        try:
            self._raise_if_dead(what, ending=ending)
        except PhaseFailed:
            name = f"point-{step.index:02d}-c{step.concurrency}.partial.jsonl"
            path = self.store.boot_path(step.arm, step.boot, name)
            self.store.write_bytes(path, self.store.redact.data(reply.records))
            raise

    def _raise_if_dead(self, what: str, *, ending: bool) -> None:
        """`ending`: something failed that a living server would have answered."""
        state = self._after_last_breath() if ending else self.node.server()
        if not state.alive:
            sight = _sight(state, 0.0, None, None)
            why = f"the server died during {what} with {exit_words(sight)}"
            raise self._failure(why, sight.log_tail, sight)

    def _failure(self, reason: str, log_tail: tuple[str, ...], sight: Sight | None = None) -> PhaseFailed:
        """The event carries the server's exit, where there is one: the failure card needs it beside the log."""
        if self._disk_is_full():
            reason = f"{reason}; {DISK_FULL} ({self.experiment.node.workdir})"
        exits = {"exit_code": sight.exit_code, "signal": sight.signal} if sight else {}
        self.events.emit("boot_failed", arm=self.arm.name, boot=self.number, reason=reason, **exits)
        details = (
            ("last log lines of the server:", *(f"  {line[:_LINE_CHARS]}" for line in log_tail))
            if log_tail
            else ()
        )
        return PhaseFailed(f"arm {self.arm.name}, boot {self.number}: {reason}", details=details)

    def _disk_is_full(self) -> bool:
        """Then nothing on the node could write down why it failed."""
        try:
            return self.node.server().disk_free_mib == 0
        except DynspecError:
            return False

    def _warn(self, text: str) -> None:
        self.events.emit("warning", text=f"arm {self.arm.name}, boot {self.number}: {text}")

    def _tail(self) -> tuple[str, ...]:
        return self.node.server().log_tail


def _sight(state: ServerState, elapsed_s: float, health: int | None, generated: bool | None) -> Sight:
    return Sight(
        elapsed_s=elapsed_s,
        alive=state.alive,
        exit_code=state.exit_code,
        signal=state.signal,
        log_idle_s=state.log_idle_s,
        log_tail=state.log_tail,
        health_status=health,
        generated=generated,
    )


def _lines(reply: LoadReply) -> list[dict[str, Any]]:
    return list(read_records(reply.records.decode("ascii").splitlines(keepends=True)))


def _states(info: dict[str, Any]) -> list[dict[str, Any]]:
    """Per rank, the numbers that change."""
    states = info.get("internal_states")
    ranks = states if isinstance(states, list) else []
    return [
        {key: rank[key] for key in _STATE_KEYS if key in rank} for rank in ranks if isinstance(rank, dict)
    ]

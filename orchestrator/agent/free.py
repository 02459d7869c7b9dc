"""Frees the GPUs as the experiment allows: what we started, what a rule names, or everybody; never in silence."""

from __future__ import annotations

import time
from typing import Callable, List, NamedTuple, Optional, Set

from . import args, ending, gpus, holders, procs, release
from .gpus import Spawn
from .holders import Holding
from .procs import Identity
from .wire import AgentError, Message

POLICIES = ("own", "wait", "listed", "all")
_POLL_S = 0.5


class Rule(NamedTuple):
    """Matches by exact user and by a part of the command line; at least one of them is given."""

    user: Optional[str]
    command: Optional[str]

    def allows(self, holder: Message) -> bool:
        by_user = self.user is None or self.user == holder["user"]
        return by_user and (self.command is None or self.command in holder["command"])


class Request(NamedTuple):
    policy: str
    rules: List[Rule]
    gpus: Optional[List[int]]
    timeout_s: float


def parse(given: Message) -> Request:
    policy = args.text(given, "policy", "own")
    if policy not in POLICIES:
        raise args.bad("policy", "one of " + ", ".join(POLICIES), policy)
    rules = []
    for item in args.objects(given, "rules"):
        rule = Rule(args.optional_text(item, "user"), args.optional_text(item, "command"))
        if not rule.user and not rule.command:
            raise AgentError("bad_request", "a rule without user and command would match everybody")
        rules.append(rule)
    return Request(policy, rules, args.gpu_indices(given), args.seconds(given, "timeout_s", 60.0))


def free(request: Request, own: Set[Identity], spawn: Spawn, abort: Callable[[], bool]) -> Message:
    """Ends what may be ended and proves that nothing computes on the GPUs. Raises AgentError `busy` naming the rest.

    When one holder may not be ended, none is: freeing half of a busy node helps nobody.
    """
    deadline = time.monotonic() + request.timeout_s
    holding = _look(request, spawn)
    blocking = [holder for holder in holding.computing() if not allowed(request, own, holder)]
    while blocking and request.policy == "wait" and time.monotonic() < deadline and not abort():
        time.sleep(_POLL_S)
        holding = _look(request, spawn)
        blocking = [holder for holder in holding.computing() if not allowed(request, own, holder)]
    if blocking:
        raise _busy(request, blocking)
    stopped = holding.computing()
    _end(stopped, max(1.0, deadline - time.monotonic()))
    done = release.wait({fact["pid"] for fact in stopped}, {}, request.gpus, _left_s(deadline), spawn, abort)
    if done.problem is not None:
        raise AgentError("busy", "GPU memory is not free " + done.problem, holders=[])
    return {"stopped": stopped, "note": done.note}


def _left_s(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _look(request: Request, spawn: Spawn) -> Holding:
    holding = holders.read(request.gpus, spawn)
    if holding.picture.problem is not None:
        raise AgentError("failed", "cannot tell who uses the GPUs: " + holding.picture.problem)
    known = {gpu.index for gpu in holding.picture.gpus}
    missing = [index for index in request.gpus or [] if index not in known]
    if missing:
        raise AgentError("mismatch", "this node has no GPU {}".format(", ".join(map(str, missing))))
    return holding


def allowed(request: Request, own: Set[Identity], holder: Message) -> bool:
    """Whether this process may be ended. One that is not visible from here, or above us, never is."""
    if holder["start_time"] == 0 or holder["pid"] in procs.protected() or holder["kind"] == gpus.GRAPHICS:
        return False
    if (holder["pid"], holder["start_time"]) in own or request.policy == "all":
        return True
    return request.policy == "listed" and any(rule.allows(holder) for rule in request.rules)


def _end(facts: List[Message], timeout_s: float) -> None:
    wanted = {(fact["pid"], fact["start_time"]) for fact in facts}

    def targets() -> Set[Identity]:
        return {identity for identity in wanted if procs.is_alive(identity)}

    def gentle(alive: Set[Identity]) -> None:
        for identity in alive:
            ending.terminate(identity)

    ended = ending.end(targets, timeout_s, gentle)
    if ended.survivors:
        left = [fact for fact in facts if fact["pid"] in ended.survivors]
        why = "this user may not signal them" if ended.refused else "they did not end within the limit"
        raise AgentError(
            "busy", "GPU holders are still there: {} ({})".format(describe(left), why), holders=left
        )


def _busy(request: Request, blocking: List[Message]) -> AgentError:
    text = "GPUs are in use: {} (free: {} does not allow ending them)".format(
        describe(blocking), request.policy
    )
    return AgentError("busy", text, holders=blocking)


def describe(facts: List[Message]) -> str:
    return "; ".join(
        "pid {pid} of {user}, {0} MiB, {age_s:.0f} s old: {command:.80}".format(
            "?" if fact["memory_mib"] is None else fact["memory_mib"], **fact
        )
        for fact in facts
    )

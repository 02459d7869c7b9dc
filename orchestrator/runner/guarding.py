"""Taking the node: refuse early what is busy, wait where that was asked for, and never leave a guardian unclaimed."""

from __future__ import annotations

import getpass
import os
import queue
import socket
import time
from collections.abc import Iterator, Sized

from orchestrator.errors import (
    ConnectionLost,
    DoesNotFit,
    DynspecError,
    EndedElsewhere,
    NodeBusy,
    NodeDirty,
    PhaseFailed,
    RemoteError,
)
from orchestrator.model.experiment import Experiment
from orchestrator.model.experiment import Node as NodeChoice
from orchestrator.model.facts import LockFact
from orchestrator.plan import held
from orchestrator.remote.channel import Event
from orchestrator.remote.node import Node
from orchestrator.remote.refusals import before_acting
from orchestrator.remote.replies import Guard, Recovered, Status
from orchestrator.runner.events import Events
from orchestrator.runner.restore import restore_command, ways_out
from orchestrator.runner.signals import SignalGate

_POLL_S = 1.0
_DETACHED = ", detached"
_REFUSALS = (NodeBusy, NodeDirty, DoesNotFit)  # the node said no: no guardian of ours stands


def holder_name(*, detached: bool = False) -> str:
    """Who asks, for the lock: `user@host:pid`, and whether nobody sits before it."""
    return f"{person()}:{os.getpid()}{_DETACHED if detached else ''}"


def person() -> str:
    return f"{getpass.getuser()}@{socket.gethostname()}"


def is_detached(lock: LockFact) -> bool:
    """Whether the run that holds the node goes on without a terminal, so that nobody could press Ctrl-C."""
    return lock.controller.endswith(_DETACHED)


def refuse_held(status: Status, choice: NodeChoice, own_run: str) -> None:
    """Raises NodeBusy for a live holder: the lock alone tells, so nothing else need be read first."""
    lock = status.lock
    if lock is not None and lock.state != "orphaned" and lock.run_id != own_run:
        raise held(lock, choice)


class Taking:
    """`asked` is true from the first moment at which a guardian of ours may stand.

    `recovered`: dead runs whose leftovers the node put back for us.
    """

    def __init__(
        self, node: Node, experiment: Experiment, run_id: str, holder: str, gate: SignalGate, events: Events
    ) -> None:
        self._node = node
        self._experiment = experiment
        self._run_id = run_id
        self._holder = holder
        self._gate = gate
        self._events = events
        self.asked = False
        self.recovered: tuple[Recovered, ...] = ()

    def take(self, wait_s: float) -> None:
        """The node's lock, after at most `wait_s`. Raises NodeBusy, NodeDirty for a dead run that can't be put back."""
        deadline = time.monotonic() + wait_s
        told = False
        while True:
            try:
                # A signal between question and answer would leave a guardian that nobody has heard of, and dead runs
                # undone without a word.
                with self._gate.held():
                    self._tell_recovered(self._ask())
                return
            except NodeBusy as busy:
                if time.monotonic() >= deadline:
                    raise
                if not told:
                    self._events.note(f"{busy.message}; waiting up to {wait_s:.0f} s")
                    told = True
            time.sleep(_POLL_S)

    def _ask(self) -> Guard:
        node, limits = self._experiment.node, self._experiment.limits
        self.asked = True
        try:
            return self._node.guard(
                run_id=self._run_id,
                holder=self._holder,
                workdir=node.workdir,
                lease_s=node.lease_s,
                stop_s=limits.stop_s,
                gpu_free_s=limits.gpu_free_s,
            )
        except RemoteError as error:
            refusal = self._refusal(error)
            self.asked = not isinstance(refusal, _REFUSALS)
            raise refusal from error

    def _refusal(self, error: RemoteError) -> DynspecError:
        choice = self._experiment.node
        if error.code != "dirty":
            return before_acting(error, choice)
        return NodeDirty(
            f"a dead run on {choice.host} could not be put back: {error.message}",
            details=(*error.details, *ways_out(error, restore_command(choice))),
            restore_command=restore_command(choice),
        )

    def _tell_recovered(self, reply: Guard) -> None:
        self.recovered = reply.recovered
        for item in reply.recovered:
            self._events.emit(
                "recovered",
                run_id=item.run_id,
                text=f"run {item.run_id} had died: {undone(item)}",
                restored=list(item.restored),
                stopped=list(item.stopped),
            )
        if reply.cleared:
            self._events.note(
                f"removed on the node: folders of runs that are over: {', '.join(reply.cleared)}"
            )


def undone(run: Recovered) -> str:
    """What the node did about the leftovers of a dead run."""
    return f"{_count(run.stopped, 'process', 'processes')} stopped, {_count(run.restored, 'file', 'files')} put back"


def _count(items: Sized, one: str, many: str) -> str:
    return f"{len(items)} {one if len(items) == 1 else many}"


def explain_end(error: DynspecError, node: Node | None) -> DynspecError:
    """A run that somebody ended, or whose guardian died, looks like a dead server or an odd answer from inside."""
    said = [event for event in _waiting(node) if isinstance(event, Event)] if node is not None else []
    ended_by = [str(event.data["by"]) for event in said if event.name == "note" and event.data.get("by")]
    if ended_by:
        return EndedElsewhere(f"ended by {ended_by[-1]}")
    notes = [str(event.data.get("text")) for event in said if event.name == "note"]
    seen = (f"seen from the run: {error.message}",)
    if notes:
        return PhaseFailed(f"the run was ended from outside: {notes[-1]}", details=seen)
    if any(event.name == "guardian_lost" for event in said):
        return PhaseFailed(
            "dynspec's own process on the node, the guardian, which starts and stops the server, was killed; the run "
            "could not go on",
            details=(
                "somebody or the kernel ended it: dmesg on the node names it if memory had run out",
                "what it had started and changed is stopped and put back from its journal, over a new connection",
            ),
        )
    if isinstance(error, ConnectionLost):
        return ConnectionLost(
            f"the connection to the node was lost: {error.message}", details=error.details, help=error.help
        )
    return error


def _waiting(node: Node) -> Iterator[Event | DynspecError]:
    """What the node said unasked and nobody has taken yet."""
    while True:
        try:
            yield node.events.get_nowait()
        except queue.Empty:
            return

"""How a run ends inside the controller: signals, events that nobody can take, exit codes, and the outcome."""

from __future__ import annotations

import json
import os
import queue
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cli.screen import Lines
from orchestrator.config import load_experiment
from orchestrator.errors import (
    ConnectionLost,
    DoesNotFit,
    DynspecError,
    EndedElsewhere,
    Interrupted,
    NodeBusy,
    NodeDirty,
    NothingToClaim,
    PhaseFailed,
    Regression,
    RemoteError,
)
from orchestrator.model.plan import ApplyEdits, FreeGpus, StartServer
from orchestrator.redact import Redactor
from orchestrator.remote.channel import Event
from orchestrator.remote.replies import Guard, Recovered, Status
from orchestrator.runner.events import Events
from orchestrator.runner.finish import Ending, verdict
from orchestrator.runner.give_back import give_back
from orchestrator.runner.guarding import Taking, explain_end
from orchestrator.runner.loop import Loop
from orchestrator.runner.options import RunOptions
from orchestrator.runner.resume import Resumed
from orchestrator.runner.runlock import RunLock
from orchestrator.runner.session import Session
from orchestrator.runner.signals import WATCHED, SignalGate, watching_signals
from orchestrator.store import OUTCOME, RunStore
from tests.plan_cases import experiment, facts, plan_of

EXPERIMENT = """
schema: 1
name: end
node: {host: local, python: /usr/bin/python3}
server: {args: {model-path: m}}
arms: {plain: {}}
"""


@pytest.fixture(autouse=True)
def _handlers_put_back() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in WATCHED}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def _send(number: int) -> None:
    os.kill(os.getpid(), number)


def test_the_first_signal_ends_the_run_and_later_ones_are_counted() -> None:
    with watching_signals() as gate:
        with pytest.raises(Interrupted) as interrupted:
            _send(signal.SIGTERM)
        _send(signal.SIGINT)
        _send(signal.SIGTERM)
    assert (interrupted.value.exit_code, gate.first, gate.repeats) == (143, signal.SIGTERM, 2)


def test_after_an_interrupted_run_signals_stay_ignored_until_the_process_is_gone() -> None:
    with watching_signals(), pytest.raises(Interrupted):
        _send(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    _send(signal.SIGINT)


def test_after_a_run_without_signals_the_old_handlers_are_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with watching_signals():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before


def test_a_signal_that_was_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    with watching_signals() as gate:
        _send(signal.SIGHUP)
    assert gate.first is None


def test_what_must_not_be_cut_in_two_ends_before_the_signal_is_raised() -> None:
    done = []

    def deed(gate: SignalGate) -> None:
        with gate.held():
            _send(signal.SIGINT)
            done.append("whole")

    with watching_signals() as gate, pytest.raises(Interrupted):
        deed(gate)
    assert done == ["whole"]


def test_the_first_signal_while_the_node_is_taken_does_not_speak_of_giving_it_back_still(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with watching_signals() as gate:
        with pytest.raises(Interrupted), gate.held():
            _send(signal.SIGINT)
        assert capfd.readouterr().err == "dynspec: waiting for the node's answer; then it is given back\n"
        _send(signal.SIGINT)
    assert capfd.readouterr().err == "dynspec: still giving the node back; please wait\n"


def test_once_the_giving_back_has_begun_nothing_is_raised() -> None:
    with watching_signals() as gate:
        gate.disarm()
        _send(signal.SIGINT)
    assert gate.first == signal.SIGINT


def test_a_full_disk_or_a_closed_screen_ends_the_measuring_but_not_the_giving_back() -> None:
    heard: list[str] = []

    def closed(event: object) -> None:
        raise BrokenPipeError

    events = Events((closed, lambda event: heard.append(event["event"])), Redactor({}))
    with pytest.raises(BrokenPipeError):
        events.emit("point")
    events.forgive()
    events.emit("given_back")
    assert heard == ["given_back"]


DIRTY = NodeDirty("left", restore_command="dynspec restore n")
VERDICTS: list[tuple[DynspecError | None, int | None, bool, int, str]] = [
    (None, None, True, 0, "ok"),
    (None, signal.SIGINT, True, 130, "interrupted"),
    (PhaseFailed("crash"), signal.SIGTERM, True, 143, "interrupted"),
    (DIRTY, signal.SIGTERM, True, 70, "dirty"),
    (EndedElsewhere("ended by `dynspec stop`"), None, True, 130, "interrupted"),
    (PhaseFailed("crash"), None, True, 1, "failed"),
    (NodeBusy("held"), None, False, 3, "refused"),
    (NodeBusy("held"), None, True, 1, "failed"),
    (DoesNotFit("tree"), None, False, 4, "refused"),
    (DoesNotFit("tree"), None, True, 1, "failed"),
    (Regression("slower"), None, True, 5, "regression"),
    (NothingToClaim("noise"), None, True, 6, "nothing-to-claim"),
]


@pytest.mark.parametrize(("error", "signum", "touched", "code", "state"), VERDICTS)
def test_exit_code_and_state(
    error: DynspecError | None, signum: int | None, touched: bool, code: int, state: str
) -> None:
    assert verdict(error, signum, touched) == (code, state)


class Answering:
    """A node whose every deed ends in one and the same way."""

    def __init__(self, end: BaseException) -> None:
        self._end = end

    def __getattr__(self, deed: str) -> Callable[..., object]:
        def act(*words: object, **named: object) -> object:
            raise self._end

        return act


ENDS: list[tuple[BaseException, bool]] = [
    (Interrupted(signal.SIGINT), True),  # the node may have done it already
    (RemoteError("cut", code="lost"), True),
    (RemoteError("no", code="changed"), False),
    (RemoteError("no", code="busy", data={"holders": []}), False),
]


@pytest.mark.parametrize("kind", [ApplyEdits, FreeGpus, StartServer])
@pytest.mark.parametrize(("end", "touched"), ENDS)
def test_a_deed_counts_as_touching_the_node_from_its_question_on_unless_it_is_refused(
    kind: type, end: BaseException, touched: bool, tmp_path: Path
) -> None:
    plan = plan_of({})
    deed = next(step for step in plan.steps if isinstance(step.do, kind))
    store = RunStore.create(tmp_path, "20260101-000000-end-0001", Redactor({}))
    loop = Loop(
        experiment([]),
        facts({}),
        replace(plan, steps=(deed,)),
        Answering(end),  # type: ignore[arg-type]
        store,
        Events((), Redactor({})),
        {},
        tmp_path,
    )
    with pytest.raises((DynspecError, Interrupted)):
        loop.execute()
    assert loop.touched is touched


LEFT = Recovered("r0", ("/sglang/a.py", "/sglang/b.py"), (7,))
UNDONE = "what run r0, which had died, had left is undone: 1 process stopped, 2 files put back"


class Recovering:
    """A node that puts a dead run back for the next one, which a signal reaches meanwhile."""

    def guard(self, **asked: object) -> Guard:
        _send(signal.SIGINT)
        return Guard(1, "/journal", (LEFT,))


def test_a_signal_while_a_dead_run_is_put_back_does_not_hide_that(tmp_path: Path) -> None:
    heard: list[str] = []
    events = Events((lambda event: heard.append(str(event.get("text"))),), Redactor({}))
    with watching_signals() as gate:
        node = Recovering()
        taking = Taking(node, experiment([]), "r1", "me", gate, events)  # type: ignore[arg-type]
        with pytest.raises(Interrupted):
            taking.take(0.0)
    assert taking.asked
    assert taking.recovered == (LEFT,)
    assert heard == ["run r0 had died: 1 process stopped, 2 files put back"]


@pytest.mark.parametrize(
    ("touched", "own"), [(False, "this run changed nothing on the node"), (True, "the node is as it was")]
)
def test_the_last_words_of_an_interrupted_run_tell_what_it_put_back_for_a_dead_one(
    ending: Ending, touched: bool, own: str
) -> None:
    finished = replace(ending, touched=touched, recovered=(LEFT,)).finish(None, signal.SIGTERM)
    assert finished.outcome.message == f"interrupted by signal 15; {own}; {UNDONE}"
    assert Lines().closing_words(finished).startswith(f"interrupted; {own}; {UNDONE}.")


def test_a_refusal_after_a_dead_run_was_put_back_stays_one_and_tells_of_it(ending: Ending) -> None:
    refused = replace(ending, store=None, touched=False, recovered=(LEFT,))
    outcome = refused.finish(DoesNotFit("tree", help="do"), None).outcome
    assert (outcome.exit_code, outcome.state) == (4, "refused")
    assert outcome.message == f"tree\nthis run changed nothing on the node; {UNDONE}\n-> do"
    dirty = refused.finish(NodeDirty("left", restore_command="put it back"), None).outcome
    assert dirty.message == "left\n-> put it back"


@pytest.fixture
def ending(tmp_path: Path) -> Ending:
    """Of a run that started one boot."""
    store = RunStore.create(tmp_path, "20260101-000000-end-0001", Redactor({}))
    store.event("started", {"arm": "plain", "boot": 1})
    experiment = load_experiment(EXPERIMENT, name="end.yaml").experiment
    events = Events((), Redactor({}))
    events.attach(store)
    return Ending(experiment, store, events, "2026-01-01T00:00:00Z", touched=True)


def taken(ending: Ending, name: str) -> Path:
    """A folder has that name in the run folder, so no file can be written there; returns the run folder."""
    assert ending.store is not None
    (ending.store.folder / name).mkdir()
    return ending.store.folder


def test_a_report_that_cannot_be_made_costs_neither_records_nor_outcome(ending: Ending) -> None:
    folder = taken(ending, "summary.json")
    finished = ending.finish(None, None)
    assert (finished.outcome.exit_code, finished.outcome.state) == (1, "failed")
    assert finished.error is not None
    assert "the report could not be made" in finished.error.message
    assert finished.error.help == f"the records are kept; dynspec report {folder} tries again"
    assert json.loads((folder / OUTCOME).read_text())["outcome"]["exit_code"] == 1


@pytest.mark.parametrize("name", ["summary.json", OUTCOME])
@pytest.mark.parametrize(("error", "signum", "code"), [(DIRTY, None, 70), (None, signal.SIGTERM, 143)])
def test_a_run_whose_report_or_outcome_cannot_be_written_ends_as_it_would_have(
    ending: Ending, name: str, error: DynspecError | None, signum: int | None, code: int
) -> None:
    taken(ending, name)
    finished = ending.finish(error, signum)
    assert finished.outcome.exit_code == code
    assert error is None or finished.error is error


def test_a_measured_run_without_an_outcome_file_has_failed(ending: Ending) -> None:
    taken(ending, OUTCOME)
    taken(ending, "summary.json")
    finished = ending.finish(None, None)
    assert finished.outcome.exit_code == 1
    assert finished.error is not None


class Channel:
    """What of a node tells what it said unasked."""

    def __init__(self, *events: Event) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        for event in events:
            self.events.put(event)


ENDINGS = [
    ((), "the guardian of run r ended during start"),
    ((Event("guardian_lost", {}),), "dynspec's own process on the node, the guardian"),
    (
        (Event("note", {"text": "taken over by bob"}), Event("guardian_lost", {})),
        "ended from outside: taken over by bob",
    ),
    (
        (
            Event("note", {"text": "restored", "by": "`dynspec stop` from ann@laptop"}),
            Event("guardian_lost", {}),
        ),
        "ended by `dynspec stop` from ann@laptop",
    ),
]


@pytest.mark.parametrize(("events", "words"), ENDINGS)
def test_a_run_whose_node_was_taken_away_says_who_did_it_and_not_what_it_looked_like(
    events: tuple[Event, ...], words: str
) -> None:
    error = RemoteError("the guardian of run r ended during start", code="lost")
    told = explain_end(error, Channel(*events))  # type: ignore[arg-type]
    assert words in told.message


class Guarded:
    """A node that a run has taken, and tells whose folders were removed there."""

    asked = True

    def __init__(self) -> None:
        self.cleaned: list[str] = []

    def clean(self, *, run_id: str, workdir: str) -> None:
        self.cleaned.append(run_id)


@pytest.mark.parametrize(("is_resumed", "clean"), [(False, True), (True, True), (False, False)])
def test_a_run_that_ended_before_it_had_a_run_folder_leaves_no_folder_on_a_clean_node(
    is_resumed: bool, clean: bool, tmp_path: Path
) -> None:
    node = Guarded()
    began = RunStore.create(tmp_path, "20260101-000000-end-0001", Redactor({}))
    session = Session(
        load_experiment(EXPERIMENT, name="end.yaml").experiment,
        (),
        RunOptions(),
        tmp_path,
        {},
        "",
        Redactor({}),
        Events((), Redactor({})),
        SignalGate(),
        Resumed(began.run_id, began if is_resumed else None),  # logs of its first part may be there
        RunLock(detached=False, arms=()),
        node=node,  # type: ignore[arg-type]
        taking=node,  # type: ignore[arg-type]
    )
    session._collect(clean=clean)
    assert node.cleaned == ([began.run_id] if clean and not is_resumed else [])


def test_a_lost_connection_is_called_one_beside_what_the_channel_saw() -> None:
    told = explain_end(ConnectionLost("gpu: the agent's channel ended", details=("x",)), None)
    assert isinstance(told, ConnectionLost)
    assert told.message == "the connection to the node was lost: gpu: the agent's channel ended"
    assert told.details == ("x",)


class Gone:
    """A node whose guardian is gone, with nothing left of the run."""

    label, restore_by_hand = "gpu", "ssh gpu ..."

    def unwind(self, **_asked: object) -> None:
        raise RemoteError("this channel has lost the guardian of run r", code="lost")

    def status(self) -> Status:
        return Status(lock=None, journals=(), server=None, holders=(), gpus=())

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("by_a_person", "said"),
    [
        (True, []),
        (False, ["this channel has lost the guardian of run r; giving the node back over a new connection"]),
    ],
)
def test_a_run_that_a_person_ended_does_not_wonder_where_its_guardian_is(
    by_a_person: bool, said: list[str]
) -> None:
    told: list[str] = []
    events = Events(
        (lambda record: told.append(record["text"]) if record["event"] == "note" else None,), Redactor({})
    )
    asked = {"run_id": "r", "command": "dynspec restore gpu", "stop_s": 1.0, "reason": "failed"}
    given = give_back(Gone(), Gone, **asked, events=events, ended_elsewhere=by_a_person)  # type: ignore[arg-type]
    assert (given.restored, told) == ((), said)


def test_a_gate_that_never_saw_a_signal_says_so() -> None:
    gate = SignalGate()
    with gate.held():
        pass
    assert (gate.first, gate.repeats) == (None, 0)

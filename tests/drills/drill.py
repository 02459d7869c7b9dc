"""One drill: a run is brought to a phase, something happens to it, and the node is looked at afterwards."""

from __future__ import annotations

import os
import re
import resource
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any

from orchestrator.errors import DoesNotFit, NodeBusy, NodeDirty, PhaseFailed
from tests.drills import machine, standstill
from tests.drills.cells import Cell
from tests.e2e.controller import Done, Place, Running
from tests.e2e.node import EAGLE3, SshNode, experiment, process_state
from tests.sshd import descendants

LEASE_S = 10.0
INTERRUPT_S = 8.0  # limits.interrupt, its default
SILENCE_S = 25.0  # after which a frozen connection counts as lost
_DAY_S = 86_400
SECOND_ROUNDS = 60  # of 0.3 s each
REACH_S = 240.0  # for a machine with other work: how long a run takes to a phase is no matter of these tests
MARGIN_S = 10.0  # over a limit, for a machine with other work

# Two arms that share a boot, and are switched between their points.
_THRESHOLD = "speculative-disable-batch-threshold"
_SHARING = {
    "always": {"args": {**EAGLE3, _THRESHOLD: 0}, "patches": ["dynamic_disable"]},
    "two": {"extends": "always", "args": {_THRESHOLD: 2}},
}

# What is done to a machine, not to a process: the run stands still meanwhile, so that it strikes at the very beginning
# of a phase. At `points` it strikes among requests.
_WHILE_IT_STANDS = ("full-disk", "read-only", "edit")

_FULL = re.compile(
    "No space left on device|node.workdir is full|MiB free"
)  # what is wrong, whatever ended the run

# The last two phases share a name.
_GIVES_BACK = "stop, restore, verify, unlock"


@dataclass
class Drill:
    """`report` fills while it runs: what a cell of the matrix shows."""

    cell: Cell
    node: SshNode
    place: Place
    elsewhere: Place
    port: int
    report: dict[str, Any] = field(default_factory=dict)
    mend: ExitStack = field(default_factory=ExitStack)  # takes back what was done to the machine

    def run(self) -> None:
        """Raises AssertionError for whatever is not as it should be."""
        path = self.place.write(self._experiment())
        if self._held:
            self.place.command = standstill.command(**self._begins)
        with self.mend, self.place.start("run", path, "--json") as run:
            self._reach(run)
            began = time.monotonic()
            done = _FAULTS[self.cell.fault](self, run)
            self.report["exit_s"] = round(time.monotonic() - began, 1)
            self.report["code"] = done.code
            assert done.code in self.cell.codes, done.text
            if self.cell.fault == "full-disk" and done.code in (DoesNotFit.exit_code, PhaseFailed.exit_code):
                assert _FULL.search(done.events[-1]["text"]), done.text
        if done.code == NodeDirty.exit_code:
            self._restore_by_hand(done)
        elif done.code >= 0:  # its word that the node is as it was holds at once, not when some lease ends
            assert self.node.lock_holder() is None, done.text
            assert not self.node.open_journals(), done.text
        free_s = self.node.wait_until_free(self._node_limit_s())
        self.report.setdefault("free_s", round(free_s, 1))
        problems = self.node.problems()
        assert not problems, problems
        self._results_are_kept(done)

    def _restore_by_hand(self, done: Done) -> None:
        """The command that the last line names, typed once the machine is well again."""
        command = done.errors[-1].split()
        assert command[:2] == ["dynspec", "restore"], done.text
        restored = self.elsewhere.run(*command[1:])
        assert restored.code == 0, restored.text
        assert not self.node.problems()

    def _experiment(self) -> dict[str, Any]:
        arms = {"banner": {"args": EAGLE3, "patches": ["spec_banner"]}}
        made = experiment(self.node, self.port, arms=_SHARING if self.cell.phase == "switch" else arms)
        made["sweep"]["share_boot"] = self.cell.phase == "switch"
        made["node"]["lease"] = f"{LEASE_S:.0f}s"
        made["server"]["env"].update(DYNSPEC_DEMO_SPEED="4", DYNSPEC_DEMO_LOAD_S="4")
        made["sweep"].update(concurrency=[2], output_tokens=128, requests_per_slot=8)
        if self.cell.fault == "cancel":
            made["server"]["env"]["DYNSPEC_DEMO_FAULT"] = "slow-stop"
        if self.cell.fault == "second-run":  # that it still goes on when the second one has connected
            made["sweep"].update(output_tokens=256, requests_per_slot=SECOND_ROUNDS)
        if self.cell.fault == "full-disk":  # that requests still run when it is full
            made["sweep"].update(requests_per_slot=24)
        if self.cell.fault == "leave-worker":
            made["server"]["env"]["DYNSPEC_DEMO_FAULT"] = "worker-escapes"
        if self.cell.fault == "hang-server":
            made["server"]["ready"]["timeout"] = "6s"
            made["limits"].update(canary="3s", point="6s", stop="4s")
        return made

    @property
    def _held(self) -> bool:
        return self.cell.fault in _WHILE_IT_STANDS and self.cell.phase != "points"

    @property
    def _begins(self) -> dict[str, str]:
        """Of the event that says that the phase has begun."""
        phase = self.cell.phase
        return {"phase": "restore", "text": _GIVES_BACK} if phase == "unlock" else {"phase": phase}

    def _reach(self, run: Running) -> None:
        if self.cell.phase == "points":
            run.wait_event("point", REACH_S)
            time.sleep(0.3)  # requests are in flight
        else:
            run.wait_event("phase", REACH_S, **self._begins)
        if self._held:
            deadline = time.monotonic() + MARGIN_S
            while process_state(run.pid) != "T":
                assert time.monotonic() < deadline, "the run does not stand still"
                time.sleep(0.005)

    def _node_limit_s(self) -> float:
        return LEASE_S + MARGIN_S

    def _results_are_kept(self, done: Done) -> None:
        """Once the node was ours there is a run folder, and only a SIGKILL keeps the outcome from being written."""
        folders = list(self.place.results.iterdir()) if self.place.results.exists() else []
        late = self.cell.phase not in ("connect", "facts", "guardian")
        assert len(folders) == 1 or not late, folders
        for folder in folders:
            assert (folder / "events.jsonl").is_file()
            assert (folder / "outcome.json").is_file() == (done.code >= 0)
            if self.cell.phase in ("stop", "restore", "unlock", "collect"):
                assert list(folder.glob("arms/banner/boot-1/point-00-c2.jsonl"))

    # -- faults: each returns how the controller ended

    def kill_controller(self, run: Running) -> Done:
        run.kill()
        reach = [
            "--ssh-config",
            str(self.node.sshd.ssh_config),
            "--known-hosts",
            str(self.node.sshd.known_hosts),
        ]
        command = "stop" if self.cell.phase in ("ready", "canary", "switch", "points") else "restore"
        restored = self.elsewhere.run(command, self.node.name, *reach)
        assert restored.code == 0, restored.text
        assert not self.node.problems()  # at once, not when some lease ends
        return run.wait()

    def kill_controller_lease(self, run: Running) -> Done:
        run.kill()
        return run.wait()

    def sigint(self, run: Running) -> Done:
        return self._signalled(run, signal.SIGINT)

    def sigterm(self, run: Running) -> Done:
        return self._signalled(run, signal.SIGTERM)

    def sigint_twice(self, run: Running) -> Done:
        run.send(signal.SIGINT)
        time.sleep(0.2)
        return self._signalled(run, signal.SIGINT)

    def cancel(self, run: Running) -> Done:
        """As a CI system cancels a job."""
        began = time.monotonic()
        for number, after_s in ((signal.SIGINT, 0.0), (signal.SIGTERM, 7.5), (signal.SIGKILL, 10.0)):
            while run.process.poll() is None and time.monotonic() < began + after_s:
                time.sleep(0.02)
            if run.process.poll() is None:
                run.send(number)
        return run.wait()

    def _signalled(self, run: Running, number: int) -> Done:
        began = time.monotonic()
        if run.process.poll() is None:
            run.send(number)
        done = run.wait(INTERRUPT_S + MARGIN_S)
        self.report["signal_s"] = round(time.monotonic() - began, 2)
        return done

    def kill_agent(self, run: Running) -> Done:
        for pid in self.node.agent_pids():
            os.kill(pid, signal.SIGKILL)
        return run.wait()

    def kill_guardian(self, run: Running) -> Done:
        holder = self.node.lock_holder()
        if holder is not None:  # in the last phase it may be gone already
            os.kill(holder["guardian_pid"], signal.SIGKILL)
        return run.wait()

    def kill_server(self, run: Running) -> Done:
        os.kill(self.node.server_pid(), signal.SIGKILL)
        return run.wait()

    def cut(self, run: Running) -> Done:
        for pid in reversed(self.node.sshd.sessions()):
            _kill(pid)
        return run.wait()

    def freeze(self, run: Running) -> Done:
        """The node gives itself back while its controller still waits for an answer."""
        frozen = self.node.sshd.freeze()
        began = time.monotonic()
        try:
            while not self.node.is_given_back():
                assert time.monotonic() < began + LEASE_S + MARGIN_S, self.node.problems()
                time.sleep(0.2)
            self.report["given_back_s"] = round(time.monotonic() - began, 1)
            return run.wait(SILENCE_S + LEASE_S + 4 * MARGIN_S)
        finally:
            for pid in frozen:  # a dead network never wakes up; what hung on it is not ours to judge
                _kill(pid)

    def hang_server(self, run: Running) -> Done:
        """Every process of it stands still; only SIGKILL ends a stopped process."""
        server = self.node.server_pid()
        for pid in (server, *descendants(server)):
            _send(pid, signal.SIGSTOP)
        return run.wait()

    def full_disk(self, run: Running) -> Done:
        assert isinstance(self.node, machine.SmallDiskNode)
        return self._while_it_lasts(self.node.full(), run)

    def read_only(self, run: Running) -> Done:
        assert isinstance(self.node, machine.SmallDiskNode)
        return self._while_it_lasts(self.node.read_only(), run)

    def _while_it_lasts(self, trouble: AbstractContextManager[None], run: Running) -> Done:
        self.mend.enter_context(trouble)
        return self._go_on(run)

    def _go_on(self, run: Running) -> Done:
        if self._held:
            run.send(signal.SIGCONT)
        return run.wait()

    def second_run(self, run: Running) -> Done:
        """Somebody else wants the node: told at once who has it, and the first run does not notice."""
        files = self.node.files()
        path = self.elsewhere.write(self._experiment())
        before_s = _cpu_of_children_s()
        second = self.elsewhere.run("run", path)
        self.report["refused_s"] = round(second.seconds, 2)
        self.report["refused_cpu_s"] = round(_cpu_of_children_s() - before_s, 2)
        assert second.code == NodeBusy.exit_code, second.text
        assert f"in use by run {self.place.run_folder().name}" in second.err
        assert not list(self.elsewhere.results.iterdir())
        if self.cell.phase in ("points", "canary", "ready"):
            assert self.node.files() == files
        done = run.wait()
        (point,) = [event for event in done.events if event["event"] == "point_done"][-1:]
        assert (point["ok"], point["failed"]) == (2 * SECOND_ROUNDS, 0)
        return done

    def edit(self, run: Running) -> Done:
        """Replaced by another file, as an editor or an upgrade does."""
        target = self.node.package / "srt" / "server_args.py"
        original = self.node.before[str(target)]
        data = target.read_bytes()
        theirs = target.with_suffix(".theirs")

        def put(content: bytes) -> None:
            theirs.write_bytes(content)
            os.chmod(theirs, int(str(original[1])))
            theirs.replace(target)

        clean = machine.original_of(self.node, target) or data
        put(data + b"\n# edited by hand\n")
        self.mend.callback(put, clean)
        done = self._go_on(run)
        assert target.read_bytes() == data + b"\n# edited by hand\n", "somebody's work was overwritten"
        return done

    def clock_forward(self, run: Running) -> Done:
        return self._with_clock(400 * _DAY_S, run)

    def clock_back(self, run: Running) -> Done:
        return self._with_clock(-400 * _DAY_S, run)

    def clock_back_lease(self, run: Running) -> Done:
        """And nobody comes: the lease ends all the same."""
        assert isinstance(self.node, machine.ClockNode)
        self.node.set_clock(-400 * _DAY_S)
        self.mend.callback(self.node.set_clock, 0)
        run.kill()
        self.report["free_s"] = round(self.node.wait_until_free(self._node_limit_s()), 1)
        return run.wait()

    def _with_clock(self, offset_s: int, run: Running) -> Done:
        assert isinstance(self.node, machine.ClockNode)
        self.node.set_clock(offset_s)
        self.mend.callback(self.node.set_clock, 0)
        return run.wait()

    def reboot(self, run: Running) -> Done:
        """The controller finds nobody there; the machine comes back after it gave up."""
        machine.go_down(self.node)
        self.mend.callback(machine.come_up, self.node)
        return run.wait()


def _cpu_of_children_s() -> float:
    """Of all commands that have ended so far. What other work the machine has does not count."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _kill(pid: int) -> None:
    _send(pid, signal.SIGKILL)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


_FAULTS: dict[str, Callable[[Drill, Running], Done]] = {
    "kill-controller": Drill.kill_controller,
    "kill-controller-lease": Drill.kill_controller_lease,
    "sigint": Drill.sigint,
    "sigterm": Drill.sigterm,
    "sigint-twice": Drill.sigint_twice,
    "cancel": Drill.cancel,
    "kill-agent": Drill.kill_agent,
    "kill-guardian": Drill.kill_guardian,
    "kill-server": Drill.kill_server,
    "cut": Drill.cut,
    "freeze": Drill.freeze,
    "leave-worker": Drill.kill_server,
    "hang-server": Drill.hang_server,
    "full-disk": Drill.full_disk,
    "read-only": Drill.read_only,
    "edit": Drill.edit,
    "second-run": Drill.second_run,
    "clock-forward": Drill.clock_forward,
    "clock-back": Drill.clock_back,
    "clock-back-lease": Drill.clock_back_lease,
    "reboot": Drill.reboot,
}

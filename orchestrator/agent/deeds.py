"""What the guardian does to the node, one deed at a time. Each is noted in the journal before it is done."""

from __future__ import annotations

import threading
import time
from typing import Callable, Optional, Set

from . import (
    apply,
    args,
    backup,
    bytecode,
    free,
    gpus,
    holders,
    places,
    ports,
    procs,
    release,
    restore,
    server,
    workfile,
)
from .children import Children
from .ending import Ended
from .journal import CLEAN, Journal
from .layer import Layer
from .logfile import LogFile
from .procs import Identity, Stat
from .sampler import Sampler
from .server import Launch, Server
from .wire import AgentError, Message, all_of, as_agent_error, sha256_hex, unpack_text

_GPU_BASELINE_TIMEOUT_S = 5.0
_GROWING_S = 120.0
_LOOK_OFTEN_S, _LOOK_RARELY_S = 0.5, 4.0


class Deeds:
    """The node as this run has changed it. Callers see to it that only one deed runs at a time."""

    def __init__(self, journal: Journal, log: LogFile, gpu_free_s: float) -> None:
        self.journal = journal
        self.children = Children()
        self.server: Optional[Server] = None
        self.something_ended = False
        self.ending = threading.Event()  # an unwind has begun: long waits give up
        self.sampler = Sampler(self.children.spawn)
        self.layer = Layer(journal, log, self.ending.is_set)
        self._log = log
        self._gpu_free_s = gpu_free_s
        self._baseline: release.Baseline = {}
        self._noted: Set[Identity] = set()
        self._young: Set[Identity] = set()

    # -- files

    def apply(self, given: Message) -> Message:
        self._refuse_while_serving("change files")
        set_name = args.word(given, "set")
        prefixes = [places.expand(path) for path in args.words(given, "bytecode_prefixes")]
        wanted = apply.parse(args.objects(given, "files"))
        try:
            result = apply.apply(self.journal, set_name, wanted, prefixes)
        except AgentError as error:
            self._log.write("apply {} refused: {}".format(set_name, error.code))
            raise
        self._log.write(
            "applied {}: {} changed, {} kept".format(set_name, len(result["changed"]), len(result["kept"]))
        )
        return result

    def lay(self, given: Message) -> Message:
        self._refuse_while_serving("change its overlay")
        return self.layer.lay(given)

    def origins(self) -> Message:
        alive = self.server.tree(procs.snapshot()) if self.server is not None else set()
        return self.layer.tell(alive)

    def verify(self) -> Message:
        return {"files": restore.verify(self.journal)}

    def restore(self, given: Message) -> Message:
        self._refuse_while_serving("put files back")
        return self._restore()

    def _restore(self) -> Message:
        result = restore.restore(self.journal)
        self.layer.forget()
        self._log.write("restored {} files, {} problems".format(len(result.restored), len(result.problems)))
        if result.problems:
            raise restore.dirty_error(result.problems)
        return {"restored": result.restored, "verified": True}

    def put(self, given: Message) -> Message:
        result = workfile.put(self.journal, args.text(given, "path"), unpack_text(given.get("z")))
        self._log.write("wrote {path}".format(**result))
        return result

    def _refuse_while_serving(self, what: str) -> None:
        if self.server is not None and self.server.poll() is None:
            raise AgentError(
                "busy", "the server still runs from these files; stop it first, then {}".format(what)
            )

    # -- processes

    def free(self, given: Message) -> Message:
        request = free.parse(given)
        own = set(self.journal.story.processes)
        result = free.free(request, own, self.children.spawn, self.ending.is_set)
        for fact in result["stopped"]:
            self._log.write("freed GPUs of pid {pid} ({user})".format(**fact))
        return result

    def start(self, given: Message) -> Message:
        if self.server is not None:
            raise AgentError(
                "busy", "a server was started already (pid {}); stop it first".format(self.server.pid)
            )
        launch = self._launch(given)
        port = ports.fact(launch.port)
        if port["in_use"]:
            raise AgentError("busy", "port {port} is in use by pid {pid} of {user}: {command}".format(**port))
        launch = self.layer.placed(launch)
        prefixes = bytecode.prefix_in(launch.env, launch.cwd)
        bytecode.drop([*self.journal.story.backups, *self.layer.touched], prefixes)
        self._baseline = self._memory_before()
        digest = sha256_hex("\0".join(launch.argv).encode("utf-8", "surrogateescape"))
        self.journal.append("starting", argv_sha256=digest, log=launch.log, bytecode_prefixes=prefixes)
        try:
            started = server.start(launch, str(self.journal.opening["marker"]), self.children)
        except AgentError:
            self.journal.append("stopped", exit_code=None, signal=None)
            raise
        self.server = started
        pid, start_time = started.identity
        self.journal.append("server", pid=pid, start_time=start_time, pgid=pid, sid=pid)
        self._noted = {started.identity}
        self.layer.watch(started.identity)
        self._log.write("started server pid {}".format(pid))
        return {"pid": pid, "start_time": start_time, "pgid": pid}

    def _launch(self, given: Message) -> Launch:
        argv = args.words(given, "argv")
        if argv and argv[0].startswith("~/"):
            argv = [places.expand(argv[0]), *argv[1:]]
        log = self._own_path(args.text(given, "log"))
        return Launch(
            argv, places.expand(args.text(given, "cwd", "~")), args.environment(given, "env"), log,
            args.port(given),
        )  # fmt: skip

    def _own_path(self, path: str) -> str:
        """A file of this run, in its work folder; every folder on the way is ours alone."""
        folder = places.work_folder(self.journal.workdir, self.journal.run_id)
        return places.private_way(folder, places.expand(path))

    def _memory_before(self) -> release.Baseline:
        """What was in use before our server: that much may be in use after it."""
        holding = gpus.read(self.children.spawn, _GPU_BASELINE_TIMEOUT_S)
        return holders.unexplained_mib(holding, None)

    def note_tree(self, processes: "dict[int, Stat]") -> None:
        """Notes processes that live longer than one look, so that a next guardian could find them."""
        if self.server is None:
            return
        alive = self.server.tree(processes)
        self.layer.note(alive)
        fresh = (alive & self._young) - self._noted
        self._young = alive
        if fresh:
            self.journal.append("tree", pids=sorted(fresh))
            self._noted |= fresh

    def server_state(self) -> Message:
        if self.server is None:
            raise AgentError("not_found", "no server was started")
        return self.server.state()

    def stop(self, given: Message) -> Message:
        timeout_s = args.seconds(given, "timeout_s", 30.0)
        gpu_free_s = args.seconds(given, "gpu_free_s", self._gpu_free_s)
        if self.server is None:
            return {"exit_code": None, "signal": None, "survivors": [], "gpu_wait_s": 0.0, "note": None}
        pids = self.server.pids()
        result = self._stop_server(timeout_s, self.ending.is_set)
        done = release.wait(
            pids, self._baseline, args.gpu_indices(given), gpu_free_s, self.children.spawn, self.ending.is_set
        )
        if done.problem is not None:
            raise AgentError("timeout", "the server is gone but its GPU memory is not free " + done.problem)
        result.update(gpu_wait_s=done.waited_s, note=done.note)
        return result

    def _stop_server(self, timeout_s: float, hurry: Callable[[], bool] = lambda: False) -> Message:
        """Raises AgentError `dirty` when a process survives or the port stays in use. `hurry` cuts courtesy short."""
        assert self.server is not None
        stopping = self.server
        stopping.exit_reported = True
        self.sampler.stop()
        started = time.monotonic()
        ended = stopping.stop(timeout_s, hurry)
        state = stopping.state()
        problem = _survivors(ended) or stopping.wait_port_closed(
            max(0.5, started + timeout_s - time.monotonic())
        )
        self._log.write("stopped server: {} processes ended, problem: {}".format(len(ended.stopped), problem))
        if problem is not None:
            raise AgentError("dirty", problem, survivors=ended.survivors)
        result = {"exit_code": state["exit_code"], "signal": state["signal"]}
        self.journal.append("stopped", **result)
        self.server = None
        result.update(survivors=[], stopped=ended.stopped)
        return result

    def sample(self, given: Message) -> Message:
        path = args.optional_text(given, "path")
        if path is None:
            self.sampler.stop()
            return {"note": None}
        target = self._own_path(path)
        return {"note": self.sampler.start(target, args.seconds(given, "interval_s", 1.0))}

    # -- the way back

    def unwind(self, stop_s: float) -> Message:
        """Server, files, proof, journal, in that order; each is tried whatever became of the one before.

        Raises AgentError `dirty` with everything that is left.
        """
        started = time.monotonic()
        result: Message = {"stopped": [], "restored": [], "verified": False, "exit_code": None, "notes": []}
        pids = self.server.pids() if self.server is not None else set()

        def stop() -> None:
            if self.server is not None:
                stopped = self._stop_server(stop_s)
                result.update(stopped=stopped["stopped"], exit_code=stopped["exit_code"])

        problems = [
            problem
            for problem in (_attempt(stop), _attempt(lambda: result.update(self._restore())))
            if problem
        ]
        if problems:
            raise all_of(problems)
        self._wait_for_memory(pids, started + stop_s - time.monotonic(), result)
        backup.drop(self.journal)
        self.journal.append("close", state=CLEAN)
        return result

    def _wait_for_memory(self, pids: Set[int], left_s: float, result: Message) -> None:
        """Late memory is said, but files and lock do not wait for the driver beyond the limit."""
        if not pids:
            return
        done = release.wait(pids, self._baseline, None, max(0.0, left_s), self.children.spawn)
        result["notes"] += [text for text in (done.problem, done.note) if text]

    @property
    def look_interval_s(self) -> float:
        """Between two looks: often while the server grows its tree or something ended, rarely while it is measured."""
        growing = self.server is not None and time.monotonic() - self.server.started < _GROWING_S
        return _LOOK_OFTEN_S if growing or self.something_ended else _LOOK_RARELY_S

    def tick(self) -> None:
        """Housekeeping between deeds: adopted zombies, the list of processes, the log's pulse."""
        self.something_ended = False
        processes = procs.snapshot()
        self.children.reap(processes)
        if self.server is not None and not self.ending.is_set():
            self.server.watch_log()
            self.note_tree(processes)


def _attempt(deed: Callable[[], None]) -> Optional[AgentError]:
    """One part of the way back; whatever happens to it, the next part is tried."""
    try:
        deed()
    except Exception as error:  # noqa: BLE001 - an undo must not cancel the next
        return as_agent_error(error, "unwind", "dirty")
    return None


def _survivors(ended: Ended) -> Optional[str]:
    if not ended.survivors:
        return None
    return "processes did not end: pid " + ", ".join(map(str, ended.survivors))

"""Facts: what the node is, as read. Unknown is None or named in `problems`; it is never taken for "free" or "fine"."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FileFact:
    """One file of the serving tree. `path` is package-relative with `/`."""

    path: str
    absolute: str  # after resolving symlinks
    sha256: str | None  # None: absent
    size: int = 0
    mode: int = 0
    uid: int = 0
    gid: int = 0
    nlink: int = 1
    symlink: str | None = None  # where the tree's entry points, if it is a link
    writable: bool = True  # file and folder can be replaced by the agent's user, owner kept

    @property
    def exists(self) -> bool:
        return self.sha256 is not None


@dataclass(frozen=True)
class ChangedFile:
    path: str  # package-relative
    state: str  # "changed", "missing" or "added"


@dataclass(frozen=True)
class Pristine:
    """Whether files of the tree are as they were installed or committed."""

    baseline: str  # "sglang-0.5.9.dist-info/RECORD", "git 1a2b3c4d5e6f" or "none"
    checked: int  # files that were compared
    changed: tuple[ChangedFile, ...] = ()  # the first ones
    changed_count: int = 0
    diff: str = ""  # of a checkout against its commit, cut at 16,000 characters; a RECORD has digests only
    problem: str | None = None  # why there is nothing to compare with

    def words(self) -> str:
        """One line for people."""
        if self.problem is not None:
            return f"cannot be compared with what was installed: {self.problem}"
        what = f"{self.checked} {'file' if self.checked == 1 else 'files'} compared with {self.baseline}"
        if not self.changed_count:
            return f"as installed ({what})"
        names = ", ".join(f"{item.path} ({item.state})" for item in self.changed[:5])
        more = f" and {self.changed_count - 5} more" if self.changed_count > 5 else ""
        return f"changed by hand before this run: {names}{more} ({what})"


@dataclass(frozen=True)
class Tree:
    """The package that the serving interpreter, environment and folder would load (find_spec)."""

    package: str
    path: str  # absolute package folder
    version: str | None
    editable: bool
    python: str  # resolved serving interpreter
    python_version: str
    files: tuple[FileFact, ...] = ()
    pristine: Pristine | None = None  # of `files`, or of the whole package where that was asked
    simulated: bool = False  # a stand-in engine serves: it reads no model

    def file(self, path: str) -> FileFact | None:
        return next((fact for fact in self.files if fact.path == path), None)


@dataclass(frozen=True)
class ProcessFact:
    pid: int
    start_time: int  # clock ticks since boot, field 22 of /proc/PID/stat; pid + this is an identity
    user: str
    uid: int
    command: str
    age_s: float
    kind: str = "C"  # nvidia-smi type: C compute, G graphics, C+G, or "fd" (an open /dev/nvidia*)
    gpu: str | None = None
    memory_mib: int | None = None  # None: the tool does not say


@dataclass(frozen=True)
class Gpu:
    index: int
    uuid: str
    name: str
    memory_total_mib: int | None
    memory_used_mib: int | None
    driver: str | None = None


@dataclass(frozen=True)
class PortFact:
    port: int
    in_use: bool
    pid: int | None = None
    command: str | None = None
    user: str | None = None


@dataclass(frozen=True)
class LockFact:
    """Who holds the node. state: live (controller attached), orphaned (channel ended, lease runs), unwinding."""

    run_id: str
    user: str
    controller: str  # user@host:pid of who asked
    guardian_pid: int
    since_utc: str
    state: str
    lease_left_s: float
    phase: str = ""


@dataclass(frozen=True)
class JournalFact:
    """An unfinished journal in the registry."""

    run_id: str
    path: str
    state: str  # "live" or "dead"
    files_changed: tuple[str, ...]
    server_pid: int | None
    same_boot: bool


@dataclass(frozen=True)
class Facts:
    host: str
    user: str
    uid: int
    home: str
    kernel: str
    boot_id: str
    agent_python: str
    cpu_count: int
    memory_mib: int
    disk_free_mib: int  # of workdir
    gpus: tuple[Gpu, ...]
    gpu_problem: str | None  # why GPUs could not be read (None also when there is no tool and no device)
    holders: tuple[ProcessFact, ...]
    port: PortFact
    tree: Tree | None
    tree_problem: str | None
    tree_processes: tuple[ProcessFact, ...]  # foreign processes that serve from the tree
    lock: LockFact | None
    journals: tuple[JournalFact, ...]
    problems: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()  # of the paths that were asked for

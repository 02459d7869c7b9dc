"""Processes as /proc shows them. An identity is (pid, start time): a pid alone may be reused, the pair is not."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import pwd
import re
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

Identity = Tuple[int, int]

BOOT_ID_VARIABLE = "DYNSPEC_TEST_BOOT_ID"
_PR_SET_CHILD_SUBREAPER = 36
# What follows such a word is somebody's secret; other users' command lines go into facts, messages and results.
_SECRET_WORD = re.compile(
    r"((?:^|\s)[\w.-]{0,60}(?:key|token|secret|passwd|password|credentials?)(?:=|\s+))(?!\s)\S+",
    re.IGNORECASE,
)
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Stat(NamedTuple):
    """The fields of /proc/PID/stat that matter here. `start_time` is in clock ticks since boot."""

    pid: int
    command: str
    state: str
    parent: int
    group: int
    session: int
    threads: int
    start_time: int

    @property
    def identity(self) -> Identity:
        return (self.pid, self.start_time)

    @property
    def gone(self) -> bool:
        """A zombie holds nothing any more; one whose other threads still run does."""
        return self.state in "ZXx" and self.threads <= 1


def parse_stat(text: str) -> Stat:
    """The command may hold spaces and parentheses, so fields are counted from the last `)`. Raises ValueError."""
    head, closing, tail = text.rpartition(")")
    pid_text, opening, command = head.partition("(")
    fields = tail.split()
    if not closing or not opening or len(fields) < 20:
        raise ValueError("not a stat line: {!r:.80}".format(text))
    parent, group, session = (int(fields[i]) for i in (1, 2, 3))
    return Stat(int(pid_text), command, fields[0], parent, group, session, int(fields[17]), int(fields[19]))


def stat_of(pid: int) -> Optional[Stat]:
    try:
        with open("/proc/{}/stat".format(pid), "rb") as stream:
            return parse_stat(stream.read().decode("utf-8", "replace"))
    except (OSError, ValueError):
        return None


def snapshot() -> Dict[int, Stat]:
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            stat = stat_of(int(name))
            if stat is not None:
                found[stat.pid] = stat
    return found


def identity_of(pid: int) -> Optional[Identity]:
    stat = stat_of(pid)
    return None if stat is None else stat.identity


def is_alive(identity: Identity) -> bool:
    stat = stat_of(identity[0])
    return stat is not None and stat.start_time == identity[1] and not stat.gone


def alive_in(processes: Dict[int, Stat], wanted: Iterable[Identity]) -> Set[Identity]:
    found = set()
    for pid, start_time in wanted:
        stat = processes.get(pid)
        if stat is not None and stat.start_time == start_time and not stat.gone:
            found.add((pid, start_time))
    return found


def descendants(processes: Dict[int, Stat], roots: Iterable[int]) -> Set[int]:
    """Pids below the roots, roots left out."""
    children: Dict[int, List[int]] = {}
    for stat in processes.values():
        children.setdefault(stat.parent, []).append(stat.pid)
    found: Set[int] = set()
    queue = list(roots)
    while queue:
        for child in children.get(queue.pop(), []):
            if child not in found:
                found.add(child)
                queue.append(child)
    return found


def ancestors(pid: int) -> Set[int]:
    found: Set[int] = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        stat = stat_of(pid)
        pid = stat.parent if stat is not None else 0
    return found


def protected() -> Set[int]:
    """Pids that are never signalled: init, this process and everything above it."""
    return ancestors(os.getpid()) | {0, 1}


def send(identity: Identity, signum: int) -> bool:
    """Signals exactly that process. False when it is gone; PermissionError when it may not be signalled."""
    if identity[0] in protected() or not is_alive(identity):
        return False
    try:
        os.kill(identity[0], signum)
    except ProcessLookupError:
        return False
    return True


def send_group(group: int, members: Set[Identity], signum: int) -> None:
    """Signals a whole process group at once, but only while one of `members` is known to be in it."""
    if group <= 1 or group == os.getpgrp():
        return
    for pid, start_time in members:
        stat = stat_of(pid)
        if stat is not None and stat.start_time == start_time and stat.group == group:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signum)
            return


def environment_holds(pid: int, entry: str) -> bool:
    """Whether the process was started with `NAME=value` in its environment (readable for our own processes)."""
    return entry.encode() in _environment(pid)


def variable(pid: int, name: str) -> str:
    """A variable that the process was started with; empty too where its environment is not ours to read."""
    start = name.encode() + b"="
    found = [entry[len(start) :] for entry in _environment(pid) if entry.startswith(start)]
    return os.fsdecode(found[0]) if found else ""


def _environment(pid: int) -> List[bytes]:
    try:
        with open("/proc/{}/environ".format(pid), "rb") as stream:
            return stream.read().split(b"\0")
    except OSError:
        return []


def command_line(pid: int) -> str:
    """On one line, cut, without what its arguments call a key, token or password."""
    try:
        with open("/proc/{}/cmdline".format(pid), "rb") as stream:
            words = stream.read().split(b"\0")
    except OSError:
        words = []
    text = " ".join(word.decode("utf-8", "replace") for word in words if word)
    if not text:
        stat = stat_of(pid)
        text = "[{}]".format(stat.command) if stat is not None else "?"
    text = _SECRET_WORD.sub(r"\1(not shown)", "".join(char if char.isprintable() else " " for char in text))
    return text[:300]


def owner(pid: int) -> int:
    """The uid a process runs as, -1 when it is gone."""
    try:
        return os.stat("/proc/{}".format(pid)).st_uid
    except OSError:
        return -1


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def age_s(start_time: int) -> float:
    with open("/proc/uptime") as stream:
        return max(0.0, float(stream.read().split()[0]) - start_time / _TICKS_PER_S)


def fact(
    pid: int, kind: str = "C", gpu: Optional[str] = None, memory_mib: Optional[int] = None
) -> Dict[str, Any]:
    """A ProcessFact. A pid that cannot be seen from here (another pid namespace) has start_time 0."""
    stat = stat_of(pid)
    uid = owner(pid)
    return {
        "pid": pid,
        "start_time": stat.start_time if stat else 0,
        "user": user_name(uid) if uid >= 0 else "?",
        "uid": uid,
        "command": command_line(pid),
        "age_s": round(age_s(stat.start_time), 1) if stat else 0.0,
        "kind": kind,
        "gpu": gpu,
        "memory_mib": memory_mib,
    }


def boot_id() -> str:
    simulated = os.environ.get(BOOT_ID_VARIABLE)
    if simulated:
        return simulated
    with open("/proc/sys/kernel/random/boot_id") as stream:
        return stream.read().strip()


def pid_namespace() -> str:
    return os.readlink("/proc/self/ns/pid")


def machine_id() -> str:
    """Tells nodes that share a home folder apart. Machines cloned from one image may share the first part."""
    try:
        with open("/etc/machine-id") as stream:
            machine = stream.read().strip()
    except OSError:
        machine = ""
    return machine + "@" + platform.node()


def become_subreaper() -> bool:
    """From now on processes that leave the tree below us come back to us instead of to init."""
    return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)

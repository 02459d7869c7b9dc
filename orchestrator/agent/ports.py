"""Who listens on a TCP port, from /proc/net/tcp and the sockets that processes hold."""

from __future__ import annotations

import os
from typing import Iterable, List, Optional, Set

from . import procs
from .wire import Message

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTEN = "0A"


def listening_inodes(lines: Iterable[str], port: int) -> Set[int]:
    """Inodes of listening sockets on the port, from the lines of a table of sockets. Head and odd lines are skipped."""
    found = set()
    for line in lines:
        fields = line.split()
        if len(fields) < 10 or fields[3] != _LISTEN:
            continue
        _, _, hex_port = fields[1].rpartition(":")
        try:
            if int(hex_port, 16) == port:
                found.add(int(fields[9]))
        except ValueError:
            continue
    return found


def inodes(port: int, tables: Iterable[str] = TABLES) -> Set[int]:
    """Line by line: for a minute every closed connection of a load has a line in there, thousands of them, and memory
    that was taken for all at once is not given back before the process ends."""
    found: Set[int] = set()
    for path in tables:
        try:
            with open(path) as stream:
                found |= listening_inodes(stream, port)
        except OSError:
            continue
    return found


def holders(port: int) -> List[int]:
    """Pids that hold the listening socket; a process of another user is not seen without root."""
    links = {"socket:[{}]".format(inode) for inode in inodes(port)}
    if not links:
        return []
    return sorted(pid for pid in procs.snapshot() if _holds(pid, links))


def _holds(pid: int, links: Set[str]) -> bool:
    folder = "/proc/{}/fd".format(pid)
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    for name in names:
        try:
            if os.readlink(os.path.join(folder, name)) in links:
                return True
        except OSError:
            continue
    return False


def fact(port: int) -> Message:
    """A PortFact."""
    if not inodes(port):
        return {"port": port, "in_use": False, "pid": None, "command": None, "user": None}
    pids = holders(port)
    pid: Optional[int] = pids[0] if pids else None
    return {
        "port": port,
        "in_use": True,
        "pid": pid,
        "command": procs.command_line(pid) if pid else None,
        "user": procs.user_name(procs.owner(pid)) if pid else None,
    }

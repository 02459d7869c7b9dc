"""An idle child process in the place of a tensor-parallel scheduler rank, or of a worker that escapes.

Run as a script: `python rank.py NAME PARENT_PID [--gpu FOLDER INDEX MIB] [--escape PORT]`. Ends when its parent is
gone, as SGLang's ranks do, unless it escapes.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15


def main(words: list[str]) -> None:
    name, parent = words[0], int(words[1])
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_NAME, name.encode()[:15], 0, 0, 0)
    if "--escape" in words:
        _escape(int(words[words.index("--escape") + 1]))
        return
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return
    if "--gpu" in words:
        folder, index, mib = words[words.index("--gpu") + 1 :][:3]
        _hold(Path(folder), int(index), int(mib))
    while True:
        time.sleep(3600)


def _hold(folder: Path, index: int, mib: int) -> None:
    stat = Path(f"/proc/{os.getpid()}/stat").read_text(encoding="utf-8")
    start = int(stat[stat.rindex(")") + 2 :].split()[19])
    entry = {"pid": os.getpid(), "start": start, "gpu": index, "mib": mib}
    (folder / f"{os.getpid()}.json").write_text(json.dumps(entry), encoding="utf-8")


def _escape(port: int) -> None:
    """Leave the server's session and process group, hold a port, and ignore that everybody else is gone."""
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main(sys.argv[1:])

"""The SSH side of the embedded node: a real SSH server on loopback, commands only, in a process of its own.

`python -m orchestrator.demo.sshserver SETTINGS.json` prints `READY PORT` and serves until its stdin ends. Each command
runs as `/bin/sh -c` in a session of its own, as sshd runs it; its bytes pass both ways untouched. Sessions that a
client leaves behind are not killed, only their pipes close. A terminal's Ctrl-C is for the owner of the node, who
ends this process too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import asyncssh

from orchestrator.demo import processes
from orchestrator.demo.delay import DelayedRelay

GOODBYE = b"goodbye"  # what the owner says before it closes stdin, and then clears up itself
_CHUNK = 65536


class _Server(asyncssh.SSHServer):
    """Public key only; forwarding to loopback only."""

    def begin_auth(self, username: str) -> bool:
        return True

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return dest_host in ("127.0.0.1", "localhost", "::1")


class Commands:
    """Runs the commands of all connections. `limit`: most at once on one connection (sshd's MaxSessions)."""

    def __init__(self, env: dict[str, str], cwd: str, limit: int) -> None:
        self._env = env
        self._cwd = cwd
        self._limit = limit
        self._running: dict[object, int] = {}

    async def run(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        if process.command is None:
            process.stderr.write(b"This is the simulated node of dynspec: commands only, no shell.\n")
            process.exit(1)
            return
        connection = process.channel.get_connection()
        if self._running.get(connection, 0) >= self._limit:
            process.stderr.write(f"no more than {self._limit} sessions on a connection\n".encode())
            process.exit(254)
            return
        self._running[connection] = self._running.get(connection, 0) + 1
        try:
            await self._execute(process, process.command)
        finally:
            self._running[connection] -= 1

    async def _execute(self, process: asyncssh.SSHServerProcess[bytes], command: str) -> None:
        ends = [os.pipe() for _ in range(3)]
        (in_read, in_write), (out_read, out_write), (err_read, err_write) = ends
        child = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", command),
            stdin=in_read,
            stdout=out_write,
            stderr=err_write,
            env=self._env,
            cwd=self._cwd,
            start_new_session=True,
        )
        for end in (in_read, out_write, err_write):
            os.close(end)
        flows = [
            asyncio.ensure_future(_feed(process.stdin, in_write)),
            asyncio.ensure_future(_pass(out_read, process.stdout)),
            asyncio.ensure_future(_pass(err_read, process.stderr)),
        ]
        gone = asyncio.ensure_future(process.wait_closed())
        output = asyncio.ensure_future(asyncio.wait(flows[1:]))
        await asyncio.wait({output, gone}, return_when=asyncio.FIRST_COMPLETED)
        # A client that has gone leaves the command running; its pipes close, as under sshd.
        left = not output.done()
        for task in [*flows, output, gone]:
            task.cancel()
        if not left:
            _exit_as(process, await child.wait())


async def _feed(source: Any, descriptor: int) -> None:
    """Client's stdin to the command; the end of one is the end of the other."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(descriptor, "wb", buffering=0)
    )
    sink = asyncio.StreamWriter(transport, protocol, None, loop)
    try:
        with contextlib.suppress(ConnectionError, asyncssh.Error, OSError):
            while data := await source.read(_CHUNK):
                sink.write(data)
                await sink.drain()
    finally:
        transport.close()


async def _pass(descriptor: int, sink: Any) -> None:
    """The command's output to the client, held back when the client's window is full."""
    loop = asyncio.get_running_loop()
    source = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(source), os.fdopen(descriptor, "rb", buffering=0)
    )
    try:
        with contextlib.suppress(ConnectionError, asyncssh.Error, OSError):
            while data := await source.read(_CHUNK):
                sink.write(data)
                await sink.drain()
    finally:
        transport.close()


def _exit_as(process: asyncssh.SSHServerProcess[bytes], code: int) -> None:
    if code < 0:
        process.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))
    else:
        process.exit(code)


async def serve(settings: dict[str, Any]) -> bytes:
    """`settings`: host_key, authorized_keys, env, cwd, max_sessions, delay_s (and root, keep for the end).

    Returns what came on stdin until its end.
    """
    commands = Commands(settings["env"], settings["cwd"], int(settings["max_sessions"]))
    server = await asyncssh.create_server(
        _Server,
        host="127.0.0.1",
        port=0,
        server_host_keys=[settings["host_key"]],
        authorized_client_keys=settings["authorized_keys"],
        process_factory=commands.run,
        encoding=None,
        allow_scp=False,
        keepalive_interval=0,
        password_auth=False,
        kbdint_auth=False,
    )
    port = server.sockets[0].getsockname()[1]
    if settings["delay_s"] > 0:
        port = await DelayedRelay(port, settings["delay_s"]).start()
    print(f"READY {port}", flush=True)
    loop = asyncio.get_running_loop()
    said: bytes = await loop.run_in_executor(None, sys.stdin.buffer.read)
    server.close()
    return said


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The end alone does not tell: a killed owner's pipe closes as a living one's does.
    if asyncio.run(serve(settings)).strip() != GOODBYE:
        _clear_up(Path(settings["root"]), settings["keep"])
    os._exit(0)  # commands that still run are not waited for


def _clear_up(root: Path, keep: bool) -> None:
    """The node's owner was killed and cannot: end the node's processes and remove its folder."""
    processes.end(root)
    if not keep:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()

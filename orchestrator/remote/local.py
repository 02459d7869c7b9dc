"""The node is this machine: commands by /bin/sh, ports as they are. Imports nothing that needs a network library."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.errors import ConnectionLost
from orchestrator.remote.transport import Tail

CLOSE_GRACE_S = 2.0
POLL_S = 0.01

# Set by GitHub's runner, whose orphan clean-up would end a guardian that outlives the job's step.
NOT_INHERITED = ("RUNNER_TRACKING_ID",)


class LocalPipe:
    def __init__(self, command: str) -> None:
        env = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=Path.home(),
            env=env,
            # Its own session: Ctrl-C in the terminal is the controller's to handle, as it is over ssh.
            start_new_session=True,
        )
        assert self._process.stdin
        assert self._process.stdout
        assert self._process.stderr
        self._stdin = self._process.stdin.fileno()
        self._stdout = self._process.stdout.fileno()
        # The file object, not its number: a number would be somebody else's once this pipe is forgotten.
        stderr = self._process.stderr
        self._stderr = Tail(lambda size: _read(stderr.fileno(), size))

    def read(self, size: int) -> bytes:
        return _read(self._stdout, size)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._stdin, view) :]
        except (OSError, ValueError) as error:
            raise ConnectionLost(f"local: the command no longer reads its input ({error})") from error

    def close_stdin(self) -> None:
        assert self._process.stdin
        if not self._process.stdin.closed:
            self._process.stdin.close()
            self._stdin = -1

    def close(self) -> None:
        """Close stdin, and end the command's group when that was not enough. Pipes stay open for their readers."""
        self.close_stdin()
        if not self._ended_within(CLOSE_GRACE_S):
            self._signal(signal.SIGTERM)
            self._ended_within(CLOSE_GRACE_S)
            # While the leader is not reaped the group's number is its own. Members may ignore TERM or be frozen.
            self._signal(signal.SIGKILL)
        self._process.wait()

    def stderr_tail(self) -> str:
        return self._stderr.text()

    def exit_status(self, timeout_s: float) -> int | None:
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def _ended_within(self, limit_s: float) -> bool:
        """Whether the leader has ended, without reaping it."""
        deadline = time.monotonic() + limit_s
        look = os.WEXITED | os.WNOWAIT | os.WNOHANG
        while self._process.returncode is None:
            try:
                if os.waitid(os.P_PID, self._process.pid, look):
                    return True
            except ChildProcessError:  # reaped by another thread just now
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True

    def _signal(self, signum: int) -> None:
        try:
            os.killpg(self._process.pid, signum)
        except ProcessLookupError:
            pass


class LocalTransport:
    def __init__(self) -> None:
        self._pipes: list[LocalPipe] = []

    @property
    def label(self) -> str:
        return "local"

    def execute(self, command: str) -> LocalPipe:
        pipe = LocalPipe(command)
        self._pipes = [*(open_pipe for open_pipe in self._pipes if open_pipe.exit_status(0) is None), pipe]
        return pipe

    @contextmanager
    def forward(self, port: int) -> Iterator[int]:
        yield port

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()


def _read(descriptor: int, size: int) -> bytes:
    try:
        return os.read(descriptor, size)
    except OSError:  # closed under us: the end, as for a pipe whose writer is gone
        return b""

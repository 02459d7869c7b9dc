"""One error tree; the exit code of a command is the `exit_code` of what ended it.

| code | meaning |
|---|---|
| 0 | ran, valid, node as it was found |
| 1 | failed (unreachable, host key, a phase, a crash, a limit), node as it was found |
| 2 | refused before connecting: bad experiment, bad arguments |
| 3 | refused: node busy or locked by a live holder; nothing touched |
| 4 | refused: node, SGLang tree, patch, smoke or arguments do not fit; nothing touched |
| 5 | gate: a regression outside the noise |
| 6 | measured, but nothing can be claimed: invalid points, gate inconclusive, or a part of the run is still to do |
| 70 | node still dirty: the last line of output is the `dynspec restore NODE` to run |
| 129 / 130 / 143 | interrupted by SIGHUP (the terminal was closed) / SIGINT / SIGTERM, node as it was found |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self


class DynspecError(Exception):
    """Base of everything a user may meet. `message` is one line; `help` the command or change that helps."""

    exit_code = 1
    answered = False  # the command has printed its JSON answer, which this error only sums up

    def __init__(self, message: str, *, help: str = "", details: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.help = help
        self.details = details

    def after_answer(self) -> Self:
        """The same, of a command that has printed its answer: it is no answer in itself any more."""
        self.answered = True
        return self

    def render(self) -> str:
        """The text for a terminal: message, then details, then what to do."""
        lines = [self.message, *self.details]
        if self.help:
            lines.append(f"-> {self.help}")
        return "\n".join(lines)


class UsageError(DynspecError):
    """Bad arguments or a bad experiment file; no connection was opened."""

    exit_code = 2


class ExperimentError(UsageError):
    """The experiment file is wrong. The message names file, line, key path and the value as read."""


class PatchLoadError(UsageError):
    """A carried patch (manifest, patcher, diff) is itself broken."""


class ConnectionFailed(DynspecError):
    """The node cannot be reached, or its host key is unknown or changed."""


class ConnectionLost(DynspecError):
    """An established connection ended or froze."""


class RemoteError(DynspecError):
    """The node answered a request with an error. `code` is machine readable, `data` its details (agent/protocol.md)."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "failed",
        help: str = "",
        details: tuple[str, ...] = (),
        data: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, help=help, details=details)
        self.code = code
        self.data: Mapping[str, Any] = data or {}


class PhaseFailed(DynspecError):
    """A phase of the run failed: a crash of the server, a limit that ran out, a smoke failure after acting."""


class NodeBusy(DynspecError):
    """Locked by a live holder, or GPUs or ports in use by somebody else; nothing was touched."""

    exit_code = 3


class DoesNotFit(DynspecError):
    """Node, SGLang tree, patch, smoke or arguments do not fit; nothing was touched."""

    exit_code = 4


class AnchorError(DoesNotFit):
    """A patcher did not find the one place it edits. Raised by patchers; names file, anchor and why."""


class AlreadyPatched(AnchorError):
    """The file carries the patch."""


class EndedElsewhere(DynspecError):
    """A person ended the run with another command: the same as Ctrl-C in its terminal."""

    exit_code = 130


class Regression(DynspecError):
    """The gate saw a regression outside the noise."""

    exit_code = 5


class NothingToClaim(DynspecError):
    """Measured, but no claim can be made from it."""

    exit_code = 6


class PartLeft(NothingToClaim):
    """A part of a run measured what it was asked to, and the run has more to do."""


class NodeDirty(DynspecError):
    """The node could not be given back as it was. `restore_command` must be the last line printed."""

    exit_code = 70

    def __init__(self, message: str, *, restore_command: str, details: tuple[str, ...] = ()) -> None:
        super().__init__(message, help=restore_command, details=details)
        self.restore_command = restore_command


class OutputLost(OSError):
    """Standard output takes no more: what was to be shown there is incomplete. `strerror` says so and why."""


class Interrupted(BaseException):
    """A signal asked the run to end. A BaseException, so that no `except Exception` swallows it."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"interrupted by signal {signum}")
        self.signum = signum

    @property
    def exit_code(self) -> int:
        return 128 + self.signum

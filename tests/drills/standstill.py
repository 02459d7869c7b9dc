"""`python -m tests.drills.standstill TEXT WORDS...`: the command line, which stops itself once it has said TEXT.

What happens to the machine at the beginning of a phase then happens before the phase has asked anything of the node,
however busy the machine of the tests is. Whoever waits for the text sends SIGCONT.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import TextIO


def command(**fields: str) -> tuple[str, ...]:
    """The words that start a run (of --json) which stands still at the first event with these fields in a row."""
    text = ", ".join(f'"{name}": "{value}"' for name, value in fields.items())
    return sys.executable, "-m", __name__, text


class StandsStill(io.TextIOBase):
    """Standard output that is flushed, and then the process stands still, once.

    No TextIOWrapper: the command line puts one of its own in the place of such a one.
    """

    def __init__(self, stream: TextIO, awaited: str) -> None:
        self._stream = stream
        self._awaited = awaited
        self._heard = False

    @property
    def encoding(self) -> str:
        return self._stream.encoding

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def write(self, text: str) -> int:
        if self._awaited and self._awaited in text:
            self._heard, self._awaited = True, ""
        return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()
        if self._heard:
            self._heard = False
            os.kill(os.getpid(), signal.SIGSTOP)


def main() -> None:
    sys.stdout = StandsStill(sys.stdout, sys.argv.pop(1))
    from orchestrator.cli import main as dynspec

    dynspec()


if __name__ == "__main__":
    main()

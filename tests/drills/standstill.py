"""`python -m tests.drills.standstill TEXT WORDS...`: the command line, which stops itself once it has said TEXT.

What happens to the machine at the beginning of a phase then happens before the phase has asked anything of the node,
however busy the machine of the tests is. Whoever waits for the text sends SIGCONT.
"""

from __future__ import annotations

import io
import os
import signal
import sys


def command(**fields: str) -> tuple[str, ...]:
    """The words that start a run (of --json) which stands still at the first event with these fields in a row."""
    text = ", ".join(f'"{name}": "{value}"' for name, value in fields.items())
    return sys.executable, "-m", __name__, text


class StandsStill(io.TextIOWrapper):
    """Standard output that is flushed, and then the process stands still, once."""

    awaited = ""
    heard = False

    def write(self, text: str) -> int:
        if self.awaited and self.awaited in text:
            self.heard, self.awaited = True, ""
        return super().write(text)

    def flush(self) -> None:
        super().flush()
        if self.heard:
            self.heard = False
            os.kill(os.getpid(), signal.SIGSTOP)


def main() -> None:
    out = StandsStill(sys.stdout.buffer, encoding="utf-8")
    out.awaited = sys.argv.pop(1)
    sys.stdout = out
    from orchestrator.cli import main as dynspec

    dynspec()


if __name__ == "__main__":
    main()

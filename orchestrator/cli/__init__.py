"""Words in, exit code out. Commands parse, call, render; what they do lies below.

Heavy imports happen inside the command that needs them: `dynspec --help` must start fast.
"""

from __future__ import annotations

import signal
import sys
from typing import NoReturn


def main() -> NoReturn:
    """The command line. Ctrl-C while it is still being imported is answered in words too."""
    try:
        from orchestrator.cli.app import main as run

        run()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the next one must not end the ending
        print("dynspec: interrupted", file=sys.stderr)
        sys.exit(130)


__all__ = ["main"]

"""Words in, exit code out. Commands parse, call, render; what they do lies below.

Heavy imports happen inside the command that needs them: `dynspec --help` must start fast.
"""

from orchestrator.cli.app import main

__all__ = ["main"]

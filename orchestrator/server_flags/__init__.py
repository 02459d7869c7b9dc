"""Server arguments judged against the flags that a serving tree declares, without importing the tree."""

from orchestrator.server_flags.check import ArgProblem, check_args
from orchestrator.server_flags.history import History, flag_history
from orchestrator.server_flags.read import Flag, flag_files, known_flags
from orchestrator.server_flags.syntax import SERVER_ARGS

__all__ = [
    "SERVER_ARGS",
    "ArgProblem",
    "Flag",
    "History",
    "check_args",
    "flag_files",
    "flag_history",
    "known_flags",
]

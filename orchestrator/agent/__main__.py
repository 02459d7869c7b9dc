"""`python3 agent.pyz serve|guardian|fetch|status|stop|restore`."""

from __future__ import annotations

import os
import sys

USAGE = """usage: python3 agent.pyz COMMAND

  status                             who holds this node, open journals, GPU processes
  stop [--force]                     stop the server that was started here
  restore [--force] [--keep-foreign] stop it, put every changed file back, give the node back
  serve | guardian | fetch           for the controller (JSON on stdin and stdout)

exit status: 0 clean, 1 refused or failed, 70 still dirty
"""


def main() -> int:
    given = sys.argv[1:]
    while given and given[0].endswith(".pyz"):
        given = given[1:]  # `agent-*.pyz restore` where several versions lie side by side
    command, *words = given or [""]
    if sys.version_info < (3, 8):
        sys.stderr.write("Python 3.8 or newer is needed, this is {}\n".format(sys.version.split()[0]))
        return 1
    _speak_utf8()
    if command == "serve":
        from . import serve

        return serve.main()
    if command == "guardian":
        from . import standup

        return standup.main()
    if command == "fetch":
        from . import fetch

        return fetch.main()
    if command in ("status", "stop", "restore"):
        from . import hand

        return hand.main(command, words)
    sys.stderr.write(USAGE)
    return 0 if command in ("-h", "--help", "help") else 1


def _speak_utf8() -> None:
    """Paths, words and variables come as UTF-8. In another locale's encoding they would be others."""
    if sys.getfilesystemencoding() == "utf-8" or sys.flags.utf8_mode:
        return
    flags = ["-X", "utf8"] + ["-I"] * sys.flags.isolated + ["-S"] * sys.flags.no_site
    os.execv(sys.executable, [sys.executable, *flags, *sys.argv])


if __name__ == "__main__":
    sys.exit(main())

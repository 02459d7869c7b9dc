"""The one command that starts the agent, and the bytes that follow on its stdin (agent/protocol.md, "Bootstrap").

Pure. All quoting for the node's shells is here. The command must mean the same to every login shell (bash, dash, zsh,
fish, csh): one `/bin/sh -c '...'` whose words hold no quote, newline or `!`, and arguments written as printf escapes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import string
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Self

BOOT_MARKER = b"DYNSPEC-BOOT "
AGENT_MARKER = b"DYNSPEC-AGENT "
FAIL_MARKER = b"DYNSPEC-FAIL "
FETCH_MARKER = b"DYNSPEC-FETCH"

NO_SPACE = "no_space"  # the code of a failure
FREE_SOME_SPACE = "free some space on that disk of the node"

# Looked for after the experiment's own interpreter; an old system may have a new one under its version only.
PYTHONS = (
    "python3",
    *(f"python3.{minor}" for minor in range(14, 7, -1)),
    "/usr/bin/python3",
    "/usr/local/bin/python3",
)

_TOO_OLD = 99
_PLAIN = frozenset(string.ascii_letters + string.digits + "/._-+=,:@")

# Each candidate is tried as it is; one that is too old leaves with 99 before it reads a byte of stdin. Python 2 has no
# -I, so its parts stand there: no PYTHON* variables, no user's site, no .pth files, no module from the folder.
_FIND_PYTHON = (
    "b=$1; shift; "
    'for q do p=$(printf %b "$q"); '
    'case $p in "~/"*) p=$HOME/${p#??};; esac; '
    'command -v "$p" >/dev/null 2>&1 || continue; '
    f'"$p" -E -s -S -c "import sys; sys.version_info >= (3, 8) or sys.exit({_TOO_OLD}); '
    'del sys.path[0]; import base64, zlib; exec(zlib.decompress(base64.b64decode(sys.argv[1])))" "$b"; '
    f"r=$?; case $r in {_TOO_OLD}|126|127) ;; *) exit $r;; esac; done; "
    'echo; echo "DYNSPEC-FAIL {}"; exit 1'
)
_FETCH = f'echo; echo {FETCH_MARKER.decode()}; p=$(printf %b "$1"); f=$(printf %b "$2"); exec "$p" -I -S "$f" fetch'


@dataclass(frozen=True)
class Blob:
    """A file for the node, named for its content: `<kind>-<sha256[:16]>.pyz`."""

    name: str
    data: bytes

    @classmethod
    def of(cls, kind: str, data: bytes) -> Self:
        return cls(f"{kind}-{hashlib.sha256(data).hexdigest()[:16]}.pyz", data)


@dataclass(frozen=True)
class Boot:
    """What the node said first. `have`: names of intact agent files, without `.pyz`; `home`: the registry's folder."""

    have: frozenset[str]
    python: str
    home: str
    executable: str

    def has(self, blob: Blob) -> bool:
        return blob.name.removesuffix(".pyz") in self.have

    @classmethod
    def parse(cls, line: bytes) -> Self | None:
        """None for a line that is not the boot line: start files may print anything before it."""
        value = marked(line, BOOT_MARKER)
        if not isinstance(value, dict):
            return None
        return cls(frozenset(value["have"]), value["python"], value["home"], value["executable"])


def boot_command(python: str | None = None) -> str:
    """The shell command. `python` (may start with `~/`) is tried first, then the usual names."""
    candidates = (*((python,) if python else ()), *PYTHONS)
    return _sh(_FIND_PYTHON, _program(), *map(_escaped, candidates))


def fetch_command(python: str, agent_path: str) -> str:
    """The shell command of the second channel. Its output begins after a line that is FETCH_MARKER alone."""
    return _sh(_FETCH, _escaped(python), _escaped(agent_path))


def upload(missing: Sequence[Blob], run: Blob | None) -> bytes:
    """Header line and the bytes of `missing`; `run` is the file to become, None to end after storing."""
    header = {
        "blobs": [{"name": blob.name, "size": len(blob.data)} for blob in missing],
        "run": run.name if run else None,
    }
    return json.dumps(header).encode() + b"\n" + b"".join(blob.data for blob in missing)


def marked(line: bytes, marker: bytes) -> object | None:
    """The JSON value after `marker`, None when the line is not such a line."""
    if not line.startswith(marker):
        return None
    try:
        value: object = json.loads(line[len(marker) :])
    except ValueError:
        return None
    return value


def missing_python(python: str | None) -> str:
    tried = ", ".join((*((python,) if python else ()), *PYTHONS))
    return f"the node has no Python 3.8 or newer (tried {tried})"


def no_python_perhaps(python: str) -> str:
    """Advice where the first words never came: whatever ends with a status of its own is taken for an interpreter."""
    return f"is {python} a Python interpreter, and does it start there? Else correct node.python"


def _sh(script: str, *words: str) -> str:
    return "exec /bin/sh -c '" + script + "' dynspec " + " ".join(f"'{word}'" for word in words)


def _escaped(text: str) -> str:
    """For `printf %b`. Every byte that any shell could take for its own becomes `\\0ooo`."""
    return "".join(
        chr(byte) if chr(byte) in _PLAIN else f"\\0{byte:03o}"
        for byte in text.encode("utf-8", "surrogateescape")
    )


@cache
def _program() -> str:
    source = files("orchestrator.remote").joinpath("boot_node.py").read_bytes()
    return base64.b64encode(zlib.compress(source, 9)).decode()

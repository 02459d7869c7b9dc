"""Builds the zipapp that goes up to the node. Runs on the controller and is not part of it.

The same sources give the same bytes, so the file's name can be its digest and an upload can be skipped.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from functools import lru_cache
from pathlib import Path

PACKAGE = "dynspec_agent"
_LEFT_OUT = {"pack.py"}
_FIXED_TIME = (1980, 1, 1, 0, 0, 0)
_MAIN = f"import sys\n\nfrom {PACKAGE}.__main__ import main\n\nsys.exit(main())\n"


def sources() -> dict[str, bytes]:
    """Name in the archive -> bytes, in the order they are stored."""
    folder = Path(__file__).parent
    found = {"__main__.py": _MAIN.encode()}
    for path in sorted(folder.glob("*.py")):
        if path.name not in _LEFT_OUT:
            found[f"{PACKAGE}/{path.name}"] = path.read_bytes()
    return found


@lru_cache(maxsize=1)
def build_zipapp() -> bytes:
    """The zipapp's bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in sources().items():
            entry = zipfile.ZipInfo(name, _FIXED_TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data, compresslevel=9)
    return buffer.getvalue()


def name() -> str:
    """`agent-<first 16 hex digits of the sha256>.pyz`."""
    return f"agent-{hashlib.sha256(build_zipapp()).hexdigest()[:16]}.pyz"

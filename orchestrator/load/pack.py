"""The load generator as one file: a zipapp whose bytes depend on its sources alone."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

_SOURCES = Path(__file__).resolve().parent.parent / "loadgen"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can hold
_MAIN = b"import sys\n\nfrom loadgen.main import main\n\nsys.exit(main(sys.argv[1:]))\n"


def build_zipapp() -> bytes:
    """`loadgen.pyz`: run it as `python3 loadgen.pyz SPEC.json RECORDS.jsonl` with Python 3.8 or later."""
    files = {f"loadgen/{path.name}": path.read_bytes() for path in _SOURCES.glob("*.py")}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in sorted({**files, "__main__.py": _MAIN}.items()):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            entry.create_system = 3  # Unix, wherever it was packed
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED, 9)
    return packed.getvalue()

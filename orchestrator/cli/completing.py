"""What a shell offers after TAB: hosts, runs, patches. Quick and silent: whatever goes wrong, nothing is offered."""

from __future__ import annotations

import re
from pathlib import Path

_MOST = 50


def node_names(incomplete: str) -> list[str]:
    """`local` and the Hosts of ~/.ssh/config that are names, not patterns."""
    try:
        text = (Path.home() / ".ssh" / "config").read_text(encoding="utf-8", errors="replace")
    except (OSError, RuntimeError):
        text = ""
    words = [word for line in re.findall(r"(?im)^\s*host\s+(.+)$", text) for word in line.split()]
    names = ["local", *(word for word in words if not re.search(r"[*?!]", word))]
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def run_ids(incomplete: str) -> list[str]:
    """Runs under ./results, newest first."""
    found = sorted((path.parent.name for path in Path("results").glob("*/plan.json")), reverse=True)
    return [name for name in found if name.startswith(incomplete)][:_MOST]


def patch_names(incomplete: str) -> list[str]:
    from orchestrator.patchset.load import patch_names as names_in
    from orchestrator.patchset.load import patches_folder

    return [name for name in names_in(patches_folder()) if name.startswith(incomplete)]

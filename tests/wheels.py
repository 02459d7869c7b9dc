"""Real SGLang trees for tests: `wheel_tree(version)` fetches and unpacks once, under `.cache/`.

Run as a program it writes anew what is derived from the releases: the hashes of a patch
(`python -m tests.wheels spec_banner`) or the history of server flags (`python -m tests.wheels flags`).
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

from orchestrator.demo.wheel import wheel_tree
from orchestrator.model.facts import FileFact, Tree
from orchestrator.patchset import Patch, decode_source, load_patch, needed_files
from orchestrator.server_flags import SERVER_ARGS, Flag, flag_files, known_flags

ROOT = Path(__file__).resolve().parents[1]
PATCHES = ROOT / "patches"

# The releases with both EAGLE workers; 0.5.13 has only the second.
TWO_WORKERS = (
    "0.5.8",
    "0.5.8.post1",
    "0.5.9",
    "0.5.10",
    "0.5.10.post1",
    "0.5.11",
    "0.5.12",
    "0.5.12.post1",
)
LATER = ("0.5.13.post1", "0.5.14", "0.5.23")

__all__ = [
    "LATER",
    "PATCHES",
    "TWO_WORKERS",
    "flags_of",
    "history_text",
    "read_sources",
    "sha256",
    "tree_facts",
    "wheel_tree",
]


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read_sources(package: Path, paths: Iterable[str]) -> dict[str, str | None]:
    """Texts of package-relative paths; None for a file that is not there."""
    files = {path: package / path for path in paths}
    return {p: decode_source(p, f.read_bytes()) if f.is_file() else None for p, f in files.items()}


def tree_facts(version: str | None, sources: dict[str, str | None], package: str = "sglang") -> Tree:
    """What a node would say about a tree that holds these texts."""
    return Tree(
        package=package,
        path=f"/opt/venv/lib/{package}",
        version=version,
        editable=False,
        python="/opt/venv/bin/python3",
        python_version="3.12.1",
        files=tuple(
            FileFact(
                path,
                f"/opt/venv/lib/{package}/{path}",
                None if text is None else sha256(text),
                len(text or ""),
            )
            for path, text in sources.items()
        ),
    )


def listing_yaml(patch: Patch, versions: Iterable[str]) -> str:
    """The `versions:` block of a manifest, from the real trees."""
    lines = ["versions:"]
    for version in versions:
        sources = read_sources(wheel_tree(version), needed_files((patch,)))
        status = patch.listings[version].status if version in patch.listings else "listed"
        present = {t: sources[t.path] for t in patch.targets if sources[t.path] is not None}
        lines += [f'  "{version}":', f"    status: {status}", "    files:"]
        lines += [f"      {target.path}: {sha256(text)}" for target, text in present.items()]
        lines += ["    after:"]
        lines += [f"      {t.path}: {sha256(t.edit(text, unique=False))}" for t, text in present.items()]
    return "\n".join(lines) + "\n"


def relist(folder: Path, versions: Iterable[str]) -> None:
    """Replace the `versions:` block, which must be the last of the manifest."""
    manifest = folder / "manifest.yaml"
    head, found, _ = manifest.read_text().partition("\nversions:")
    if not found:
        raise SystemExit(f"{manifest}: has no `versions:` block")
    manifest.write_text(f"{head}\n{listing_yaml(load_patch(folder), versions)}")


@functools.cache
def flags_of(version: str) -> dict[str, Flag]:
    """The flags that a release declares, as read from its sources."""
    package = wheel_tree(version)
    server_args = read_sources(package, (SERVER_ARGS,))[SERVER_ARGS]
    texts = read_sources(package, flag_files(server_args or ""))
    return known_flags({path: text for path, text in texts.items() if text is not None})


def history_data(versions: Iterable[str]) -> dict[str, object]:
    """What `orchestrator/server_flags/history.json` holds: the names of all flags, and which releases had those that
    not all of them have."""
    flags = {version: flags_of(version) for version in versions}
    spans: dict[str, tuple[str, str]] = {}
    for name in sorted({name for known in flags.values() for name in known}):
        having = [version for version, known in flags.items() if name in known]
        if len(having) < len(flags):
            spans[name] = (having[0], having[-1])
    instead = {
        name: flag.instead for known in flags.values() for name, flag in sorted(known.items()) if flag.instead
    }
    always = sorted(set.intersection(*(set(known) for known in flags.values())))
    return {"releases": list(flags), "always": always, "spans": spans, "instead": instead}


def history_text() -> str:
    """The text of `history.json`, one flag a line."""
    data = history_data((*TWO_WORKERS, *LATER))
    names = textwrap.fill(json.dumps(data["always"]), 118, break_on_hyphens=False, subsequent_indent="  ")
    parts = [f' "releases": {json.dumps(data["releases"])}', f' "always": {names}']
    for key in ("spans", "instead"):
        rows = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(data[key].items()))
        parts.append(f' "{key}": {{\n{rows}\n }}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    if sys.argv[1] == "flags":
        (ROOT / "orchestrator/server_flags/history.json").write_text(history_text())
    else:
        relist(PATCHES / sys.argv[1], sys.argv[2:] or TWO_WORKERS)

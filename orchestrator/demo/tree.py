"""A serving tree for the stand-in engine: the real wheel's source, with two entry files of ours.

Everything that a patch may touch is the release's own file, byte for byte; `sglang/__init__.py` (the real one
imports torch) and `sglang/launch_server.py` lead to the simulated engine, which lies beside the package.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.agent.tree import SIMULATED_ENGINE as ENGINE_PACKAGE
from orchestrator.demo.wheel import wheel_tree

VERSION = "0.5.11"

# Parts of the wheel that no server of a text model loads, and tuned kernel tables: most of its files.
_LEFT_OUT = ("multimodal_gen", "test", "benchmark", "eval", "E=*.json", "N=*.json", "__pycache__")

_INIT = '''\
"""SGLang {version} source with a SIMULATED engine: see {engine}. No GPU is used."""

__version__ = "{version}"
'''

_LAUNCH = '''\
"""Starts the SIMULATED engine on this tree (`python -m sglang.launch_server`)."""

import os
import sys
from pathlib import Path

from {engine} import entry

if __name__ == "__main__":
    # Not resolved: a tree of links is a tree of its own.
    entry.main(Path(os.path.abspath(__file__)).parent, sys.argv[1:])
'''


def build_tree(site_packages: Path, version: str = VERSION, node: dict[str, Any] | None = None) -> Path:
    """Put package, dist-info and engine into `site_packages`; returns the `sglang` folder.

    `node`: what the engine must know about its node (`gpu_dir`, `gpus`, `gpu_memory_mib`).
    """
    package = site_packages / "sglang"
    shutil.copytree(wheel_tree(version), package, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    words = {"version": version, "engine": ENGINE_PACKAGE}
    (package / "__init__.py").write_text(_INIT.format(**words))
    (package / "launch_server.py").write_text(_LAUNCH.format(**words))
    engine = site_packages / ENGINE_PACKAGE
    shutil.copytree(Path(__file__).with_name("engine"), engine, ignore=shutil.ignore_patterns("__pycache__"))
    if node:
        (engine / "node.json").write_text(json.dumps(node))
    _write_dist_info(site_packages, version)
    return package


def _write_dist_info(site_packages: Path, version: str) -> None:
    info = site_packages / f"sglang-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\nSummary: source tree with a simulated engine\n"
    )
    (info / "WHEEL").write_text("Wheel-Version: 1.0\nGenerator: dynspec demo\nRoot-Is-Purelib: true\n")
    (info / "INSTALLER").write_text("dynspec demo\n")
    (info / "top_level.txt").write_text("sglang\n")
    rows = list(_record_rows(site_packages, ("sglang", ENGINE_PACKAGE, info.name)))
    with (info / "RECORD").open("w", newline="") as record:
        csv.writer(record, lineterminator="\n").writerows([*rows, (f"{info.name}/RECORD", "", "")])


def _record_rows(site_packages: Path, folders: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    for folder in folders:
        for file in sorted((site_packages / folder).rglob("*")):
            if file.is_file():
                content = file.read_bytes()
                digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                yield file.relative_to(site_packages).as_posix(), f"sha256={digest}", str(len(content))

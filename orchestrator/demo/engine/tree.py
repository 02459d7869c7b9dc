"""What the installed tree says about itself, read as text: version, switches, and which patches it holds."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import added
from .literals import Constants, NotConstant

THRESHOLD = "speculative_disable_batch_threshold"


@dataclass(frozen=True)
class Tree:
    """A serving tree: the folder of the `sglang` package. Nothing of it is imported."""

    package: Path

    @property
    def version(self) -> str:
        text = self._text("_version.py") or self._text("version.py")
        found = re.search(r"^(?:__version__|version) *=.*?['\"]([^'\"]+)['\"]", text, re.M)
        return found.group(1) if found else "unknown"

    @property
    def server_args(self) -> Path:
        return self.package / "srt" / "server_args.py"

    def worker_file(self, worker: str) -> Path:
        """The EAGLE worker file of a worker path: "v1" or "v2"."""
        name = "eagle_worker_v2.py" if worker == "v2" else "eagle_worker.py"
        return self.package / "srt" / "speculative" / name

    def env_default(self, name: str, otherwise: bool) -> bool:
        """Default of a boolean switch in `srt/environ.py`, as `NAME = EnvBool(True)`."""
        found = re.search(rf"^\s*{name} = EnvBool\((True|False)\)", self._text("srt/environ.py"), re.M)
        return found.group(1) == "True" if found else otherwise

    @property
    def has_v1_worker(self) -> bool:
        """Releases from 0.5.13 on have the second EAGLE worker only."""
        return self.worker_file("v1").is_file()

    @property
    def silently_falls_back_to_v1(self) -> bool:
        """Releases from 0.5.11 on take v1 when v2 is not possible; earlier ones raise for topk > 1."""
        return "spec_v1_reason" in self._text("srt/server_args.py")

    def argument_checks(self) -> list[Callable[..., Any]]:
        """What patches call at the end of `ServerArgs._handle_speculative_decoding`; each may raise ValueError."""
        source = ast.parse(self._text("srt/server_args.py"))
        return added.calls(self.package, source, "ServerArgs", "_handle_speculative_decoding", "self")

    @property
    def has_threshold_switch(self) -> bool:
        """Whether `Scheduler.set_internal_state` asks the dynamic-disable patch first."""
        return "hooks.set_internal_state(" in self._text("srt/managers/scheduler.py")

    @property
    def runtime_settable(self) -> frozenset[str]:
        """Keys that `Scheduler.set_internal_state` of this tree accepts."""
        text = self._text("srt/managers/scheduler.py")
        if not text:
            return frozenset()
        module = ast.parse(text)
        constants = Constants(module)
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef) and node.name == "set_internal_state":
                return frozenset(_allowed(node, constants))
        return frozenset()

    def _text(self, path: str) -> str:
        file = self.package / path
        return file.read_text(encoding="utf-8") if file.is_file() else ""


def _allowed(function: ast.FunctionDef, constants: Constants) -> list[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if node.targets[0].id != "args_allow_update":
                continue
            value = node.value
            inner = value.args[0] if isinstance(value, ast.Call) and value.args else value
            try:
                return [str(item) for item in constants.value(inner)]
            except NotConstant:
                return []
    return []

"""A release's own choice of worker, run without its dependencies.

Takes three pieces out of a real SGLang tree by name and executes them: the environment reader, the part of
`ServerArgs` that settles overlap and speculation, and `SpeculativeAlgorithm.create_worker`. Imports inside these
pieces would pull in torch; each imported name is bound to a stand-in that answers what the piece asks of it.
"""

from __future__ import annotations

import ast
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class _NoImports(ast.NodeTransformer):
    """`from x import Y` -> `Y = _stand_in("Y")`."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> list[ast.stmt]:
        lines = [f"{alias.asname or alias.name} = _stand_in({alias.name!r})" for alias in node.names]
        return [ast.copy_location(ast.parse(line).body[0], node) for line in lines]


def _known(name: str) -> Any:
    """Classes that the pieces look into; workers are told apart by name alone."""
    if name == "MoeRunnerBackend":
        return lambda _value: SimpleNamespace(is_flashinfer_trtllm=lambda: False)
    if name == "SpeculativeAlgorithm":
        return SimpleNamespace(from_string=lambda _value: None)
    return type(name, (), {}) if name == "CustomSpecAlgo" else name


class ReleaseRules:
    """`worker(args)` is the class name of the worker that this release would create, or ValueError from its checks."""

    def __init__(self, tree: Path) -> None:
        self._envs = _environment(tree / "srt/environ.py")
        source = ast.parse((tree / "srt/server_args.py").read_text())
        handlers = ("_handle_pipeline_parallelism", "_handle_speculative_decoding")
        methods = [
            node for node in _class(source, "ServerArgs").body if getattr(node, "name", "") in handlers
        ]
        helpers = [
            node
            for node in source.body
            if getattr(node, "name", "") == "_resolve_speculative_algorithm_alias"
        ]
        self._names = self._execute([*helpers, *methods])
        spec_info = ast.parse((tree / "srt/speculative/spec_info.py").read_text())
        enum = _class(spec_info, "SpeculativeAlgorithm")
        self._algorithm = self._execute([enum])["SpeculativeAlgorithm"]

    def _execute(self, body: list[Any]) -> dict[str, Any]:
        import enum

        names: dict[str, Any] = {
            "envs": self._envs, "logger": logging.getLogger("release"), "_stand_in": _known,
            "Enum": enum.Enum, "auto": enum.auto,
            "CustomSpecAlgo": _known("CustomSpecAlgo"),
            "auto_choose_speculative_params": lambda _args: (3, 1, 4),
        }  # fmt: skip
        future = ast.parse("from __future__ import annotations").body
        tree = ast.Module([*future, *(_NoImports().visit(node) for node in body)], type_ignores=[])
        exec(compile(ast.fix_missing_locations(tree), "release", "exec"), names)
        return names

    def worker(self, **given: Any) -> str:
        args = _Args(given)
        self._names["_handle_pipeline_parallelism"](args)
        self._names["_handle_speculative_decoding"](args)
        return str(self._algorithm.from_string(args.speculative_algorithm).create_worker(args))


class _Args:
    """ServerArgs with defaults that matter to the pieces; anything else is None."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.__dict__.update(
            {"pp_size": 1, "page_size": 1, "disable_overlap_schedule": False, "enable_multi_layer_eagle": False,
             "trust_remote_code": False, "device": "cuda"} | given
        )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return None

    def get_model_config(self) -> Any:
        return SimpleNamespace(hf_config=SimpleNamespace(architectures=["LlamaForCausalLM"]))


def _environment(path: Path) -> Any:
    """The `envs` object of environ.py, without its import of the package."""
    tree = ast.parse(path.read_text())
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.Import) and node.names[0].name.startswith("sglang"))
    ]
    names: dict[str, Any] = {"__name__": "environ"}
    exec(compile(tree, str(path), "exec"), names)
    return names["envs"]


def _class(tree: ast.Module, name: str) -> ast.ClassDef:
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)

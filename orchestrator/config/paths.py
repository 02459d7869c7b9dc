"""Paths on the node: absolute or below a home folder, and for the work folder one of its own."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from orchestrator.config.kinds import BAD, Bad, Json, Text
from orchestrator.config.scalars import shorten
from orchestrator.config.tree import Problems, TreeNode

_TEXT = Text("a path", home=True)
# Folders of the system, with all that is below them; then places in there that are for anybody's use.
_SYSTEM = (
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/proc",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
)
_FOR_ALL = ("/dev/shm", "/run/user", "/usr/local")
# Folders that others have theirs in: what is put there must have a name.
_SHARED = ("/", "/home", "/root", "/tmp", "/var", "/var/tmp", "/opt", "/srv", "/mnt", "/media", *_FOR_ALL)


@dataclass(frozen=True)
class NodePath:
    """`bare`: a name without `/` is taken too, and looked for on the node's PATH."""

    bare: bool = False

    def read(self, node: TreeNode, path: str, problems: Problems) -> str | Bad:
        value = _TEXT.read(node, path, problems)
        if isinstance(value, Bad) or value.startswith(("/", "~")) or (self.bare and "/" not in value):
            return value
        text = (
            f"`{shorten(value)}` is relative, and to nothing that is known on the node; write /... or ~/..."
        )
        return value if problems.rule(node.where, path, text) else BAD

    def schema(self) -> Json:
        pattern = "^[/~]|^[^/]+$" if self.bare else "^[/~]"
        return {**_TEXT.schema(), "pattern": pattern}

    def spell(self, value: object) -> object:
        return value


@dataclass(frozen=True)
class WorkPath:
    """A folder for this work alone: it is made private, filled and cleaned."""

    def read(self, node: TreeNode, path: str, problems: Problems) -> str | Bad:
        value = NodePath().read(node, path, problems)
        if isinstance(value, Bad):
            return BAD
        fault = _fault(value)
        if fault:
            advice = "write a folder of its own, such as /data/dynspec or ~/.dynspec/work"
            text = f"`{shorten(value)}` is {fault}; {advice}"
            return value if problems.rule(node.where, path, text) else BAD
        return value

    def schema(self) -> Json:
        return NodePath().schema()

    def spell(self, value: object) -> object:
        return value


def _fault(value: str) -> str:
    """Why a path is no work folder; empty where it is one."""
    if value.startswith("~"):
        user, _, below = value.partition("/")
        inside = posixpath.normpath(f"/{user}/{below}").startswith(f"/{user}/")
        return "" if inside else "a home folder, or outside of one"
    folder = posixpath.normpath("/" + value.lstrip("/"))
    if folder in _SHARED:
        return "a folder that others use too"
    if folder.startswith(tuple(f"{place}/" for place in _FOR_ALL)):
        return ""
    if folder in _SYSTEM or folder.startswith(tuple(f"{place}/" for place in _SYSTEM)):
        return "a folder of the system"
    return ""

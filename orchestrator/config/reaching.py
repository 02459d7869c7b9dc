"""How the node is reached, judged while the file is read: its name, and the one key that it may show."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config.kinds import BAD, Bad, Json, Text
from orchestrator.config.scalars import shorten
from orchestrator.config.tree import Problems, TreeNode
from orchestrator.errors import UsageError
from orchestrator.model.host_key import PIN_FORM, HostKey
from orchestrator.model.target import Target

_HOST, _KEY = Text("a host"), Text("a host key line")


@dataclass(frozen=True)
class HostName:
    """`local`, a Host of the ssh configuration, or user@host[:port]; kept as written."""

    def read(self, node: TreeNode, path: str, problems: Problems) -> str | Bad:
        value = _HOST.read(node, path, problems)
        if isinstance(value, Bad):
            return BAD
        try:
            Target.parse(value)
        except UsageError as error:
            text = "; ".join(filter(None, (error.message, error.help)))
            return value if problems.rule(node.where, path, text) else BAD
        return value

    def schema(self) -> Json:
        return _HOST.schema()

    def spell(self, value: object) -> object:
        return value


@dataclass(frozen=True)
class PinnedKey:
    """A public key as `ssh-ed25519 AAAA...`; kept as written."""

    def read(self, node: TreeNode, path: str, problems: Problems) -> str | Bad:
        value = _KEY.read(node, path, problems)
        if isinstance(value, Bad) or HostKey.parse(value) is not None:
            return value
        text = f"`{shorten(value)}` is no public key; {PIN_FORM}"
        return value if problems.rule(node.where, path, text) else BAD

    def schema(self) -> Json:
        return _KEY.schema()

    def spell(self, value: object) -> object:
        return value

"""One request as it happened: stamps and raw bytes, nothing parsed."""

from __future__ import annotations

from array import array
from typing import Optional

from .framing import Framing

WARMUP = "warmup"
LOAD = "load"


class Exchange:
    """A request under way, then over. `raw` grows read by read; `read_ends[k]` bytes had come by `stamps[k]`."""

    __slots__ = (
        "due_ns",
        "end_ns",
        "failure",
        "framing",
        "index",
        "phase",
        "raw",
        "read_ends",
        "sent_ns",
        "spilled_at",
        "stamps",
    )

    def __init__(self, phase: str, index: int, due_ns: int) -> None:
        self.phase = phase
        self.index = index
        self.due_ns = due_ns
        self.sent_ns: Optional[int] = None
        self.end_ns: Optional[int] = None
        self.failure: Optional[str] = None  # what the transport said; a response may still be bad by content
        self.framing = Framing()
        self.raw = bytearray()
        self.read_ends = array("q")
        self.stamps = array("q")
        self.spilled_at: Optional[int] = None

    @property
    def last_sign_ns(self) -> int:
        """When the server was last heard of; the sending counts."""
        return self.stamps[-1] if self.stamps else (self.sent_ns or self.due_ns)

    def tail_tokens(self) -> Optional[int]:
        """The last token count in the raw bytes: a cheap look for progress lines, not a result."""
        key = b'"completion_tokens":'
        at = self.raw.rfind(key, max(0, len(self.raw) - 4096))
        digits = bytes(self.raw[at + len(key) : at + len(key) + 12]).strip().split(b",")[0].split(b"}")[0]
        return int(digits) if at >= 0 and digits.isdigit() else None

    def looks_failed(self) -> bool:
        """A cheap look for progress lines: the transport, the status, or an error event at the end."""
        return bool(self.failure) or self.framing.status != 200 or b'data: {"error"' in self.raw[-1024:]

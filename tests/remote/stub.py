"""The stub agent as the blob that travels, and helpers to read pipes whole."""

from __future__ import annotations

from pathlib import Path

from orchestrator.remote.bootstrap import Blob
from orchestrator.remote.transport import Pipe

STUB = Blob.of("agent", Path(__file__).with_name("stub_agent.py").read_bytes())


def read_all(pipe: Pipe) -> bytes:
    data = b""
    while block := pipe.read(65536):
        data += block
    return data

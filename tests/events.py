"""Events that a test listens to."""

from __future__ import annotations

from typing import Any

from orchestrator.redact import Redactor
from orchestrator.runner.events import Events


def recording() -> tuple[Events, list[dict[str, Any]]]:
    """Events without a run folder, and the list that each one is added to."""
    seen: list[dict[str, Any]] = []
    return Events((lambda record: seen.append(dict(record)),), Redactor({})), seen

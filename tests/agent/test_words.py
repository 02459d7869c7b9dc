"""What goes wrong on the node is told in words of the field: no exception of Python's by name."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path

import pytest

from orchestrator.agent import story
from orchestrator.agent.wire import AgentError, as_agent_error

AGENT = Path(story.__file__).parent
FULL = OSError(errno.ENOSPC, "No space left on device", "/data/x")
ERRORS: list[tuple[Exception, str, str]] = [
    (AgentError("busy", "held"), "busy", "held"),
    (FULL, "no_space", "apply: No space left on device /data/x"),
    (OSError(errno.EACCES, "Permission denied"), "failed", "apply: Permission denied"),
    (KeyError("path"), "failed", "a fault of dynspec's agent on the node, while it was doing 'apply'"),
    (LookupError(), "failed", "a fault of dynspec's agent on the node, while it was doing 'apply'"),
]


@pytest.mark.parametrize(("error", "code", "message"), ERRORS)
def test_an_error_is_told_in_words(error: Exception, code: str, message: str) -> None:
    told = as_agent_error(error, "apply")
    assert (told.code, told.message) == (code, message)


def test_a_fault_of_ours_carries_its_traceback_beside_the_message() -> None:
    try:
        raise KeyError("path")
    except KeyError as error:
        fault = as_agent_error(error, "apply", "dirty").details["fault"]
    assert fault[-1] == "KeyError: 'path'"
    assert any("test_words.py" in line for line in fault)


OPENING = {"kind": "open", "run_id": "r", "boot_id": "b", "workdir": "/w", "marker": "DYNSPEC_RUN=r.1"}
OPENING |= {"machine_id": "x", "pid_namespace": "p", "holder": "h", "stop_s": 1}
OPENING |= {"guardian": {"pid": 99, "start_time": 1}}
LINES = [
    b"garbage",
    b"\xff\xfe",
    b'{"kind": "later"}',
    b"[1]",
    b'{"kind": "server"}',
    b'{"kind": "tree", "pids": 7}',
]


@pytest.mark.parametrize("line", LINES)
def test_a_damaged_journal_names_its_line_and_no_exception(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(json.dumps(OPENING).encode() + b"\n" + line + b"\n")
    with pytest.raises(AgentError, match="line 2: ") as refused:
        story.read(str(path))
    assert not re.search(r"\b[A-Z]\w*(Error|Exception)\b", refused.value.message)


def test_no_message_of_the_agent_is_made_of_an_exceptions_type() -> None:
    """But for the probes, which tell what the serving interpreter said of somebody's modules."""
    found = {
        path.name
        for path in AGENT.glob("*.py")
        if re.search(r"type\(error\)\.__name__", path.read_text()) and not path.name.startswith("probe_")
    }
    assert found == set()

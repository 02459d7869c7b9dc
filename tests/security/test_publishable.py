"""A run folder can be given away as it is: what a server, a process list or a hand-made change holds of secrets is not
in it, and nothing in a report acts or steers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.agent import procs
from orchestrator.cli.app import report_error
from orchestrator.errors import PhaseFailed
from orchestrator.plain_text import clean
from orchestrator.redact import Redactor
from orchestrator.store import RunStore
from tests.agent.client import eventually

# Made of parts, so that no scanner takes this file for a leak.
TOKENS = [
    "hf_" + "a1B2" * 9,
    "sk-" + "proj-" + "x" * 40,
    "ghp_" + "Z" * 36,
    "github_pat_" + "1" * 30,
    "glpat-" + "q" * 20,
    "nvapi-" + "w" * 60,
    "AKIA" + "ABCD" * 4,
    "xoxb-" + "1" * 24,
]
ORDINARY = [
    "sglang.srt.hf_transformers_utils", "task-sk-short", "disk-usage", "tokens=512", "https://example.org:8080/a@b",
    "max_total_num_tokens=12345", "hf_overrides", "risk-" + "free-" * 8,
]  # fmt: skip


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("around", ["{}", "HF_TOKEN={}", '"api": "{}"', "Bearer {}\n", "a {} b"])
def test_what_looks_like_a_token_is_redacted_though_nobody_named_it(token: str, around: str) -> None:
    shown = Redactor({})(around.format(token))
    assert token not in shown
    assert shown == around.format("[redacted]")
    assert token.encode() not in Redactor({}).data(b"\xff" + token.encode() + b"\xff")


def test_a_password_in_a_url_is_redacted_and_the_rest_stays() -> None:
    assert (
        Redactor({})("pull https://bob:hunter2@registry.example/x")
        == "pull https://[redacted]@registry.example/x"
    )


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_words_stay_as_they_are(text: str) -> None:
    assert Redactor({})(text) == text


@pytest.mark.parametrize(
    "line",
    ["a" * 2_000_000, "hf_" * 500_000, "://" * 500_000, "sk-" * 500_000, "x:" * 500_000 + "@"],
    ids=len,
)
def test_no_line_makes_redaction_slow(line: str) -> None:
    redact = Redactor({"A": "secret-value"})
    assert len(redact(line)) <= len(line) + 20


def test_every_kind_of_file_in_a_run_folder_is_redacted(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, "run-1", Redactor({"KEY": "line-one-secret\nline-two-secret"}))
    spoken = f"line-one-secret {TOKENS[0]} line-two-secret"
    store.write("report.html", spoken)
    store.write("junit.xml", spoken)
    store.write_json(
        "facts.json", {"tree": {"pristine": {"diff": f"+TOKEN = '{TOKENS[1]}'"}}, "list": [spoken], spoken: 1}
    )
    store.write("arms/a/boot-1/server.log", spoken)
    store.event("note", {"text": spoken})
    store.write_point("a", 1, 0, 1, json.dumps({"error": spoken}).encode() + b"\n", {"note": spoken})
    written = [path for path in store.folder.rglob("*") if path.is_file()]
    assert len(written) >= 6
    for path in written:
        text = path.read_text()
        assert "secret" not in text, path
        assert not [token for token in TOKENS if token in text], path
        assert "redacted" in text, path


@pytest.mark.parametrize(
    "words",
    [
        ["--api-key", "hunter2"],
        ["--api-key=hunter2"],
        ["--hf-token", "hunter2"],
        ["HF_TOKEN=hunter2"],
        ["-password", "hunter2"],
        ["admin_secret=hunter2"],
    ],
    ids=" ".join,
)
def test_somebody_elses_command_line_is_told_without_its_secrets(words: list[str]) -> None:
    argv = [
        sys.executable,
        "-c",
        "import time; time.sleep(60)",
        "-m",
        "sglang.launch_server",
        *words,
        "--tp",
        "8",
        "--max-total-tokens",
        "100",
    ]
    process = subprocess.Popen(argv)
    try:
        eventually(lambda: "sglang" in procs.command_line(process.pid))
        told = procs.fact(process.pid)["command"]
    finally:
        process.kill()
        process.wait()
    assert "hunter2" not in told
    assert "(not shown)" in told
    assert told.endswith("--tp 8 --max-total-tokens 100")


def test_an_error_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202etxt.exe"
    report_error(PhaseFailed(f"the server said {hostile}", details=(hostile,), help=hostile))
    shown = capsys.readouterr().err
    assert not [char for char in shown if char != "\n" and not char.isprintable()]
    assert clean("plain\ttext\n") == "plain\ttext\n"

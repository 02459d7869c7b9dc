"""Numbers of thousands of digits in texts from elsewhere: Python refuses to convert them, and that is no answer."""

from __future__ import annotations

import pytest

from orchestrator.analysis.worker_words import read_worker
from orchestrator.cli.progress import _PERCENT
from orchestrator.errors import DynspecError, UsageError
from orchestrator.model.target import Target
from orchestrator.patchset import unidiff
from orchestrator.runner.readiness import load_progress
from orchestrator.workers import parse_version

LONG = "9" * 5000


@pytest.mark.parametrize("header", ["@@ -{} +1 @@", "@@ -1,{} +1 @@", "@@ -1 +{} @@", "@@ -1 +1,{} @@"])
def test_in_a_hunk_header_of_a_diff(header: str) -> None:
    with pytest.raises(DynspecError, match=r"long\.patch"):
        unidiff.parse(f"--- a/x.py\n+++ b/x.py\n{header.format(LONG)}\n-a\n+b\n", "long.patch")


@pytest.mark.parametrize("text", ["{}.5.11", "0.{}.11", "0.5.{}"])
def test_in_a_version_of_the_tree(text: str) -> None:
    assert parse_version(text.format(LONG)) is None


@pytest.mark.parametrize(
    "line",
    [
        "dynspec: ready rank={} worker=v2",
        "dynspec: worker=EAGLEWorkerV2 tp_rank={} file=/s/eagle_worker_v2.py",
    ],
)
def test_in_the_rank_of_a_line_of_the_servers_log(line: str) -> None:
    assert read_worker([line.format(1)]) != read_worker([]) == read_worker([line.format(LONG)])


@pytest.mark.parametrize("bar", ["{}%|# | 3/27", "11%|# | {}/27", "11%|# | 3/{}"])
def test_in_a_progress_bar(bar: str) -> None:
    told = load_progress((bar.format(LONG),))
    assert _PERCENT.search(told) is None


def test_in_the_port_of_a_node() -> None:
    with pytest.raises(UsageError):
        Target.parse(f"gpu-1:{LONG}")

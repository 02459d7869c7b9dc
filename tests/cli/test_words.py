"""Durations and shares on the command line are spelt as in the experiment file."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.cli.words import duration_s, share
from orchestrator.errors import UsageError


@pytest.mark.parametrize(
    ("word", "seconds"), [("0s", 0), ("30s", 30), ("1.5m", 90), ("2h", 7200), ("250ms", 0.25)]
)
def test_a_duration_has_a_unit(word: str, seconds: float) -> None:
    assert duration_s(word, "--lock-wait") == seconds


@pytest.mark.parametrize(("word", "part"), [("3%", 0.03), ("0%", 0.0), ("100%", 1.0)])
def test_a_share_is_in_per_cent(word: str, part: float) -> None:
    assert share(word, "--max-drop") == part


@pytest.mark.parametrize(
    ("read", "word"),
    [
        (duration_s, "30"),
        (duration_s, "1d"),
        (duration_s, "-1s"),
        (duration_s, "007m"),
        (share, "3"),
        (share, "101%"),
    ],
)
def test_what_is_neither_is_refused_with_the_option_and_an_example(
    read: Callable[[str, str], float], word: str
) -> None:
    with pytest.raises(UsageError, match="--option") as refused:
        read(word, "--option")
    assert "write for example --option" in refused.value.help

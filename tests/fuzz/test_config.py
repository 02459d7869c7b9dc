"""The experiment file: whatever stands in it, the answer is an experiment or one ExperimentError that fits a screen."""

from __future__ import annotations

from pathlib import Path

import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config import load_experiment
from orchestrator.errors import ExperimentError
from tests.fuzz.budget import fuzzed
from tests.fuzz.strategies import ODD_TEXTS, as_yaml, damaged, texts, texts_of, with_odd_values

ROOT = Path(__file__).resolve().parents[2]
FILES = [path.read_text() for path in sorted(ROOT.glob("experiments/**/*.yaml"))]
TREES = [yaml.safe_load(text) for text in FILES]
LINES = sorted({f"{line}\n" for text in FILES for line in text.splitlines()})
PIECES = [
    *ODD_TEXTS,
    *LINES,
    ": ",
    "- ",
    "{}",
    "[]",
    "'",
    '"',
    "|\n",
    ">\n",
    "? ",
    "---\n",
    "...\n",
    "#",
    "%YAML 1.1\n",
]
PATHS = (
    "sweep.repeats",
    "node.gpus",
    "arms.baseline.args",
    "limits.stop",
    "server.env.X",
    "gate",
    "a..b",
    "",
    ".",
)


def read(text: str, *words: str) -> None:
    try:
        checked = load_experiment(
            text, name="fuzz.yaml", overrides=words, patches=("dynamic_disable", "spec_banner")
        )
    except ExperimentError as error:
        assert error.exit_code == 2
        assert error.message.strip()
        assert all(line.strip() for line in error.details)
        assert max(map(len, error.render().split("\n"))) < 2000
        return
    again = load_experiment(checked.experiment.source, name="again.yaml")
    assert again.experiment.arms == checked.experiment.arms, "what is kept of it means something else"


@fuzzed(0.3)
@given(st.one_of(texts(), texts_of("abc:-[]{}#&*!|>'\"%@`\n\t ,?~0123", 200)))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    read(text)


@fuzzed(0.4)
@given(damaged(FILES, PIECES))
def test_a_damaged_experiment_is_read_or_refused_in_words(text: str) -> None:
    read(text)


@fuzzed(0.3)
@given(with_odd_values(TREES))
def test_an_experiment_with_odd_values_is_read_or_refused_in_words(tree: object) -> None:
    text = as_yaml(tree)
    read(text)


@fuzzed(0.5)
@given(st.sampled_from(FILES), st.lists(st.tuples(st.sampled_from(PATHS), texts()), max_size=3))
def test_set_words_are_taken_or_refused_in_words(text: str, pairs: list[tuple[str, str]]) -> None:
    read(text, *(f"{path}={value}" for path, value in pairs))

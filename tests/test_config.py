"""The experiment file is read strictly: tables in tests/config hold what is refused, warned of and accepted."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.config import Checked, load_experiment
from orchestrator.errors import ExperimentError
from orchestrator.model.experiment import Experiment

TABLES = Path(__file__).parent / "config"
EXPERIMENTS = Path(__file__).parent.parent / "experiments"
BASE = (TABLES / "base.yaml").read_text()
PATCHES = ("spec_banner", "dynamic_disable")


def table(name: str) -> list[Any]:
    rows = yaml.safe_load((TABLES / name).read_text())
    return [pytest.param(row, id=row["case"]) for row in rows]


def changed(row: dict[str, Any]) -> str:
    text = BASE
    for old, new in row["change"]:
        assert old in text, f"the table's {old!r} is not in base.yaml"
        text = text.replace(old, new, 1)
    return text


def load(text: str, *overrides: str) -> Checked:
    return load_experiment(text, name="x.yaml", overrides=overrides, patches=PATCHES)


def errors(text: str, *overrides: str) -> list[str]:
    with pytest.raises(ExperimentError) as caught:
        load(text, *overrides)
    return list(caught.value.details or (caught.value.message,))


def at(experiment: Experiment, path: str) -> Any:
    value: Any = experiment
    for key in path.split("."):
        if key == "arms":
            value = {arm.name: arm for arm in value.arms}
        else:
            value = value[key] if isinstance(value, dict) else getattr(value, key)
    return value


@pytest.mark.parametrize("row", table("refused.yaml"))
def test_refuses_with_line_key_path_value_and_how_to_write_it(row):
    assert errors(changed(row)) == row["says"]


@pytest.mark.parametrize("row", table("warned.yaml"))
def test_warns_of_what_may_not_mean_what_it_says(row):
    assert list(load(changed(row)).warnings) == row["says"]


@pytest.mark.parametrize("row", table("accepted.yaml"))
def test_accepts_and_reads_as_written(row):
    experiment = load(changed(row)).experiment
    assert {path: repr(at(experiment, path)) for path in row["gives"]} == row["gives"]


def test_all_problems_of_a_file_come_in_one_error_with_exit_code_2():
    with pytest.raises(ExperimentError) as caught:
        load(BASE.replace("port", "prot").replace("trial", "no").replace("[1, 10]", "[0]"))
    assert caught.value.exit_code == 2
    assert caught.value.message == "x.yaml: 3 problems"
    assert [line.split(": ")[0] for line in caught.value.details] == ["x.yaml:2", "x.yaml:7", "x.yaml:16"]


def test_an_empty_file_and_a_file_that_is_no_mapping_are_named():
    assert errors("") == ["x.yaml:1: an empty file; dynspec init writes a commented one"]
    assert errors("# nothing\n") == ["x.yaml:1: an empty file; dynspec init writes a commented one"]
    assert errors("\n- a\n") == [
        "x.yaml:2: not an experiment: keys such as `schema: 1` and `name: ...` are wanted"
    ]


def test_nesting_without_end_is_one_error():
    assert errors("a: " + "[" * 500) == ["x.yaml:1: nested more than 20 levels deep"]


@pytest.mark.parametrize(
    "secret", ["hf_abcdefghijklmnop", "sk-abcdefghijklmnopqrstuv", "https://me:pw@host/x"]
)
@pytest.mark.parametrize(
    "old",
    ["trial", "gpu-1", "30000", "/models/m", "EAGLE3", "[1, 10]", "{}", "sweep", "baseline"],
)
def test_no_message_repeats_a_secret_wherever_it_stands(secret, old):
    shown = "\n".join(errors(BASE.replace(old, secret, 1)))
    assert secret not in shown


def test_a_secret_given_by_set_is_refused_and_not_repeated():
    shown = errors(BASE, "server.env.HF_TOKEN=hf_abcdefghijklmnop")
    assert shown == [
        "--set server.env.HF_TOKEN: secrets stand in the file by reference only: write {from_env: HF_TOKEN} "
        "and export it where dynspec runs"
    ]


class TestSet:
    def test_overrides_a_value_and_makes_missing_sections(self):
        experiment = load(BASE, "sweep.repeats=1", "limits.stop=5s", "node.host=local").experiment
        assert (experiment.sweep.repeats, experiment.limits.stop_s, experiment.node.host) == (1, 5.0, "local")

    def test_takes_lists_and_reaches_arms(self):
        experiment = load(BASE, "sweep.concurrency=[2, 4]", "arms.eagle3.args.tp=2").experiment
        assert experiment.sweep.concurrency == (2, 4)
        assert experiment.arm("eagle3").args["tp"] == 2

    def test_null_removes_an_arm(self):
        assert [arm.name for arm in load(BASE, "arms.eagle3=null").experiment.arms] == ["baseline"]

    def test_the_last_of_two_wins(self):
        assert load(BASE, "sweep.repeats=1", "sweep.repeats=2").experiment.sweep.repeats == 2

    @pytest.mark.parametrize(
        ("word", "says"),
        [
            ("sweep.repeats", "--set sweep.repeats: write key.path=value, such as sweep.repeats=1"),
            ("=1", "--set =: write key.path=value, such as sweep.repeats=1"),
            ("", "--set '': write key.path=value, such as sweep.repeats=1"),
            ("sweep.repeats=", "--set sweep.repeats: has no value; write null to remove the key"),
            ("sweep.repeat=1", "--set sweep.repeat: unknown key; did you mean `repeats`?"),
            (
                "server.port=030000",
                "--set server.port: `030000` is read as the number 12288; write 30000 for the number",
            ),
            ("name.first=a", "--set name.first: `name` is not a mapping, so nothing can be set below it"),
            ("node.gpus=[0", "--set node.gpus: not YAML: did not find expected ',' or ']'"),
            (
                "node.patch_mode=overlaid",
                '--set node.patch_mode: the text "overlaid" is not known here; did you mean `overlay`?',
            ),
        ],
    )
    def test_is_as_strict_as_the_file(self, word, says):
        assert errors(BASE, word) == [says]

    def test_the_kept_source_means_the_same_as_file_and_words_together(self):
        text = BASE.replace("host: gpu-1", 'host: "10"\n  cwd: ~').replace("name: trial", "name: 'no'")
        merged = load(text, "sweep.concurrency=[1, 3]", "server.env.A='1'").experiment
        again = load(merged.source).experiment
        assert merged.source != text
        assert replace(again, source="") == replace(merged, source="")

    def test_without_words_the_source_is_the_file_to_the_byte(self):
        assert load(BASE).experiment.source == BASE


def test_patch_names_are_left_alone_when_the_carried_ones_are_not_given():
    text = BASE.replace("baseline: {}", "baseline: {patches: [anything]}")
    assert load_experiment(text, name="x.yaml").experiment.arm("baseline").patches == ("anything",)


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_experiments_are_valid(path):
    load_experiment(path.read_text(), name=path.name)


@pytest.mark.parametrize("name", ["demo.yaml", "default.yaml", "k25-eagle3.yaml"])
def test_the_first_experiments_give_no_warning(name):
    assert load_experiment((EXPERIMENTS / name).read_text(), name=name).warnings == ()


def test_reading_an_experiment_imports_nothing_heavy():
    program = "import sys, orchestrator.config; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"fabric", "paramiko", "httpx", "pandas", "pydantic", "asyncio", "rich", "typer"} & set(loaded)


# -- whatever the text, the answer is an experiment or one ExperimentError; thousands more: tests/fuzz ----------


def survives(text: str, *overrides: str) -> None:
    with suppress(ExperimentError):
        load(text, *overrides)


_VALUES = st.recursive(
    st.sampled_from(
        ["null", "~", "", "true", "no", "0", "-1", "1e9", "0x", "0b_", "1:2", "2026-01-31", "=", "a", "''"]
    )
    | st.text(max_size=8).map(lambda text: yaml.safe_dump(text).removesuffix("\n...\n").strip()),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.dictionaries(
            st.sampled_from(["args", "env", "extends", "open", "from_env", "a", "1"]), inner, max_size=3
        ).map(lambda pairs: "{" + ", ".join(f"{key}: {value}" for key, value in pairs.items()) + "}")
    ),
    max_leaves=6,
)
_LEAVES = [
    "1",
    "trial",
    "gpu-1",
    "/opt/venv/bin/python3",
    "30000",
    "/models/m",
    "64",
    "{}",
    "EAGLE3",
    "[1, 10]",
]


@given(leaf=st.sampled_from(_LEAVES), value=_VALUES)
@settings(max_examples=100, deadline=None)
def test_any_value_at_any_leaf_is_read_or_refused(leaf, value):
    survives(BASE.replace(leaf, value, 1))


_KEYS = [
    "node", "node.gpus", "node.free_list", "server.args", "server.env", "server.ready", "arms", "arms.baseline",
    "arms.eagle3.extends", "sweep.load", "sweep.prompts", "sweep.warmup", "limits", "report.formats", "gate", "lock",
]  # fmt: skip


@given(key=st.sampled_from(_KEYS), value=_VALUES | st.text())
@settings(max_examples=100, deadline=None)
def test_any_set_word_is_read_or_refused(key, value):
    survives(BASE, f"{key}={value}")


@given(st.text(alphabet="ab01.:-_+eEx~%/", min_size=1, max_size=6))
@settings(max_examples=400, deadline=None)
def test_a_plain_argument_reaches_the_server_as_yaml_12_readers_see_it_or_is_refused(text):
    """What is accepted as a number prints the same text again, so the command line holds what was written."""
    try:
        args = load(BASE.replace("64", text, 1)).experiment.server.args
    except ExperimentError:
        return
    value = args.get("max-running-requests")
    assert value is None or isinstance(value, bool) or str(value) == text.strip() or value == int(text)

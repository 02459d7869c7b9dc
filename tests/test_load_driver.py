"""What the controller hands to the load generator: the program, the prompts, the spec."""

from __future__ import annotations

import ast
import io
import json
import sys
import zipfile
from itertools import islice
from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.load import pack, point
from orchestrator.load.prompts import allot, builtin, endless
from orchestrator.loadgen.spec import parse_spec
from orchestrator.model.experiment import Load, Prompts

LOADGEN = Path(pack.__file__).parent.parent / "loadgen"
SOURCES = sorted(LOADGEN.glob("*.py"))


# The program.


def test_the_zipapp_is_the_same_bytes_each_time_and_holds_every_module():
    packed = pack.build_zipapp()
    assert packed == pack.build_zipapp()
    names = zipfile.ZipFile(io.BytesIO(packed)).namelist()
    assert names == sorted(["__main__.py", *(f"loadgen/{path.name}" for path in SOURCES)])


def test_the_zipapp_carries_no_times():
    entries = zipfile.ZipFile(io.BytesIO(pack.build_zipapp())).infolist()
    assert {entry.date_time for entry in entries} == {(1980, 1, 1, 0, 0, 0)}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_the_generator_is_python_3_8_and_imports_the_standard_library_only(path):
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert {alias.name.split(".")[0] for alias in node.names} <= sys.stdlib_module_names
        if isinstance(node, ast.ImportFrom) and not node.level:
            assert (node.module or "").split(".")[0] in sys.stdlib_module_names


# The prompts.


@pytest.mark.parametrize(("kind", "longest"), [("coding", 1200), ("agentic", 5000)])
def test_there_are_many_builtin_prompts_of_many_lengths(kind, longest):
    texts = builtin((kind,))
    lengths = sorted(map(len, texts))
    assert len(texts) >= 24
    assert lengths[-1] > longest
    assert lengths[-1] > 4 * lengths[0]
    assert len({length // 200 for length in lengths}) >= 5


def test_no_two_builtin_prompts_begin_alike():
    openings = [text[:24] for text in builtin()]
    assert len(set(openings)) == len(openings)


def test_builtin_kinds_take_turns():
    coding, agentic = builtin(("coding",)), builtin(("agentic",))
    assert builtin()[:4] == (coding[0], agentic[0], coding[1], agentic[1])
    assert sorted(builtin()) == sorted(coding + agentic)


def test_a_seed_changes_the_order_and_not_the_set():
    assert builtin(seed=1) == builtin(seed=1) != builtin(seed=2)
    assert sorted(builtin(seed=1)) == sorted(builtin())
    one, other = (allot(Prompts(seed=seed), [(0, 8)])[0].load for seed in (1, 2))
    assert one != other


def test_blocks_that_prompts_name_are_filled_in():
    assert not [text for text in builtin() if "\n@shell\n" in text or "\n@handbook\n" in text]
    assert any("runs a command in bash in the repository's root" in text for text in builtin(("agentic",)))


def test_an_unknown_kind_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match="no kind 'poems'; known: coding, agentic"):
        builtin(("poems",))


@pytest.mark.parametrize(
    "source", [Prompts(), Prompts(kinds=("coding",)), Prompts(source="input_ids", vocab=1024)], ids=str
)
def test_no_prompt_is_handed_out_twice_and_every_boot_gets_the_same(source):
    needs = [(2, 40), (4, 60), (8, 300)]
    points = allot(source, needs)
    everything = [json.dumps(prompt) for one in points for prompt in (*one.warmup, *one.load)]
    assert len(everything) == sum(map(sum, needs))
    assert len(set(everything)) == len(everything)
    assert allot(source, needs) == points


def test_prompts_used_again_differ_from_their_first_characters():
    texts = list(islice(endless(Prompts(kinds=("coding",))), 90))
    assert len({text[:6] for text in texts[28:]}) == 62


def test_a_point_s_prompts_do_not_depend_on_what_comes_later():
    assert allot(Prompts(), [(1, 8), (2, 9)])[0] == allot(Prompts(), [(1, 8), (2, 900)])[0]


def test_generated_ids_are_periodic_and_inside_the_vocabulary():
    for ids in islice(endless(Prompts(source="input_ids", vocab=256)), 50):
        assert all(16 <= token < 256 for token in ids)
        period = next(p for p in range(1, len(ids)) if ids[p:] == ids[:-p])
        assert period <= 24
        assert len(ids) >= 2 * period


def test_a_file_gives_text_ids_and_messages(tmp_path):
    lines = [
        '"plain"',
        '{"prompt": "keyed"}',
        "",
        '{"input_ids": [4, 5]}',
        '{"messages": [{"role": "user", "content": "x"}]}',
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    supply = endless(Prompts(source="file", path="p.jsonl"), tmp_path)
    assert list(islice(supply, 4)) == ["plain", "keyed", [4, 5], [{"role": "user", "content": "x"}]]
    again = list(islice(supply, 4))
    assert again[0] == "[1.0] plain"
    assert again[2][-2:] == [4, 5]
    assert set(again[2]) == {4, 5}
    assert len(again[2]) == 10
    assert again[3] == [{"role": "user", "content": "[1.3] x"}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no prompts"),
        ('"a"\n{"prompt": ', "p.jsonl:2: "),
        ("[" * 100_000, "p.jsonl:1: brackets without end"),
        ('{"text": "a"}', "exactly one of `prompt`, `input_ids`, `messages`"),
        ('""', "a prompt is non-empty text"),
        ("[1, true]", "a prompt is non-empty text"),
    ],
)
def test_a_bad_prompt_file_is_refused_by_line(tmp_path, text, message):
    (tmp_path / "p.jsonl").write_text(text)
    with pytest.raises(UsageError) as refused:
        next(endless(Prompts(source="file", path="p.jsonl"), tmp_path))
    assert message in str(refused.value)


def test_a_missing_prompt_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        next(endless(Prompts(source="file", path="none.jsonl"), tmp_path))


# The spec.


def spec_of(endpoint: str, **more):
    template = point.body_template(endpoint, model="m", output_tokens=64)
    prompt = [[5, 6]] if endpoint == "generate" else ["hello"]
    return point.build_spec(
        host="127.0.0.1",
        port=30000,
        endpoint=endpoint,
        template=template,
        prompts=prompt,
        concurrency=4,
        **more,
    )


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_openai_bodies_ask_for_fixed_length_and_running_usage(endpoint):
    (body,) = map(json.loads, parse_spec(json.dumps(spec_of(endpoint))).requests)
    assert body["max_tokens"] == 64
    assert body["ignore_eos"] is True
    assert body["temperature"] == 0.0
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


def test_generate_bodies_carry_sampling_parameters_of_their_own():
    (body,) = map(json.loads, parse_spec(json.dumps(spec_of("generate"))).requests)
    assert body == {
        "sampling_params": {"max_new_tokens": 64, "temperature": 0.0, "ignore_eos": True},
        "stream": True,
        "input_ids": [5, 6],
    }


def test_every_load_of_the_experiment_is_one_the_generator_takes():
    for load in (
        Load(),
        Load("open", arrival="poisson", rate_per_s=8.0),
        Load("open", rate_per_s=8.0),
        Load("straddle", around=5, period_s=2.0),
    ):
        spec = parse_spec(json.dumps(spec_of("chat", load=load)))
        assert spec.load.kind == load.kind
    assert (spec.load.low, spec.load.high, spec.load.period_s, spec.load.duration_s) == (5, 10, 2.0, None)


@pytest.mark.parametrize("load", [Load("open"), Load("straddle", around=5), Load("straddle", period_s=1.0)])
def test_a_load_that_lacks_a_number_is_refused(load):
    with pytest.raises(UsageError):
        spec_of("chat", load=load)


@pytest.mark.parametrize(("around", "bounds"), [(1, (1, 2)), (5, (5, 10)), (6, (6, 12))])
def test_a_straddle_lies_at_and_above_its_threshold(around, bounds):
    assert point.straddle_bounds(around) == bounds


@pytest.mark.parametrize(
    ("endpoint", "prompt"),
    [("chat", [5, 6]), ("generate", [{"role": "user", "content": "x"}]), ("completions", [{"role": "user"}])],
)
def test_prompts_that_the_endpoint_cannot_take_are_refused(endpoint, prompt):
    template = point.body_template(endpoint, model="m", output_tokens=8)
    with pytest.raises(UsageError, match=r"sweep\.prompts: prompt 1: "):
        point.bodies_sha256(endpoint, template, ["fine", prompt])
    with pytest.raises(UsageError, match=r"sweep\.prompts: prompt 0: "):
        point.build_spec(
            host="h", port=1, endpoint=endpoint, template=template, prompts=[prompt], concurrency=1
        )


def test_request_counts_have_a_floor():
    assert point.request_count(30, 4, 8) == 120
    assert point.request_count(1, 4, 8) == 8


def test_the_digest_of_a_point_shows_a_changed_prompt_and_nothing_of_the_arm():
    template = point.body_template("chat", model="m", output_tokens=8)
    one = point.bodies_sha256("chat", template, ["a", "b"])
    assert one == point.bodies_sha256("chat", dict(template), ["a", "b"])
    assert one != point.bodies_sha256("chat", template, ["b", "a"])
    assert one != point.bodies_sha256("chat", {**template, "max_tokens": 9}, ["a", "b"])


def test_a_line_of_brackets_without_end_is_no_record():
    assert list(point.read_records(['{"i": 0}\n', "[" * 100_000 + "\n", '{"i": 1}\n'])) == [
        {"i": 0},
        {"i": 1},
    ]


def test_records_are_read_from_a_file_or_lines_and_a_torn_last_line_is_left_out(tmp_path):
    text = '{"i":0}\n{"i":1}\n{"i":2,"ok"'
    (tmp_path / "r.jsonl").write_text(text)
    assert [row["i"] for row in point.read_records(tmp_path / "r.jsonl")] == [0, 1]
    assert [row["i"] for row in point.read_records(text.splitlines())] == [0, 1]

"""The dynamic-disable patch on the real files of every release that it knows."""

from __future__ import annotations

import argparse
import ast
import functools
import importlib.util
import sys
from pathlib import Path

import pytest

from orchestrator.errors import AnchorError, DoesNotFit
from orchestrator.patchset import FitState, build_patch_set, check_fit, load_patch, needed_files
from orchestrator.patchset.sourcecheck import check
from tests.wheels import PATCHES, TWO_WORKERS, read_sources, sha256, tree_facts, wheel_tree

PATCH = load_patch(PATCHES / "dynamic_disable")
PATCHER = {target.path: functools.partial(target.patcher, target.path) for target in PATCH.targets}
NATIVE = ("0.5.14", "0.5.23")
REFUSED = ("0.5.13.post1",)
pytestmark = pytest.mark.wheels
# All tests of a release in a row, so that it is patched once even where several workers share this file.
each_release = pytest.mark.parametrize("version", TWO_WORKERS, scope="module")


@functools.cache
def sources_of(version: str) -> dict[str, str | None]:
    return read_sources(wheel_tree(version), needed_files((PATCH,)))


@functools.cache
def built(version: str):
    sources = sources_of(version)
    return build_patch_set((PATCH,), sources, tree_facts(version, sources), allow_unlisted=False)


def edit_of(version: str, path: str):
    return next(edit for edit in built(version).edits if edit.path == path)


@functools.cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


def function_in(text: str, klass: str, name: str) -> ast.FunctionDef:
    body = next(n for n in parsed(text).body if isinstance(n, ast.ClassDef) and n.name == klass).body
    return next(n for n in body if isinstance(n, ast.FunctionDef) and n.name == name)


@each_release
def test_every_file_is_hooked_compiles_and_names_nothing_unknown(version):
    for edit in built(version).edits:
        problems = check(edit.path, sources_of(version)[edit.path], edit.after)
        assert not problems, problems
    assert {edit.path for edit in built(version).edits} == set(PATCH.paths)


@each_release
def test_the_manifest_has_the_hashes_of_the_real_files_and_of_the_hooked_ones(version):
    listing = PATCH.listings[version]
    assert listing.files == {path: sha256(sources_of(version)[path]) for path in PATCHER}
    assert listing.after == {path: edit_of(version, path).after_sha256 for path in PATCHER}


def test_the_manifest_lists_exactly_the_releases_that_have_both_workers():
    assert tuple(PATCH.listings) == TWO_WORKERS


def test_the_manifest_adds_every_file_of_the_runtime_and_no_other():
    runtime = PATCHES / "dynamic_disable/runtime"
    files = {f"srt/speculative/{p.relative_to(runtime).as_posix()}" for p in runtime.rglob("*.py")}
    assert {add.path for add in PATCH.adds} == files


@each_release
def test_hooks_only_add_lines_so_taking_them_out_gives_the_original_bytes(version):
    for path in PATCHER:
        before = sources_of(version)[path].splitlines(keepends=True)
        after = edit_of(version, path).after.splitlines(keepends=True)
        kept, rest = [], iter(before)
        expected = next(rest, None)
        for line in after:
            if line == expected:
                kept.append(line)
                expected = next(rest, None)
        assert kept == before
        assert expected is None


@each_release
def test_a_hooked_file_is_never_hooked_again(version):
    for path, patcher in PATCHER.items():
        with pytest.raises(AnchorError, match="already patched"):
            patcher(edit_of(version, path).after)


def test_a_tree_that_carries_the_patch_is_refused_as_a_whole():
    again = {edit.path: edit.after for edit in built("0.5.11").edits}
    with pytest.raises(DoesNotFit, match="already carries dynamic_disable"):
        build_patch_set((PATCH,), again, tree_facts("0.5.11", again), allow_unlisted=True)


@pytest.mark.parametrize("version", NATIVE)
def test_later_releases_need_no_patch_and_say_what_is_used_instead(version):
    fit = check_fit(PATCH, version, dict.fromkeys(PATCH.paths), {})
    assert fit.state is FitState.NATIVE
    assert "zero-step slot" in fit.reason


@pytest.mark.parametrize("version", REFUSED)
def test_the_release_between_is_refused_with_the_two_to_use(version):
    fit = check_fit(PATCH, version, dict.fromkeys(PATCH.paths), {})
    assert fit.state is FitState.REFUSED
    assert "use 0.5.12.post1 or 0.5.14" in fit.reason


@pytest.mark.parametrize("version", [*REFUSED, *NATIVE])
def test_a_later_tree_of_unknown_version_is_refused_by_its_anchors(version):
    sources = sources_of(version)
    with pytest.raises(DoesNotFit):
        build_patch_set((PATCH,), sources, tree_facts(None, sources), allow_unlisted=True)


@each_release
def test_the_option_is_an_argument_of_its_own_and_upstreams_next_argument_is_whole(version):
    add = function_in(edit_of(version, "srt/server_args.py").after, "ServerArgs", "add_cli_args")
    calls = [n for n in ast.walk(add) if isinstance(n, ast.Call)]
    names = [
        c.args[0].value
        for c in calls
        if isinstance(c.func, ast.Attribute) and c.func.attr == "add_argument" and c.args
    ]
    before = function_in(sources_of(version)["srt/server_args.py"], "ServerArgs", "add_cli_args")
    upstream = [
        c.args[0].value
        for c in ast.walk(before)
        if isinstance(c, ast.Call)
        and isinstance(c.func, ast.Attribute)
        and c.func.attr == "add_argument"
        and c.args
    ]
    assert names == upstream
    own = [i for i, stmt in enumerate(add.body) if "add_cli_arguments" in ast.dump(stmt)]
    assert len(own) == 2  # the import and the call, side by side in the body itself
    assert own[1] == own[0] + 1


@each_release
def test_a_decode_is_taken_over_before_anything_of_the_draft_runs(version):
    for path, klass in (
        ("srt/speculative/eagle_worker.py", "EAGLEWorker"),
        ("srt/speculative/eagle_worker_v2.py", "EAGLEWorkerV2"),
    ):
        step = function_in(edit_of(version, path).after, klass, "forward_batch_generation")
        split = next(s for s in step.body if isinstance(s, ast.If) and s.orelse)
        first = ast.unparse(split.orelse[0])
        assert "self.dynspec.decode(" in first
        assert "return plain_result" in first


@each_release
def test_the_switch_answers_before_sglang_logs_all_its_arguments(version):
    handler = function_in(
        edit_of(version, "srt/managers/scheduler.py").after, "Scheduler", "set_internal_state"
    )
    text = [ast.unparse(stmt) for stmt in handler.body]
    assert text[1] == "answer = hooks.set_internal_state(recv_req)"
    assert text[2].startswith("if answer is not None:")


# What the runtime takes for granted of each release, since nothing here can import it.


def dataclass_fields(text: str, name: str) -> set[str]:
    node = next(n for n in parsed(text).body if isinstance(n, ast.ClassDef) and n.name == name)
    return {s.target.id for s in node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)}


def text_of(version: str, path: str) -> str:
    return (wheel_tree(version) / path).read_text()


def keywords_of(file: str, callee: str) -> set[str]:
    """Keyword names that a runtime file gives to calls of `callee`."""
    tree = ast.parse((PATCHES / "dynamic_disable/runtime/dynspec" / file).read_text())
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == callee]
    assert calls, f"{file} no longer calls {callee}"
    return {k.arg for call in calls for k in call.keywords if k.arg}


@each_release
def test_every_field_that_a_catch_up_replaces_exists(version):
    fields = dataclass_fields(text_of(version, "srt/managers/schedule_batch.py"), "ModelWorkerBatch")
    assert keywords_of("draft.py", "dataclasses.replace") <= fields


@each_release
def test_every_field_of_a_draft_input_exists(version):
    text = text_of(version, "srt/speculative/eagle_info.py")
    # worker_v1 builds one only where draft extends have no input class of their own.
    files = ["draft.py", "worker_v2.py"] + ["worker_v1.py"] * ("class EagleDraftExtendInput" not in text)
    for file in files:
        assert keywords_of(file, "EagleDraftInput") <= dataclass_fields(text, "EagleDraftInput")


@each_release
def test_every_field_of_a_result_exists(version):
    fields = dataclass_fields(text_of(version, "srt/managers/utils.py"), "GenerationBatchResult")
    for file in ("worker_v1.py", "worker_v2.py"):
        assert keywords_of(file, "GenerationBatchResult") <= fields


@each_release
def test_an_extend_input_of_its_own_has_the_fields_that_are_given(version):
    text = text_of(version, "srt/speculative/eagle_info.py")
    if "class EagleDraftExtendInput" not in text:
        pytest.skip("draft extends take an EagleDraftInput in this release")
    assert keywords_of("worker_v1.py", "self.compat.extend_input") <= dataclass_fields(
        text, "EagleDraftExtendInput"
    )


@each_release
def test_v2_shows_its_results_right_before_it_returns_them(version):
    path = "srt/speculative/eagle_worker_v2.py"
    step = function_in(edit_of(version, path).after, "EAGLEWorkerV2", "forward_batch_generation")
    blocks = [getattr(n, field, None) for n in ast.walk(step) for field in ("body", "orelse")]
    ends = [
        b[-2:] for b in blocks if isinstance(b, list) and b and ast.unparse(b[-1]) == "return batch_output"
    ]
    assert len(ends) == 2
    for before, _ in ends:
        assert f"self.dynspec.on_result({step.args.args[1].arg}, batch_output)" in ast.unparse(before)


@each_release
def test_from_0_5_11_on_the_plan_stream_waits_for_the_graph_before(version):
    """What _check_plan_stream of the runtime looks for."""
    path = "srt/speculative/eagle_worker_v2.py"
    step = function_in(edit_of(version, path).after, "EAGLEWorkerV2", "forward_batch_generation")
    names = {n.attr for n in ast.walk(step) if isinstance(n, ast.Attribute)}
    assert ("_draft_done_event" in names) == version.startswith(("0.5.11", "0.5.12"))


def test_a_worker_with_two_results_in_a_branch_does_not_fit():
    path = "srt/speculative/eagle_worker_v2.py"
    text = text_of("0.5.11", path)
    old = "            # Draft prefill\n"
    assert old in text
    with pytest.raises(AnchorError, match="expected one `return <name>` in each branch"):
        PATCHER[path](
            text.replace(
                old, f"            if model_worker_batch is None:\n                return None\n{old}"
            )
        )


@each_release
def test_every_import_of_the_runtime_finds_its_name(version):
    for file in (PATCHES / "dynamic_disable/runtime/dynspec").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang."):
                for alias in node.names:
                    assert _defines(version, node.module, alias.name), (version, file.name, ast.unparse(node))


def _defines(version: str, module: str, name: str) -> bool:
    base = wheel_tree(version) / Path(*module.split(".")[1:])
    if base.is_dir():
        return (base / f"{name}.py").is_file() or name in _bound_in(base / "__init__.py")
    return name in _bound_in(base.with_suffix(".py"))


@functools.cache
def _bound_in(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names |= {a.asname or a.name for a in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


@pytest.fixture(scope="module")
def arguments():
    """The runtime's argument module, which needs nothing but the standard library."""
    path = PATCHES / "dynamic_disable/runtime/dynspec/arguments.py"
    spec = importlib.util.spec_from_file_location("dynspec_arguments", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@each_release
def test_every_argument_that_is_refused_is_one_of_this_release_or_not_there_yet(version, arguments):
    fields = dataclass_fields(text_of(version, "srt/server_args.py"), "ServerArgs")
    newer = {"speculative_adaptive", "enable_hisparse"}
    assert {name for name, _, _ in arguments._REFUSED} - fields <= newer


def test_the_options_parse_to_the_fields_that_the_patch_adds(arguments):
    parser = argparse.ArgumentParser()
    arguments.add_cli_arguments(parser)
    parsed = parser.parse_args(
        ["--speculative-disable-batch-threshold", "5", "--speculative-disable-draft-sync", "lazy"]
    )
    assert parsed.speculative_disable_batch_threshold == 5
    assert parsed.enable_speculative_threshold_switch is False
    fields = dataclass_fields(edit_of("0.5.11", "srt/server_args.py").after, "ServerArgs")
    assert set(vars(parsed)) <= fields
    flags = {f"--{flag}" for flag in PATCH.flags}
    assert flags == {option for action in parser._actions for option in action.option_strings} - {
        "-h",
        "--help",
    }

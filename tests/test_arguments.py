"""Arguments are judged before the node is touched: quickly by the source, with the tree's own parser as authority."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.config import load_experiment
from orchestrator.demo.node import DemoNode, NodeOptions
from orchestrator.errors import DoesNotFit
from orchestrator.model.experiment import Experiment
from orchestrator.model.facts import FileFact
from orchestrator.patchset import load_patch
from orchestrator.runner.arguments import SourceTexts
from orchestrator.runner.prepare import Prepared, connect, prepare, read_facts
from orchestrator.runner.smoke import smoke_patch_set
from orchestrator.server_flags import SERVER_ARGS as FLAGS_FILE
from tests.events import recording

SERVER_ARGS = """
import os
{imports}

class Extras:
    @staticmethod
    def extend(target):
        target.add_argument("--site-flag")


class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path", required=True)
        parser.add_argument("--port", type=int)
        parser.add_argument("--max-running-requests", type=int)
        parser.add_argument("--backend", choices=sorted(["a", "b"]))
        {more}
        Extras.extend(parser)
"""


class Tree:
    """A serving tree on this machine, with a package that has the layout of SGLang's command line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.package = folder / "site" / "sglang"
        (self.package / "srt").mkdir(parents=True)
        (self.package / "__init__.py").write_text('__version__ = "0.5.11"\n')
        (self.package / "srt" / "__init__.py").write_text("")
        self.write()

    def write(self, imports: str = "", more: str = "") -> None:
        self.write_text(SERVER_ARGS.format(imports=imports, more=more))

    def write_text(self, text: str) -> None:
        (self.package / "srt" / "server_args.py").write_text(text)

    def experiment(self, *args: str, module: str = "sglang.launch_server") -> Experiment:
        text = f"""
schema: 1
name: trial
node: {{host: local, python: {sys.executable}, cwd: {self.package.parent}, workdir: {self.folder}/work}}
server: {{port: 31999, module: {module}, args: {{model-path: models/m, max-running-requests: 8}}}}
arms:
  plain: {{}}
  other: {{args: {{{", ".join(args)}}}}}
sweep: {{concurrency: [1]}}
"""
        return load_experiment(text, name="trial.yaml").experiment


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.setenv("DYNSPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DYNSPEC_LOCK_NAME", f"dynspec-test-{tmp_path.name}-{id(tmp_path)}")
    return Tree(tmp_path)


def prepared(experiment: Experiment) -> Prepared:
    with connect(experiment) as node:
        return prepare(node, experiment, ())


def refusal(experiment: Experiment) -> str:
    with pytest.raises(DoesNotFit) as refused:
        prepared(experiment)
    assert refused.value.exit_code == 4
    return refused.value.render()


def test_a_model_that_the_node_lacks_is_named_with_its_arm(tree: Tree) -> None:
    (tree.folder / "here").mkdir()
    text = refusal(tree.experiment(f"tokenizer-path: {tree.folder}/here", "chat-template: /nowhere/t.jinja"))
    assert text.startswith("arm other: chat-template: there is no /nowhere/t.jinja\n-> write the paths")


def test_an_unknown_flag_is_named_with_its_arm_and_the_nearest_known_one(tree: Tree) -> None:
    text = refusal(tree.experiment("max-runing-requests: 4"))
    assert "arm other: unknown flag --max-runing-requests, did you mean --max-running-requests?" in text
    assert "read from the source" not in text, "the tree's own parser had the last word"


def test_files_that_a_patch_had_read_are_not_fetched_again(tree: Tree) -> None:
    experiment = tree.experiment()
    with connect(experiment) as node:
        facts = read_facts(node, experiment, [])
        assert facts.tree is not None
        path = f"{facts.tree.path}/{FLAGS_FILE}"
        (found,) = node.read_files([path])
        assert found.data is not None
        fact = FileFact(FLAGS_FILE, path, found.sha256)
        node.contents([fact])
        tree.write_text("what only a second look would see\n")
        seen = replace(facts.tree, files=(fact,))
        assert SourceTexts(node, seen).read([FLAGS_FILE]) == {FLAGS_FILE: found.data.decode()}


def test_a_refused_plan_leaves_no_work_folder(tree: Tree) -> None:
    refusal(tree.experiment("zzz: 1"))
    assert not (tree.folder / "work").exists()


def test_a_flag_that_is_gone_names_the_last_release_that_had_it(tree: Tree) -> None:
    assert "last seen in 0.5.14, gone in later releases" in refusal(tree.experiment("cuda-graph-bs: 8"))


def test_a_flag_of_a_patch_that_the_arm_lacks_names_the_patch(tree: Tree) -> None:
    text = refusal(tree.experiment("speculative-algorithm: NGRAM", "speculative-disable-batch-threshold: 4"))
    assert "the patch 'dynamic_disable' adds it, which this arm does not apply" in text


def test_the_parser_overrules_a_source_that_was_read_too_narrowly(tree: Tree) -> None:
    notes = prepared(tree.experiment("site-flag: x")).plan.warnings
    assert any(
        "own parser takes what its source seems to refuse: unknown flag --site-flag" in n for n in notes
    )


def test_without_the_parsers_dependencies_the_source_alone_refuses_and_says_so(tree: Tree) -> None:
    tree.write(imports="import torch_of_nobody")
    text = refusal(tree.experiment("max-runing-requests: 4"))
    assert "did you mean --max-running-requests?" in text
    assert "read from the source: torch_of_nobody is not installed, so the tree's parser cannot run" in text


def test_one_fault_of_several_arms_is_one_line(tree: Tree) -> None:
    experiment = tree.experiment()
    for arm in experiment.arms:
        arm.args["max-running-requests"] = "many"
    assert "arms plain, other: --max-running-requests: 'many' is not an integer" in refusal(experiment)


def test_a_broken_server_args_is_named_by_file_and_line(tree: Tree) -> None:
    tree.write_text("class ServerArgs:\n    def add_cli_args(parser:\n")
    text = refusal(tree.experiment())
    assert "SyntaxError" in text
    assert "server_args.py, line 2" in text


def test_a_tree_that_can_be_neither_read_nor_imported_is_a_note_and_no_pass(tree: Tree) -> None:
    tree.write_text("import torch_of_nobody\n")
    notes = prepared(tree.experiment()).plan.warnings
    assert any("arguments of plain, other are unchecked" in note for note in notes)


def test_arms_that_another_program_serves_are_not_judged(tree: Tree) -> None:
    assert prepared(tree.experiment("zzz: 1", module="sglang.other_server")).plan.steps


def test_what_only_the_parser_knows_is_refused_in_the_smoke_check(tree: Tree) -> None:
    experiment = tree.experiment("backend: c")
    found = prepared(experiment)
    events, seen = recording()
    with connect(experiment) as node, pytest.raises(DoesNotFit) as refused:
        smoke_patch_set(node, experiment, found.facts, found.plan.patch_sets[0], "run-1", events)
    assert (
        "arm other: the tree's own parser says: argument --backend: invalid choice: 'c'"
        in refused.value.render()
    )
    assert seen[0]["lines"][0] == "arguments of plain: parsed by the tree's own ServerArgs"


def test_arms_that_do_not_run_do_not_refuse_the_ones_that_do(tree: Tree) -> None:
    experiment = tree.experiment("backend: c")
    found = prepared(experiment)
    events, _ = recording()
    with connect(experiment) as node:
        smoke_patch_set(node, experiment, found.facts, found.plan.patch_sets[0], "run-1", events, ["plain"])


# -- on a tree made from the real release, over SSH


@pytest.fixture(scope="module")
def demo() -> Iterator[DemoNode]:
    with DemoNode(NodeOptions()) as node:
        yield node


Load = Callable[..., Experiment]


@pytest.fixture
def load(demo: DemoNode) -> Load:
    text = Path("experiments/demo.yaml").read_text()
    place = [f"node.ssh_config={demo.ssh_config}", f"node.known_hosts={demo.known_hosts}"]
    return lambda *words: load_experiment(text, name="demo.yaml", overrides=[*place, *words]).experiment


@pytest.mark.wheels
def test_the_demos_own_arguments_raise_no_objection(load: Load) -> None:
    assert not [note for note in prepared(load()).plan.warnings if "argument" in note or "--" in note]


@pytest.mark.wheels
def test_a_flag_of_the_real_release_is_judged_within_ten_seconds_of_connecting(load: Load) -> None:
    began = time.monotonic()
    text = refusal(load("arms.eagle3.args.speculative-eagle-top-k=4"))
    assert time.monotonic() - began < 10
    assert "unknown flag --speculative-eagle-top-k, did you mean --speculative-eagle-topk?" in text


@pytest.mark.wheels
def test_flags_that_a_patch_adds_are_known_to_the_arms_that_apply_it(load: Load) -> None:
    words = (
        "arms.eagle3-banner.patches=[dynamic_disable]",
        "arms.eagle3-banner.args.speculative-disable-batch-threshold=4",
    )
    assert prepared(load(*words)).plan.patch_sets


@pytest.mark.wheels
def test_a_patch_that_does_not_touch_the_worker_of_its_arm_is_refused(load: Load, tmp_path: Path) -> None:
    folder = tmp_path / "only_v1"
    folder.mkdir()
    (folder / "manifest.yaml").write_text(ONLY_V1)
    (folder / "patcher.py").write_text("def patch(path, text):\n    return text + '\\nTOUCHED = True\\n'\n")
    experiment = load("arms.eagle3-banner.patches=[only_v1]", "node.allow_unlisted=true")
    with connect(experiment) as node, pytest.raises(DoesNotFit) as refused:
        prepare(node, experiment, (), available=[load_patch(folder)])
    assert "arm eagle3-banner: only_v1 touches v1, and this server uses v2" in refused.value.render()


ONLY_V1 = """\
schema: 1
name: only_v1
summary: a patch of the older worker alone
package: sglang
workers: [v1]
flags: []
targets:
  - {path: srt/speculative/eagle_worker.py, patcher: patcher.py}
versions:
  "0.5.10":
    status: listed
    files: {srt/speculative/eagle_worker.py: "0000000000000000000000000000000000000000000000000000000000000000"}
    after: {srt/speculative/eagle_worker.py: "1111111111111111111111111111111111111111111111111111111111111111"}
"""

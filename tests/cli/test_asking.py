"""doctor and init against the embedded node, as processes of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.cli.init import draft
from orchestrator.cli.nodes import Way
from orchestrator.config import load_experiment
from orchestrator.demo.node import DemoNode, NodeOptions
from orchestrator.model.facts import Facts, Gpu, PortFact, ProcessFact, Tree
from orchestrator.model.host_key import HostKey
from tests.cli.command import Done, dynspec
from tests.sshd import free_port

DEMO = "experiments/demo.yaml"


@pytest.fixture(scope="module")
def node() -> Iterator[DemoNode]:
    with DemoNode(NodeOptions()) as running:
        yield running


def ask(node: DemoNode, command: str, *words: object) -> Done:
    way = ("--ssh-config", node.ssh_config, "--known-hosts", node.known_hosts)
    return dynspec(command, node.host, *words, *way)


def filled(text: str) -> str:
    """The lines marked `<--` as a person fills them in."""
    return text.replace("/path/to/", "/data/")


pytestmark = pytest.mark.wheels


def test_doctor_finds_the_interpreter_that_serves_and_what_fits_it(node: DemoNode) -> None:
    done = ask(node, "doctor")
    assert done.code == 0, done.err
    assert "1 x Simulated H200" in done.out
    assert "0.5.11 at" in done.out
    assert "patch dynamic_disable  fits" in done.out
    assert done.out.splitlines()[-1] == "-> in an experiment: node.python: ~/venv/bin/python3"


def test_doctor_for_programs_has_the_same_findings_and_all_facts(node: DemoNode) -> None:
    found = ask(node, "doctor", "--python", "~/venv/bin/python3", "--json").value
    assert found["exit_code"] == 0
    assert {item["state"] for item in found["findings"]} == {"ok"}
    assert found["patches"]["spec_banner"]["state"] == "fits"
    assert found["facts"]["tree"]["version"] == "0.5.11"


def test_doctor_with_an_experiment_judges_each_arm(node: DemoNode, tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text(Path(DEMO).read_text().replace("speculative-eagle-topk", "speculative-eagle-top-k"))
    done = ask(node, "doctor", broken)
    assert done.code == 4
    assert "ok   arm baseline" in done.out
    assert "NO   arms eagle3, eagle3-banner" in done.out
    assert "did you mean --speculative-eagle-topk?" in done.out


def test_doctor_names_an_interpreter_that_would_do_where_the_named_one_does_not(node: DemoNode) -> None:
    done = ask(node, "doctor", "--python", "/nowhere/python3")
    assert done.code == 4
    assert "NO   sglang" in done.out
    assert "-> in an experiment: node.python: ~/venv/bin/python3" in done.out


KEY = HostKey("ssh-ed25519", b"\0\0\0\x0bssh-ed25519")
PRESET = """\
arms:
  preset: speculation
  args: {speculative-algorithm: EAGLE3, speculative-draft-model-path: /models/d, speculative-num-steps: 3,
         speculative-eagle-topk: 1, speculative-num-draft-tokens: 4, speculative-disable-batch-threshold: 5}

"""


def test_doctor_changes_nothing_on_the_node_and_a_preset_goes_without_what_it_lacks(
    node: DemoNode, tmp_path: Path
) -> None:
    def files() -> set[tuple[str, int]]:
        return {(str(path), path.lstat().st_mtime_ns) for path in node.package.rglob("*")}

    before = files()
    preset = tmp_path / "preset.yaml"
    text = re.sub(r"(?ms)^arms:$.*?(?=^\S)", PRESET, Path(DEMO).read_text())
    preset.write_text(re.sub(r"(?m)^(\s+port:) \d+", rf"\1 {free_port()}", text))  # others may hold that one
    judged = ask(node, "doctor", preset)
    assert judged.code == 0, judged.out + judged.err
    assert re.search(
        r"note +arms native, native-skip +left out, since adaptive speculation of SGLang", judged.out
    )
    assert ": nothing to stop: no open journal" in ask(node, "stop").out
    assert files() == before
    assert not list((node.home / ".dynspec").glob("runs/*"))


def test_init_writes_an_experiment_that_validates_and_plans(node: DemoNode, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    done = ask(node, "init", "-o", path)
    assert done.code == 0, done.err
    assert "server.args.model-path" in done.out
    unfilled = dynspec("validate", path)
    assert unfilled.code == 2
    assert unfilled.err.count("only keeps the place") == 2
    path.write_text(filled(path.read_text()))
    assert dynspec("validate", path).code == 0
    planned = dynspec("plan", path, "--set", f"server.port={free_port()}")
    assert planned.code == 0, planned.err
    assert "~/venv/bin/python3" in path.read_text()


def test_init_replaces_no_file_unasked(node: DemoNode, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("precious")
    done = ask(node, "init", "-o", path)
    assert done.code == 2
    assert path.read_text() == "precious"


# -- what init makes of other nodes

BASE = Facts(
    host="gpu01", user="ann", uid=1000, home="/home/ann", kernel="6.1", boot_id="b", agent_python="3.11.2",
    cpu_count=64, memory_mib=10**6, disk_free_mib=10**6, gpus=(), gpu_problem=None, holders=(),
    port=PortFact(30000, False), tree=None, tree_problem="LookupError: no package", tree_processes=(), lock=None,
    journals=(),
)  # fmt: skip


def with_facts(**change: object) -> Facts:
    return Facts(**{**{name: getattr(BASE, name) for name in BASE.__dataclass_fields__}, **change})


def test_a_node_that_serves_gives_its_model_its_gpus_and_a_free_port() -> None:
    command = "/v/bin/python3 -m sglang.launch_server --model-path /shared/kimi --tp 8"
    facts = with_facts(
        gpus=tuple(Gpu(i, f"u{i}", "NVIDIA B200", 190000, 0, "570") for i in range(8)),
        tree_processes=(ProcessFact(9, 1, "ann", 1000, command, 60.0),),
        port=PortFact(30000, True, 9),
        tree=Tree("sglang", "/v/sglang", "0.5.11", False, "/v/bin/python3", "3.12.1"),
    )
    made = draft(Way("ann@gpu01:2222", None, None, None), facts, "/v/bin/python3", "~")
    experiment = load_experiment(filled(made.text), name="draft").experiment
    assert experiment.server.args["model-path"] == "/shared/kimi"
    assert (experiment.server.args["tp"], experiment.server.port) == (8, 30001)
    assert experiment.node.host == "ann@gpu01:2222"
    assert made.left == ("arms.eagle3.args.speculative-draft-model-path",)
    assert "#   dynspec schema -o dynspec.schema.json\n" in made.text


@pytest.mark.parametrize("name", ["local", "no", "10.0.0.5", "node:22", 'quo"te'])
def test_whatever_the_node_is_called_the_draft_is_valid(name: str) -> None:
    made = draft(Way(name, "/x y/config", None, str(KEY)), BASE, None, "/data: x")
    node = load_experiment(filled(made.text), name="draft").experiment.node
    assert (node.host, node.cwd, node.ssh_config) == (name, "/data: x", "/x y/config")
    assert "node.python" in made.left

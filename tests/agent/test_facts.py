"""What the node is: the tree that would be served, its files, ports, locks; unknown is said, never guessed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from orchestrator.agent.tree import SIMULATED_ENGINE
from orchestrator.model.facts import Facts
from tests.agent.client import Client, Refused, eventually, sha
from tests.agent.conftest import BANNER, Node

BASE_PYTHON = os.path.realpath(sys.executable)


@pytest.fixture
def client(node: Node) -> Client:
    return node.client()


def facts(node: Node, client: Client, **args: Any) -> dict[str, Any]:
    asked = {
        "python": sys.executable,
        "cwd": str(node.site),
        "env": {},
        "package": "toy",
        "files": ["banner.py"],
        "port": 1,
        "workdir": str(node.workdir),
        "gpus": "all",
    }
    return client.ask("facts", **{**asked, **args})


@pytest.fixture
def venv(node: Node) -> Path:
    """An interpreter with site-packages of its own; the toy package is installed there."""
    folder = node.folder / "venv"
    subprocess.run([BASE_PYTHON, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next(folder.glob("lib/python3*/site-packages"))
    shutil.copytree(node.package, site / "toy")
    meta = site / "toy-9.9.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 9.9\n")
    return folder


def test_the_answer_is_the_controllers_facts_with_no_field_too_few(node: Node, client: Client) -> None:
    told = facts(node, client)
    read = TypeAdapter(Facts).validate_python(told)
    assert set(told) == set(Facts.__dataclass_fields__)
    assert read.tree is not None
    assert read.tree.files[0].sha256 == sha(BANNER)
    assert read.port.in_use is False
    assert read.gpu_problem is None
    assert read.problems == ()


def test_paths_that_nothing_lies_at_are_named_in_the_same_answer(node: Node, client: Client) -> None:
    here, link = str(node.site), node.folder / "link"
    link.symlink_to("/nowhere/model")
    asked = [
        here,
        f"{here}/none",
        str(link),
        f"{sys.executable}/below-a-file",
        str(node.package / "banner.py"),
    ]
    assert facts(node, client, paths=asked)["absent"] == asked[1:4]


def test_a_stand_in_beside_the_package_is_seen(node: Node, client: Client) -> None:
    assert facts(node, client)["tree"]["simulated"] is False
    (node.site / SIMULATED_ENGINE).mkdir()
    assert facts(node, client)["tree"]["simulated"] is True


def test_they_are_fast(node: Node, client: Client) -> None:
    client.ask("hello")
    before = time.monotonic()
    facts(node, client)
    assert time.monotonic() - before < 5  # a quarter of a second on a machine of its own


# -- which copy is served


def test_the_copy_in_the_launch_folder_wins_over_the_installed_one(
    node: Node, client: Client, venv: Path
) -> None:
    installed = next(venv.glob("lib/python3*/site-packages"))
    python = str(venv / "bin" / "python3")
    here = facts(node, client, python=python, cwd=str(node.site))["tree"]
    assert (here["path"], here["version"], here["editable"]) == (str(node.package), "1.2.3", True)
    there = facts(node, client, python=python, cwd=str(node.folder))["tree"]
    assert (there["path"], there["editable"]) == (str(installed / "toy"), False)
    assert there["python"] == python


def test_metadata_of_a_shadowed_copy_gives_no_version(node: Node, client: Client, venv: Path) -> None:
    python = str(venv / "bin" / "python3")
    (node.package / "__init__.py").write_text("")
    assert facts(node, client, python=python)["tree"]["version"] is None
    for init in venv.glob("lib/python3*/site-packages/toy/__init__.py"):
        init.write_text("")
    assert facts(node, client, python=python, cwd=str(node.folder))["tree"]["version"] == "9.9"


def test_an_editable_install_is_found_through_its_hook(node: Node, client: Client, venv: Path) -> None:
    site = next(venv.glob("lib/python3*/site-packages"))
    shutil.rmtree(site / "toy")
    (site / "toy.pth").write_text(str(node.site) + "\n")
    found = facts(node, client, python=str(venv / "bin" / "python3"), cwd=str(node.folder))["tree"]
    assert (found["path"], found["editable"]) == (str(node.package), True)


def test_the_environment_of_the_launch_decides(node: Node, client: Client) -> None:
    found = facts(node, client, cwd=str(node.folder), env={"PYTHONPATH": str(node.site)})
    assert found["tree"]["path"] == str(node.package)
    lost = facts(node, client, cwd=str(node.folder))
    assert lost["tree"] is None
    assert "does not find a package 'toy'" in lost["tree_problem"]


def test_start_files_that_print_do_not_disturb(node: Node, client: Client, venv: Path) -> None:
    site = next(venv.glob("lib/python3*/site-packages"))
    (site / "noise.pth").write_text("import sys; sys.stdout.write('hello from a start file')\n")
    assert facts(node, client, python=str(venv / "bin" / "python3"))["tree"] is not None


@pytest.mark.parametrize("python", ["/nowhere/python3", "~/nowhere", "no-such-python"])
def test_a_missing_interpreter_is_a_problem_of_the_tree(node: Node, client: Client, python: str) -> None:
    told = facts(node, client, python=python)
    assert told["tree"] is None
    assert "cannot run the interpreter" in told["tree_problem"]


def test_a_missing_folder_is_a_problem_of_the_tree(node: Node, client: Client) -> None:
    assert "/nowhere" in facts(node, client, cwd="/nowhere")["tree_problem"]


def test_home_is_expanded(node: Node, client: Client) -> None:
    assert facts(node, client, cwd="~/site", workdir="~/work")["tree"]["path"] == str(node.package)


# -- files


def test_files_are_told_as_they_are(node: Node, client: Client) -> None:
    node.banner.chmod(0o640)
    os.link(node.banner, node.folder / "twin.py")
    link = node.package / "link.py"
    link.symlink_to("banner.py")
    banner, linked, missing = facts(node, client, files=["banner.py", "link.py", "sub/none.py"])["tree"][
        "files"
    ]
    assert (banner["mode"], banner["nlink"], banner["size"], banner["symlink"]) == (
        0o640,
        2,
        len(BANNER),
        None,
    )
    assert (linked["symlink"], linked["absolute"], linked["sha256"]) == (
        "banner.py",
        str(node.banner),
        sha(BANNER),
    )
    assert (missing["sha256"], missing["absolute"]) == (None, str(node.package / "sub" / "none.py"))
    assert missing["writable"]


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "sub/../../x", ""])
def test_a_path_that_leaves_the_package_is_refused(node: Node, client: Client, name: str) -> None:
    with pytest.raises(Refused) as refused:
        facts(node, client, files=[name])
    assert refused.value.code == "bad_request"


def test_a_folder_in_the_place_of_a_file_is_a_problem(node: Node, client: Client) -> None:
    told = facts(node, client, files=["sub"])
    assert told["tree"] is None
    assert "not a regular file" in told["tree_problem"]


# -- who is there


def test_a_port_in_use_names_its_holder(node: Node, client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = facts(node, client, port=listener.getsockname()[1])["port"]
    assert port["in_use"]
    assert port["pid"] == os.getpid()


@pytest.fixture
def serving(node: Node) -> Iterator[subprocess.Popen[bytes]]:
    """Somebody else's server from this tree."""
    (node.package / "launch.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(300)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "toy.launch"], cwd=node.site, env=node.environ, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()


def test_a_foreign_server_from_the_tree_is_named(
    node: Node, client: Client, serving: subprocess.Popen[bytes]
) -> None:
    found = facts(node, client)["tree_processes"]
    assert [process["pid"] for process in found] == [serving.pid]
    assert "toy.launch" in found[0]["command"]


def serving_by_path(
    node: Node, client: Client, folder: Path, before: Sequence[str] = (), cwd: str = "/"
) -> bool:
    """Whether a process that finds the package in `folder` by its PYTHONPATH counts as serving from the node's tree."""
    code = "import time, toy; print('up', flush=True); time.sleep(300)  # toy"
    process = subprocess.Popen(
        [*before, sys.executable, "-c", code],
        cwd=cwd,
        env={**node.environ, "PYTHONPATH": f"nowhere:/absent:{folder}"},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"up\n"
        return [item["pid"] for item in facts(node, client)["tree_processes"]] == [process.pid]
    finally:
        process.kill()
        process.wait()


def test_a_server_is_known_by_the_search_path_that_leads_to_the_tree(node: Node, client: Client) -> None:
    assert serving_by_path(node, client, node.site)


def test_a_server_of_another_copy_under_the_same_interpreter_is_no_obstacle(
    node: Node, client: Client, tmp_path: Path
) -> None:
    shutil.copytree(node.package, tmp_path / "copy" / "toy")
    assert not serving_by_path(node, client, tmp_path / "copy")


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount of one's own needs root")
def test_a_server_that_sees_another_folder_at_the_same_path_is_no_obstacle(
    node: Node, client: Client, tmp_path: Path
) -> None:
    shutil.copytree(node.package, tmp_path / "copy" / "toy")
    mount = f'mount --bind {tmp_path}/copy {node.site} && exec "$@"'
    inside = ["unshare", "--mount", "sh", "-c", mount, "sh"]
    assert not serving_by_path(node, client, node.site, inside)


def test_an_editor_on_the_tree_is_no_server(node: Node, client: Client) -> None:
    editor = subprocess.Popen(["/bin/sh", "-c", f"sleep 300 # {node.banner}"])
    try:
        assert facts(node, client)["tree_processes"] == []
    finally:
        editor.kill()
        editor.wait()


def test_our_own_server_is_not_foreign(node: Node, client: Client) -> None:
    node.guard(client)
    (node.package / "launch.py").write_text("import time\ntime.sleep(300)\n")
    pid = node.start(client, "", argv=[sys.executable, "-m", "toy.launch"], cwd=str(node.site))["pid"]
    eventually(lambda: b"toy.launch" in Path(f"/proc/{pid}/cmdline").read_bytes())
    told = facts(node, client)
    assert told["tree_processes"] == []
    assert told["lock"]["run_id"] == "run-1"
    assert [(item["state"], item["server_pid"]) for item in told["journals"]] == [("live", pid)]


def test_a_missing_tool_answer_is_a_gpu_problem(node: Node, client: Client) -> None:
    node.fake_tool("echo broken; exit 9")
    told = facts(node, client)
    assert told["gpus"] == []
    assert "exit status 9" in told["gpu_problem"]


def test_a_work_folder_that_cannot_be_written_is_a_problem(node: Node, client: Client) -> None:
    told = facts(node, client, workdir=str(node.banner / "work"))
    assert told["problems"] == [f"{node.banner} is in the way: not a folder"]

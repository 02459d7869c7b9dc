"""The smoke check: in an overlay that no live server sees, through the interpreter that will serve."""

from __future__ import annotations

import os
import py_compile
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.agent.client import Client, Refused, sha, z
from tests.agent.conftest import Node

GOOD = b'BANNER = "patched"\n'


@pytest.fixture
def client(node: Node) -> Client:
    return node.client()


def smoke(node: Node, client: Client, files: dict[str, bytes | None], modules: list[str], **args: Any) -> Any:
    asked = {
        "workdir": str(node.workdir),
        "run_id": "run-1",
        "python": sys.executable,
        "cwd": str(node.site),
        "env": {},
        "package": "toy",
        "package_path": str(node.package),
        "files": [{"path": path, "z": None if data is None else z(data)} for path, data in files.items()],
        "modules": modules,
        "timeout_s": 20,
    }
    return client.ask("smoke", **{**asked, **args})


def one_import(node: Node, client: Client, text: bytes, **args: Any) -> Any:
    return smoke(node, client, {"banner.py": text}, ["toy.banner"], **args)["imports"][0]


def inodes(node: Node) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_ino, path.lstat().st_mtime_ns) for path in node.package.rglob("*")}


def test_the_patched_file_is_loaded_and_the_tree_stays_untouched(node: Node, client: Client) -> None:
    before = inodes(node)
    reply = smoke(
        node, client, {"banner.py": GOOD, "sub/worker.py": b"from toy import banner\n"}, ["toy.sub.worker"]
    )
    assert reply["compile"] == [
        {"path": "banner.py", "ok": True, "error": None},
        {"path": "sub/worker.py", "ok": True, "error": None},
    ]
    loaded = reply["imports"][0]
    assert (loaded["state"], loaded["file"]) == ("loaded", "sub/worker.py")
    assert loaded["sha256"] == sha(b"from toy import banner\n")
    assert inodes(node) == before, "not even bytecode was written"
    assert not node.workdir.exists()


def test_the_overlay_wins_even_when_the_package_lies_in_the_launch_folder(node: Node, client: Client) -> None:
    assert one_import(node, client, GOOD)["sha256"] == sha(GOOD)


def test_untouched_neighbours_are_the_real_ones(node: Node, client: Client) -> None:
    node.worker.write_bytes(b"VALUE = 41\n")
    text = b"from toy.sub.worker import VALUE\nassert VALUE == 41\nimport toy\nassert toy.__version__ == '1.2.3'\n"
    assert one_import(node, client, text)["state"] == "loaded"


def test_bytecode_of_untouched_neighbours_is_used_and_that_of_a_touched_file_is_not(
    node: Node, client: Client
) -> None:
    neighbour = node.package / "sub" / "neighbour.py"
    neighbour.write_text("FROM = 'bytecode'\n")
    py_compile.compile(str(neighbour))
    stamp = neighbour.stat()
    neighbour.write_text("FROM = 'a source'\n")  # of the same size and time: Python takes the bytecode
    os.utime(neighbour, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    py_compile.compile(str(node.package / "sub" / "worker.py"))
    before = inodes(node)
    text = b"from toy.sub import neighbour\nassert neighbour.FROM == 'bytecode'\n"
    loaded = smoke(node, client, {"sub/worker.py": text}, ["toy.sub.worker"])["imports"][0]
    assert (loaded["state"], loaded["sha256"]) == ("loaded", sha(text)), loaded
    assert inodes(node) == before


def test_a_syntax_error_names_file_and_line(node: Node, client: Client) -> None:
    reply = smoke(node, client, {"banner.py": b"x = 1\ndef f(:\n"}, ["toy.banner"])
    assert reply["compile"][0]["ok"] is False
    assert reply["compile"][0]["error"].startswith("banner.py, line 2:")
    assert reply["imports"][0]["state"] == "failed"


def test_an_error_at_import_is_told_with_its_place(node: Node, client: Client) -> None:
    failed = one_import(node, client, b"x = 1\nraise RuntimeError('no GPU kernel')\n")
    assert failed["state"] == "failed"
    assert "RuntimeError: no GPU kernel" in failed["error"]
    assert "line 2" in failed["error"]


def test_a_dependency_that_the_node_lacks_is_not_possible_by_name(node: Node, client: Client) -> None:
    node.banner.write_bytes(b"import no_such_torch\n")
    missing = one_import(node, client, b"import no_such_torch\nx = 1\n")
    assert (missing["state"], missing["missing"]) == ("not_possible", "no_such_torch")


def test_a_dependency_that_an_untouched_module_lacks_is_not_possible_either(
    node: Node, client: Client
) -> None:
    node.worker.write_bytes(b"import no_such_torch\n")
    missing = one_import(node, client, b"import toy.sub.worker\n")
    assert (missing["state"], missing["missing"]) == ("not_possible", "no_such_torch")


def test_a_module_that_only_the_patch_asks_for_fails(node: Node, client: Client) -> None:
    failed = one_import(node, client, b"import no_such_helper\n")
    assert (failed["state"], failed["missing"]) == ("failed", None)


def test_a_module_of_the_package_itself_that_is_missing_fails(node: Node, client: Client) -> None:
    assert one_import(node, client, b"import toy.no_such_part\n")["state"] == "failed"


def test_a_shared_library_that_is_missing_is_not_possible(node: Node, client: Client) -> None:
    text = b"raise ImportError('libcuda.so.1: cannot open shared object file: No such file or directory')\n"
    assert one_import(node, client, text)["missing"] == "libcuda.so.1"


def test_warnings_stand_apart_and_fail_nothing(node: Node, client: Client) -> None:
    text = b"import warnings\nwarnings.warn('cuda.cudart is deprecated', FutureWarning)\nprint('noise')\n"
    reply = smoke(node, client, {"banner.py": text}, ["toy.banner"])
    assert reply["imports"][0]["state"] == "loaded"
    assert len(reply["warnings"]) == 1
    assert reply["warnings"][0].startswith("FutureWarning: cuda.cudart is deprecated")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"import os\nos._exit(3)\n", "status 3"),
        (b"import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", "status -11"),
        (b"import sys\nsys.exit('leaving')\n", "SystemExit: leaving"),
    ],
)
def test_an_import_that_ends_the_interpreter_fails_and_the_rest_is_not_called_tried(
    node: Node, client: Client, text: bytes, says: str
) -> None:
    first, second = smoke(node, client, {"banner.py": text}, ["toy.banner", "toy.sub.worker"])["imports"]
    assert first["state"] == "failed"
    assert says in first["error"]
    if "SystemExit" not in says:
        assert second["error"].startswith("not tried")


def test_an_interpreter_that_dies_at_its_start_fails_every_file(node: Node, client: Client) -> None:
    (node.site / "json.py").write_text("raise SystemExit('shadowed')\n")
    reply = smoke(node, client, {"banner.py": GOOD, "sub/worker.py": b""}, [])
    assert [item["ok"] for item in reply["compile"]] == [False, False]
    assert "shadowed" in reply["compile"][0]["error"]


def test_an_import_that_hangs_ends_with_the_limit_and_leaves_no_process(node: Node, client: Client) -> None:
    text = b"import subprocess\nsubprocess.Popen(['sleep', '300'], close_fds=False)\nimport time\ntime.sleep(300)\n"
    before = time.monotonic()
    hung = one_import(node, client, text, timeout_s=1)
    assert hung["state"] == "failed"
    assert "no end within 1 s" in hung["error"]
    assert time.monotonic() - before < 20
    assert [pid for pid in node.processes() if b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()] == []


def test_threads_that_an_import_started_do_not_hold_it_up(node: Node, client: Client) -> None:
    text = b"import threading, time\nthreading.Thread(target=time.sleep, args=(300,)).start()\n"
    assert one_import(node, client, text)["state"] == "loaded"


def test_a_file_that_is_added_in_a_new_folder_and_one_that_is_removed(node: Node, client: Client) -> None:
    files = {"fresh/__init__.py": b"", "fresh/part.py": b"import importlib.util as u\n"
             b"assert u.find_spec('toy.banner') is None\n", "banner.py": None}  # fmt: skip
    reply = smoke(node, client, files, ["toy.fresh.part"])
    assert reply["imports"][0]["state"] == "loaded"
    assert node.banner.exists()
    assert not (node.package / "fresh").exists()


def test_the_overlay_is_not_seen_by_the_next_import_of_the_tree(node: Node, client: Client) -> None:
    smoke(node, client, {"banner.py": GOOD}, ["toy.banner"])
    assert list(node.package.rglob("__pycache__")) == []


@pytest.mark.parametrize("path", ["../x.py", "/etc/x.py", "a//b.py", "sub/../banner.py"])
def test_a_path_that_leaves_the_package_is_refused(node: Node, client: Client, path: str) -> None:
    with pytest.raises(Refused) as refused:
        smoke(node, client, {path: b""}, [])
    assert refused.value.code == "bad_request"


def test_a_missing_interpreter_is_an_error_and_not_a_pass(node: Node, client: Client) -> None:
    with pytest.raises(Refused) as refused:
        smoke(node, client, {"banner.py": GOOD}, ["toy.banner"], python="/nowhere/python3")
    assert refused.value.code == "not_found"


def test_links_in_the_package_are_never_followed_when_the_overlay_goes(node: Node, client: Client) -> None:
    outside = node.folder / "outside"
    outside.mkdir()
    (outside / "data.bin").write_bytes(b"precious")
    (node.package / "data").symlink_to(outside)
    smoke(node, client, {"banner.py": GOOD}, ["toy.banner"])
    assert (outside / "data.bin").read_bytes() == b"precious"
    assert os.readlink(node.package / "data") == str(outside)

"""The command that starts the agent, run by every login shell that is here, and the bytes that follow it."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from orchestrator.remote.bootstrap import (
    AGENT_MARKER,
    BOOT_MARKER,
    FAIL_MARKER,
    FETCH_MARKER,
    Blob,
    Boot,
    boot_command,
    fetch_command,
    marked,
    upload,
)
from tests.remote.stub import STUB

SHELLS = ["sh", "bash", "dash", "zsh", "fish", "csh", "tcsh"]
OTHER = Blob.of("loadgen", b"print('load')\n")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def run(
    command: str, home: Path, stdin: bytes = b"", shell: str = "sh", path: str | None = None
) -> list[bytes]:
    """Lines of stdout of `command` as a login shell on the node would run it."""
    env = {"HOME": str(home), "PATH": path or os.environ["PATH"]}
    done = subprocess.run(
        [shutil.which(shell), "-c", command], input=stdin, capture_output=True, env=env, timeout=30
    )
    return done.stdout.splitlines()


def boot_of(lines: list[bytes]) -> Boot:
    (boot,) = filter(None, map(Boot.parse, lines))
    return boot


def failure(lines: list[bytes]) -> dict:
    (value,) = (marked(line, FAIL_MARKER) for line in lines if line.startswith(FAIL_MARKER))
    return value


def shell_or_skip(shell: str) -> str:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    return shell


def python_at(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\nexport VIA="$0"\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("shell", SHELLS)
def test_every_login_shell_starts_the_agent_and_leaves_its_stdin_whole(shell: str, home: Path) -> None:
    request = b'{"id": 1, "verb": "environment", "args": {}}\n'
    lines = run(boot_command(), home, upload([STUB, OTHER], STUB) + request, shell_or_skip(shell))
    boot = boot_of(lines)
    assert boot.have == frozenset()
    assert boot.home == f"{home}/.dynspec"
    assert boot.python == ".".join(map(str, sys.version_info[:3]))
    assert any(line.startswith(AGENT_MARKER) for line in lines)
    assert json.loads(lines[-1])["ok"]["flags"] == [1, 1]
    for blob in (STUB, OTHER):
        file = home / ".dynspec/agent" / blob.name
        assert file.read_bytes() == blob.data
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE((home / ".dynspec").stat().st_mode) == 0o700


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    "name",
    [
        "plain/python3",
        "with blank/python 3",
        "it's/python3",
        'quo"ted/python3',
        "dollar$HOME`id`/python3",
        "back\\slash\\n/python3",
        "bang!x/py!",
        "star*?[a]/python3",
        "semi;&|<>(){}/python3",
        "umlaut-é/python3",
        "per%cent%s/python3",
        "tilde~/python3",
    ],
)
def test_an_interpreter_of_any_name_is_taken_as_it_is_spelled(shell: str, name: str, home: Path) -> None:
    python = python_at(home / name)
    program = b"import os; print('VIA', os.environ['VIA'])"
    agent = Blob.of("agent", program)
    lines = run(boot_command(f"~/{name}"), home, upload([agent], agent), shell_or_skip(shell))
    assert f"VIA {python}".encode() in lines


def test_an_absolute_interpreter_is_taken_as_it_is(home: Path) -> None:
    python = python_at(home / "a b/python3")
    agent = Blob.of("agent", b"import os; print('VIA', os.environ['VIA'])")
    assert f"VIA {python}".encode() in run(boot_command(str(python)), home, upload([agent], agent))


def test_files_that_are_there_are_not_sent_again(home: Path) -> None:
    run(boot_command(), home, upload([STUB, OTHER], STUB))
    boot = boot_of(run(boot_command(), home))
    assert boot.has(STUB)
    assert boot.has(OTHER)
    again = upload([], STUB)
    assert again == json.dumps({"blobs": [], "run": STUB.name}).encode() + b"\n"
    assert any(line.startswith(AGENT_MARKER) for line in run(boot_command(), home, again))


def test_files_may_be_stored_without_starting_anything(home: Path) -> None:
    lines = run(boot_command(), home, upload([OTHER], None))
    assert [line for line in lines if line.startswith((AGENT_MARKER, FAIL_MARKER))] == []
    assert boot_of(run(boot_command(), home)).has(OTHER)


def test_a_file_that_was_damaged_on_the_node_is_not_reported_and_is_replaced(home: Path) -> None:
    run(boot_command(), home, upload([STUB], STUB))
    file = home / ".dynspec/agent" / STUB.name
    file.write_bytes(STUB.data[:-1])
    assert not boot_of(run(boot_command(), home)).has(STUB)
    run(boot_command(), home, upload([STUB], STUB))
    assert file.read_bytes() == STUB.data


def test_bytes_that_arrive_damaged_are_refused_and_leave_nothing(home: Path) -> None:
    sent = upload([STUB], STUB)
    assert "arrived damaged" in failure(run(boot_command(), home, sent[:-1] + b"?"))["message"]
    assert list((home / ".dynspec/agent").iterdir()) == []


def test_a_name_that_leads_out_of_the_folder_is_refused(home: Path) -> None:
    data = b"evil"
    name = f"../../x-{hashlib.sha256(data).hexdigest()[:16]}.pyz"
    assert (
        "arrived damaged" in failure(run(boot_command(), home, upload([Blob(name, data)], STUB)))["message"]
    )
    assert sorted(path.name for path in home.iterdir()) == [".dynspec"]


def test_an_upload_that_breaks_off_leaves_nothing(home: Path) -> None:
    run(boot_command(), home, upload([STUB], STUB)[:-10])
    assert list((home / ".dynspec/agent").iterdir()) == []


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_home_that_cannot_be_written_is_said(home: Path) -> None:
    home.chmod(0o500)
    assert "Permission" in failure(run(boot_command(), home))["message"]


def test_a_home_that_is_no_folder_is_said(home: Path) -> None:
    (home / ".dynspec").write_text("")
    assert failure(run(boot_command(), home))["message"] == f"Not a directory: {home}/.dynspec/agent"


def test_the_registry_can_be_elsewhere(home: Path, tmp_path: Path) -> None:
    env = {"HOME": str(home), "PATH": os.environ["PATH"], "DYNSPEC_HOME": str(tmp_path / "elsewhere")}
    done = subprocess.run(["sh", "-c", boot_command()], input=b"", capture_output=True, env=env)
    assert boot_of(done.stdout.splitlines()).home == str(tmp_path / "elsewhere")


def empty_path(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("sh", "printf", "test"):
        (folder / tool).symlink_to(shutil.which(tool))
    return folder


def test_a_node_without_python_says_so_by_an_empty_failure(home: Path, tmp_path: Path) -> None:
    command = (
        boot_command("/opt/none/python")
        .replace("/usr/bin/python3", "/x/p")
        .replace("/usr/local/bin/python3", "/x/p")
    )
    assert failure(run(command, home, path=str(empty_path(tmp_path)))) == {}


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.7", ""])
def test_a_python_that_is_too_old_is_passed_over_for_one_under_another_name(
    version: str, home: Path, tmp_path: Path
) -> None:
    folder = empty_path(tmp_path)
    if version:
        (folder / "python3").symlink_to(installed_python(version))
    else:  # none here to show it: what such a Python does with the command is leave with 99
        (folder / "python3").write_text("#!/bin/sh\nexit 99\n")
        (folder / "python3").chmod(0o755)
    (folder / "python3.9").symlink_to(sys.executable)
    assert boot_of(run(boot_command(), home, path=str(folder))).python == ".".join(
        map(str, sys.version_info[:3])
    )


def test_the_oldest_python_that_is_promised_runs_it(home: Path) -> None:
    lines = run(boot_command(str(installed_python("3.8"))), home, upload([STUB], STUB))
    assert boot_of(lines).python.startswith("3.8.")
    assert any(line.startswith(AGENT_MARKER) for line in lines)


def installed_python(version: str) -> Path:
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    name = shutil.which(f"python{version}")
    if not found and name is None:
        pytest.skip(f"no Python {version} on this machine")
    return found[0] if found else Path(str(name))


def test_the_program_for_the_node_is_python_3_8() -> None:
    source = files("orchestrator.remote").joinpath("boot_node.py").read_text()
    assert ast.parse(source, feature_version=(3, 8))


def test_the_version_is_checked_before_anything_that_an_old_python_cannot_read() -> None:
    assert '-c "import sys; sys.version_info >= (3, 8) or sys.exit(99); ' in boot_command()


def test_modules_in_the_home_folder_do_not_come_in_between(home: Path) -> None:
    for name in ("base64", "zlib", "json", "hashlib"):
        (home / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    assert boot_of(run(f"cd {home}; export PYTHONPATH={home}; {boot_command()}", home))


@pytest.mark.parametrize("shell", SHELLS)
def test_start_files_that_print_do_not_hide_the_first_words(shell: str, home: Path) -> None:
    lines = run("printf 'no newline'; " + boot_command(), home, shell=shell_or_skip(shell))
    assert lines[0] == b"no newline"
    assert boot_of(lines)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_second_channel_starts_the_same_agent_after_a_marker(
    shell: str, home: Path, tmp_path: Path
) -> None:
    odd = tmp_path / "it's $HOME!"
    odd.mkdir()
    agent = odd / STUB.name
    agent.write_bytes(STUB.data)
    lines = run(fetch_command(sys.executable, str(agent)), home, b'{"files": []}\n', shell_or_skip(shell))
    assert lines[-1] == FETCH_MARKER


def test_a_blob_is_named_for_its_content() -> None:
    assert Blob.of("agent", b"x").name == f"agent-{hashlib.sha256(b'x').hexdigest()[:16]}.pyz"


@pytest.mark.parametrize(
    "line", [b"", b"hello", BOOT_MARKER, BOOT_MARKER + b"[]", BOOT_MARKER + b"{", b" " + BOOT_MARKER]
)
def test_what_is_no_boot_line_is_noise(line: bytes) -> None:
    assert Boot.parse(line) is None

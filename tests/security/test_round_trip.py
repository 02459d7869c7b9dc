"""Words, variables and paths with anything in them go through a real sshd and arrive byte for byte; no shell, no locale
and no quoting on the way makes something else of them."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.agent import pack
from orchestrator.errors import RemoteError
from orchestrator.remote.bootstrap import Blob
from orchestrator.remote.fetch import FetchFile
from orchestrator.remote.node import Node
from tests.conftest import require_sshd
from tests.fuzz.budget import fuzzed
from tests.sshd import Sshd, free_port

pytestmark = pytest.mark.sshd

BLOBS = [Blob(pack.name(), pack.build_zipapp())]
RUN = "run-1"
# What the child got, as the kernel has it: nothing of Python's decoding is in between.
TELL = """\
import os, sys
argv, environ = (open("/proc/self/" + name, "rb").read() for name in ("cmdline", "environ"))
with open(sys.argv[1] + ".new", "wb") as stream:
    stream.write(len(argv).to_bytes(8, "big") + argv + environ)
os.rename(sys.argv[1] + ".new", sys.argv[1])
"""
HOSTILE = [
    "", " ", "-", "--", "-rf", "--x=$(id)", "~", "~/x", "~root", "$HOME", "${HOME}", "`id`", "$(id)",
    "a b", "a\tb", "a\nb", "\n", "\r\n", "'", '"', "''", "\\", "\\\\", "\\n", "\\'", "a'b\"c\\d", "!",
    "!!", "#", "&", "|", ";", "*", "?", "[a]", "{a,b}", "<x", ">x", "%s", "%n", "é", "日本語", "\U0001f600",
    "e\u0301", "\u2028", "\ufeff", "\x01", "\x1b[31m", "\x7f", "\u202e", "a=b", "=", "x" * 20_000,
]  # fmt: skip
WORDS = st.sampled_from(HOSTILE) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30
)
NAMES = st.sampled_from(["LOWER_case", "WITH SPACE", "é", "-x", "a'b", "BASH_FUNC_x%%", "x\ny"]) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0="), min_size=1, max_size=10
).filter(
    lambda name: not name.startswith("DYNSPEC_") and name not in ("PYTHONUNBUFFERED", "LOCPATH", "LC_ALL")
)
FOLDERS = [
    "-rf",
    "a b",
    "it's",
    'say "x"',
    "$HOME",
    "`id`",
    "back\\slash",
    "new\nline",
    "日本語",
    "~",
    "#;&|*?[]{}<>()!%",
]


def latin1(folder: Path) -> dict[str, str] | None:
    """A locale whose encoding is not UTF-8, made for the test; None where the tool or its sources are missing."""
    tool = shutil.which("localedef")
    if tool is None:
        return None
    made = subprocess.run(
        [tool, "-i", "en_US", "-f", "ISO-8859-1", str(folder / "xx_latin")], capture_output=True, check=False
    )
    return {"LOCPATH": str(folder), "LC_ALL": "xx_latin"} if made.returncode == 0 else None


@pytest.fixture(scope="module", params=["none", "C", "latin-1"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    require_sshd()
    folder = tmp_path_factory.mktemp("node")
    locales: dict[str, dict[str, str] | None] = {"none": {}, "C": {"LC_ALL": "C"}, "latin-1": latin1(folder)}
    env = locales[request.param]
    if env is None:
        pytest.skip("no localedef or no sources of locales on this machine")
    with Sshd(folder / "sshd", env=env) as made:
        yield made


@pytest.fixture(scope="module")
def node(server: Sshd) -> Iterator[Node]:
    with Node.connect(server.name, settings=server.settings(), blobs=BLOBS, python=sys.executable) as made:
        made.guard(run_id=RUN, holder="tests", workdir=f"{server.home}/work", lease_s=300)
        yield made
        made.unwind(stop_s=5, reason="done")


COUNT = itertools.count()


def told_by_child(
    node: Node, home: Path, words: list[str], env: dict[str, str]
) -> tuple[list[bytes], dict[bytes, bytes]]:
    """Argument words and environment of a server that was started with these."""
    out = home / f"told-{next(COUNT)}"
    argv = (sys.executable, "-I", "-S", "-c", TELL, str(out), *words)
    log = f"{home}/work/{RUN}/logs/a.log"
    node.start(argv, cwd="~", env=env, log=log, port=free_port(), arm="a", boot=1)
    deadline = time.monotonic() + 20
    while not out.exists():
        assert time.monotonic() < deadline, Path(log).read_text(errors="replace")
        time.sleep(0.005)
    node.stop(timeout_s=10, gpu_free_s=0)
    told = out.read_bytes()
    end = 8 + int.from_bytes(told[:8], "big")
    raw_argv, raw_env = told[8:end], told[end:]
    out.unlink()
    pairs = (entry.partition(b"=") for entry in raw_env.split(b"\0") if entry)
    return raw_argv.removesuffix(b"\0").split(b"\0")[6:], {name: value for name, _, value in pairs}


@fuzzed(0.02)
@given(words=st.lists(WORDS, max_size=20), env=st.dictionaries(NAMES, WORDS, max_size=10))
@example(words=HOSTILE, env={f"V{number}": word for number, word in enumerate(HOSTILE)})
@example(words=[], env={})
def test_argv_and_environment_arrive_byte_for_byte(
    server: Sshd, node: Node, words: list[str], env: dict[str, str]
) -> None:
    argv, environ = told_by_child(node, server.home, words, env)
    assert argv == [word.encode() for word in words]
    assert {name: environ[name.encode()] for name in env} == {
        name: value.encode() for name, value in env.items()
    }
    assert not [name for name in environ if name.startswith(b"DYNSPEC_") and name != b"DYNSPEC_RUN"]


@pytest.mark.parametrize(
    ("words", "env"),
    [(["a\0b"], {}), ([], {"A": "b\0"}), ([], {"A\0": "b"}), ([], {"A=B": "c"}), ([], {"": "c"})],
    ids=repr,
)
def test_what_no_process_can_be_given_is_refused_before_anything_starts(
    server: Sshd, node: Node, words: list[str], env: dict[str, str]
) -> None:
    with pytest.raises(RemoteError) as refused:
        told_by_child(node, server.home, words, env)
    assert refused.value.code == "bad_request"
    assert not node.status().server


@pytest.mark.parametrize("name", FOLDERS)
def test_hostile_folder_names_are_folder_names(server: Sshd, node: Node, name: str) -> None:
    place = server.home / "places" / name
    place.mkdir(parents=True)
    (place / "toy.py").write_text("raise SystemExit('never run')\n")
    (place / "toy").mkdir()
    (place / "toy" / "__init__.py").write_text("__version__ = '7'\n")
    python = place / "python 3"
    python.symlink_to(sys.executable)
    facts = node.facts(
        python=str(python),
        cwd=str(place),
        env={},
        package="toy",
        files=["__init__.py"],
        port=free_port(),
        workdir=str(place / "work"),
    )
    assert facts.tree is not None, facts.tree_problem
    assert facts.tree.path == str(place / "toy")
    assert node.contents(facts.tree.files) == {str(place / "toy" / "__init__.py"): b"__version__ = '7'\n"}
    blocks: list[bytes] = []
    (fetched,) = node.fetch([FetchFile(str(place / "toy.py"))], lambda path, block: blocks.append(block))
    assert (fetched.error, b"".join(blocks)) == (None, (place / "toy.py").read_bytes())
    with Node.connect(server.name, settings=server.settings(), blobs=BLOBS, python=str(python)) as second:
        assert second.hello().home == str(server.home)

"""A node with its (stub) agent: typed calls, the heartbeat, files beside the channel; locally and over a real sshd."""

from __future__ import annotations

import os
import shlex
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import ConnectionFailed, ConnectionLost, NodeBusy, RemoteError
from orchestrator.model.experiment import Node as Choice
from orchestrator.model.target import Target
from orchestrator.remote import replies
from orchestrator.remote.bootstrap import FETCH_MARKER, Blob
from orchestrator.remote.channel import Event
from orchestrator.remote.fetch import FetchFile, fetch
from orchestrator.remote.local import LocalPipe
from orchestrator.remote.node import Node, ssh_words
from orchestrator.remote.refusals import before_acting
from orchestrator.remote.transport import ConnectSettings
from orchestrator.remote.upload import put
from tests.remote.stub import STUB
from tests.sshd import Sshd

QUICK = {"lease_s": 0.4, "silence_s": 1.5}  # beats every 0.1 s
BARE_GUARD = {"run_id": "r", "holder": "h", "workdir": "/w", "lease_s": 60.0}


def connect(sshd: Sshd, *blobs: Blob, **settings: object) -> Node:
    return Node.connect(sshd.name, settings=sshd.settings(**settings), blobs=blobs or (STUB,))


@pytest.fixture(params=["local", "sshd"])
def node(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch) -> Iterator[Node]:
    if request.param == "local":
        monkeypatch.setenv("DYNSPEC_HOME", str(tmp_path / "dynspec"))
        opened = Node.connect("local", settings=ConnectSettings(), blobs=[STUB])
    else:
        opened = connect(request.getfixturevalue("node_sshd"))
    with opened:
        yield opened


def test_the_agent_answers_typed_and_fields_of_a_later_version_do_not_matter(node: Node) -> None:
    hello = node.hello()
    assert hello.uid == os.getuid()
    assert hello.host == "h"


def test_an_error_code_of_the_node_becomes_the_refusal_of_the_command(node: Node) -> None:
    with pytest.raises(RemoteError) as held:
        node.guard(**BARE_GUARD)
    refusal = before_acting(held.value, Choice("testnode", ""))
    assert isinstance(refusal, NodeBusy)
    assert refusal.exit_code == 3
    assert "run r1 of ann (ann@laptop:7)" in refusal.message
    assert "live, sweep" in refusal.message


def test_gpus_in_use_are_a_refusal_that_names_the_setting() -> None:
    error = RemoteError("GPUs are in use: pid 7 of bob", code="busy", data={"holders": [{"pid": 7}]})
    refusal = before_acting(error, Choice("testnode", ""))
    assert isinstance(refusal, NodeBusy)
    assert "pid 7 of bob" in refusal.message
    assert "node.free" in refusal.help


@pytest.mark.parametrize("code", ["mismatch", "changed", "not_writable", "no_space"])
def test_a_node_that_does_not_fit_is_refused_as_that(code: str) -> None:
    assert before_acting(RemoteError("no", code=code), Choice("testnode", "")).exit_code == 4


def test_other_errors_stay_what_they_are() -> None:
    error = RemoteError("no", code="failed")
    assert before_acting(error, Choice("testnode", "")) is error


def test_progress_of_a_load_comes_to_the_caller_and_records_byte_for_byte(node: Node) -> None:
    seen: list[tuple[int, int]] = []
    reply = node.load({}, "p1", 30, lambda data: seen.append((data["done"], threading.get_ident())))
    assert seen == [(1, threading.get_ident()), (2, threading.get_ident())]
    assert reply.summary == {"n": 1}
    assert reply.records == b'{"i": 0}\n\xff\n'
    assert node.events.empty()


def test_a_load_generator_goes_up_when_it_is_first_needed(node_sshd) -> None:
    loadgen = Blob.of("loadgen", b"print('load')\n")
    folder = node_sshd.dynspec_home / "agent"
    with connect(node_sshd, STUB, loadgen) as node:
        node.hello()
        assert not (folder / loadgen.name).exists()
        node.load({}, "p1", 30)
        assert (folder / loadgen.name).read_bytes() == loadgen.data
        (folder / loadgen.name).unlink()
        node.load({}, "p2", 30)  # not sent a second time
        assert not (folder / loadgen.name).exists()


def test_a_file_that_cannot_be_put_on_the_node_is_named(node_sshd) -> None:
    damaged = Blob("loadgen-0123456789abcdef.pyz", b"something else")
    with connect(node_sshd, STUB, damaged) as node, pytest.raises(ConnectionFailed) as failed:
        node.load({}, "p1", 30)
    assert damaged.name in failed.value.message
    assert "arrived damaged" in failed.value.render()


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (
            'DYNSPEC-FAIL {"message": "No space left on device", "code": "no_space"}',
            "-> free some space on that disk",
        ),
        ("Connection refused by policy", "it said: Connection refused by policy"),
    ],
)
def test_a_node_that_takes_no_more_files_says_why(said: str, says: str) -> None:
    pipe = LocalPipe(f"echo '{said}'")
    try:
        with pytest.raises(ConnectionFailed) as failed:
            put(pipe, "gpu-1", [Blob("loadgen-0123456789abcdef.pyz", b"")])
    finally:
        pipe.close()
    assert "gpu-1: loadgen-0123456789abcdef.pyz could not be put on the node" in failed.value.message
    assert says in failed.value.render()


def test_events_wait_in_order_for_whoever_reads_them(node: Node) -> None:
    node._channel.call("server_dies", {}, 10)
    event = node.events.get(timeout=20)
    assert isinstance(event, Event)
    assert event.data["exit_code"] == 3


def test_files_come_whole_or_from_an_offset_on(node: Node, tmp_path: Path) -> None:
    big, empty = tmp_path / "big log", tmp_path / "empty"
    data = os.urandom(300_000) + b"\n\xff\x00" * 50_000
    big.write_bytes(data)
    empty.touch()
    got: dict[str, bytes] = {}
    wanted = [
        FetchFile(str(big)),
        FetchFile(str(tmp_path / "none")),
        FetchFile(str(empty)),
        FetchFile(str(big), 299_000),
    ]

    def sink(path: str, block: bytes) -> None:
        got[path] = got.get(path, b"") + block

    whole, none, nothing, rest = node.fetch(wanted, sink)
    assert got == {str(big): data + data[299_000:]}
    assert (whole.size, whole.sha256) == (len(data), rest.sha256)
    assert none.error == "No such file or directory"
    assert (nothing.size, nothing.error) == (0, None)
    assert node.hello()


HEAD = '{"path": "/f", "size": 3, "offset": 0}'


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        ('{"size": 3}', "'fetch' does not fit: path"),
        ('{"path": "/f", "size": "big"}', "'fetch' does not fit: size"),
        (f"{HEAD}\n" + '{"size": 3}', "'fetch' does not fit: n"),
        (f"{HEAD}\n" + '{"n": 3}\nabc', "gpu-1: the file channel carries damaged bytes"),
        ("[" * 20_000, "gpu-1: the file channel carries foreign output"),
    ],
)
def test_a_file_channel_that_carries_what_is_no_file_is_told_as_such(sent: str, says: str) -> None:
    pipe = LocalPipe(f"echo {FETCH_MARKER.decode()}; printf '{sent}\n'; cat >/dev/null")
    try:
        with pytest.raises((ConnectionLost, RemoteError), match=says):
            fetch(pipe, "gpu-1", [FetchFile("/f")], lambda path, block: None)
    finally:
        pipe.close()


def test_an_answer_that_is_waited_for_later_is_missed_like_any_other(node: Node) -> None:
    asked = node._channel.submit("echo", {"after_s": 60})
    with pytest.raises(RemoteError, match=r"no answer to 'facts' within 0\.05 s") as missed:
        node.decoded(replies.Hello, asked, "facts", 0.05)
    assert missed.value.code == "timeout"


def test_the_command_to_restore_by_hand_names_the_agents_file(node: Node) -> None:
    assert node.restore_by_hand.endswith(
        f"/agent/{STUB.name} restore" + ("'" if node.label != "local" else "")
    )


@pytest.mark.parametrize(
    ("target", "config", "words"),
    [
        ("gpu-1", None, "ssh gpu-1"),
        ("ci@gpu-1:2222", None, "ssh -p 2222 ci@gpu-1"),
        ("ci@[fd00::1]:2222", "/etc/my ssh", "ssh -F '/etc/my ssh' -p 2222 ci@fd00::1"),
        ("gpu-1", "~/c", f"ssh -F {Path.home()}/c gpu-1"),
    ],
)
def test_a_port_and_a_configuration_are_told_to_ssh_as_it_takes_them(target, config, words) -> None:
    assert shlex.join(ssh_words(Target.parse(target), config)) == words


def test_the_agent_runs_on_a_fresh_home_and_on_one_that_has_it(node_sshd) -> None:
    for _ in range(2):
        with connect(node_sshd) as node:
            assert node.hello().home == str(node_sshd.dynspec_home)
    assert [path.name for path in (node_sshd.dynspec_home / "agent").iterdir()] == [STUB.name]


def test_two_sessions_are_enough_for_the_agent_and_the_files(make_sshd, tmp_path: Path) -> None:
    sshd = make_sshd(options={"MaxSessions": "2"})
    (tmp_path / "log").write_text("text")
    with connect(sshd) as node:
        for _ in range(3):
            got: list[bytes] = []
            node.fetch([FetchFile(str(tmp_path / "log"))], lambda path, block: got.append(block))  # noqa: B023
            assert got == [b"text"]
        with node.forward(sshd.port):
            assert node.hello()


def test_an_absent_sftp_subsystem_is_not_missed(make_sshd) -> None:
    sshd = make_sshd()
    assert "Subsystem" not in (sshd.folder / "sshd_config").read_text()
    with connect(sshd) as node:
        assert node.hello()


NOISE = "printf 'Welcome to \\377\\303 gpu\\n'; echo '{\"id\": 1}'; echo news >&2; printf 'no newline'\n"


@pytest.mark.parametrize("shell", ["bash", "dash", "zsh", "fish", "tcsh"])
def test_noisy_start_files_of_any_login_shell_do_not_matter(make_sshd, shell: str) -> None:
    import shutil

    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    # What sshd does for an account with this login shell, which the test cannot change: SHELL -c COMMAND.
    sshd = make_sshd(options={"ForceCommand": f'exec {shutil.which(shell)} -c "$SSH_ORIGINAL_COMMAND"'})
    for name in (".bashrc", ".zshenv", ".config/fish/config.fish", ".tcshrc"):
        (sshd.home / name).parent.mkdir(parents=True, exist_ok=True)
        (sshd.home / name).write_text(NOISE)
    with connect(sshd) as node:
        assert node.hello().uid == os.getuid()


def test_bytes_of_any_encoding_survive_a_c_locale_on_both_sides(make_sshd, tmp_path: Path) -> None:
    sshd = make_sshd(env={"LANG": "C", "LC_ALL": "C"})
    log = tmp_path / "log"
    log.write_bytes(b"caf\xc3" + b"\xff" + "é€\N{GRINNING FACE}".encode() * 1000)
    with connect(sshd) as node:
        got: list[bytes] = []
        node.fetch([FetchFile(str(log))], lambda path, block: got.append(block))
        assert b"".join(got) == log.read_bytes()
        assert node._channel.call("echo", {"text": "é€\ud83d"}, 10) == {"text": "é€\ud83d"}


def test_a_start_file_that_waits_for_input_is_quoted_after_the_limit(make_sshd) -> None:
    sshd = make_sshd()
    (sshd.home / ".bashrc").write_text("echo Choose a project; read -r project\n")
    with pytest.raises(ConnectionFailed) as failed:
        connect(sshd, timeout_s=1.0)
    assert "Choose a project" in failed.value.render()


def test_a_frozen_session_is_noticed_and_a_new_connection_works(node_sshd) -> None:
    node = connect(node_sshd, **QUICK)
    node.hello()
    waiting = node._channel.submit("echo", {"after_s": 60})
    frozen = node_sshd.freeze()
    assert frozen
    began = time.monotonic()
    with pytest.raises(ConnectionLost, match="testnode has not answered"):
        waiting.result(20)
    assert time.monotonic() - began < 15
    assert isinstance(node.events.get(timeout=20), ConnectionLost)
    with pytest.raises(ConnectionLost):
        node.hello()
    with connect(node_sshd) as again:
        assert again.hello()
    node.close()
    for pid in frozen:
        os.kill(pid, signal.SIGKILL)


def test_closing_does_not_wait_for_a_peer_that_takes_no_data(node_sshd) -> None:
    node = connect(node_sshd)
    node.hello()
    frozen = node_sshd.freeze()
    node._channel.submit("mirror", {"text": "x" * 30_000_000})
    time.sleep(0.5)
    began = time.monotonic()
    node.close()
    assert time.monotonic() - began < 15
    for pid in frozen:
        os.kill(pid, signal.SIGKILL)


def test_a_session_that_freezes_while_files_come_over_ends_the_fetch(node_sshd, tmp_path: Path) -> None:
    node = connect(node_sshd, **QUICK)
    node.hello()
    big = tmp_path / "big"
    big.write_bytes(os.urandom(40_000_000))
    frozen: list[int] = []

    def sink(path: str, block: bytes) -> None:
        frozen.extend([] if frozen else node_sshd.freeze())

    began = time.monotonic()
    with pytest.raises(ConnectionLost):
        node.fetch([FetchFile(str(big))], sink)
    assert time.monotonic() - began < 20
    for pid in frozen:
        os.kill(pid, signal.SIGKILL)


def test_a_session_that_freezes_before_the_agent_runs_is_given_up(node_sshd) -> None:
    (node_sshd.home / ".bashrc").write_text("sleep 2\n")
    threading.Timer(0.7, node_sshd.freeze).start()
    began = time.monotonic()
    with pytest.raises(ConnectionFailed):
        connect(node_sshd, timeout_s=2.0)
    assert time.monotonic() - began < 15


def test_a_connection_that_is_cut_is_lost_at_once(node_sshd) -> None:
    node = connect(node_sshd)
    node.hello()
    waiting = node._channel.submit("echo", {"after_s": 60})
    for pid in node_sshd.sessions():
        os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(ConnectionLost):
        waiting.result(20)
    assert time.monotonic() - began < 10


def test_the_heartbeat_runs_by_itself(node_sshd) -> None:
    with connect(node_sshd, **QUICK) as node:
        node.hello()
        deadline = time.monotonic() + 5
        while node.last_beat is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert node.last_beat is not None
        assert node.last_beat.lease_left_s == 100.0


@pytest.mark.parametrize(("lease_s", "beat_s"), [(120.0, 5.0), (8.0, 2.0), (20.0, 5.0)])
def test_the_heart_beats_four_times_a_lease_and_never_slower_than_every_5_s(
    lease_s: float, beat_s: float
) -> None:
    assert ConnectSettings(lease_s=lease_s).beat_s == beat_s


def test_closing_leaves_no_process_of_ours_on_the_node(node_sshd) -> None:
    node = connect(node_sshd)
    pid = node.hello().pid
    node.close()
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists()


def test_an_interpreter_that_does_not_exist_is_passed_over_for_the_agent(node_sshd) -> None:
    with Node.connect(
        "testnode", settings=node_sshd.settings(), blobs=[STUB], python="/opt/none/bin/python"
    ) as node:
        assert node.hello()

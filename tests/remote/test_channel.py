"""One channel to the (stub) agent, over a local shell: answers, events, noise, silence, ends."""

from __future__ import annotations

import base64
import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait

import pytest

from orchestrator.errors import ConnectionFailed, ConnectionLost, DoesNotFit, DynspecError, RemoteError
from orchestrator.remote.bootstrap import boot_command
from orchestrator.remote.channel import Channel, Event
from orchestrator.remote.local import LocalTransport
from tests.remote.stub import STUB
from tests.sshd import descendants

BOOT_LIMIT_S = 20.0


class Opened:
    """A channel with what it reported, for the tests to look at."""

    def __init__(self, command: str, silence_s: float = 25.0) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.lost: queue.SimpleQueue[DynspecError] = queue.SimpleQueue()
        self.transport = LocalTransport()
        self.channel = Channel(
            self.transport.execute(command),
            "node",
            on_event=self.events.put,
            on_lost=self.lost.put,
            silence_s=silence_s,
        )

    def launch(self) -> Channel:
        boot = self.channel.boot(BOOT_LIMIT_S)
        self.channel.launch(boot, STUB)
        return self.channel


@pytest.fixture
def opened(tmp_path, monkeypatch) -> Iterator[Callable[..., Opened]]:
    monkeypatch.setenv("DYNSPEC_HOME", str(tmp_path / "dynspec"))
    made: list[Opened] = []

    def make(command: str = "", **options: float) -> Opened:
        made.append(Opened(command or boot_command(sys.executable), **options))
        return made[-1]

    yield make
    for one in made:
        one.channel.close()
        one.transport.close()


@pytest.fixture
def channel(opened) -> Channel:
    return opened().launch()


def test_an_answer_belongs_to_its_request(channel: Channel) -> None:
    slow = channel.submit("echo", {"name": "slow", "after_s": 0.3})
    quick = [channel.submit("echo", {"name": number}) for number in range(20)]
    assert [future.result(10)["name"] for future in quick] == list(range(20))
    assert not slow.done()
    assert slow.result(10)["name"] == "slow"


def test_requests_may_be_sent_before_the_agent_runs(opened) -> None:
    one = opened()
    boot = one.channel.boot(BOOT_LIMIT_S)
    one.channel.launch(boot, STUB)
    assert one.channel.call("echo", {"n": 1}, 10) == {"n": 1}


def test_large_requests_pass_while_answers_come_back(channel: Channel) -> None:
    futures = [channel.submit("mirror", {"text": "x" * size}) for size in (3_000_000, 10, 3_000_000)]
    assert [future.result(30) for future in futures] == [3_000_000, 10, 3_000_000]


def test_an_error_of_the_node_carries_its_code_and_data(channel: Channel) -> None:
    with pytest.raises(RemoteError) as refused:
        channel.call("guard", {}, 10)
    assert refused.value.code == "busy"
    assert refused.value.data["run_id"] == "r1"


def test_a_call_that_takes_too_long_says_which_and_the_channel_goes_on(channel: Channel) -> None:
    with pytest.raises(RemoteError, match=r"no answer to 'echo' within 0\.2 s") as late:
        channel.call("echo", {"after_s": 1}, 0.2)
    assert late.value.code == "timeout"
    assert channel.call("echo", {"n": 2}, 10) == {"n": 2}


def test_events_arrive_beside_the_answers(opened) -> None:
    one = opened()
    one.launch().call("server_dies", {}, 10)
    event = one.events.get(timeout=20)
    assert (event.name, event.data["exit_code"], event.data["log_tail"]) == ("server_exit", 3, ["boom"])


@pytest.mark.parametrize("printed", [b"hello from a start file\n", b"\xff\xfe{}\n", b"[1]\n"])
def test_foreign_output_in_a_running_channel_ends_it_by_name(opened, printed: bytes) -> None:
    one = opened()
    channel = one.launch()
    with pytest.raises(ConnectionLost, match="foreign output"):
        channel.call("print", {"bytes": base64.b64encode(printed).decode()}, 10)
    assert isinstance(one.lost.get(timeout=20), ConnectionLost)


def test_what_start_files_print_is_no_message(opened) -> None:
    noise = r"printf 'Welcome \377\303!\n{\"id\": 1}\nno newline'; echo oops >&2; "
    assert opened(noise + boot_command(sys.executable)).launch().call("echo", {"n": 1}, 10) == {"n": 1}


def test_the_end_of_the_agent_ends_every_waiting_call_with_its_last_words(opened) -> None:
    one = opened()
    channel = one.launch()
    waiting = [channel.submit("echo", {"after_s": 60}) for _ in range(3)]
    with pytest.raises(ConnectionLost) as ended:
        channel.call("exit", {}, 10)
    assert "exit status 7" in ended.value.message
    assert "it said: last words" in ended.value.details
    assert not wait(waiting, 5).not_done
    with pytest.raises(ConnectionLost):
        channel.call("echo", {}, 10)
    assert one.lost.get(timeout=20) is ended.value


def test_closing_is_no_loss_and_ends_the_agent(opened) -> None:
    one = opened()
    channel = one.launch()
    channel.call("hello", {}, 10)
    began = time.monotonic()
    channel.close()
    assert not descendants(os.getpid())
    assert time.monotonic() - began < 5
    assert one.lost.empty()
    with pytest.raises(ConnectionLost, match="closed"):
        channel.call("echo", {}, 10)


def test_a_frozen_agent_is_noticed_within_the_silence_limit(opened) -> None:
    one = opened(silence_s=1.0)
    channel = one.launch()
    pid = channel.call("hello", {}, 10)["pid"]
    channel.watch(0.2, lambda: channel.submit("beat"))
    waiting = channel.submit("echo", {"after_s": 100})
    time.sleep(1.5)
    assert not waiting.done()  # beats are answered: slow is not frozen
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(ConnectionLost, match="has not answered for 1 s"):
        waiting.result(10)
    assert time.monotonic() - began < 8
    os.kill(pid, signal.SIGKILL)


def test_a_frozen_agent_is_noticed_although_a_write_is_stuck(opened) -> None:
    one = opened(silence_s=1.0)
    channel = one.launch()
    pid = channel.call("hello", {}, 10)["pid"]
    os.kill(pid, signal.SIGSTOP)
    waiting = channel.submit("mirror", {"text": "x" * 10_000_000})
    channel.watch(0.2, lambda: channel.submit("beat"))
    with pytest.raises(ConnectionLost, match="has not answered"):
        waiting.result(10)
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            "echo 'This account is currently not available.'; exit 1",
            "it said: This account is currently not available.",
        ),
        ("echo broken >&2; exit 127", "it said: broken"),
        ("exit 5", "exit status 5"),
    ],
)
def test_a_shell_that_ends_before_the_agent_is_quoted(opened, command: str, words: str) -> None:
    with pytest.raises(ConnectionFailed) as failed:
        opened(command).channel.boot(BOOT_LIMIT_S)
    assert words in failed.value.render()
    assert "login shell ended" in failed.value.message


def test_what_ends_without_a_word_may_be_no_interpreter(opened) -> None:
    with pytest.raises(ConnectionFailed) as failed:
        opened("exit 0").channel.boot(BOOT_LIMIT_S, "/bin/true")
    assert failed.value.help.startswith("is /bin/true a Python interpreter")
    assert failed.value.help.endswith("correct node.python")


def test_a_shell_that_hangs_in_a_start_file_is_quoted_after_the_limit(opened) -> None:
    with pytest.raises(ConnectionFailed) as failed:
        opened("echo Press any key; cat").channel.boot(0.5)
    assert "0.5 s" in failed.value.message
    assert "it said: Press any key" in failed.value.details
    assert ".bashrc" in failed.value.help


def test_a_node_without_python_is_told_where_it_was_looked_for(opened) -> None:
    one = opened("echo 'DYNSPEC-FAIL {}'; exit 1")
    with pytest.raises(ConnectionFailed) as failed:
        one.channel.boot(BOOT_LIMIT_S, "/opt/x/python")
    assert "no Python 3.8 or newer" in failed.value.message
    assert "/opt/x/python, python3, python3.14" in failed.value.message


def test_a_failure_of_the_bootstrap_is_the_message(opened) -> None:
    with pytest.raises(ConnectionFailed, match="No space left"):
        opened('echo \'DYNSPEC-FAIL {"message": "OSError: No space left"}\'').channel.boot(BOOT_LIMIT_S)


def test_a_node_whose_disk_is_full_does_not_fit(opened) -> None:
    one = opened('echo \'DYNSPEC-FAIL {"message": "No space left on device", "code": "no_space"}\'')
    with pytest.raises(DoesNotFit, match=r"cannot be stored below ~/.dynspec: No space left on device"):
        one.channel.boot(BOOT_LIMIT_S)


def test_an_agent_of_another_protocol_is_refused(opened) -> None:
    boot = r"{\"have\": [], \"python\": \"3.9\", \"home\": \"/h\", \"executable\": \"p\"}"
    one = opened(f'echo "DYNSPEC-BOOT {boot}"; echo "DYNSPEC-AGENT {{\\"protocol\\": 2, \\"pid\\": 1}}"; cat')
    one.channel.boot(BOOT_LIMIT_S)
    with pytest.raises(ConnectionFailed, match="protocol 2"):
        one.channel.call("hello", {}, BOOT_LIMIT_S)

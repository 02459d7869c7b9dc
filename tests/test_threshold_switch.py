"""Switching a running server: only an idle one is asked, and only what every rank shows afterwards is believed."""

from __future__ import annotations

import json

import pytest

from orchestrator.errors import RemoteError
from orchestrator.runner.switching import switch_threshold, thresholds, unlike


class Server:
    """A server of `ranks` thresholds that takes a new one on the first `obeying` of them; it always answers 200."""

    def __init__(self, ranks, obeying=None, busy_for=0, broken=False, alive=True):
        self.ranks, self.obeying = list(ranks), len(ranks) if obeying is None else obeying
        self.busy_for, self.broken, self.alive = busy_for, broken, alive
        self.asked = []

    def flush_cache(self):
        self.busy_for -= 1
        return self.busy_for < 0

    def is_alive(self):
        return self.alive

    def post(self, path, body):
        self.asked.append((path, json.loads(body)))
        if self.broken:
            raise RemoteError("the connection was reset")
        wanted = json.loads(body)["server_args"]["speculative_disable_batch_threshold"]
        self.ranks[: self.obeying] = [wanted] * self.obeying
        return 200

    def server_info(self):
        return {"internal_states": [{"dynspec_stats": {"threshold": value}} for value in self.ranks]}


def test_a_server_that_takes_it_on_every_rank_is_believed():
    server = Server([5, 5, 5])
    assert switch_threshold(server, 9) == ""
    assert server.asked == [
        ("/set_internal_state", {"server_args": {"speculative_disable_batch_threshold": 9}})
    ]


def test_a_server_that_says_yes_and_does_nothing_is_not_believed():
    assert switch_threshold(Server([5, 5], obeying=0), 9) == (
        "/set_internal_state was asked for threshold 9, and /server_info shows 5, 5"
    )


def test_one_rank_that_did_not_follow_is_enough():
    assert "shows 9, 5" in switch_threshold(Server([5, 5], obeying=1), 9)


def test_a_server_that_has_ended_is_not_waited_for():
    server = Server([5], busy_for=1000, alive=False)
    assert switch_threshold(server, 9, idle_limit_s=1000.0) == "it has ended"
    assert server.asked == []


def test_a_busy_server_is_not_asked():
    server = Server([5], busy_for=1000)
    assert switch_threshold(server, 9, idle_limit_s=0.0) == (
        "it was not idle within 0 s, so its threshold was not changed"
    )
    assert server.asked == []


def test_a_server_that_becomes_idle_is_waited_for():
    assert switch_threshold(Server([5], busy_for=1), 9, idle_limit_s=5.0) == ""


def test_a_server_that_breaks_off_is_named():
    assert switch_threshold(Server([5], broken=True), 9) == "/set_internal_state: the connection was reset"


@pytest.mark.parametrize(
    "info",
    [
        {},
        {"internal_states": None},
        {"internal_states": []},
        {"internal_states": [{}]},
        {"internal_states": [{"dynspec_stats": {"threshold": 9}}, {}]},
        {"internal_states": [{"dynspec_stats": {}}]},
    ],
)
def test_a_server_that_does_not_show_its_threshold_is_not_believed(info):
    assert "does not show" in unlike(thresholds(info), 9)

"""Ready means alive, healthy and generating; an exit is never called a timeout."""

from dataclasses import replace

import pytest

from orchestrator.analysis.evidence import health_finding
from orchestrator.runner.health import HealthWatch
from orchestrator.runner.readiness import Failed, NotYet, Ready, Sight, judge, load_progress

STARTING = Sight(
    elapsed_s=5,
    alive=True,
    exit_code=None,
    signal=None,
    log_idle_s=0.1,
    log_tail=("line",),
    health_status=None,
    generated=None,
)


def verdict(**changes):
    return judge(replace(STARTING, **changes), timeout_s=600, silence_s=300)


def test_health_and_a_generated_token_make_ready():
    assert verdict(health_status=200, generated=True) == Ready(5)


def test_health_alone_is_not_ready():
    assert isinstance(verdict(health_status=200), NotYet)


def test_up_but_not_generating_fails_by_that_name_with_the_log_tail_kept():
    found = verdict(health_status=200, generated=False)
    assert isinstance(found, Failed)
    assert found.reason.startswith("up but not generating")
    assert found.log_tail == ("line",)


@pytest.mark.parametrize(
    ("code", "signum", "words"), [(3, None, "exit code 3"), (0, None, "exit code 0"), (None, 9, "signal 9")]
)
def test_an_exit_during_start_is_named_with_its_code_and_never_a_timeout(code, signum, words):
    found = verdict(alive=False, exit_code=code, signal=signum, elapsed_s=9999)
    assert words in found.reason
    assert "timeout" not in found.reason
    assert "not ready after" not in found.reason


def test_a_503_while_loading_is_not_yet():
    assert isinstance(verdict(health_status=503), NotYet)


def test_silence_is_stuck_long_before_the_hard_cap():
    assert "stuck" in verdict(log_idle_s=301).reason


def test_a_chatty_server_is_given_the_hard_cap_and_no_more():
    assert isinstance(verdict(elapsed_s=599), NotYet)
    assert "not ready after 600 s" in verdict(elapsed_s=601).reason


def test_progress_shows_the_shard_counter_where_one_runs():
    tail = ("x", "Loading safetensors checkpoint shards:  40% Completed | 2/5 [00:01<00:02]", "note")
    assert load_progress(tail) == "loading weights 40 % (2 of 5)"


def test_progress_of_an_empty_log_says_so():
    assert load_progress(()) == "no output yet"


def test_progress_tells_graph_capture_from_loading():
    tail = ("Capturing batches (bs=64 avail_mem=61.06 GB):  30%|###       | 8/27 [00:01<00:02]",)
    assert load_progress(tail) == "capturing CUDA graphs 30 % (8 of 27)"


def test_progress_skips_access_log_lines():
    assert (
        load_progress(("Load weight end.", '127.0.0.1:1 - "GET /health HTTP/1.1" 503')) == "Load weight end."
    )


def watched(ticks: list[tuple[float, int]], answers: list[int | None]) -> tuple[HealthWatch, list[str]]:
    """A watch after these progress reports: (elapsed_s, requests in flight)."""
    warned: list[str] = []
    watch = HealthWatch(iter(answers).__next__, warned.append)
    for elapsed_s, in_flight in ticks:
        watch.look({"elapsed_s": elapsed_s, "in_flight": in_flight})
    return watch, warned


def test_health_is_asked_every_ten_seconds_while_requests_run_and_warned_of_once() -> None:
    ticks = [(float(second), 4) for second in range(1, 31)]
    watch, warned = watched(ticks, [200, 503, None])
    assert (watch.asked, watch.unwell) == (3, 2)
    assert warned == ["/health is 503 while requests run; that alone ends nothing"]


def test_health_is_not_asked_of_an_idle_server_nor_at_the_end_of_a_load() -> None:
    watch, warned = watched([(1.0, 0), (2.0, 0)], [])
    watch.look({"summary": {}})
    assert (watch.asked, warned) == (0, [])


@pytest.mark.parametrize(
    ("looks", "note"),
    [
        (None, None),
        ({"asked": 3, "unwell": 0}, None),
        (
            {"asked": 3, "unwell": 2},
            "health_unsteady: /health was not 200 in 2 of 3 looks while requests ran",
        ),
    ],
)
def test_a_point_tells_of_bad_health_and_counts_all_the_same(looks: object, note: str | None) -> None:
    found = health_finding(looks)
    assert (found and (str(found), found.fatal)) == (note and (note, False))

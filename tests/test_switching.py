"""What switching costs is measured against the right arm, and the log's story over time is read as it is."""

from __future__ import annotations

import re

import pytest

from orchestrator.analysis.crossover import crossover
from orchestrator.analysis.equality import digest_of, equality
from orchestrator.analysis.recommend import native_config, recommend
from orchestrator.analysis.summary import summarise
from orchestrator.analysis.switching import resume_penalty, straddle
from orchestrator.analysis.trace import boot_trace, gpu_window, read_gpu_csv, read_log, thin
from orchestrator.analysis.validity import GpuWindow
from orchestrator.analysis.verdict import Side
from orchestrator.model.experiment import Arm
from orchestrator.model.result import Series
from tests.report.example_runs import ARMS, EAGLE3, points, summary


def log_line(second: int, text: str, rank: str = " TP0") -> str:
    return f"[2026-01-02 03:{4 + second // 60:02d}:{second % 60:02d}{rank}] {text}"


def decode(second: int, running: int, accept: float | None = None, rank: str = " TP0") -> str:
    spec = f"accept len: {accept:.2f}, accept rate: 0.50, " if accept is not None else ""
    text = f"Decode batch, #running-req: {running}, #token: 900, token usage: 0.01, {spec}cuda graph: True, "
    return log_line(second, f"{text}gen throughput (token/s): 812.50, #queue-req: 0", rank)


LOG = [
    "noise before the first stamp",
    log_line(0, "server_args=ServerArgs(...)", ""),
    decode(10, 4, 2.5),
    log_line(12, "dynspec: speculation off batch=6 threshold=5"),
    decode(14, 6, 1.0),
    log_line(20, "dynspec: speculation on batch=5 threshold=5"),
    decode(20, 5, 1.2),
    decode(21, 5, 1.5),
    decode(30, 5, 2.5),
    log_line(31, "dynspec: speculation off batch=6 threshold=5"),
    log_line(40, "dynspec: speculation on batch=5 threshold=5"),
    decode(40, 5, 1.1),
    decode(41, 5, 1.5),
    decode(50, 3, 2.5),
]


def test_a_server_log_becomes_samples_and_switches():
    trace = read_log(LOG)
    first = trace.samples[0]
    assert (first.t_s, first.running, first.accept_length, first.output_tps) == (10.0, 4, 2.5, 812.5)
    assert [(s.t_s, s.speculating, s.batch) for s in trace.switches] == [
        (12.0, False, 6),
        (20.0, True, 5),
        (31.0, False, 6),
        (40.0, True, 5),
    ]


def test_one_rank_speaks_for_the_log():
    trace = read_log(
        [decode(1, 4, rank=" DP0 TP0"), decode(1, 5, rank=" DP1 TP0"), decode(2, 6, rank=" DP0 TP0")]
    )
    assert [(s.running, s.accept_length) for s in trace.samples] == [(4, None), (6, None)]
    assert trace.rank == "DP0 TP0"


def test_native_adaptive_switches_count_when_they_reach_or_leave_zero_steps():
    text = "Switch adaptive runtime state: steps {} -> {}, draft_tokens 4 -> 1"
    trace = read_log([log_line(i, text.format(a, b)) for i, (a, b) in enumerate([(3, 1), (1, 0), (0, 3)])])
    assert [(s.t_s, s.speculating) for s in trace.switches] == [(1.0, False), (2.0, True)]


def test_the_resume_penalty_is_the_accept_length_just_after_a_resume_against_that_just_before_the_switch_off():
    penalty = resume_penalty(read_log(LOG))
    assert (penalty.resumes, penalty.first, penalty.before) == (2, 1.5, 2.5)
    assert penalty.share == pytest.approx(-0.4)


def test_a_line_that_a_switch_lies_in_says_nothing_of_a_resume():
    assert resume_penalty(read_log([line for line in LOG if "accept len: 1.50" not in line][:7])) is None


def test_lines_within_one_second_are_told_apart_by_their_order():
    squeezed = [re.sub(r"03:0\d:\d\d", "03:04:00", line) for line in LOG]
    assert resume_penalty(read_log(squeezed)) == resume_penalty(read_log(LOG))


def retract(requests: int, rank: str, words: str = "KV cache pool is full. Retract requests. ") -> str:
    details = f"#retracted_reqs: {requests}, #new_tokens_gained: 512, #new_token_ratio: 0.2310 -> 0.7000"
    return log_line(5, f"{words}{details}", rank)


@pytest.mark.parametrize(
    ("ranks", "count"),
    [
        ([""], 2),
        ([" TP0", " TP1"], 2),  # both hold the same batch
        ([" DP0 TP0", " DP1 TP0"], 4),
        ([], 0),
    ],
)
def test_retracted_requests_count_once_a_replica(ranks, count):
    lines = [log_line(0, "start", ""), *(retract(2, rank) for rank in ranks)]
    assert read_log([*lines, retract(9, "", words="Testing retraction. ")]).retracted == count


def test_without_a_resume_there_is_no_penalty_to_tell():
    assert resume_penalty(read_log(LOG[:5])) is None
    assert resume_penalty(read_log([])) is None


@pytest.mark.parametrize(
    ("measured", "verdict"), [(1000.0, "fine"), (980.0, "fine"), (950.0, "cost"), (790.0, "collapse")]
)
def test_a_load_around_the_threshold_is_set_against_steady_load_on_both_sides(measured, verdict):
    found = straddle(measured, low=800.0, high=1200.0)
    assert found.verdict == verdict


def test_the_steady_loads_count_by_the_time_on_each_side():
    assert straddle(1000.0, low=800.0, high=1200.0, share_high=0.75).expected == 1100.0
    with pytest.raises(ValueError, match="between 0 and 1"):
        straddle(1000.0, low=800.0, high=1200.0, share_high=1.1)


def test_disabled_tax_is_read_above_the_threshold_and_overhead_below_it():
    (cost,) = summary(5)["costs"]
    assert (cost["above"]["against"], cost["above"]["at"]) == ("baseline", [10, 30, 70])
    assert cost["above"]["change"] == pytest.approx(-0.05, abs=0.01)
    assert (cost["up_to"]["against"], cost["up_to"]["at"]) == ("eagle3", [1, 2, 5])
    assert cost["up_to"]["change"] == pytest.approx(-0.01, abs=0.01)


def test_a_sweep_wholly_below_the_threshold_has_no_tax_to_show():
    arms = (*ARMS[:2], Arm("dynamic", {**EAGLE3, "speculative-disable-batch-threshold": 100}, {}))
    (cost,) = summary(3, arms=arms)["costs"]
    assert cost["above"] == {"against": "baseline", "at": []}


# -- recommendation ------------------------------------------------------------------------------------------


def crossing(turn: float):
    wobble = {1: 1.0, 2: 1.002, 3: 0.998}
    arm = {b: {c: 100.0 * c * (c / turn) ** -0.3 * w for c in (1, 4, 16, 64)} for b, w in wobble.items()}
    base = {b: {c: 100.0 * c / w for c in (1, 4, 16, 64)} for b, w in wobble.items()}
    return crossover("output_tps", Side("eagle3", arm), Side("baseline", base))


def test_the_threshold_is_the_last_batch_size_that_gains():
    found = recommend(crossing(12.7), None, 0.05)
    assert (found.advice, found.threshold) == ("threshold", 12)
    assert found.low <= 12 <= found.high
    assert "disabled tax 5.0%" in found.why


def test_never_and_always_are_recommendations_too():
    assert recommend(crossing(0.01), None, None).advice == "off"
    assert recommend(crossing(900), None, None).advice == "on"


def test_the_recommendation_of_a_run_counts_the_tax_in():
    advice = summary(5)["recommendation"]
    assert advice["threshold"] == pytest.approx(14.9, abs=1.5)  # 10 * (1 / 0.95) ** (1 / 0.13)
    nearest = advice["threshold"] - advice["threshold"] % 2  # SGLang captures every second size from 8 to 32
    assert advice["native_config"] == {
        "1": {"candidate_steps": [2]},
        str(nearest + 1): {"candidate_steps": [0]},
    }


def test_one_boot_recommends_nothing():
    assert summary(1)["recommendation"]["advice"] == "none"


def test_what_the_native_mode_cannot_do_is_said():
    config, why = native_config(5, Arm("tree", {**EAGLE3, "speculative-eagle-topk": 4}, {}))
    assert config is None
    assert "topk 4" in why
    assert native_config(5, None)[1] == "the arm's settings are not known"


# -- equality ------------------------------------------------------------------------------------------------


def test_an_arm_is_as_equal_as_the_baseline_is_to_itself():
    base = [{(0, i): "same" if i else f"boot{b}" for i in range(10)} for b in range(2)]
    arm = [{(0, i): "same" if i else "arm" for i in range(10)}]
    found = equality("eagle3", arm, base)
    assert (found.share, found.baseline_share, found.differs) == (0.9, 0.9, False)


def test_other_text_than_the_baseline_ever_gives_is_called():
    base = [{(0, i): "same" for i in range(10)}] * 2
    found = equality("eagle3", [{(0, i): "same" if i < 5 else "other" for i in range(10)}], base)
    assert (found.share, found.baseline_share, found.differs) == (0.5, 1.0, True)


def test_one_boot_of_the_baseline_has_no_self_to_compare_with():
    found = equality("eagle3", [{(0, 0): "a"}], [{(0, 0): "b"}])
    assert (found.share, found.baseline_share, found.differs) == (0.0, None, False)


def test_equality_is_part_of_the_summary_when_outputs_are_given():
    outputs = {"baseline": [{(0, 0): "a"}, {(0, 0): "a"}], "eagle3": [{(0, 0): "a"}], "dynamic": []}
    found = summarise(points(1), arms=ARMS, outputs=outputs)["equality"]
    assert [(e["arm"], e["share"], e["baseline_share"]) for e in found] == [("eagle3", 1.0, 1.0)]
    assert summary(1)["equality"] == []


def test_failed_requests_and_warmup_have_no_output_to_compare():
    records = [
        {"i": 0, "ok": True, "output_sha256": "a"},
        {"i": 1, "ok": False, "output_sha256": "b"},
        {"i": 2, "ok": True, "output_sha256": None},
        {"i": 0, "ok": True, "phase": "warmup", "output_sha256": "w"},
    ]
    assert [digest_of(record) for record in records] == ["a", None, None, None]


# -- GPU samples ---------------------------------------------------------------------------------------------

CSV = """utc_s,elapsed_s,index,uuid,utilization.gpu,memory.used,power.draw,clocks.sm,temperature.gpu
1.0,0.0,0,GPU-a,10,70000,650.5,1980,60
1.0,0.0,1,GPU-b,12,71000,640.1,1755,61
2.0,1.0,0,GPU-a,[N/A],70000,[Not Supported],1980,60
3.0,2.0,0,GPU-a,99,700"""


def test_gpu_samples_keep_the_slowest_clock_and_the_most_of_the_rest():
    series = {s.name: s for s in read_gpu_csv(CSV.splitlines())}
    assert series["SM clock"].values == (1755.0, 1980.0)
    assert series["memory"].values[:2] == (71000.0, 70000.0)
    assert series["power"].t_s == (0.0,)  # not a number is a gap
    assert read_gpu_csv([]) == ()


def test_thinning_keeps_the_extremes():
    long = Series(
        "power",
        "W",
        tuple(map(float, range(10_000))),
        tuple(500.0 + (i == 7777) * 200 for i in range(10_000)),
    )
    thinned = thin(long, 200)
    assert len(thinned.t_s) <= 200
    assert max(thinned.values) == 700.0
    assert list(thinned.t_s) == sorted(thinned.t_s)


def test_a_boot_becomes_one_trace_for_the_report():
    trace = boot_trace("dynamic", 1, LOG, CSV.splitlines())
    assert trace.running.values[:2] == (4.0, 6.0)
    assert trace.accept_length.values[0] == 2.5
    assert trace.switches[0] == (12.0, False)
    assert len(trace.gpu) == 5


MASKED = """utc_s,elapsed_s,index,clocks_event_reasons.active
10.0,0.0,0,0x0000000000000001
11.0,1.0,0,0x0000000000000044
12.0,2.0,0,[N/A]
13.0,3.0,0,0x0000000000000020"""


def test_what_limited_the_clocks_is_read_for_the_time_of_the_load_only():
    rows = MASKED.splitlines()
    assert gpu_window(rows, 10.5, 12.5).throttle == {"sw_power_cap", "hw_thermal_slowdown"}
    assert gpu_window(rows, 9.0, 10.5).throttle == frozenset()  # idle limits nothing
    assert gpu_window(rows, 11.5, 12.5) is None  # not a number is unknown
    assert gpu_window(CSV.splitlines(), 0.0, 99.0) is None


def test_driver_errors_and_other_processes_count_during_the_load_only():
    rows = [
        "utc_s,elapsed_s,foreign_pids,xids,index,clocks.sm",
        "10.0,1.0,,13,0,1980",
        "11.0,2.0,4711 4712,,0,1980",
        "12.0,3.0,4711,79 79,0,1980",
        "13.0,4.0,,,0,1980",
    ]
    seen = gpu_window(rows, 10.5, 12.5)
    assert (seen.xids, seen.foreign_pids) == ((79,), (4711, 4712))
    assert gpu_window(rows, 12.5, 13.5) == GpuWindow()
    assert gpu_window(rows, 20.0, 30.0) is None


def test_gpu_samples_are_set_on_the_logs_clock_whatever_the_nodes_time_zone():
    """The sampler starts with the server, the log's first stamped line comes ten seconds later, in local time."""
    log = [
        "[2026-01-02 05:04:15] server starts",  # UTC+2
        "[2026-01-02 05:04:35] Decode batch, #running-req: 4, gen throughput (token/s): 10.0, #queue-req: 0",
    ]
    start_s = 1767323045.0  # 2026-01-02 03:04:05 UTC
    rows = ["utc_s,elapsed_s,index,power.draw"] + [
        f"{start_s + t:.3f},{t:.3f},0,{300 + t}" for t in (0, 10, 30)
    ]
    trace = boot_trace("eagle3", 1, log, rows)
    assert trace.running.t_s == (20.0,)
    assert trace.gpu[0].t_s == pytest.approx((-10.0, 0.0, 20.0))

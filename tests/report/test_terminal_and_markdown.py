"""The terminal and markdown reports open with the answer and never claim what was not shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.analysis.summary import summarise
from orchestrator.analysis.tune import PLAIN, SPECULATING
from orchestrator.model.experiment import Arm
from orchestrator.model.result import RunInfo
from orchestrator.report import html, junit, markdown, terminal
from orchestrator.report.answer import answer, main_crossover
from orchestrator.report.tables import build
from orchestrator.report.text import number, sentence
from tests.report.example_runs import ARMS, CARD, INFO, SWEEP, points, rate, summary

BUSY = "client_bound: the load generator ran {} ms late (p99; limit 5 ms)"


def first_line(text: str) -> str:
    return text.split("\n\n")[0].replace("\n", " ").strip("*")


def test_the_first_sentence_says_when_to_turn_speculation_off():
    text = first_line(markdown.render(summary(), INFO))
    assert text.startswith("Turn speculation off above about 10 concurrent requests (95%")


@pytest.mark.parametrize(
    ("rates", "start"),
    [
        (
            lambda arm, c: 100.0 * c * (0.8 if arm == "eagle3" else 1.0),
            "Turn speculation off: eagle3 is slower at every",
        ),
        (
            lambda arm, c: 100.0 * c * (1.3 if arm == "eagle3" else 1.0),
            "Leave speculation on: eagle3 is faster at every",
        ),
        (
            lambda arm, c: 100.0 * c,
            "No verdict, nothing stands out of the noise between server boots: at every measured",
        ),
        (
            lambda arm, c: 100.0 * c * ((0.8 if c < 8 else 1.2) if arm == "eagle3" else 1.0),
            "Turn speculation on only above about",
        ),
        (
            lambda arm, c: 100.0 * c * ((0.8 if c in (5, 10) else 1.2) if arm == "eagle3" else 1.0),
            "There is no single threshold: eagle3 stops paying at about",
        ),
    ],
)
def test_never_always_noise_and_several_crossings_are_plain_answers(rates, start):
    text = first_line(terminal.to_text(summary(5, rates=rates, arms=ARMS[:2]), INFO, width=500))
    assert text.startswith(start)


def faster(arm: str, c: int) -> float:
    return 100.0 * c * (1.3 if arm == "eagle3" else 1.0)


def slower(arm: str, c: int) -> float:
    return 100.0 * c * (0.8 if arm == "eagle3" else 1.0)


@pytest.mark.parametrize(
    ("rates", "counted", "says"),
    [
        (faster, (1,), "Speculation pays at concurrency 1: eagle3 is faster there ("),
        (slower, (1, 2, 5), "Speculation costs at concurrency 1, 2 and 5: eagle3 is slower there ("),
        (faster, (1, 2, 5, 10), "Leave speculation on: eagle3 is faster at concurrency 1, 2, 5 and 10 ("),
        (slower, (1, 2, 5, 10), "Turn speculation off: eagle3 is slower at concurrency 1, 2, 5 and 10 ("),
        (
            lambda arm, c: 100.0 * c,
            (1, 2),
            "No verdict, nothing stands out of the noise between server boots: at ",
        ),
        (rate, (1, 2, 5, 10, 30), "Turn speculation off above about 1"),
    ],
)
def test_the_answer_speaks_of_the_concurrencies_that_count_and_names_the_others(rates, counted, says):
    gone = [c for c in SWEEP if c not in counted]
    invalid = {("baseline", c): (BUSY.format(9.0),) for c in gone}
    shown = summary(5, rates=rates, arms=ARMS[:2], invalid=invalid)
    where = " and ".join(", ".join(map(str, gone)).rsplit(", ", 1))
    tail = f"; {where} {'do' if len(gone) > 1 else 'does'} not count (client_bound)."
    for text in (
        terminal.to_text(shown, INFO, width=500),
        markdown.render(shown, INFO).replace("\\", ""),
        junit.render(shown, INFO),
        html.render(shown, INFO),
    ):
        assert says in text
        assert tail in text
        assert "every measured" not in text
        assert ">speculation on<" not in text or rates is rate


@pytest.mark.parametrize("boots_that_lost_it", [(1,), (1, 2, 3)])
def test_an_arm_that_lost_its_worst_point_is_not_the_strongest_for_it(boots_that_lost_it):
    arms = (*ARMS[:2], replace(ARMS[1], name="worn"))
    measured = points(
        3,
        arms=arms,
        noise=0.001,
        rates=lambda arm, c: rate("eagle3", c) * 0.99 if arm == "worn" else rate(arm, c),
    )
    shown = summarise(measured, arms=arms)
    assert main_crossover(shown)["arm"] == "eagle3"
    lost = [
        replace(p, valid=False, reasons=(BUSY.format(9.0),))
        if p.arm == "worn" and p.concurrency == SWEEP[-1] and p.boot in boots_that_lost_it
        else p
        for p in measured
    ]
    shown = summarise(lost, arms=arms)
    best = max(shown["verdicts"], key=lambda verdict: verdict["change"])
    assert best["arm"] == "worn"
    assert main_crossover(shown)["arm"] == "eagle3"


@pytest.mark.parametrize(
    ("boots", "noise", "gain", "named"),
    [
        (3, 0.02, 1.01, "eagle3"),  # inside the interval of the first
        (3, 0.001, 1.1, "twin"),
        (1, 0.02, 1.002, "twin"),  # no interval, so the estimate alone
    ],
)
def test_of_arms_that_nothing_tells_apart_the_first_one_is_named(boots, noise, gain, named):
    arms = (*ARMS[:2], replace(ARMS[1], name="twin"))
    measured = points(
        boots,
        arms=arms,
        noise=noise,
        rates=lambda arm, c: rate("eagle3", c) * gain if arm == "twin" else rate(arm, c),
    )
    shown = summarise(measured, arms=arms)
    better = {verdict["arm"]: verdict["change"] for verdict in shown["verdicts"]}
    assert better["twin"] > better["eagle3"]
    assert main_crossover(shown)["arm"] == named


def test_concurrencies_that_a_run_cut_short_never_came_to_are_named():
    first = [p for p in points(5, arms=ARMS[:2], rates=faster) if p.concurrency == 1]
    text = terminal.to_text(summarise(first, arms=ARMS[:2], asked=SWEEP), INFO, width=500)
    assert text.startswith("Speculation pays at concurrency 1: eagle3 is faster there")
    assert "; 2, 5, 10, 30 and 70 were not measured." in text.splitlines()[0]


def test_one_boot_gives_an_estimate_and_no_verdict():
    text = terminal.to_text(summary(1), INFO, width=500)
    assert text.startswith("No verdict from one server boot an arm; speculation seems to pay up to about 1")
    assert "1 boot" in text
    words = text.split()
    assert "better" not in words
    assert "worse" not in words


@pytest.mark.parametrize(
    ("pays_at", "says"),
    [
        ((1, 2, 5, 10, 30, 70), "speculation seems to pay at concurrency 1, 2, 5, 10, 30 and 70"),
        ((), "speculation seems to cost at concurrency 1, 2, 5, 10, 30 and 70"),
        ((30, 70), "speculation seems to pay only above about 17 concurrent requests"),
        ((5, 10), "speculation seems to pay only between about 3.2 and 17 concurrent requests"),
        ((1, 70), "the lines cross at about 1.4 and 46 concurrent requests"),
    ],
)
def test_the_estimate_of_one_boot_has_the_form_of_its_curve(pays_at, says):
    def rates(arm: str, c: int) -> float:
        return 100.0 * c * (1.0 if arm == "baseline" else 1.2 if c in pays_at else 1 / 1.2)

    text = terminal.to_text(summary(1, noise=0.0, rates=rates, arms=ARMS[:2]), INFO, width=500)
    assert text.startswith(f"No verdict from one server boot an arm; {says}: eagle3 against baseline is")


def busy(arms: tuple[str, ...], keep: int = 1) -> dict:
    """Three boots an arm, of which a busy machine leaves `keep` at each point of `arms`."""
    measured = [
        replace(p, valid=False, reasons=(BUSY.format(6.1 + p.boot),))
        if p.arm in arms and p.boot > keep
        else p
        for p in points(3, arms=ARMS[:2])
    ]
    return summarise(measured, arms=ARMS[:2])


def test_boots_that_a_busy_machine_spoiled_are_blamed_and_not_the_number_of_repeats():
    text = terminal.to_text(busy(("baseline", "eagle3")), INFO, width=800)
    assert text.startswith(
        "No verdict, the machine that makes the load was too busy: 24 of 36 measurements of eagle3 and "
        "baseline do not count (client_bound); run again while it is idle; what is left is one "
        "boot an arm, where speculation seems"
    )
    assert "sweep.repeats" not in text
    assert "1 of 3" in text
    assert "1 valid boot an arm" in text


def test_a_run_without_any_valid_point_of_an_arm_names_the_cause_too():
    text = terminal.to_text(busy(("eagle3",), keep=0), INFO, width=800)
    assert text.startswith("No verdict, the machine that makes the load was too busy: 18 of 36 measurements")


def test_reasons_that_differ_in_their_figures_share_one_footnote_with_the_range():
    text = terminal.to_text(busy(("eagle3",)), INFO, width=800)
    lines = [line for line in text.splitlines() if line.startswith("[")]
    told = "[1] client_bound: the load generator ran 8.1 to 9.1 ms late (p99; limit 5 ms)"
    assert lines == [f"{told} (12 measurements at 6 points)"]


def test_a_sign_of_a_number_in_a_remark_is_not_taken_for_a_figure():
    said = {10: ("the log counts # requests",), 30: ("the log counts 3 requests",)}
    shown = [replace(p, notes=said.get(p.concurrency, ())) if p.arm == "eagle3" else p for p in points()]
    told = build(summarise(shown, arms=ARMS)).reasons
    assert told == ("the log counts # requests", "the log counts 3 requests")


def test_a_remark_on_every_point_of_an_arm_is_told_once_and_marks_no_row():
    note = "accept_from_server: an average of the server"
    noted = [replace(p, notes=(note,)) if p.arm == "eagle3" else p for p in points()]
    text = terminal.to_text(summarise(noted, arms=ARMS), INFO, width=500)
    assert text.count(note) == 1
    assert f"All points of eagle3: {note}." in text
    assert "[1]" not in text


def test_made_up_acceptance_is_said_above_the_numbers():
    noted = [
        replace(p, notes=("synthetic_acceptance: told to",)) if p.arm == "eagle3" else p for p in points()
    ]
    for render in (terminal.to_text, markdown.render):
        text = " ".join(render(summarise(noted, arms=ARMS), INFO).split())
        assert text.index("SYNTHETIC ACCEPTANCE: the accept length of eagle3 was set") < text.index("tok/s")


def test_a_concurrency_that_the_sweep_comes_back_to_is_marked_as_such():
    twice = [replace(p, concurrency=10) if p.concurrency == 30 else p for p in points()]
    text = terminal.to_text(summarise(twice, arms=ARMS), INFO, width=140)
    assert [line.split()[0] for line in text.splitlines() if " baseline " in line and "/0/" in line] == [
        *("1", "2", "5", "10", "again", "70")
    ]


def test_two_boots_that_cannot_prove_a_large_difference_are_called_too_few_and_not_noise():
    text = terminal.to_text(summary(2), INFO, width=500)
    assert text.startswith("No verdict, 2 boots an arm are too few: they do not tell eagle3 and baseline")


@pytest.mark.parametrize(
    ("gap", "noise", "boots", "says"),
    [
        (
            0.985,
            0.003,
            2,
            "Speculation costs 1.4% on average: eagle3 is slower over concurrency 1, 2, 5, 10, 30 ",
        ),
        (
            1.015,
            0.003,
            2,
            "Speculation pays 1.6% on average: eagle3 is faster over concurrency 1, 2, 5, 10, 30 ",
        ),
        (
            1.0,
            0.003,
            2,
            "No verdict, nothing stands out of the noise between server boots: at every measured ",
        ),
        (1.0, 0.04, 2, "No verdict, 2 boots an arm are too few: they do not tell eagle3 and baseline"),
    ],
)
def test_two_boots_are_called_too_few_only_where_they_are(gap, noise, boots, says):
    def rates(arm: str, c: int) -> float:
        return 100.0 * c * (gap if arm == "eagle3" else 1.0)

    shown = summary(boots, noise=noise, rates=rates, arms=ARMS[:2])
    text = terminal.to_text(shown, INFO, width=900)
    assert text.startswith(says)
    if noise < 0.01:
        assert "find a true 3.0% difference over 99% of the time" in text
        assert "too few" not in text


def test_an_equal_pair_is_said_to_have_no_difference_of_a_size():
    text = answer(summary(5, noise=0.003, rates=lambda arm, c: 100.0 * c, arms=ARMS[:2]), INFO)
    assert text.endswith(", and over all of them there is no difference beyond 3.0%.")


def test_under_an_open_load_a_reader_is_sent_to_the_latencies():
    shown = summary()
    assert "OPEN LOAD" not in terminal.to_text(shown, INFO, width=900)
    for text in (
        terminal.to_text(shown, replace(INFO, load="open"), width=900),
        markdown.render(shown, replace(INFO, load="open")),
        html.render(shown, replace(INFO, load="open")),
    ):
        assert "OPEN LOAD: requests come at a set rate, so output tok/s is mostly that rate" in text
        assert "compare the latencies (ttft, tpot, e2e)." in text
    lead = "No verdict from output tokens/s: under an open load it is mostly the rate at which requests come; for"
    assert answer(shown, replace(INFO, load="open")).startswith(lead)


ABOVE = (10, 30, 70)


@pytest.mark.parametrize(
    ("invalid", "says"),
    [
        ([("baseline", c) for c in ABOVE], "baseline has no valid point above its threshold"),
        ([("dynamic", c) for c in ABOVE], "dynamic has no valid point above its threshold"),
        (
            [(arm, c) for arm in ("baseline", "dynamic") for c in ABOVE],
            "dynamic and baseline have no valid point above its threshold",
        ),
        (
            [("baseline", 10), ("dynamic", 30), ("dynamic", 70)],
            "dynamic and baseline have no valid point in common above its threshold",
        ),
    ],
)
def test_an_unknown_disabled_tax_names_the_side_that_lacks_a_point(invalid, says):
    shown = summary(invalid=dict.fromkeys(invalid, ("gpu_shared: x",)))
    text = terminal.to_text(shown, INFO, width=900)
    assert f"dynamic (threshold 5): {says}, so its disabled tax is unknown." in text


@pytest.mark.parametrize("width", [40, 80, 140])
def test_a_tune_shows_speculating_against_plain_and_says_so(width):
    arms = tuple(replace(ARMS[2], name=name) for name in (SPECULATING, PLAIN))

    def rates(arm: str, c: int) -> float:
        return 100.0 * c * ((1.4 if c < 8 else 0.7) if arm == SPECULATING else 1.0)

    shown = summarise(
        points(5, noise=0.002, rates=rates, arms=arms), arms=arms, shared=[{SPECULATING, PLAIN}]
    )
    rows = {(row.arm, row.concurrency): (row.change, row.verdict) for row in build(shown).rows}
    assert {rows[SPECULATING, c] for c in (1, 2, 5)} == {("+40%", "better")}
    assert {rows[SPECULATING, c] for c in ABOVE} == {("-30%", "worse")}
    assert {rows[PLAIN, c] for c in SWEEP} == {("-", "")}
    text = " ".join(terminal.to_text(shown, INFO, width=width).split())
    assert ": tok/s against always-plain; " in text
    assert "| vs always-plain |" in markdown.render(shown, INFO)
    assert "Against always-plain" in html.render(shown, INFO)
    assert "the baseline" not in text


def test_a_table_without_an_arm_to_set_against_speaks_of_no_baseline():
    shown = summarise(points(arms=ARMS[1:2]), arms=ARMS[1:2])
    assert "baseline" not in terminal.to_text(shown, INFO, width=900)
    assert "vs baseline" not in markdown.render(shown, INFO)
    assert "Against" not in html.render(shown, INFO)


@pytest.mark.parametrize("end", ["folder.", "folder. ", "folder", "folder?"])
def test_no_sentence_has_two_full_stops_whatever_words_it_was_made_of(end):
    title = f"no model in this {end}"
    info = replace(
        INFO, failures=(replace(CARD, title=title),), damage=(title,), unsupported={"dynamic": title}
    )
    noted = [replace(p, notes=(title,)) for p in points() if p.arm == "baseline"]
    shown = summarise(noted, arms=ARMS[:2], arm_notes={"baseline": (title,)})
    assert answer(shown, info) == f"No verdict, eagle3 failed at concurrency 10: {title.rstrip(' .?')}" + (
        "?" if "?" in end else "."
    )
    for text in (
        terminal.to_text(shown, info, width=900),
        markdown.render(shown, info),
        html.render(shown, info),
    ):
        for wrong in ("..", "?.", ". ."):
            assert f"folder{wrong}" not in text


def test_an_invalid_point_is_shown_in_parentheses_with_its_reason_and_never_claimed():
    reason = "admission_limit: 70 asked, the server admits 48"
    shown = summary(invalid={("eagle3", 70): (reason,)})
    text = terminal.to_text(shown, INFO)
    assert "invalid [1]" in text
    assert f"[1] {reason}" in text
    verdict = next(v for v in shown["verdicts"] if v["arm"] == "eagle3")
    assert verdict["points_in_headline"] == [1, 2, 5, 10, 30]


def test_a_mean_over_fewer_points_than_the_sweep_has_names_those_that_it_lacks():
    shown = summary(invalid={("eagle3", 1): ("client_bound: x",), ("eagle3", 70): ("client_bound: x",)})
    lacking = "mean over 4 points (without concurrency 1 and 70)"
    terminal_words = " ".join(terminal.to_text(shown, INFO).split())
    for text in (terminal_words, markdown.render(shown, INFO), html.render(shown, INFO)):
        assert text.count(lacking) == len(
            [v for v in shown["verdicts"] if "eagle3" in (v["arm"], v["against"])]
        )
    assert "mean over 6 points, 3 boots an arm" in terminal_words


@pytest.mark.parametrize("boots", [1, 3])
@pytest.mark.parametrize("width", [80, 140])
def test_no_line_is_wider_than_the_terminal_and_no_colour_means_no_escape_code(width, boots):
    text = terminal.to_text(summary(boots), replace(INFO, failures=(CARD,)), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text
    assert "eagle3" in text


@pytest.mark.parametrize("width", [24, 40, 50, 60, 70, 80, 109, 110, 120])
@pytest.mark.parametrize("name", ["eagle3", "eagle3-with-a-long-name"])
def test_no_width_cuts_a_number_or_loses_an_arm(width, name):
    arms = (ARMS[0], replace(ARMS[1], name=name))
    shown = summary(3, arms=arms, rates=lambda arm, c: 1e4 * c, invalid={(name, 70): ("gpu_shared: x",)})
    text = terminal.to_text(shown, INFO, width=width)
    words = set(text.replace("/", " ").replace(";", " ").split())
    assert max(map(len, text.splitlines())) <= width
    for row in build(shown).rows:
        assert {row.output_tps, row.tpot, row.ttft_p50, row.ttft_p99} <= words
    assert name in text.replace("\n", "") or name[:9] in text
    assert "\u2026" not in text


def test_a_terminal_without_room_for_columns_gets_a_paragraph_a_row():
    text = terminal.to_text(summary(), INFO, width=40)
    assert "concurrency 70\n- baseline: " in text
    assert [line for line in text.splitlines() if line.startswith("- eagle3: ") and "tok/s" in line]


@pytest.mark.parametrize("width", [80, 140])
def test_the_colour_of_a_verdict_is_on_the_verdict(width):
    lines = terminal.to_text(summary(), INFO, width=width, color=True).splitlines()
    green = [line for line in lines if "\x1b[32m" in line]
    assert green
    for line in green:
        coloured = line.split("\x1b[32m")[1].split("\x1b[0m")[0]
        assert coloured.strip().endswith("better"), line


def test_a_table_that_just_does_not_fit_moves_closer_before_it_breaks_a_name():
    arms = (ARMS[0], replace(ARMS[1], name="eagle3-banner-x"))
    text = terminal.to_text(summary(arms=arms, rates=lambda arm, c: 1e4 * c), INFO, width=80)
    assert sum(line.startswith("     eagle3-banner-x ") for line in text.splitlines()) == 6
    assert max(map(len, text.splitlines())) <= 80


def test_colour_is_there_when_asked_for():
    assert "\x1b[" in terminal.to_text(summary(), INFO, width=100, color=True)


def test_a_simulated_run_says_so_in_the_first_sentence():
    info = replace(INFO, simulated=True)
    for text in (terminal.to_text(summary(), info, width=500), markdown.render(summary(), info)):
        assert first_line(text).startswith("Simulated run: turn speculation off")
        assert "SIMULATED: a stand-in engine answered." in text


def test_a_run_without_baseline_says_what_is_missing():
    arms = ARMS[1:]
    text = terminal.to_text(summarise(points(arms=arms), arms=arms), RunInfo(), width=500)
    assert text.startswith("No verdict on speculation: no arm without speculation was measured")


def test_a_run_without_speculation_says_so():
    arms = (ARMS[0], Arm("other", {"schedule-policy": "fcfs"}, {}))
    shown = summarise(points(arms=arms, rates=lambda arm, c: rate("baseline", c)), arms=arms)
    text = terminal.to_text(shown, RunInfo(), width=500)
    assert text.startswith("No verdict on speculation: no arm of this run speculates.")


@pytest.mark.parametrize("arm", ARMS)
def test_a_run_of_one_arm_says_what_was_measured_instead_of_a_missing_verdict(arm):
    text = answer(summarise(points(boots=1, noise=0, arms=(arm,)), arms=(arm,)), RunInfo())
    first, last = (f"{rate(arm.name, level):.0f}" for level in (SWEEP[0], SWEEP[-1]))
    assert text == (
        f"One arm, no comparison: {arm.name} gives {first} output tokens/s at concurrency 1 up to {last} at 70."
    )


def test_a_run_of_one_arm_names_what_does_not_count_of_it_and_its_interval_over_boots():
    arm, bad = ARMS[:1], {("baseline", level): ("client_bound: late",) for level in SWEEP[1:]}
    some = answer(summarise(points(arms=arm, invalid=bad), arms=arm), RunInfo())
    assert some.startswith("One arm, no comparison: baseline gives 1")
    assert "%) output tokens/s at concurrency 1; 2, 5, 10, 30 and 70 do not count (client_bound)." in some
    bad["baseline", SWEEP[0]] = ("client_bound: late",)
    none = answer(summarise(points(arms=arm, invalid=bad), arms=arm), RunInfo())
    assert none.startswith("No number counts, the machine that makes the load was too busy: 18 of 18 ")


def test_a_crash_before_any_valid_point_is_the_answer():
    only_baseline = [p for p in points() if p.arm == "baseline"]
    shown = summarise(only_baseline, arms=ARMS[:2])
    text = terminal.to_text(shown, replace(INFO, failures=(CARD,)), width=500)
    assert text.startswith(f"No verdict, eagle3 failed at concurrency 10: {CARD.title}.")
    assert "FAILED eagle3 boot 1, concurrency 10" in text
    assert CARD.replay in text


@pytest.mark.parametrize("width", [40, 80, 100])
def test_a_command_is_never_broken_into_lines(width: int):
    replay = f"dynspec run {'results/a-run-with-a-long-name/' * 4}experiment.lock.yaml --arm eagle3 --set a=1"
    info = replace(INFO, failures=(replace(CARD, replay=replay),))
    lines = terminal.to_text(summary(), info, width=width).splitlines()
    assert f"  replay  {replay}" in lines
    before = "The run has not come to its end, and this goes on with what it measured:"
    *told, command = terminal._told(f"{before} {replay}", width)
    assert [part.plain for part in told] == [before]
    assert (command.plain, command.no_wrap) == (f"  {replay}", True)
    assert [part.plain for part in terminal._told("Go on: dynspec run x", 80)] == ["Go on: dynspec run x"]


def test_a_command_ends_without_a_full_stop_also_where_the_node_has_a_port():
    told = "the node is not as it was: put it back first: dynspec restore"
    for node in ("gpu-1", "ci@gpu-1:2222", "ci@[fd00::1]:2222"):
        assert sentence(f"{told} {node}") == f"{told} {node}"
    assert sentence("it failed: dynspec restore says: nothing") == "it failed: dynspec restore says: nothing."


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (10356.4, "10356"),
        (12.34, "12.3"),
        (1.239, "1.24"),
        (0.0521, "0.0521"),
        (0.0000521, "0.0000521"),
        (0, "0.00"),
    ],
)
def test_a_number_is_shown_without_an_exponent(value, shown):
    assert number(value) == shown


def test_an_empty_run_renders_without_a_table():
    text = markdown.render(summarise([]), RunInfo())
    assert "No point was measured." in text


def test_unknown_accept_length_is_not_shown_as_zero():
    lost = [replace(p, metrics={**p.metrics, "accept_length": None}) for p in points(1)]
    text = terminal.to_text(summarise(lost, arms=ARMS), INFO, width=140)
    assert text.count("unknown") == 12 + 1  # two arms, six points, and the legend
    assert "0.00" not in text


def test_text_from_the_node_cannot_break_out_of_the_markdown():
    hostile = "x | y](http://e) <script>`"
    card = replace(CARD, title=hostile, excerpt=("```", "# heading"), replay="echo `id`")
    text = markdown.render(summary(invalid={("eagle3", 70): (hostile,)}), replace(INFO, failures=(card,)))
    assert "x | y" not in text
    assert "<script>" not in text
    assert "````text\n```\n# heading\n````" in text
    assert "`` echo `id` ``" in text


def test_every_row_of_the_markdown_table_has_as_many_cells_as_its_head():
    table = [line for line in markdown.render(summary(), INFO).splitlines() if line.startswith("| ")]
    rows = [line for line in table if line.count("|") > 3]
    assert len(rows) == 2 + 18
    assert len({line.count("|") for line in rows}) == 1


def test_identical_arms_that_differ_are_called_out_as_a_broken_noise_floor():
    arms = (*ARMS[:2], Arm("baseline-again", {}, {}))
    levels = {"baseline": 100.0, "baseline-again": 110.0, "eagle3": 106.0}
    shown = summary(3, arms=arms, noise=0.002, rates=lambda arm, c: levels[arm] * c)
    text = terminal.to_text(shown, INFO, width=500)
    assert "A/A check, baseline-again and baseline have the same settings and yet differ by +10%" in text


def test_a_tight_interval_around_nothing_says_that_no_difference_beyond_3_percent_is_left():
    shown = summary(5, arms=ARMS[:2], noise=0.001, rates=lambda arm, c: 100.0 * c)
    assert "inconclusive" in terminal.to_text(shown, INFO, width=500)
    assert "so no difference beyond 3.0%" in terminal.to_text(shown, INFO, width=500)


def test_text_from_the_node_cannot_steer_the_terminal():
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31mred\u202etxt\r\x00"
    card = replace(CARD, title=evil, excerpt=(evil,), replay=evil, cause=evil, fix=evil, rank=evil)
    info = replace(INFO, failures=(card,), warnings=(evil,), folder=evil)
    shown = summary(invalid={("eagle3", 70): (evil,)})
    for text in (terminal.to_text(shown, info, width=140), markdown.render(shown, info)):
        assert not {"\x1b", "\x07", "\x9b", "\u202e", "\r", "\x00"} & set(text)
        assert "owned" in text


def test_a_p99_of_few_requests_is_marked_as_the_slowest_one():
    text = terminal.to_text(summary(), INFO, width=140)
    assert "90.0*" in text  # 8 requests a boot
    assert "* p99 of fewer than 100 requests a boot: the slowest one." in text
    row = next(line for line in text.splitlines() if "560/0/560" in line or "1680/0/1680" in line)
    assert "753 " in row  # 560 requests a boot


def test_random_prompts_are_warned_about_and_the_load_is_named():
    info = replace(INFO, prompts_random=True, prompts="input_ids", load_from="controller")
    text = terminal.to_text(summary(), info, width=500)
    assert "The prompts are random tokens" in text
    assert (
        "generated on the controller; prompts: input_ids; the same request bodies in the same order" in text
    )
    assert "random tokens" not in terminal.to_text(summary(), INFO, width=500)


def test_other_bodies_for_some_arm_are_said_loudly():
    measured = [replace(p, bodies_sha256="cd" * 32) if p.arm == "eagle3" else p for p in points()]
    assert "NOT the same request bodies" in terminal.to_text(summarise(measured, arms=ARMS), INFO, width=500)


def test_a_single_users_speed_has_its_own_crossing():
    assert (
        "For one user's speed (median time per output token) eagle3 stops paying at about 1"
        in terminal.to_text(summary(5), INFO, width=500)
    )


def test_the_recommended_threshold_comes_with_its_interval_and_the_native_configuration():
    text = terminal.to_text(summary(5), INFO, width=500)
    assert "For a server that switches by itself, threshold 1" in text
    assert '{"candidate_steps": [2]}' in text
    assert "For a server that switches" not in terminal.to_text(summary(1), INFO, width=500)

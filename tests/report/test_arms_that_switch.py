"""Of an arm that leaves speculation off by itself no sentence takes plain steps for what speculation gains or loses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.analysis.summary import summarise
from orchestrator.model.experiment import Arm
from orchestrator.report import html, junit, markdown, terminal
from orchestrator.report.tables import build
from tests.report.example_runs import ARMS, EAGLE3, INFO, SWEEP, points

ADAPTIVE = Arm("native", {**EAGLE3, "speculative-adaptive": True}, {})


def threshold(value: int) -> Arm:
    args = {**EAGLE3, "speculative-disable-batch-threshold": value}
    return Arm("dynamic", args, {}, ("dynamic_disable",))


def shown(arm: Arm, gains: tuple[float, ...], boots: int, noise: float = 0.005, plain_at=()) -> dict:
    """The arm against a baseline; `gains` at each level of the sweep. `plain_at`: where its servers ran plain."""
    measured = points(
        boots,
        noise,
        arms=(ARMS[0], arm),
        rates=lambda name, c: 100.0 * c * (1.0 if name == "baseline" else 1 + gains[SWEEP.index(c)]),
    )
    measured = [
        replace(p, metrics={**p.metrics, "spec_share": 0.0})
        if p.arm == arm.name and p.concurrency in plain_at
        else p
        for p in measured
    ]
    return summarise(measured, arms=(ARMS[0], arm))


def forms(summary: dict, info=INFO) -> list[str]:
    return [
        terminal.to_text(summary, info, width=900),
        markdown.render(summary, info).replace("\\", ""),
        html.render(summary, info).replace("&#x27;", "'"),
    ]


FALLS = (0.3, 0.3, 0.2, -0.2, -0.3, -0.3)
SENTENCES = [
    pytest.param(
        (threshold(5), FALLS, 3),
        "Speculation pays at concurrency 1, 2 and 5",
        "dynamic is faster there; it turns slower between 5 and 10, where it switches by itself; at 10, 30 and 70 it "
        "does not speculate, and is slower (",
        id="slower from its switch on",
    ),
    pytest.param(
        (threshold(5), (0.3, 0.3, 0.2, 0.0, 0.0, -0.3), 3),
        "Speculation pays at concurrency 1, 2 and 5",
        "dynamic is faster there; it turns slower between 5 and 70, where it switches by itself; at 10, 30 and 70 it "
        "does not speculate, and is slower at 70 (",
        id="slower far above its switch",
    ),
    pytest.param(
        (threshold(5), (0.3, 0.3, 0.2, 0.0, 0.0, 0.0), 3),
        "Speculation pays at concurrency 1, 2 and 5",
        "dynamic is faster there; at 10, 30 and 70 it does not speculate (",
        id="like the baseline above it",
    ),
    pytest.param(
        (threshold(30), FALLS, 3),
        "Speculation pays up to about 6.",
        "dynamic is faster below, slower above while it speculates; at 70 it does not speculate, and is slower (",
        id="a crossing below its switch",
    ),
    pytest.param(
        (threshold(70), FALLS, 3),
        "Turn speculation off above about 6.",
        "dynamic is faster below, slower above (",
        id="no switch in the sweep",
    ),
    pytest.param(
        (threshold(5), (-0.3, -0.3, -0.2, 0.0, 0.0, 0.0), 3),
        "Speculation costs at concurrency 1, 2 and 5",
        "dynamic is slower there; at 10, 30 and 70 it does not speculate (",
        id="slower where it speculates",
    ),
    pytest.param(
        (threshold(0), (-0.1,) * 6, 3),
        "No verdict on speculation",
        "at 1, 2, 5, 10, 30 and 70 dynamic does not speculate, and is slower (",
        id="it never speculates",
    ),
    pytest.param(
        (threshold(0), (0.05,) * 6, 2),
        "dynamic is 5.2% faster on average",
        "; at 1, 2, 5, 10, 30 and 70 it does not speculate)",
        id="faster on average, by no speculation",
    ),
    pytest.param(
        (ADAPTIVE, FALLS, 3, 0.005, (10, 30, 70)),
        "Speculation pays at concurrency 1, 2 and 5",
        "native is faster there; it turns slower between 5 and 10, where it switches by itself; at 10, 30 and 70 it "
        "does not speculate, and is slower (",
        id="a configuration that went plain",
    ),
    pytest.param(
        (ADAPTIVE, FALLS, 3),
        "Speculation pays at concurrency 1, 2 and 5 and costs at 10, 30 and 70",
        "native turns slower between 5 and 10, where it may switch by itself (",
        id="a configuration that nothing tells of",
    ),
    pytest.param(
        (threshold(5), FALLS, 1),
        "No verdict from one server boot an arm; speculation seems to pay at concurrency 1, 2 and 5, and between 5 and "
        "10 dynamic switches by itself",
        "dynamic against baseline is ",
        id="one boot",
    ),
    pytest.param(
        (threshold(5), (0.3, 0.3, 0.2, 0.1, 0.1, 0.1), 1),
        "No verdict from one server boot an arm; speculation seems to pay at concurrency 1, 2 and 5",
        "dynamic against baseline is ",
        id="one boot, faster everywhere",
    ),
    pytest.param(
        (threshold(5), (0.3, 0.3, -0.2, 0.1, 0.1, 0.1), 1),
        "No verdict from one server boot an arm; speculation seems to pay up to about 3.",
        "dynamic against baseline is ",
        id="one boot, a crossing below its switch",
    ),
    pytest.param(
        (threshold(0), FALLS, 1),
        "No verdict from one server boot an arm; dynamic speculates at no measured concurrency",
        "dynamic against baseline is ",
        id="one boot that never speculates",
    ),
    pytest.param(
        (threshold(2), (0.0, 0.0, -0.2, -0.2, -0.2, -0.2), 1, 0.0),
        "No verdict from one server boot an arm; speculation seems to change nothing",
        "dynamic against baseline is ",
        id="one boot, slower by plain steps alone",
    ),
]


@pytest.mark.parametrize(("run", "lead", "rest"), SENTENCES)
def test_the_answer_of_an_arm_that_switches_by_itself_is_by_where_it_speculates(run, lead, rest):
    summary = shown(*run)
    for text in [*forms(summary), junit.render(summary, INFO)]:
        assert lead in text
        assert rest in text
        assert ("Turn speculation" in text) is lead.startswith("Turn")
    assert (">speculation on<" in html.render(summary, INFO)) is lead.startswith("Turn")


@pytest.mark.parametrize(
    ("arm", "gains", "says"),
    [
        pytest.param(ARMS[1], FALLS, r"eagle3 stops paying at about 6.", id="never switches"),
        pytest.param(
            threshold(5),
            FALLS,
            "dynamic stops paying between 5 and 10 concurrent requests, where it switches by itself.",
            id="across its switch",
        ),
        pytest.param(
            threshold(5),
            (0.3, -0.2, -0.2, 0.2, 0.2, 0.2),
            "and starts paying between 5 and 10, where it switches by itself.",
            id="a crossing and a turn",
        ),
        pytest.param(
            threshold(5),
            (0.3, 0.3, 0.2, 0.1, 0.1, -0.3),
            "dynamic is faster at 1, 2, 5, 10 and 30 and slower at 70.",
            id="plain steps on both sides",
        ),
    ],
)
def test_one_users_speed_has_its_interval_or_the_two_points_around_the_switch(arm, gains, says):
    head = "For one user's speed (median time per output token)"
    for text in forms(shown(arm, gains, 3)):
        line = text[text.index(head) :].partition("\n")[0]
        assert says in line
        assert line.count("95% interval") == line.count("at about ")


@pytest.mark.parametrize(
    ("metrics", "cell"),
    [
        ({"spec_share": 0.0, "verify_steps": 0.0}, "off"),
        ({"spec_share": 1 / 481, "verify_steps": 0.0}, "off (0.2%)"),
        ({"spec_share": 1 / 481, "verify_steps": 12.0, "accept_length": 2.0}, "2.00 (0.2%)"),
        ({"spec_share": 1 / 481}, "unknown"),
        ({"verify_steps": 0.0}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_a_step_that_speculated_for_no_request_is_known_to_be_off(metrics, cell):
    measured = [
        replace(p, metrics={"output_tps": p.metrics["output_tps"], **metrics})
        for p in points(1, arms=(threshold(5),))
    ]
    summary = summarise(measured, arms=(threshold(5),))
    assert {row.accept_length for row in build(summary).rows} == {cell}
    text = terminal.to_text(summary, INFO, width=400)
    assert ("off: no request had a step that speculated" in text) is cell.startswith("off")
    assert ("In brackets: the share of steps that speculated" in text) is cell.endswith(")")

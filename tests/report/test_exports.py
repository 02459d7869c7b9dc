"""CSV, JSON lines and JUnit carry the same numbers into other tools, safely."""

from __future__ import annotations

import ast
import csv
import io
import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from orchestrator.analysis.gate import gate
from orchestrator.analysis.summary import summarise
from orchestrator.model.experiment import Arm, Gate
from orchestrator.report import exports, junit
from orchestrator.report.files import report_files
from tests.report.example_runs import ARMS, CARD, INFO, points, summary
from tests.wheels import wheel_tree

REASON = "admission_limit: 70 asked, 48 admitted"
SHOWN = summary(3, invalid={("eagle3", 70): (REASON,)})


def test_the_csv_has_one_row_a_point_with_value_and_interval():
    rows = list(csv.DictReader(io.StringIO(exports.summary_csv(SHOWN))))
    assert len(rows) == 18
    row = next(r for r in rows if r["arm"] == "eagle3" and r["concurrency"] == "10")
    metric = SHOWN["arms"]["eagle3"]["points"][3]["metrics"]["output_tps"]
    assert float(row["output_tps"]) == metric["value"]
    assert float(row["output_tps_low"]) == metric["low"]
    assert (row["valid"], row["boots"], row["ok"]) == ("true", "3", "240")


def test_the_csv_leaves_absent_metrics_empty_and_names_reasons():
    rows = list(csv.DictReader(io.StringIO(exports.summary_csv(SHOWN))))
    assert next(r for r in rows if r["arm"] == "baseline")["accept_length"] == ""
    bad = next(r for r in rows if r["arm"] == "eagle3" and r["concurrency"] == "70")
    assert (bad["valid"], bad["reasons"]) == ("false", REASON)


@pytest.mark.parametrize("name", ["=cmd|'/c calc'!A0", "+1", "-1", "@x"])
def test_a_spreadsheet_takes_no_name_for_a_formula(name):
    arms = (Arm(name, {}, {}),)
    text = exports.summary_csv(summarise(points(1, arms=arms, rates=lambda a, c: 1.0 * c), arms=arms))
    assert next(csv.DictReader(io.StringIO(text)))["arm"] == f"'{name}"


def test_json_lines_are_one_valid_point_of_one_boot_each():
    lines = [json.loads(line) for line in exports.bench_serving_jsonl(SHOWN, INFO).splitlines()]
    assert len(lines) == 3 * 6 * 3 - 3
    line = next(item for item in lines if item["tag"] == "eagle3" and item["max_concurrency"] == 10)
    boot = SHOWN["arms"]["eagle3"]["points"][3]["boots"][0]
    assert line["output_throughput"] == boot["metrics"]["output_tps"]
    assert line["median_ttft_ms"] == pytest.approx(boot["metrics"]["ttft_p50"] * 1000)
    assert line["mean_itl_ms"] is None


def test_json_lines_have_the_rates_that_scripts_read_over_the_steady_window():
    told = {
        "output_tps": 500.0,
        "input_tps": 9_000.0,
        "requests_per_s": 32.0,
        "window_s": 2.5,
        "ttft_std": 0.25,
    }
    measured = [replace(point, metrics={**point.metrics, **told}) for point in points(1, arms=ARMS[:1])]
    line = json.loads(exports.bench_serving_jsonl(summarise(measured, arms=ARMS[:1]), INFO).splitlines()[0])
    rates = [f"{name}_throughput" for name in ("request", "input", "output", "total")]
    assert [line[key] for key in ("duration", *rates)] == [2.5, 32.0, 9_000.0, 500.0, 9_500.0]
    assert line["std_ttft_ms"] == 250.0


@pytest.mark.wheels
def test_json_lines_have_exactly_the_keys_that_bench_serving_writes():
    tree = ast.parse((wheel_tree("0.5.23") / "benchmark" / "serving.py").read_text())
    written = [
        {key.value for key in node.keys if isinstance(key, ast.Constant)}
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
    ]
    result = next(keys for keys in written if {"mean_ttft_ms", "accept_length", "tag"} <= keys)
    assert set(exports.BENCH_SERVING_KEYS) == result
    assert set(json.loads(exports.bench_serving_jsonl(SHOWN, INFO).splitlines()[0])) == result


def test_junit_has_a_case_a_point_and_invalid_ones_fail_with_their_reason():
    root = ElementTree.fromstring(junit.render(SHOWN, INFO))
    suite = root.find("testsuite[@name='points']")
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("18", "1", "0")
    failure = suite.find("testcase[@name='concurrency 70 (position 5)']/failure")
    assert (failure.get("type"), failure.get("message")) == ("admission_limit", REASON)
    assert suite.find("properties/property").get("value").startswith("Turn speculation off above")


def test_junit_reports_crashed_boots_as_errors_and_a_lost_gate_as_failure():
    slow, good = (
        summary(3, seed=s, rates=lambda a, c, level=v: level * c) for s, v in ((1, 80.0), (2, 100.0))
    )
    lost = gate(slow, {"good": good}, Gate())
    root = ElementTree.fromstring(junit.render(SHOWN, replace(INFO, failures=(CARD,)), lost))
    error = root.find("testsuite[@name='boots']/testcase/error")
    assert error.get("type") == "shape_mismatch"
    assert CARD.replay in error.text
    suite = root.find("testsuite[@name='gate']")
    assert suite.get("failures") == "3"
    assert {f.get("type") for f in suite.iter("failure")} == {"regression"}


@pytest.mark.parametrize("char", ["\x00", "\x1b", "\x85", "\ud800", "\ufffe", "\uffff"])
def test_junit_survives_what_no_xml_may_hold(char):
    card = replace(CARD, title=f"<&]]>{char}", excerpt=(f"a{char}b",))
    root = ElementTree.fromstring(junit.render(SHOWN, replace(INFO, failures=(card,))).encode())
    assert (
        root.find("testsuite[@name='boots']/testcase/error").get("message")
        == "<&]]>\N{REPLACEMENT CHARACTER}"
    )


def test_a_gate_without_reference_is_a_failed_case_of_its_own():
    root = ElementTree.fromstring(junit.render(SHOWN, INFO, gate(SHOWN, {}, Gate())))
    failure = root.find("testsuite[@name='gate']/testcase/failure")
    assert (failure.get("type"), failure.get("message")) == ("inconclusive", "there is no reference run")


def test_the_arms_are_named_in_every_export():
    for text in (
        exports.summary_csv(SHOWN),
        exports.bench_serving_jsonl(SHOWN, INFO),
        junit.render(SHOWN, INFO),
    ):
        assert all(arm.name in text for arm in ARMS)


def test_the_files_of_a_report_are_those_asked_for_and_the_data():
    assert set(report_files(SHOWN, INFO, ["terminal"])) == {"summary.csv", "bench_serving.jsonl"}
    files = report_files(SHOWN, INFO, ["terminal", "html", "md", "junit"])
    assert set(files) == {"summary.csv", "bench_serving.jsonl", "report.html", "report.md", "junit.xml"}
    assert all(files.values())

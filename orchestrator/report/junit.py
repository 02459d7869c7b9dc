"""JUnit XML, as CI systems read it: a test case for each point, each failed boot and the gate."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from orchestrator.analysis.gate import GateResult
from orchestrator.model.result import RunInfo
from orchestrator.report.answer import answer
from orchestrator.report.shapes import Summary
from orchestrator.report.text import clean


def render(summary: Summary, info: RunInfo, gate: GateResult | None = None) -> str:
    """The whole file. An invalid point and a lost gate are failures, a crashed boot is an error."""
    root = ElementTree.Element("testsuites", name=clean(info.name or "dynspec"))
    points = _suite(root, "points", answer(summary, info))
    for arm, found in summary["arms"].items():
        for point in found["points"]:
            _point(points, arm, point)
    if info.failures:
        boots = _suite(root, "boots")
        for card in info.failures:
            at = f" concurrency {card.concurrency}" if card.concurrency else ""
            case = _case(boots, card.arm, f"boot {card.boot}{at}")
            lines = [f"cause: {card.cause}", f"fix: {card.fix}", f"replay: {card.replay}", *card.excerpt]
            _child(case, "error", card.title, card.failure, "\n".join(lines))
    if gate is not None:
        _gate(_suite(root, "gate"), gate)
    for suite in root:
        _count(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _suite(root: ElementTree.Element, name: str, says: str = "") -> ElementTree.Element:
    suite = ElementTree.SubElement(root, "testsuite", name=name)
    if says:
        properties = ElementTree.SubElement(suite, "properties")
        ElementTree.SubElement(properties, "property", name="answer", value=clean(says))
    return suite


def _case(suite: ElementTree.Element, group: str, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=clean(group), name=clean(name))


def _child(case: ElementTree.Element, tag: str, message: str, kind: str, text: str = "") -> None:
    child = ElementTree.SubElement(case, tag, message=clean(message), type=clean(kind))
    child.text = clean(text)


def _point(suite: ElementTree.Element, arm: str, point: dict[str, Any]) -> None:
    case = _case(suite, arm, f"concurrency {point['concurrency']} (position {point['index']})")
    if not point["valid"]:
        kind = point["reasons"][0].split(":")[0] if point["reasons"] else "invalid"
        _child(case, "failure", "; ".join(point["reasons"]), kind)
    rows = [f"{name} = {item['value']:.6g} (n = {item['n']})" for name, item in point["metrics"].items()]
    counts = f"ok {point['ok']}, failed {point['failed']}, attempted {point['attempted']}"
    out = ElementTree.SubElement(case, "system-out")
    out.text = clean("\n".join([counts, *rows, *point["notes"]]))


def _gate(suite: ElementTree.Element, gate: GateResult) -> None:
    for item in gate.arms:
        case = _case(suite, item.arm, f"{gate.metric} against {', '.join(gate.references)}")
        if item.state != "pass":
            _child(case, "failure", item.why, item.state)
    if not gate.arms:
        case = _case(suite, "gate", f"{gate.metric} against {', '.join(gate.references) or 'nothing'}")
        why = "; ".join(str(item) for item in gate.unlike if item.blocks) or "there is no reference run"
        _child(case, "failure", why, gate.state)


def _count(suite: ElementTree.Element) -> None:
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for tag, key in (("failure", "failures"), ("error", "errors")):
        suite.set(key, str(sum(case.find(tag) is not None for case in cases)))

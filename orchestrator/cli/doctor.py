"""`dynspec doctor`: the findings of a node as lines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from orchestrator.cli.nodes import Way, connected
from orchestrator.errors import DoesNotFit, NodeBusy
from orchestrator.model.experiment import Experiment
from orchestrator.model.facts import Facts
from orchestrator.remote.node import Node
from orchestrator.remote.transport import ConnectSettings
from orchestrator.runner.doctor import Checkup, Finding, Place, State, examine, examine_arms, find_trees
from orchestrator.runner.prepare import connect_to
from orchestrator.store import plain

_MARKS = {"ok": "ok", "note": "note", "busy": "busy", "bad": "NO"}


@dataclass(frozen=True)
class Report:
    """`trees`: interpreters that can load the package, where none was named."""

    node: str
    checkup: Checkup
    arms: tuple[Finding, ...]
    trees: dict[str, Facts]

    @property
    def findings(self) -> tuple[Finding, ...]:
        return (*self.checkup.findings, *self.arms)

    @property
    def exit_code(self) -> int:
        states = {finding.state for finding in self.findings}
        return DoesNotFit.exit_code if "bad" in states else NodeBusy.exit_code if "busy" in states else 0


def look(way: Way, experiment: Experiment | None, python: str | None, cwd: str) -> Report:
    """Connects, reads, and leaves. The experiment's own way to its node counts where none is given."""
    with _connect(way, experiment) as client:
        trees: dict[str, Facts] = {}
        if experiment is not None:
            place = Place.of(experiment)
        else:
            if python is None:
                trees = find_trees(client, cwd)
            place = Place(python or next(iter(trees), "python3"), cwd)
        checkup = examine(client, place)
        if checkup.facts.tree is None and not trees:
            trees = find_trees(client, cwd)
        arms = examine_arms(client, experiment) if experiment is not None else ()
    return Report(way.node, checkup, arms, trees)


def _connect(way: Way, experiment: Experiment | None) -> Node:
    if experiment is None or way.typed:
        client: Node = connected(way)
        return client
    return connect_to(
        way.node, ConnectSettings.of(experiment.node, experiment.limits), experiment.node.python
    )


def lines(report: Report) -> list[str]:
    """One line a finding; what stands in the way is marked in the first column."""
    found = [*report.checkup.findings, *_arms(report.arms), *_others(report)]
    width = max(len(finding.topic) for finding in found)
    shown = [f"{_MARKS[item.state]:<5}{item.topic:<{width}}  {item.text}" for item in found]
    return [f"{report.node}:", *shown, *_advice(report)]


def _arms(found: Iterable[Finding]) -> list[Finding]:
    """Arms with one and the same fate share a line."""
    names: dict[tuple[State, str], list[str]] = {}
    for item in found:
        names.setdefault((item.state, item.text), []).append(item.topic.removeprefix("arm "))
    return [
        Finding(state, f"{'arm' if len(arms) == 1 else 'arms'} {', '.join(arms)}", text)
        for (state, text), arms in names.items()
    ]


def _others(report: Report) -> list[Finding]:
    """Trees beside the one that was looked at."""
    seen = report.checkup.facts.tree
    return [
        Finding("note", "another", f"{python} loads {_tree(facts)}")
        for python, facts in report.trees.items()
        if facts.tree is not None and (seen is None or facts.tree.path != seen.path)
    ]


def _tree(facts: Facts) -> str:
    assert facts.tree is not None
    return f"{facts.tree.package} {facts.tree.version or '(no version)'} at {facts.tree.path}"


def _advice(report: Report) -> list[str]:
    if report.trees:
        return [f"-> in an experiment: node.python: {next(iter(report.trees))}"]
    if report.checkup.facts.tree is None:
        return [
            f"-> name the interpreter that serves: dynspec doctor {report.node} --python PATH [--cwd DIR]"
        ]
    return []


def as_value(report: Report) -> dict[str, Any]:
    """The same for programs; all facts included."""
    return {
        "schema": 1,
        "node": report.node,
        "exit_code": report.exit_code,
        "findings": [
            {"state": item.state, "topic": item.topic, "text": item.text} for item in report.findings
        ],
        "patches": {
            name: {"state": str(fit.state), "reason": fit.reason} for name, fit in report.checkup.fits.items()
        },
        "pythons": {python: _tree(facts) for python, facts in report.trees.items()},
        "facts": plain(report.checkup.facts),
    }

"""Files of the node that the arms' arguments name: without one a server ends, after the node was locked and patched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from orchestrator.errors import DoesNotFit
from orchestrator.model.experiment import Arm, Experiment
from orchestrator.model.facts import Facts
from orchestrator.model.path_flags import read_by


def named_paths(experiment: Experiment) -> tuple[str, ...]:
    """Every absolute path that a server of this experiment would read, once."""
    if experiment.server.module != f"{experiment.server.package}.launch_server":
        return ()
    return tuple(dict.fromkeys(path for arm in experiment.arms for _, path in _named(arm)))


def require_paths(arms: Iterable[Arm], facts: Facts) -> None:
    """Raises DoesNotFit naming each path of these arms that is not there. The stand-in engine reads none."""
    if facts.tree is None or facts.tree.simulated:
        return
    users: dict[tuple[str, str], list[str]] = {}
    for arm in arms:
        for flag, path in _named(arm):
            if path in facts.absent:
                users.setdefault((flag, path), []).append(arm.name)
    lines = tuple(
        f"{'arm' if len(names) == 1 else 'arms'} {', '.join(names)}: {flag}: there is no {path}"
        for (flag, path), names in users.items()
    )
    if lines:
        raise DoesNotFit(
            lines[0] if len(lines) == 1 else f"{facts.host} lacks what servers would read",
            details=lines if len(lines) > 1 else (),
            help=f"write the paths as they are on {facts.host}",
        )


def _named(arm: Arm) -> Iterator[tuple[str, str]]:
    return ((flag, path) for flag, path in read_by(arm) if path.startswith("/"))

"""Overlay mode on this side: would the copy be what serves, and after each launch, is it?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from orchestrator.command import server_env
from orchestrator.errors import DoesNotFit, PhaseFailed, RemoteError
from orchestrator.model.experiment import Experiment
from orchestrator.model.facts import Facts
from orchestrator.model.plan import PatchSet, Plan
from orchestrator.remote.node import Node
from orchestrator.remote.refusals import before_acting
from orchestrator.remote.replies import Origins
from orchestrator.runner.boot import Boot
from orchestrator.runner.confirm import KEY as WORKER_KEY
from orchestrator.runner.fitting import UNKNOWN_RUN
from orchestrator.runner.options import public_env
from orchestrator.store import SERVER_INFO, plain

KEY = "overlay_seen"  # in server_info.json
_HELP = "node.cwd may be another folder; node.patch_mode: in_place patches the installed files instead"


# -- before anything is touched


def check_overlay(node: Node, experiment: Experiment, facts: Facts, plan: Plan) -> None:
    """Asks the serving interpreter, once per environment of the arms. Raises DoesNotFit: the copy would not serve."""
    assert facts.tree is not None
    environments = {tuple(sorted(env.items())): env for env in _environments(experiment)}
    absent = sorted({name for item in plan.patch_sets for name in removed_modules(facts.tree.package, item)})
    for env in environments.values():
        try:
            checked = node.overlay(
                workdir=experiment.node.workdir,
                run_id=UNKNOWN_RUN,
                python=experiment.node.python,
                cwd=experiment.node.cwd,
                env=env,
                package=facts.tree.package,
                package_path=facts.tree.path,
                absent=absent,
            )
        except RemoteError as error:
            raise before_acting(error, experiment.node) from error
        if checked.problem is not None:
            raise DoesNotFit(checked.problem, help=_HELP)


def _environments(experiment: Experiment) -> Iterator[dict[str, str]]:
    for arm in experiment.arms:
        yield public_env(server_env(arm, None))


def removed_modules(package: str, item: PatchSet) -> Iterator[str]:
    """Import names of the files that a patch set removes."""
    for edit in item.edits:
        if edit.after_sha256 is None and edit.path.endswith(".py"):
            parts = [package, *edit.path.removesuffix(".py").split("/")]
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# -- after a launch


def confirm_overlay(boot: Boot) -> None:
    """Raises PhaseFailed when the server, or a process that it started, runs from the installed package.

    What was seen of each process is an event and stands in server_info.json.
    """
    seen = boot.node.origins()
    path = boot.store.boot_path(boot.arm.name, boot.number, SERVER_INFO)
    info = boot.store.read_json(path)
    problems = contradictions(seen, info.get(WORKER_KEY, {}).get("files", ()))
    told = {"root": seen.root, "processes": [plain(item) for item in seen.processes], "problems": problems}
    for process in told["processes"]:
        process.pop("type")
    boot.events.emit("overlay", arm=boot.arm.name, boot=boot.number, **told)
    boot.store.write_json(path, {**info, KEY: told})
    if problems:
        raise PhaseFailed(
            f"arm {boot.arm.name}, boot {boot.number}: the server does not run from the overlay: {problems[0]}",
            details=tuple(problems[1:]),
        )


def contradictions(seen: Origins, worker_files: Iterable[str]) -> list[str]:
    """What speaks against it. `worker_files`: those that the ranks named in their start-up lines.

    A process of which nothing can be read is no contradiction: the server that started it was proven to run from there.
    """
    found = [
        f"pid {item.pid} ({item.command[:80]}) {item.how}"
        for item in seen.processes
        if item.state == "installed"
    ]
    found += [
        f"a rank says that it runs {file}" for file in worker_files if not file.startswith(f"{seen.root}/")
    ]
    if not any(item.state == "overlay" for item in seen.processes):
        found.append("none of its processes can be shown to run from it")
    return found

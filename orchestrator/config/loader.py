"""Text and `--set` words -> tree -> values -> cross checks. Collects every problem before it raises."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from orchestrator.config.arms import complete_arms
from orchestrator.config.checks import SGLANG, check_arms, check_node, check_sweep, warnings
from orchestrator.config.flag_names import flag_hints
from orchestrator.config.parse import dump_tree, parse_tree
from orchestrator.config.scalars import shorten
from orchestrator.config.secrets import hide, secret_value
from orchestrator.config.sections import join
from orchestrator.config.tables import EXPERIMENT
from orchestrator.config.tree import (
    ListNode,
    MapNode,
    NotATree,
    Problems,
    ScalarNode,
    TreeNode,
    Where,
    set_value,
)
from orchestrator.errors import ExperimentError
from orchestrator.model.experiment import Experiment, Sweep


@dataclass(frozen=True)
class Checked:
    """A checked experiment, and what runs but may not mean what its author thinks.

    `broken`: rules of today that the experiment of a begun run breaks, a line each.
    """

    experiment: Experiment
    warnings: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()


def load_experiment(
    text: str,
    *,
    name: str,
    overrides: Sequence[str] = (),
    patches: Collection[str] | None = None,
    flags: Collection[str] = (),
    patch_folder: str = "",
) -> Checked:
    """Check `text` (called `name` in messages) with `--set` words `key.path=value` laid over it.

    `patches`: names of the carried patches, or None to leave patch names unchecked; `flags`: server flags that they
    add; `patch_folder`: where they were looked for, for messages. Raises ExperimentError with one line per problem.
    `Experiment.source` is YAML that means the same, overrides included.
    """
    return _load(text, name, overrides, patches, flags, Problems(), patch_folder)


def load_begun(text: str, *, name: str) -> Checked:
    """The same for the experiment of a run that was begun: rules that are newer than it refuse nothing.

    Raises ExperimentError where a value cannot be read, or one is missing without which nothing can be said.
    """
    problems = Problems(ran=True)
    return replace(_load(text, name, (), None, (), problems), broken=problems.broken_lines())


def _load(
    text: str,
    name: str,
    overrides: Sequence[str],
    patches: Collection[str] | None,
    flags: Collection[str],
    problems: Problems,
    patch_folder: str = "",
) -> Checked:
    root = _root(text, name, problems)
    if root is None:
        raise _error(problems, name)
    for word in overrides:
        _override(root, word, problems)
    _refuse_secrets(root, "", problems)
    checked = _check(root, patches, flags, problems, patch_folder)
    if checked is None or problems:
        raise _error(problems, name)
    source = f"# with {' '.join(_set_keys(overrides))}\n{dump_tree(root)}" if overrides else text
    return replace(checked, experiment=replace(checked.experiment, source=source))


def _root(text: str, name: str, problems: Problems) -> MapNode | None:
    try:
        root = parse_tree(text, name)
    except NotATree as error:
        problems.found.append(error.problem)
        return None
    if root is None:
        problems.add(Where(name, 1), "", "an empty file; dynspec init writes a commented one")
    elif not isinstance(root, MapNode):
        problems.add(root.where, "", "not an experiment: keys such as `schema: 1` and `name: ...` are wanted")
    return root if isinstance(root, MapNode) else None


def _error(problems: Problems, name: str) -> ExperimentError:
    lines = problems.lines()
    if len(lines) == 1:
        return ExperimentError(lines[0])
    return ExperimentError(f"{name}: {len(lines)} problems", details=lines)


def _set_keys(overrides: Sequence[str]) -> list[str]:
    return [f"--set {word.split('=', 1)[0]}" for word in overrides]


def _override(root: MapNode, word: str, problems: Problems) -> None:
    """Lay one `key.path=value` over the tree. The value is YAML, as strict as in the file."""
    path, equals, text = word.partition("=")
    where = Where("--set", None)
    keys = path.split(".")
    if not equals or not all(re.fullmatch(r"[A-Za-z0-9_-]+", key) for key in keys):
        problems.add(
            where, hide(path) or ("=" if equals else "''"), "write key.path=value, such as sweep.repeats=1"
        )
        return
    try:
        value = parse_tree(text, where.source, with_lines=False)
    except NotATree as error:
        problems.add(where, path, error.problem.text)
        return
    if value is None:
        problems.add(where, path, "has no value; write null to remove the key")
        return
    fault = set_value(root, keys, value)
    if fault is not None:
        problems.add(where, path, fault)


def _refuse_secrets(node: TreeNode, path: str, problems: Problems) -> None:
    """Anything that looks like a token, wherever it stands. `args` and `env` have their own check and advice."""
    if isinstance(node, ScalarNode):
        if secret_value(node.text):
            problems.rule(
                node.where, path, "looks like a secret; secrets are referred to in env, by {from_env: NAME}"
            )
        return
    if isinstance(node, ListNode):
        for index, item in enumerate(node.items):
            _refuse_secrets(item, f"{path}[{index}]", problems)
        return
    for entry in node.entries:
        place = join(path, shorten(entry.key.text))
        _refuse_secrets(entry.key, place, problems)
        if entry.key.text not in ("args", "env"):
            _refuse_secrets(entry.value, place, problems)


def _check(
    root: MapNode,
    patches: Collection[str] | None,
    flags: Collection[str],
    problems: Problems,
    patch_folder: str,
) -> Checked | None:
    """Values by the tables, then what only shows across keys. Cross checks run on whatever parts are right."""
    values = EXPERIMENT.read_good(root, "", problems)
    values.pop("lock", None)
    node, server = values.get("node"), values.get("server")
    if node is not None:
        check_node(node, root, problems)
    if server is None or "arms" not in values:
        return None
    env = {key: value for key, value in server.env.items() if value is not None}
    args = {key: value for key, value in server.args.items() if value is not None}
    values["server"] = replace(server, args=args, env=env)
    values["arms"] = arms = complete_arms(values["arms"], args, env, root, problems)
    check_arms(arms, server, node, patches, root, problems, patch_folder)
    if "sweep" in values or root.get("sweep") is None:
        check_sweep(values.get("sweep", Sweep()), arms, root, problems)
    if problems:
        return None
    experiment = Experiment(**values)
    hints = flag_hints(arms, root, flags) if server.module == SGLANG else ()
    return Checked(experiment, tuple(map(str, warnings(arms, experiment.sweep, root, hints))))

"""Server arguments judged before anything is loaded, by two readings of the tree that each arm will serve from.

The source reading (`server_flags`, no import) is quick and works everywhere; the tree's own parser, in the interpreter
that will serve, is the authority. So a suspicion of the first is put to the second, and stands alone only where the
parser cannot run because a dependency such as torch is absent.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.command import launch_argv
from orchestrator.errors import DoesNotFit, RemoteError
from orchestrator.model.experiment import Arm, Experiment
from orchestrator.model.facts import Facts, Tree
from orchestrator.model.plan import PatchSet
from orchestrator.patchset import available_patches, decode_source
from orchestrator.remote.node import Node
from orchestrator.remote.refusals import before_acting
from orchestrator.remote.replies import ArgumentResult
from orchestrator.remote.replies import Smoke as SmokeReply
from orchestrator.runner.options import public_env
from orchestrator.server_flags import (
    SERVER_ARGS,
    ArgProblem,
    Flag,
    check_args,
    flag_files,
    flag_history,
    known_flags,
)
from orchestrator.store import new_run_id

_FROM_FILE = "config"  # --config FILE: what the file says is not known here
_HELP = "dynspec plan checks arguments again without loading anything"


# -- what is checked


def checked_arms(experiment: Experiment, names: Iterable[str], patch_set: PatchSet) -> tuple[Arm, ...]:
    """The named arms that serve this tree and whose command line `ServerArgs` reads."""
    if experiment.server.module != f"{experiment.server.package}.launch_server":
        return ()
    wanted = set(names)
    return tuple(
        arm
        for arm in experiment.arms
        if arm.name in wanted and arm.patches == patch_set.patches and _FROM_FILE not in arm.args
    )


def words_of(experiment: Experiment, arms: Iterable[Arm]) -> dict[str, tuple[str, ...]]:
    """Per arm what follows `python -m module` on the command line."""
    server = experiment.server
    return {arm.name: launch_argv("", "", arm.args, server.port)[3:] for arm in arms}


def ask_smoke(
    node: Node, experiment: Experiment, tree: Tree, patch_set: PatchSet, arms: Iterable[Arm], run_id: str
) -> SmokeReply:
    """One interpreter start: compile, import, parse. Nothing that serves sees it. Raises DoesNotFit for a full disk."""
    files = {edit.path: None if edit.after is None else edit.after.encode() for edit in patch_set.edits}
    try:
        return node.smoke(
            workdir=experiment.node.workdir,
            run_id=run_id,
            python=experiment.node.python,
            cwd=experiment.node.cwd,
            env=public_env(experiment.server.env),
            package=tree.package,
            package_path=tree.path,
            files=files,
            modules=patch_set.modules,
            argvs=words_of(experiment, arms),
            timeout_s=experiment.limits.smoke_s,
        )
    except RemoteError as error:
        raise before_acting(error, experiment.node) from error


# -- the source reading


class SourceTexts:
    """Texts of files of the tree as they are on the node, each read once."""

    def __init__(self, node: Node, tree: Tree) -> None:
        self._node = node
        self._tree = tree
        self._texts: dict[str, str | None] = {}
        self._facts = {fact.path: fact for fact in tree.files}

    def read(self, paths: Iterable[str]) -> dict[str, str | None]:
        """Package-relative path -> text, None where the tree has no such file. Raises DoesNotFit: not UTF-8."""
        wanted = tuple(paths)
        for path in set(wanted) & self._facts.keys() - self._texts.keys():
            data = self._node.known(self._facts[path])
            if data is not None:
                self._texts[path] = decode_source(path, data)
        lacking = [path for path in wanted if path not in self._texts]
        if lacking:
            replies = self._node.read_files([f"{self._tree.path}/{path}" for path in lacking])
            for path, reply in zip(lacking, replies, strict=True):
                self._texts[path] = None if reply.data is None else decode_source(path, reply.data)
        return {path: self._texts[path] for path in wanted}

    def patched(self, paths: Iterable[str], patch_set: PatchSet) -> dict[str, str]:
        """The same with the edits of a patch set in place; absent files are left out."""
        edited = {edit.path: edit.after for edit in patch_set.edits}
        wanted = tuple(paths)
        texts = {**self.read(path for path in wanted if path not in edited), **edited}
        return {path: text for path in wanted if (text := texts[path]) is not None}


def flags_in(texts: SourceTexts, patch_set: PatchSet) -> Mapping[str, Flag]:
    """Flags of the patched tree. Raises DoesNotFit where its layout cannot be read."""
    first = texts.patched((SERVER_ARGS,), patch_set)
    if SERVER_ARGS not in first:
        raise DoesNotFit(f"the tree has no {SERVER_ARGS}")
    found = texts.patched(flag_files(first[SERVER_ARGS]), patch_set)
    return _flags(tuple(found.items()))


@functools.lru_cache(maxsize=16)
def _flags(texts: tuple[tuple[str, str], ...]) -> Mapping[str, Flag]:
    return known_flags(dict(texts))


@dataclass(frozen=True)
class SourceReading:
    """`problems` by arm. `unreadable` says why the source could not be read; then there are none."""

    problems: Mapping[str, tuple[ArgProblem, ...]]
    unreadable: str = ""

    def errors(self, arm: str) -> tuple[str, ...]:
        return tuple(str(item) for item in self.problems.get(arm, ()) if item.severity == "error")

    def notes(self) -> tuple[str, ...]:
        return tuple(
            f"arm {arm}: {item}"
            for arm, found in self.problems.items()
            for item in found
            if item.severity == "warning"
        )

    @property
    def suspicious(self) -> bool:
        return bool(self.unreadable) or any(self.errors(arm) for arm in self.problems)


def read_source(texts: SourceTexts, patch_set: PatchSet, arms: Sequence[Arm]) -> SourceReading:
    """What the source says to each arm's arguments. Never raises for a tree that it cannot read."""
    try:
        flags = flags_in(texts, patch_set)
    except DoesNotFit as error:
        return SourceReading({}, error.message)
    return SourceReading({arm.name: check_args(arm.args, flags, added_by=_adders(arm)) for arm in arms})


@functools.cache
def _carried_flags() -> Mapping[str, str]:
    return {flag: patch.name for patch in available_patches() for flag in patch.flags}


def _adders(arm: Arm) -> dict[str, str]:
    """Flags of carried patches that this arm does not apply."""
    return {flag: patch for flag, patch in _carried_flags().items() if patch not in arm.patches}


# -- the verdict


def check_arguments(
    node: Node, experiment: Experiment, facts: Facts, names: Iterable[str], sets: Iterable[PatchSet]
) -> tuple[str, ...]:
    """Before the lock: raises DoesNotFit naming every argument that a server would refuse; returns notes."""
    tree = facts.tree
    assert tree is not None
    texts = SourceTexts(node, tree)
    names = tuple(names)
    faults: list[Fault] = []
    notes: list[str] = []
    for patch_set in sets:
        arms = checked_arms(experiment, names, patch_set)
        if not arms:
            continue
        reading = read_source(texts, patch_set, arms)
        notes += reading.notes()
        if reading.suspicious:
            run_id = new_run_id("arguments")
            reply = ask_smoke(node, experiment, tree, _without_modules(patch_set), arms, run_id)
            faults += faults_in(reply.arguments, reading)
            notes += _doubts(reply.arguments, reading)
    if faults:
        raise _refusal(faults)
    return tuple(notes)


def _without_modules(patch_set: PatchSet) -> PatchSet:
    return PatchSet(patch_set.name, patch_set.patches, patch_set.edits, ())


def _refusal(faults: Sequence[Fault]) -> DoesNotFit:
    lines = fault_lines(faults)
    because = tuple(dict.fromkeys(fault.because for fault in faults if fault.because))
    if len(lines) == 1:
        return DoesNotFit(lines[0], details=because, help=_HELP)
    return DoesNotFit("the server would refuse its arguments", details=(*lines, *because), help=_HELP)


@dataclass(frozen=True)
class Fault:
    """One argument of one arm that the server would refuse. `because`: why this is not the parser's own word."""

    arm: str
    text: str
    because: str = ""


def faults_in(results: Iterable[ArgumentResult], reading: SourceReading) -> list[Fault]:
    """From the parser where it ran, in the source's clearer words where it has some; else from the source alone."""
    found: list[Fault] = []
    for result in results:
        named = reading.errors(result.arm)
        if result.how == "not possible":
            because = (
                f"read from the source: {result.missing} is not installed, so the tree's parser cannot run"
            )
            found += [Fault(result.arm, text, because) for text in named]
        elif not result.ok:
            found += [Fault(result.arm, text) for text in named or (_parser_words(result),)]
    return found


def fault_lines(faults: Iterable[Fault]) -> tuple[str, ...]:
    """One line a fault, whatever the number of arms that share it."""
    arms: dict[str, list[str]] = {}
    for fault in faults:
        arms.setdefault(fault.text, []).append(fault.arm)
    return tuple(
        f"{'arm' if len(names) == 1 else 'arms'} {', '.join(names)}: {text}" for text, names in arms.items()
    )


def _parser_words(result: ArgumentResult) -> str:
    hints = [_hint(flag, near) for flag, near in result.near.items()]
    return "; ".join([f"the tree's own parser says: {result.error}", *filter(None, hints)])


def _hint(flag: str, near: str) -> str:
    known = flag_history().note(flag)
    parts = [*([f"did you mean {near}?"] if near else []), *([known] if known else [])]
    return f"{flag}: {', '.join(parts)}" if parts else ""


def _doubts(results: Iterable[ArgumentResult], reading: SourceReading) -> list[str]:
    """What stays unchecked, or was suspected for nothing."""
    results = tuple(results)
    if reading.unreadable:
        unchecked = [result.arm for result in results if result.how == "not possible"]
        return (
            [f"arguments of {', '.join(unchecked)} are unchecked: {reading.unreadable}"] if unchecked else []
        )
    return [
        f"arm {result.arm}: the tree's own parser takes what its source seems to refuse: {text}"
        for result in results
        if result.ok and result.how == "parser"
        for text in reading.errors(result.arm)
    ]


def argument_lines(results: Sequence[ArgumentResult]) -> tuple[str, ...]:
    """What the smoke check says of arguments, for people."""
    parsed = [result.arm for result in results if result.ok and result.how == "parser"]
    absent = [result for result in results if result.how == "not possible"]
    lines = [f"arguments of {', '.join(parsed)}: parsed by the tree's own ServerArgs"] if parsed else []
    if absent:
        arms = ", ".join(result.arm for result in absent)
        lines.append(
            f"arguments of {arms}: read from the source alone, since {absent[0].missing} is not installed"
        )
    return (*lines, *(f"arguments of {item.arm}: refused: {item.error}" for item in results if not item.ok))

"""The failure card: from a server's log and exit to first error, likely cause, fix and twenty lines of its rank. Pure.

The first error is the earliest one whose rank made no progress afterwards: engines log errors that they survive. One
rank's death makes others fail later and with louder words, so what is known to follow from a death counts only where
nothing else is found. In a chain of exceptions the known one speaks.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.analysis.failure_rules import CLASSES as CLASSES
from orchestrator.analysis.failure_rules import RULES, Rule
from orchestrator.model.result import FailureCard

EXCERPT_LINES = 20
LINE_CHARS = 300

_PREFIX = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?((?: [A-Z]{2,4}\d+)*)\] ?")
_STAMP_INSIDE = re.compile(r"\S\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_BAR = re.compile(r"\d+/\d+ \[[^\]]*\]$")
_EXCEPTION = re.compile(
    r"^(?:[\w ]{1,40} hit an exception: )?(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b"
)
_SURVIVED = re.compile(
    r"Ignore import error|FutureWarning|DeprecationWarning|UserWarning|Falling back|falling back"
)
_ECHO = re.compile(r"Receive: obj=|Finish: obj=")  # request logging: text of users, not of the server
_PROGRESS = re.compile(
    r"Decode batch|Prefill batch|Load weight end|KV Cache is allocated|Capture cuda graph end|fired up"
)
_CONSEQUENCES = frozenset({"nccl", "watchdog", "oom_killer"})
_CONSEQUENCE = re.compile(
    r"EOFError|scheduler died|nitialization failed|KeyboardInterrupt|SystemExit|CancelledError"
)
_PHASES = (
    ("serving", re.compile(r"fired up and ready to roll")),
    ("capture", re.compile(r"Capture (?:draft |target |\w+ )*cuda graph begin")),
    ("load", re.compile(r"Capture (?:draft |target |\w+ )*cuda graph end|Load weight begin")),
)
VANISHED = "node.workdir has vanished"  # the node's words
DISK_FULL = "node.workdir is full"  # the runner's words
_SIGNALS = {6: "SIGABRT", 7: "SIGBUS", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM", 3: "SIGQUIT"}


@dataclass(frozen=True)
class _Line:
    number: int  # 1-based
    rank: str
    text: str  # without the prefix
    phase: str
    block: int  # lines of one log message, a traceback for instance, share it


@dataclass(frozen=True)
class _Hit:
    line: _Line
    rule: Rule | None  # None: an exception of no known class
    match: re.Match[str]


def failure_card(
    log: str | Iterable[str],
    *,
    arm: str,
    boot: int,
    concurrency: int | None = None,
    exit_code: int | None = None,
    signal: int | None = None,
    reason: str = "",
    replay: str = "",
    run_id: str = "RUN",
    patched: bool | None = None,
) -> FailureCard:
    """Classify a server's end. `log` is its text or lines, the end at least; an empty log is a case like others.

    `reason`: what the run saw; it speaks where neither the log nor the exit does. `run_id`: for commands that a person
    types. `patched`: whether the arm has patches; None where that is not known.
    """
    lines = _parse(log.splitlines() if isinstance(log, str) else log)
    hit = None if VANISHED in reason else _first_error(lines)
    if hit is None:
        name, title, cause, fix = (
            _from_full_disk(reason)
            or _from_patience(reason)
            or _from_exit(exit_code, signal)
            or _from_reason(reason, bool(lines), run_id)
        )
        rank, number, excerpt = "", 0, lines[-EXCERPT_LINES:]
    else:
        name, title, cause, fix = _words(hit, patched)
        rank, number, excerpt = hit.line.rank, hit.line.number, _around(lines, hit.line)
    return FailureCard(
        arm,
        boot,
        concurrency,
        name,
        title,
        cause,
        fix,
        rank,
        number,
        tuple(_cut(x.text) for x in excerpt),
        replay,
    )


def replay_command(experiment: str, arm: str, concurrency: int | None) -> str:
    """The command that runs just this again, ready to paste."""
    words = ["dynspec", "run", experiment, "--arm", arm, "--set", "sweep.repeats=1"]
    if concurrency is not None:
        words += ["--set", f"sweep.concurrency=[{concurrency}]"]
    return shlex.join(words)


def _parse(raw: Iterable[str]) -> list[_Line]:
    """Lines with rank and phase; a line without a prefix belongs to the one before."""
    lines: list[_Line] = []
    rank, phase, block = "", "load", 0
    for number, text in _whole_lines(raw):
        prefix = _PREFIX.match(text)
        if prefix:
            rank = prefix[1].strip()
            text = text[prefix.end() :]
            block = number
        phase = next((name for name, pattern in _PHASES if pattern.search(text)), phase)
        lines.append(_Line(number, rank, text, phase, block))
    return lines


def _whole_lines(raw: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Numbered lines as a person sees them: a progress bar's last state, and what was logged into its line apart."""
    for number, text in enumerate(raw, 1):
        shown = text.rstrip("\r\n").rsplit("\r", 1)[-1]
        stamp = _STAMP_INSIDE.search(shown)
        if stamp and _BAR.search(shown[: stamp.start() + 1]):
            yield number, shown[: stamp.start() + 1]
            yield number, shown[stamp.start() + 1 :]
        else:
            yield number, shown


def _first_error(lines: Sequence[_Line]) -> _Hit | None:
    last_progress: dict[str, int] = {}
    for line in lines:
        if _PROGRESS.search(line.text):
            last_progress[line.rank] = line.number
    hits = [hit for line in lines if (hit := _hit(line)) is not None]
    final = [hit for hit in hits if hit.line.number > last_progress.get(hit.line.rank, 0)]
    for group in ([hit for hit in final if not _follows(hit)], final, hits[-1:]):
        if group:
            chain = [hit for hit in group if hit.line.block == group[0].line.block]
            return next((hit for hit in chain if hit.rule is not None), group[0])
    return None


def _follows(hit: _Hit) -> bool:
    """What others say when a rank has died."""
    return bool(_CONSEQUENCE.search(hit.line.text)) or (
        hit.rule is not None and hit.rule.name in _CONSEQUENCES
    )


def _hit(line: _Line) -> _Hit | None:
    if any(pattern.search(line.text) for pattern in (_PROGRESS, _SURVIVED, _ECHO)):
        return None
    for rule in RULES:
        if rule.phases and line.phase not in rule.phases:
            continue
        if match := rule.pattern.search(line.text):
            return _Hit(line, rule, match)
    match = _EXCEPTION.match(line.text)
    return _Hit(line, None, match) if match else None


def _words(hit: _Hit, patched: bool | None) -> tuple[str, str, str, str]:
    if hit.rule is None:
        cause = "not one of the failures known here; the traceback names the place"
        return "exception", _cut(hit.line.text), cause, _UNKNOWN_FIX[patched]
    groups = [group for group in hit.match.groups() if group is not None] + ["?", "?"]
    rule = hit.rule
    fix = (patched is False and rule.fix_unpatched) or rule.fix
    return rule.name, _cut(rule.title.format(*groups)), rule.cause.format(*groups), fix.format(*groups)


_UNKNOWN_FIX: dict[bool | None, str] = {
    None: "if the arm is patched, run it without its patches: does it still happen?",
    True: "run the arm without its patches: does it still happen?",
    False: "the arm has no patch: look at the traceback for the argument that leads there, and run without it",
}


def _from_exit(exit_code: int | None, signal: int | None) -> tuple[str, str, str, str] | None:
    """No error line: the exit is all there is, if the server ended."""
    if signal == 9:
        title = "the server was killed (SIGKILL) without an error in its log"
        return "oom_killer", title, "most often the kernel's OOM killer, or somebody's kill -9", _DMESG
    if signal in (6, 7, 11):
        title = f"the server crashed in native code ({_SIGNALS[signal]})"
        cause = "a kernel or library failed outside Python; nothing was logged"
        return "native_crash", title, cause, "run again with server.env: {PYTHONFAULTHANDLER: '1'}"
    if signal is not None:
        title = f"the server was ended by {_SIGNALS.get(signal, f'signal {signal}')}"
        return (
            "killed",
            title,
            "a person or another program sent it",
            "look who else uses the node: `dynspec status NODE`",
        )
    if exit_code is not None:
        title = f"the server exited with code {exit_code} and logged no error"
        return "exit", title, "unknown; the last lines are below", "run its command by hand on the node"
    return None


def _from_full_disk(reason: str) -> tuple[str, str, str, str] | None:
    """The log could not grow any more: what was seen of the disk tells more than a bare exit code."""
    if DISK_FULL not in reason:
        return None
    rule = next(rule for rule in RULES if rule.name == "disk_full")
    return rule.name, _cut(reason), rule.cause, rule.fix


def _from_patience(reason: str) -> tuple[str, str, str, str] | None:
    """The server was ended because it took too long to start: how it ended then says nothing."""
    if "server.ready." not in reason:
        return None
    return (
        "not_ready",
        _cut(reason),
        "it was still starting, or stuck; the last lines say at what",
        "if it was still making progress, raise server.ready.timeout or server.ready.silence; --resume allows that",
    )


def _from_reason(reason: str, has_log: bool, run_id: str) -> tuple[str, str, str, str]:
    """The server lived, and said nothing of an error."""
    if VANISHED in reason:
        return (
            "workdir_gone",
            _cut(reason),
            "somebody, or a job that cleans old files, removed the run's work folder; the server's log went with it",
            "set node.workdir to a folder that nothing cleans, such as ~/.dynspec/work",
        )
    if has_log:
        title, cause = "no error was found in the log", "unknown; the last lines are below"
        return "unknown", title, cause, "look at the whole server.log"
    title = reason or "the server left no log, and the run saw no reason"
    return (
        "unknown",
        _cut(title),
        "unknown: no server.log was kept",
        f"look at what the run saw: dynspec logs {run_id}",
    )


_DMESG = "look at `dmesg -T | grep -i oom` on the node, and at who else uses it"


def _around(lines: Sequence[_Line], error: _Line) -> list[_Line]:
    """Twenty lines of the error's rank: what led to it, and two after it."""
    own = [line for line in lines if line.rank == error.rank]
    place = own.index(error)
    end = min(len(own), place + 3)
    return own[max(0, end - EXCERPT_LINES) : end]


def _cut(text: str) -> str:
    return text if len(text) <= LINE_CHARS else f"{text[: LINE_CHARS - 1]}…"

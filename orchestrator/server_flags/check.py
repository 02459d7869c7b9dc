"""An arm's server arguments against the known flags: names, arity, types, choices; nearest name where unknown."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from orchestrator.model.experiment import ArgValue, Scalar
from orchestrator.server_flags.history import History, flag_history
from orchestrator.server_flags.read import Flag

_CASTS: Mapping[str, Callable[[str], object]] = {
    "int": int,
    "float": float,
    "str": str,
    "json.loads": json.loads,
}


@dataclass(frozen=True)
class ArgProblem:
    """One finding on an argument. An `error` is refused by the server; a `warning` is not, or not surely."""

    flag: str
    message: str
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        return self.message


def check_args(
    args: Mapping[str, ArgValue],
    flags: Mapping[str, Flag],
    *,
    added_by: Mapping[str, str] | None = None,
    history: History | None = None,
) -> tuple[ArgProblem, ...]:
    """What the server's parser would refuse in `args` (names without dashes, as an experiment writes them).

    `flags` come from `known_flags`. `added_by` maps flags (without dashes) to the carried patch that adds
    them, for the message only. Names may be shortened as argparse allows: to what fits one flag alone.
    """
    adders = added_by or {}
    releases = history or flag_history()
    problems: list[ArgProblem] = []
    given: dict[tuple[str, ...], str] = {}
    for key, value in args.items():
        option = f"--{key}"
        found = _find(option, flags)
        if isinstance(found, str):
            patch = adders.get(key)
            hint = f"; the patch {patch!r} adds it, which this arm does not apply" if patch else ""
            problems.append(ArgProblem(option, f"{found}{hint or _since(option, releases)}"))
            continue
        if found.names in given:
            problems.append(
                ArgProblem(option, f"{option} and {given[found.names]} are one flag, given twice")
            )
        given[found.names] = option
        problems += _check_value(option, value, found)
    problems += _check_required(flags, given)
    return tuple(problems)


def _find(option: str, flags: Mapping[str, Flag]) -> Flag | str:
    """The flag that argparse takes `option` for, or why it takes none."""
    if option in flags:
        return flags[option]
    longer = sorted(name for name in flags if name.startswith(option))
    fits = {flags[name].names for name in longer}
    if len(fits) == 1:
        return flags[longer[0]]
    if fits:
        return f"{option} is short for several flags: {', '.join(longer[:4])}"
    near = difflib.get_close_matches(option, flags, n=1, cutoff=0.75)
    return f"unknown flag {option}" + (f", did you mean {near[0]}?" if near else "")


def _since(option: str, history: History) -> str:
    note = history.note(option)
    return f" ({note})" if note else ""


def _check_required(flags: Mapping[str, Flag], given: Mapping[tuple[str, ...], str]) -> list[ArgProblem]:
    needed = {flag.names: flag for flag in flags.values() if flag.required}
    return [
        ArgProblem(flag.name, f"{flag.name} is required")
        for names, flag in needed.items()
        if names not in given
    ]


def _check_value(option: str, value: ArgValue, flag: Flag) -> list[ArgProblem]:
    problems: list[ArgProblem] = []
    if flag.deprecated:
        use = f"; use {flag.instead}" if flag.instead else ""
        problems.append(ArgProblem(option, f"{option} is deprecated{use}", "warning"))
    wrong = _wrong_arity(option, value, flag)
    if wrong:
        return [*problems, ArgProblem(option, wrong)]
    for item in _items(value):
        problems += _check_item(option, item, flag)
    return problems


def _items(value: ArgValue) -> tuple[Scalar, ...]:
    if isinstance(value, tuple):
        return value
    return () if isinstance(value, bool) else (value,)


def _wrong_arity(option: str, value: ArgValue, flag: Flag) -> str:
    """Why the number of values cannot be right; empty when it can."""
    if value is False:
        negated = f"--no-{option[2:]}"
        how = (
            f"write `{negated[2:]}: true`"
            if negated in flag.names
            else "leave it out, or `null` to remove it"
        )
        return f"{option}: false is not a value; {how}"
    count = len(_items(value))
    match flag.nargs:
        case 0:
            return f"{option} takes no value; write `true` to set it" if count else ""
        case "+" if count == 0:
            return f"{option} needs at least one value"
        case "?" if count > 1:
            return f"{option} takes at most one value, got {count}"
        case int(wanted) if count != wanted:
            return f"{option} needs {_values(wanted)}, got {count or 'none'}"
        case _:
            return ""


def _values(count: int) -> str:
    return "a value" if count == 1 else f"{count} values"


def _check_item(option: str, item: Scalar, flag: Flag) -> list[ArgProblem]:
    word = str(item)
    cast = _CASTS.get(flag.type)
    value: object = word
    if cast is not None:
        try:
            value = cast(word)
        except ValueError:
            return [ArgProblem(option, f"{option}: {word!r} is not {_kind(flag.type)}")]
    if flag.choices is None or value in flag.choices or (cast is None and word in map(str, flag.choices)):
        return []
    near = difflib.get_close_matches(word, [str(choice) for choice in flag.choices], n=1)
    known = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(map(str, flag.choices))}"
    if flag.choices_open:
        return [
            ArgProblem(
                option,
                f"{option}: {word!r} is not among the choices unless a plugin adds it; {known}",
                "warning",
            )
        ]
    return [ArgProblem(option, f"{option}: {word!r} is not among the choices; {known}")]


def _kind(type_name: str) -> str:
    return {"int": "an integer", "float": "a number", "json.loads": "JSON"}.get(type_name, f"a {type_name}")

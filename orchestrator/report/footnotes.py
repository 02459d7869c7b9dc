"""What speaks against points, told once each: texts that differ in their figures alone share one footnote. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.report.shapes import Summary
from orchestrator.report.text import listed, plural

# A figure that stands alone: 6.3, 15, 40 of "40%"; not those of p99, v2 or 0.5.11.
_FIGURE = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?!\.?\w)")
_BOOTS = re.compile(r" \(boot ((?:\d{1,9}, )*\d{1,9})\)$")  # as `summary._by_boot` writes it
_BOOT = re.compile(r"\bboot $")  # the next figure is one's number


@dataclass(frozen=True)
class Footnotes:
    """`numbered[n]` is footnote n + 1; `general` holds for every point of the arms that it names, and has no mark.

    `marks`: (arm, index) -> "[1][2]".
    """

    numbered: tuple[str, ...]
    general: tuple[str, ...]
    marks: dict[tuple[str, int], str]


@dataclass(frozen=True)
class _Place:
    arm: str
    index: int
    text: str  # without its boots
    boots: tuple[int, ...]  # of this point
    all_boots: int
    fatal: bool


@dataclass
class _Kind:
    """Texts that are the same but for their figures."""

    places: list[_Place] = field(default_factory=list)

    @property
    def points(self) -> int:
        return len({(place.arm, place.index) for place in self.places})

    @property
    def arms(self) -> list[str]:
        return list(dict.fromkeys(place.arm for place in self.places))


def footnotes(summary: Summary, positions: Sequence[tuple[str, dict[str, Any]]]) -> Footnotes:
    """`positions`: (arm, point) in the order of the table, which numbers the notes."""
    kinds: dict[tuple[str, ...], _Kind] = {}  # by what stands around the figures
    for place in _places(positions):
        kinds.setdefault(tuple(_FIGURE.split(place.text)), _Kind()).places.append(place)
    general = {key for key, kind in kinds.items() if _everywhere(summary, kind)}
    numbered = [key for key in kinds if key not in general]
    marks: dict[tuple[str, int], str] = {}
    for number, key in enumerate(numbered, 1):
        for spot in dict.fromkeys((place.arm, place.index) for place in kinds[key].places):
            marks[spot] = f"{marks.get(spot, '')}[{number}]"
    return Footnotes(
        tuple(_told(kinds[key]) for key in numbered),
        tuple(f"All points of {listed(kinds[key].arms)}: {_merged(kinds[key])}" for key in sorted(general)),
        marks,
    )


def _places(positions: Sequence[tuple[str, dict[str, Any]]]) -> Iterator[_Place]:
    for arm, point in positions:
        boots = tuple(boot["boot"] for boot in point["boots"])
        for fatal, texts in ((True, point["reasons"]), (False, point["notes"])):
            for text in texts:
                found = _BOOTS.search(text)
                own = tuple(map(int, found[1].split(", "))) if found else boots
                plain = text[: found.start()] if found else text
                yield _Place(arm, point["index"], plain, own, len(boots), fatal)


def _everywhere(summary: Summary, kind: _Kind) -> bool:
    """A remark on whole arms, of more than one point: no mark is needed to say where it holds."""
    if kind.points < 2 or any(place.fatal for place in kind.places):
        return False
    seen = {(place.arm, place.index, boot) for place in kind.places for boot in place.boots}
    wanted = {
        (arm, point["index"], boot["boot"])
        for arm in kind.arms
        for point in summary["arms"][arm]["points"]
        for boot in point["boots"]
    }
    return seen == wanted


def _told(kind: _Kind) -> str:
    """With its boots where they are the same at all its points; else with how many measurements it is of."""
    text, first = _merged(kind), kind.places[0]
    boots = sorted({boot for place in kind.places for boot in place.boots})
    named = f"boot {', '.join(map(str, boots))}"
    if kind.points == 1:
        return text if len(boots) == first.all_boots else f"{text} ({named})"
    same = {place.boots for place in kind.places} == {tuple(boots)}
    if same and len(kind.arms) == 1 and len(boots) < first.all_boots:
        return f"{text} ({named}, {kind.points} points)"
    count = len({(place.arm, place.index, boot) for place in kind.places for boot in place.boots})
    return f"{text} ({plural(count, 'measurement')} at {kind.points} points)"


def _merged(kind: _Kind) -> str:
    """The text, with the range where a figure differs; boots are names, and each of them is told."""
    texts = [place.text for place in kind.places]
    columns = zip(*([match[0] for match in _FIGURE.finditer(text)] for text in texts), strict=True)
    told, *between = _FIGURE.split(texts[0])
    for column, words in zip(columns, between, strict=True):
        numbers = sorted(set(column), key=float)
        if _BOOT.search(told) and len(numbers) > 1:
            told = f"{told.removesuffix(' ')}s {listed(numbers)}{words}"
        else:
            told = f"{told}{_range(column)}{words}"
    return told


def _range(figures: Sequence[str]) -> str:
    low, high = min(figures, key=float), max(figures, key=float)
    return low if float(low) == float(high) else f"{low} to {high}"

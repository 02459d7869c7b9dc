"""Elements with escaping built in: plain text is escaped always, only what `el` made is markup."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from orchestrator.report.text import clean

_VOID = frozenset({"meta", "br", "hr", "img", "link", "input", "col"})


class Markup(str):
    """Text that is already HTML."""

    __slots__ = ()


Child = str | None | Iterable["str | None"]


def text(value: str) -> Markup:
    """Plain text as HTML."""
    return value if isinstance(value, Markup) else Markup(escape(clean(value), quote=True))


def join(children: Iterable[str | None], separator: str = "") -> Markup:
    return Markup(text(separator).join(text(child) for child in children if child is not None))


def el(tag: str, /, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """One element. `class_` is class, `_` in names is `-`; None and False leave an attribute out."""
    words = [tag]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        shown = key.rstrip("_").replace("_", "-")
        words.append(shown if value is True else f'{shown}="{text(_short(value))}"')
    if tag in _VOID:
        return Markup(f"<{' '.join(words)}>")
    inner = "".join(join([child] if isinstance(child, str) or child is None else child) for child in children)
    return Markup(f"<{' '.join(words)}>{inner}</{tag}>")


def _short(value: str | float) -> str:
    """Coordinates to a tenth of a pixel: files stay small."""
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return str(value)

"""Unified diffs applied exactly: same line numbers, same context, byte for byte; otherwise refused.

There is no fuzz and no offset. A hunk that would fit some lines further down is refused and the place is
named, because a twin function with a like body is where a helpful offset puts the change silently.
Lines end at "\\n" alone: a "\\r" before it, form feeds and odd separators belong to the line and must match.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.errors import AlreadyPatched, AnchorError, PatchLoadError

_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(?: (.*))?\r?\n?\Z")
_LINE = re.compile(r"[^\n]*\n|[^\n]+\Z")
# Headers of git for changes that are no change of lines; applying only the rest would be half a patch.
_UNSUPPORTED = (
    "rename from",
    "rename to",
    "copy from",
    "copy to",
    "old mode",
    "new mode",
    "new file mode",
    "deleted file mode",
    "GIT binary patch",
    "Binary files",
)


@dataclass(frozen=True)
class Hunk:
    """One block. `before` and `after` are whole lines with their ends; `start` is the 1-based line of `before`.

    A hunk that only inserts (`-N,0`) stands behind line N.
    """

    start: int
    before: tuple[str, ...]
    after: tuple[str, ...]
    new_start: int

    @property
    def offset(self) -> int:
        """0-based index in the old file at which `before` stands."""
        return self.start if not self.before else self.start - 1

    @property
    def new_offset(self) -> int:
        """0-based index in the new file at which `after` stands."""
        return self.new_start if not self.after else self.new_start - 1


@dataclass(frozen=True)
class FileDiff:
    """The hunks for one file. `path` is the new name without `a/`, `b/` and time stamp."""

    path: str
    hunks: tuple[Hunk, ...]


def split_lines(text: str) -> list[str]:
    """Lines with their ends, split at "\\n" only."""
    return _LINE.findall(text)


def parse(text: str, name: str = "<diff>") -> tuple[FileDiff, ...]:
    """The files of a unified diff. Raises PatchLoadError for anything that isn't plainly a change of lines."""
    return tuple(_Parser(text, name).files())


def apply(diff: FileDiff, text: str, *, unique: bool = False) -> str:
    """`text` with all hunks of `diff` applied. Raises AnchorError unless each matches at its own line.

    With `unique`, a block that stands a second time in `text`, or that has no line to be found by, is refused too:
    on a file whose hash is not known, its line number alone does not prove that it is the block that was meant.
    """
    lines = split_lines(text)
    _check_pre_image(diff, lines)
    out: list[str] = []
    at = 0
    for hunk in diff.hunks:
        if unique:
            _check_place(diff.path, hunk, lines)
        out += lines[at : hunk.offset]
        out += hunk.after
        at = hunk.offset + len(hunk.before)
    out += lines[at:]
    if not all(line.endswith("\n") for line in out[:-1]):
        raise AnchorError(f"{diff.path}: a line without a line end would run into the one behind it")
    return "".join(out)


def is_applied(diff: FileDiff, text: str) -> bool:
    """Whether every hunk's result stands in `text` at exactly the lines where applying `diff` puts it."""
    lines = split_lines(text)
    return all(_stands_at(hunk.after, hunk.new_offset, lines) for hunk in diff.hunks)


def _check_pre_image(diff: FileDiff, lines: list[str]) -> None:
    for hunk in diff.hunks:
        if not _stands_at(hunk.before, hunk.offset, lines):
            # A diff that only deletes, without context, leaves no line behind that could tell.
            if any(hunk.after for hunk in diff.hunks) and is_applied(diff, "".join(lines)):
                raise AlreadyPatched(f"{diff.path}: already patched (all hunks are applied)")
            raise AnchorError(f"{diff.path}: hunk at line {hunk.start} does not match: {_why(hunk, lines)}")


def _check_place(path: str, hunk: Hunk, lines: list[str]) -> None:
    uncertain = "so its place is not certain in a file of unknown hash"
    if not hunk.before and lines:
        raise AnchorError(
            f"{path}: the block at line {hunk.start} has no line of the file to know its place by, {uncertain};"
            " make the diff with lines of context"
        )
    if len(places := _places(hunk.before, lines)) > 1:
        raise AnchorError(
            f"{path}: the block at line {hunk.start} stands {len(places)} times (lines {_numbers(places)}), {uncertain}"
        )


def _stands_at(block: tuple[str, ...], offset: int, lines: list[str]) -> bool:
    # An empty block matches anywhere inside the file, never beyond its end.
    return offset <= len(lines) and tuple(lines[offset : offset + len(block)]) == block


def _places(block: tuple[str, ...], lines: list[str]) -> list[int]:
    if not block:
        return []
    return [at for at in range(len(lines) - len(block) + 1) if tuple(lines[at : at + len(block)]) == block]


def _why(hunk: Hunk, lines: list[str]) -> str:
    if places := _places(hunk.before, lines):
        return f"the block stands at line {_numbers(places)} instead, and hunks are never moved"
    found = lines[hunk.offset : hunk.offset + len(hunk.before)]
    for number, (want, have) in enumerate(zip(hunk.before, found, strict=False), start=hunk.start):
        if want.rstrip("\r\n") == have.rstrip("\r\n") and want != have:
            return f"line {number} has another line end ({_end(have)}, the diff has {_end(want)})"
        if want != have:
            return f"line {number} is {have.rstrip()!r}, expected {want.rstrip()!r}"
    return f"the file ends after {len(lines)} lines"


def _end(line: str) -> str:
    return {"\r\n": "CRLF", "\n": "LF"}.get(line[len(line.rstrip("\r\n")) :], "none")


def _numbers(places: list[int]) -> str:
    return ", ".join(str(place + 1) for place in places)


class _Parser:
    def __init__(self, text: str, name: str) -> None:
        self.lines = split_lines(text)
        self.name = name
        self.at = 0

    def files(self) -> Iterator[FileDiff]:
        seen: set[str] = set()
        while self._skip_to_file():
            diff = self._file()
            if diff.path in seen:
                raise self._error(f"{diff.path} stands there twice")
            seen.add(diff.path)
            yield diff
        if not seen:
            raise self._error("holds no change of a file")

    def _skip_to_file(self) -> bool:
        """Move to the next `---` line. Text of a mail or of git may stand before it, stray hunks may not."""
        in_git_header = False
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.startswith("--- ") and self._peek(1).startswith("+++ "):
                return True
            in_git_header = in_git_header or line.startswith("diff --git ")
            if in_git_header and line.startswith(_UNSUPPORTED):
                raise self._error(f"{line.strip()!r} is not supported; list new files under `adds`")
            if _HUNK.match(line):
                raise self._error("a hunk without a file header")
            self.at += 1
        return False

    def _file(self) -> FileDiff:
        old, new = _path(self.lines[self.at]), _path(self.lines[self.at + 1])
        if "/dev/null" in (old, new):
            raise self._error("creating or deleting a file is not supported; list new files under `adds`")
        self.at += 2
        hunks: list[Hunk] = []
        shift = 0  # by how much the new file is ahead of the old one
        while self._peek().startswith("@@ "):
            hunk = self._hunk()
            if hunks and hunk.offset < hunks[-1].offset + len(hunks[-1].before):
                raise self._error(f"hunk at line {hunk.start} overlaps the one before it or is out of order")
            if hunk.new_offset != hunk.offset + shift:
                raise self._error(
                    f"hunk at line {hunk.start}: its + line does not follow from the hunks before it"
                )
            shift += len(hunk.after) - len(hunk.before)
            hunks.append(hunk)
        if not hunks:
            raise self._error(f"{new} has no hunk")
        self._refuse_stray_line()
        return FileDiff(path=new, hunks=tuple(hunks))

    def _hunk(self) -> Hunk:
        header = _HUNK.match(self.lines[self.at])
        if header is None:
            raise self._error("not a hunk header")
        old_start, new_start = int(header[1]), int(header[3])
        old_left, new_left = (1 if header[n] is None else int(header[n]) for n in (2, 4))
        self.at += 1
        before: list[str] = []
        after: list[str] = []
        while len(before) < old_left or len(after) < new_left:
            self._line(before, after)
        if len(before) != old_left or len(after) != new_left:
            raise self._error(f"hunk at line {old_start} does not have the length that its header says")
        self._no_newline(before, after)
        if before == after:
            raise self._error(f"hunk at line {old_start} changes nothing")
        return Hunk(start=old_start, before=tuple(before), after=tuple(after), new_start=new_start)

    def _line(self, before: list[str], after: list[str]) -> None:
        line = self._peek()
        sign, content = line[:1], line[1:]
        if line in ("\n", "\r\n"):
            # Editors strip the blank that stands for an empty context line.
            sign, content = " ", line
        if sign in {" ", "+", "-"} and not line.endswith("\n"):
            raise self._error("the diff ends within a line; end it with a newline")
        if sign not in {" ", "+", "-"}:
            raise self._error("the hunk ends too early" if sign != "\\" else "misplaced '\\ No newline'")
        if sign in " -":
            before.append(content)
        if sign in " +":
            after.append(content)
        self.at += 1
        if self._peek().startswith("\\") and sign == "-" and self._peek(1)[:1] == "+":
            before[-1] = before[-1].removesuffix("\n")
            self.at += 1

    def _no_newline(self, before: list[str], after: list[str]) -> None:
        """`\\ No newline at end of file` behind the last line of a hunk takes the end off that line."""
        if not self._peek().startswith("\\"):
            return
        sign = self.lines[self.at - 1][:1]
        for side, signs in ((before, " -"), (after, " +")):
            if side and sign in signs:
                side[-1] = side[-1].removesuffix("\n")
        self.at += 1

    def _refuse_stray_line(self) -> None:
        line = self._peek()
        # "-- " is the signature line of git format-patch.
        if line[:1] in {" ", "+", "-"} and line[:1] and line.rstrip() != "--" and not line.startswith("--- "):
            raise self._error("a line of a hunk beyond the length that its header says")

    def _peek(self, ahead: int = 0) -> str:
        at = self.at + ahead
        return self.lines[at] if at < len(self.lines) else ""

    def _error(self, reason: str) -> PatchLoadError:
        return PatchLoadError(f"{self.name}:{min(self.at + 1, len(self.lines))}: {reason}")


def _path(header: str) -> str:
    name = header[4:].rstrip("\r\n").split("\t")[0].strip()
    return re.sub(r"\A[ab]/", "", name)

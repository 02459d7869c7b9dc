"""What can be said about an edited Python file without importing it: it compiles, and names no unknown name.

Undefined names are compared with those of the file before the edit, since upstream files have some of their
own: only what the edit brought in is a problem.
"""

from __future__ import annotations

import ast
import functools
import warnings
from collections import Counter
from dataclasses import dataclass

from pyflakes import checker, messages

_BOM = "\ufeff"  # legal at the start of a file; `compile` refuses it in a str


@dataclass(frozen=True)
class Problem:
    """One finding. `kind` is `syntax` or `undefined`; `line` is 1-based in the edited text, 0 when unknown."""

    path: str
    line: int
    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"

    @property
    def place(self) -> str:
        """The same for a sentence that has named the file."""
        return f"line {self.line}: {self.message}" if self.line else self.message


def check(path: str, before: str | None, after: str) -> tuple[Problem, ...]:
    """Problems that the edit from `before` (None: a new file) to `after` brings into the file `path`.

    A file whose original does not compile here either (written for a newer Python than the controller's) is
    left to the check on the node, under the interpreter that serves.
    """
    if syntax_error(path, after) is not None:
        error = edit_syntax_error(path, before, after)
        return () if error is None else (error,)
    known = Counter(name for name, _ in _undefined(before)) if before is not None else Counter[str]()
    problems = []
    for name, line in _undefined(after):
        if known[name] > 0:
            known[name] -= 1
        else:
            problems.append(Problem(path, line, "undefined", f"undefined name {name!r}"))
    return tuple(problems)


def edit_syntax_error(path: str, before: str | None, after: str) -> Problem | None:
    """That which the edit brings into a Python file; None for other files."""
    error = syntax_error(path, after) if path.endswith(".py") else None
    return None if before is not None and error and syntax_error(path, before) is not None else error


def syntax_error(path: str, text: str) -> Problem | None:
    """The problem that keeps `text` from compiling under this interpreter, or None."""
    with warnings.catch_warnings():
        # Escapes like "\d" in upstream text warn on each compile; they are not what is asked here.
        warnings.simplefilter("ignore")
        try:
            compile(text.removeprefix(_BOM), path, "exec", dont_inherit=True)
        except SyntaxError as error:
            return Problem(path, error.lineno or 0, "syntax", f"{type(error).__name__}: {error.msg}")
        except ValueError as error:  # NUL bytes
            return Problem(path, 0, "syntax", f"does not compile: {error}")
        except (RecursionError, MemoryError):  # the compiler's own stack
            return Problem(path, 0, "syntax", "does not compile: an expression is nested too deep")
    return None


# The same original is checked once for each patch set that touches it.
@functools.lru_cache(maxsize=64)
def _undefined(text: str) -> tuple[tuple[str, int], ...]:
    """(name, line) of each use of a name that nothing in `text` defines, by line.

    () if it does not parse, or is nested deeper than pyflakes follows, as a sum of some 300 terms is.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(text.removeprefix(_BOM))
            found = checker.Checker(tree).messages
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return ()
    kinds = (messages.UndefinedName, messages.UndefinedLocal, messages.UndefinedExport)
    uses = [(str(m.message_args[0]), int(m.lineno)) for m in found if isinstance(m, kinds)]
    return tuple(sorted(uses, key=lambda use: use[1]))

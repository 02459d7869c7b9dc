"""Stale bytecode: Python trusts a .pyc whose recorded size and whole-second mtime match, so it runs old code after a
same-length edit. The caches of touched modules are dropped whenever their source changes, here and under a prefix."""

from __future__ import annotations

import glob
import os
from typing import Iterable, List, Mapping, Optional

from . import durable

PREFIX_VARIABLE = "PYTHONPYCACHEPREFIX"


def caches(path: str, prefixes: Iterable[str]) -> List[str]:
    """Every cached .pyc of a source file, of any interpreter and optimisation level."""
    folder, name = os.path.split(path)
    stem, suffix = os.path.splitext(name)
    if suffix != ".py":
        return []
    folders = [os.path.join(folder, "__pycache__")]
    folders += [os.path.join(prefix, folder.lstrip("/")) for prefix in prefixes]
    found = []
    for place in folders:
        found += glob.glob(os.path.join(glob.escape(place), glob.escape(stem) + ".*.pyc"))
    return sorted(found)


def own_prefixes() -> List[str]:
    """Of the login environment, which the server inherits."""
    prefix = os.environ.get(PREFIX_VARIABLE, "")
    return [os.path.normpath(prefix)] if os.path.isabs(prefix) else []


def prefix_in(environment: Mapping[str, Optional[str]], cwd: str) -> List[str]:
    """Where an interpreter with this environment and folder keeps its bytecode, if not beside the source."""
    prefix = environment.get(PREFIX_VARIABLE)
    return [os.path.normpath(os.path.join(cwd, prefix))] if prefix else []


def drop(paths: Iterable[str], prefixes: Iterable[str]) -> List[str]:
    """Removes the caches of the source files. Returns what could not be removed; a cache that vanished is fine."""
    stuck = []
    prefixes = [*own_prefixes(), *prefixes]
    for path in paths:
        for cache in caches(path, prefixes):
            try:
                durable.remove("bytecode.drop", cache)
            except FileNotFoundError:
                continue
            except OSError:
                stuck.append(cache)
    return stuck


def undroppable(path: str, prefixes: Iterable[str]) -> List[str]:
    return [
        cache
        for cache in caches(path, [*own_prefixes(), *prefixes])
        if not os.access(os.path.dirname(cache), os.W_OK | os.X_OK, effective_ids=True)
    ]

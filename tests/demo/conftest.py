"""Trees and engines that several tests share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.demo.engines import EngineProcess, StartEngine, apply_patch, make_site, running


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unpatched 0.5.11 tree. Read only."""
    return make_site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="session")
def patched_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same tree with spec_banner and dynamic_disable. Read only."""
    folder = make_site(tmp_path_factory.mktemp("patched"))
    apply_patch(folder, "spec_banner")
    apply_patch(folder, "dynamic_disable")
    return folder


@pytest.fixture
def start(site: Path, tmp_path: Path) -> Iterator[StartEngine]:
    """`start(*flags, tree=..., **env)` starts an engine; all end with the test."""
    with ExitStack() as stack:
        count = 0

        def make(*flags: str, tree: Path = site, **env: str) -> EngineProcess:
            nonlocal count
            count += 1
            return stack.enter_context(running(tree, tmp_path / f"engine-{count}.log", flags, **env))

        yield make

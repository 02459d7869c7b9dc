"""The mutants follow the code: `make mutants` runs them, this test only says when one does not fit any more."""

from __future__ import annotations

import ast

import pytest

from tests.mutants.table import ROOT, Mutant, mutants


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_mutant_fits_the_code_and_is_a_program(mutant: Mutant) -> None:
    for file in mutant.files:
        text = (ROOT / file).read_text()
        assert ast.dump(ast.parse(mutant.applied(file, text))) != ast.dump(ast.parse(text))
    for test in mutant.tests:
        path, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}" in (ROOT / path).read_text()

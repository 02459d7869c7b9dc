"""An edited file compiles and brings in no name that nothing defines; what upstream had before is not its fault."""

from __future__ import annotations

import warnings

import pytest

from orchestrator.patchset.sourcecheck import Problem, check


def test_a_sound_edit_has_no_problems():
    assert check("pkg/a.py", "import os\n", "import os\nprint(os.name)\n") == ()


def test_an_argument_pasted_inside_a_call_is_a_syntax_error_with_its_line():
    before = 'parser.add_argument(\n    "--speculative-num-steps",\n    type=int,\n)\n'
    after = before.replace("    type=int,\n", '    parser.add_argument("--new", type=int)\n    type=int,\n')
    (problem,) = check("srt/server_args.py", before, after)
    assert (problem.kind, problem.line) == ("syntax", 3)
    assert str(problem).startswith("srt/server_args.py:3: SyntaxError: ")


def test_a_name_that_the_edit_uses_and_nothing_defines_is_a_problem():
    assert check("a.py", "x = 1\n", "x = 1\nlogger.info(x)\n") == (
        Problem("a.py", 2, "undefined", "undefined name 'logger'"),
    )


def test_undefined_names_that_were_there_before_are_not_reported():
    before = "def f():\n    return Missing\n"
    assert check("a.py", before, "# a line more\n" + before) == ()


def test_one_more_use_of_a_name_that_was_undefined_before_is_new():
    before = "def f():\n    return Missing\n"
    (problem,) = check("a.py", before, before + "y = Missing\n")
    assert problem.line == 3


def test_a_new_file_answers_for_all_of_its_names():
    (problem,) = check("new.py", None, "print(nothing)\n")
    assert problem.message == "undefined name 'nothing'"


def test_a_local_used_before_it_is_set_and_an_export_that_is_missing_are_undefined_too():
    before = "x = 1\n"
    after = before + "__all__ = ['gone']\n\ndef f():\n    print(x)\n    x = 2\n    return x\n"
    assert {problem.line for problem in check("a.py", before, after)} == {2, 5}


def test_unused_imports_and_the_like_are_nobodys_business_here():
    assert check("a.py", "x = 1\n", "import os\nx = 1\nf'no placeholder'\n") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [("x = (\n", "SyntaxError"), (" x = 1\n", "IndentationError"), ("x = 'a\0b'\n", "null bytes")],
)
def test_text_that_does_not_compile_is_one_problem_and_the_names_are_left_alone(text, message):
    (problem,) = check("a.py", "x = 1\n", text + "undefined_too\n")
    assert problem.kind == "syntax"
    assert message in problem.message


def test_an_original_for_a_newer_python_is_left_to_the_interpreter_that_serves():
    newer = "x = match 1 of 2\n"
    assert check("a.py", newer, newer + "y = 1\n") == ()


def test_an_expression_too_deep_to_be_followed_is_left_to_the_interpreter_that_serves():
    long_sum = "x = " + "+".join(["1"] * 400) + "\n"
    assert check("a.py", long_sum, long_sum + "y = x\n") == ()
    no_end = "x = " + "-" * 100_000 + "1\n"
    assert check("a.py", no_end, no_end + "y = x\n") == ()
    (problem,) = check("a.py", "x = 1\n", no_end)
    assert problem.message == "does not compile: an expression is nested too deep"


def test_a_byte_order_mark_and_windows_line_ends_compile():
    assert check("a.py", "\ufeffx = 1\r\n", "\ufeffx = 1\r\ny = x\r\n") == ()


def test_warnings_of_upstream_text_are_not_printed():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check("a.py", "x = '\\d'\n", "x = '\\d'\ny = x\n") == ()

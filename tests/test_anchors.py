"""Anchors are whole statements found by syntax; edits add statements and change nothing else."""

from __future__ import annotations

import ast
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.anchors import Edits, Source, call_to
from orchestrator.errors import AnchorError


def source(text: str) -> Source:
    return Source(textwrap.dedent(text), "pkg/file.py")


def edited(text: str, stmt_of, lines, before=False) -> str:
    src = Source(text, "pkg/file.py")
    edits = Edits(src)
    (edits.insert_before if before else edits.insert_after)(stmt_of(src), lines)
    return edits.result()


ARGPARSE = """\
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument(
            "--speculative-num-steps",
            type=int,
            help="The number of steps sampled from draft model "
            "in speculative decoding.",
        )
        parser.add_argument(
            "--speculative-token-map",
            type=str,
            default=None,
        )
"""


def test_an_argument_is_added_behind_the_whole_call_and_never_inside_one():
    """The accident: a line pasted below "--speculative-num-steps" landed in the middle of the call."""

    def anchor(src: Source) -> ast.stmt:
        add = src.method(src.klass("ServerArgs"), "add_cli_args")
        return src.statement_with_call(add, call_to("add_argument", "--speculative-num-steps"))

    out = edited(ARGPARSE, anchor, ['parser.add_argument("--new", type=int)'])
    calls = [n.value.args[0].value for n in ast.parse(out).body[0].body[0].body]
    assert calls == ["--speculative-num-steps", "--new", "--speculative-token-map"]


def test_the_line_of_the_accident_is_a_syntax_error_that_the_edit_would_refuse():
    lines = ARGPARSE.splitlines(keepends=True)
    lines.insert(5, '        parser.add_argument("--new", type=int)\n')
    with pytest.raises(AnchorError, match="not Python"):
        Source("".join(lines))


def test_a_lookup_that_finds_nothing_names_file_and_anchor():
    src = source("class A:\n    x: int = 1\n")
    with pytest.raises(AnchorError, match=r"pkg/file\.py: class B: not found"):
        src.klass("B")
    with pytest.raises(AnchorError, match=r"field A\.y: not found"):
        src.field(src.klass("A"), "y")
    with pytest.raises(AnchorError, match=r"method A\.go: not found"):
        src.method(src.klass("A"), "go")


def test_a_lookup_that_finds_two_says_where_both_are():
    src = source("""\
        class A:
            def go(self):
                f("x")
                if True:
                    f("x")
        """)
    with pytest.raises(AnchorError, match=r"found 2 times \(lines 3, 5\)"):
        src.statement_with_call(src.method(src.klass("A"), "go"), call_to("f", "x"))


def test_a_call_in_an_inner_function_or_in_a_nested_block_of_a_hit_is_not_a_second_hit():
    src = source("""\
        def go():
            def inner():
                f("x")
            with lock:
                for i in y:
                    z = f("x")
        """)
    assert src.statement_with_call(src.function("go"), call_to("f", "x")).lineno == 6


def test_a_condition_owns_the_calls_it_makes():
    src = source("def go():\n    if ready():\n        pass\n")
    assert isinstance(src.statement_with_call(src.function("go"), call_to("ready")), ast.If)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_line_ends_of_the_file_are_kept_and_used(newline):
    text = "a = 1\nb = 2\n".replace("\n", newline)
    out = edited(text, lambda s: s.tree.body[0], ["x = 0", "y = 0"])
    assert out == "a = 1\nx = 0\ny = 0\nb = 2\n".replace("\n", newline)


def test_a_file_without_a_last_line_end_gets_one_before_the_insertion():
    assert edited("a = 1", lambda s: s.tree.body[0], ["b = 2"]) == "a = 1\nb = 2\n"


def test_columns_are_characters_although_the_tree_counts_bytes():
    text = 'if True:\n    naïve = "déjà"; after = 1\n'
    with pytest.raises(AnchorError, match="shares its line with what follows"):
        edited(text, lambda s: s.tree.body[0].body[0], ["x = 0"])
    text = 'if True:\n    naïve = "déjà vu — ☃"  # é; kept\n'
    out = edited(text, lambda s: s.tree.body[0].body[0], ["x = 0"])
    assert out == text + "    x = 0\n"


def test_a_statement_behind_another_on_its_line_is_no_place_for_an_insertion():
    with pytest.raises(AnchorError, match="shares its line with what is before"):
        edited("if True: x = 1\n", lambda s: s.tree.body[0].body[0], ["y = 0"], before=True)
    with pytest.raises(AnchorError, match="shares its line with what is before"):
        edited("é = 1; x = 1\n", lambda s: s.tree.body[1], ["y = 0"])


def test_tabs_are_continued_with_tabs():
    text = "def f():\n\tif x:\n\t\ta = 1\n"
    out = edited(text, lambda s: s.tree.body[0].body[0].body[0], ["if a:", "    b = 2"])
    assert out == text + "\t\tif a:\n\t\t\tb = 2\n"


def test_before_a_function_means_above_its_decorators_and_its_comments():
    text = "x = 1\n\n# about f\n@(\n    deco\n)\n@other\ndef f():\n    pass\n"
    out = edited(text, lambda s: s.function("f"), ["y = 2"], before=True)
    assert out == text.replace("# about f", "y = 2\n# about f")


def test_a_docstring_line_that_looks_like_a_comment_stays_inside_its_docstring():
    text = 'def f():\n    """Doc.\n    # end"""\n    go()\n'
    out = edited(text, lambda s: s.first_statement(s.function("f")), ["first()"], before=True)
    assert out == text.replace("    go()", "    first()\n    go()")


def test_comments_of_another_depth_are_left_where_they_are():
    text = "def f():\n    if x:\n        a = 1\n        # about a\n    b = 2\n"
    out = edited(text, lambda s: s.tree.body[0].body[1], ["c = 3"], before=True)
    assert out == text.replace("    b = 2", "    c = 3\n    b = 2")


def test_after_a_compound_statement_is_behind_its_last_branch():
    text = "if a:\n    x = 1\nelse:\n    x = 2\nz = 3\n"
    assert edited(text, lambda s: s.tree.body[0], ["y = 0"]) == text.replace("z = 3", "y = 0\nz = 3")


def test_insertions_at_one_place_keep_their_order():
    src = Source("a = 1\nb = 2\n")
    edits = Edits(src)
    edits.insert_after(src.tree.body[0], ["one = 1"])
    edits.insert_before(src.tree.body[1], ["two = 2"])
    assert edits.result() == "a = 1\none = 1\ntwo = 2\nb = 2\n"


def test_a_byte_order_mark_and_odd_line_separators_come_through():
    text = "\ufeffa = 'x\u2028y\x1c'\n\x0c\nb = 2\n"
    assert edited(text, lambda s: s.tree.body[1], ["c = 3"]) == text + "c = 3\n"


def test_an_insertion_that_does_not_compile_is_refused():
    with pytest.raises(AnchorError, match="does not compile"):
        edited("def f():\n    a = 1\n", lambda s: s.tree.body[0].body[0], ["b = ("])


def test_an_insertion_that_swallows_the_next_statement_is_refused():
    with pytest.raises(AnchorError, match="changes statements other than"):
        edited("def f():\n    a = 1\n    b = 2\n", lambda s: s.tree.body[0].body[0], ["b = \\"])


def test_text_that_carries_the_marker_in_a_comment_is_already_patched():
    src = source("a = 1  # dynspec:thing hook\nb = 'dynspec:other'\n")
    with pytest.raises(AnchorError, match=r"already patched \(line 1"):
        src.refuse_marked("dynspec:thing")
    src.refuse_marked("dynspec:other")  # a string is not a comment


names = st.sampled_from(["a", "bé", "c_1"])
values = st.sampled_from(["1", "'ü'", "(\n    1,\n)", '"""x\n # y\n"""'])


@given(st.lists(st.tuples(names, values), min_size=1, max_size=6), st.data())
def test_removing_the_inserted_lines_gives_the_original_bytes(pairs, data):
    text = "".join(f"{name} = {value}\n" for name, value in pairs)
    at = data.draw(st.integers(0, len(pairs) - 1))
    before = data.draw(st.booleans())
    out = edited(text, lambda s: s.tree.body[at], ["inserted = 0"], before=before)
    lines = out.splitlines(keepends=True)
    assert lines.count("inserted = 0\n") == 1
    assert [n.targets[0].id for n in ast.parse(out).body].index("inserted") == at + (not before)
    lines.remove("inserted = 0\n")
    assert "".join(lines) == text

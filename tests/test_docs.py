"""The pages for users hold: links lead somewhere, examples load, commands and quoted messages exist."""

from __future__ import annotations

import ast
import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from orchestrator.analysis.failure import RULES
from orchestrator.cli.app import app
from orchestrator.config import load_experiment
from orchestrator.patchset import FitState, available_patches, load_patch
from orchestrator.patchset.local import check_folder
from orchestrator.report.glossary import GLOSSARY
from orchestrator.schema import key_table
from tests.wheels import wheel_tree

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "results/README.md"]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
MESSAGE_AREAS = "docs/troubleshooting.md"


def by_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path, language: str) -> list[str]:
    return [text for found, text in BLOCK.findall(path.read_text()) if found == language]


def slug(heading: str) -> str:
    """The anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_links_lead_to_a_file_and_to_a_heading_in_it(page: Path) -> None:
    for link in LINK.findall(page.read_text()):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{link} of {by_name(page)}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.M)
            assert anchor in map(slug, headings), f"{link} of {by_name(page)}"


def experiments() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for number, text in enumerate(blocks(page, "yaml"), 1):
            if "schema: 1" in text and "node:" in text:
                yield f"{by_name(page)} block {number}", text
    for path in sorted((ROOT / "experiments").rglob("*.yaml")):
        yield by_name(path), path.read_text()


FOUND = dict(experiments())


@pytest.mark.parametrize("where", FOUND)
def test_examples_of_experiments_are_valid(where: str) -> None:
    carried = [patch.name for patch in available_patches()]
    checked = load_experiment(FOUND[where], name=where, patches=carried)
    assert checked.experiment.arms


def test_the_pages_do_show_experiments() -> None:
    assert any(where.startswith("README.md") for where in FOUND)
    assert any(where.startswith("docs/first-experiment.md") for where in FOUND)


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_every_yaml_block_parses(page: Path) -> None:
    for text in blocks(page, "yaml"):
        assert yaml.safe_load(text), text


def commands(page: Path) -> Iterator[list[str]]:
    """`dynspec WORDS` in code, up to what ends a command: a pipe, a comment, the end of the line or of the quote."""
    text = page.read_text()
    for line in (line for _, block in BLOCK.findall(text) for line in block.splitlines()):
        for match in re.finditer(r"(?:^|\$ |exec |bin/)dynspec ([a-z].*)", line):
            yield words_of(match[1])
    for span in re.findall(r"`(?:\$ )?(?:\.venv/bin/)?dynspec ([a-z][^`]*)`", text):
        yield words_of(span)


def words_of(rest: str) -> list[str]:
    rest = re.split(r"\s#|\s\|{1,2}\s|\s&&\s|\s>\s|'$", rest)[0].rstrip("'")
    try:
        return shlex.split(rest)
    except ValueError:
        return rest.split()


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_commands_and_their_options_exist(page: Path) -> None:
    known = get_command(app)
    for words in commands(page):
        command = known.commands.get(words[0])
        assert command is not None, f"dynspec {' '.join(words)} in {by_name(page)}"
        rest = words[1:]
        if hasattr(command, "commands"):
            assert not rest or rest[0] in command.commands, f"dynspec {' '.join(words)}"
            command = command.commands[rest[0]] if rest else command
        options = {option for parameter in command.params for option in parameter.opts}
        for word in rest:
            if word.startswith("-") and word != "-":
                assert word.split("=")[0] in {*options, "--help"}, f"dynspec {' '.join(words)}"


def test_pages_name_commands_at_all() -> None:
    assert {words[0] for page in PAGES for words in commands(page)} >= {
        "doctor",
        "init",
        "plan",
        "run",
        "restore",
    }


def test_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for page in PAGES:
        named = re.findall(
            r"\bmake ([a-z][a-z-]*)\b", "\n".join(re.findall(r"`[^`\n]+`|^    .*$", page.read_text(), re.M))
        )
        assert set(named) <= targets, by_name(page)


# -- messages


@functools.cache
def templates() -> tuple[str, ...]:
    """Every text in the program, values replaced by `...`."""
    found = [rule.title for rule in RULES]
    for file in sorted((ROOT / "orchestrator").rglob("*.py")):
        tree = ast.parse(file.read_text())
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if id(node) in docstrings:
                continue
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"\{[^{}]*\}", "...", node.value))
            elif isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "..." for part in node.values]
                found.append("".join(map(str, parts)))
    return tuple(" ".join(text.split()) for text in found)


def quoted_messages() -> list[str]:
    rows = re.findall(r"^\| `([^`]+)`[^|]*\|", (ROOT / MESSAGE_AREAS).read_text(), re.M)
    return [row for row in rows if row != "message"]


@pytest.mark.parametrize("message", quoted_messages())
def test_a_quoted_message_exists_in_the_program(message: str) -> None:
    pattern = re.compile(".*".join(re.escape(piece) for piece in message.split("...")))
    assert any(pattern.search(text) for text in templates()), message


def test_there_are_messages_to_check() -> None:
    assert len(quoted_messages()) > 40


def test_every_refusal_of_the_connection_by_host_key_is_explained() -> None:
    text = (ROOT / MESSAGE_AREAS).read_text()
    for words in ("is unknown", "has changed", "is of a type that known_hosts does not have"):
        assert words in text


# -- tables of words


def finding_names() -> set[str]:
    """The names of all findings of the program."""
    names = set()
    for file in sorted((ROOT / "orchestrator/analysis").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding" and node.args:
                name = node.args[0]
                assert isinstance(name, ast.Constant), f"{file.name}:{node.lineno}"
                names.add(name.value)
    return names


def test_the_report_page_explains_every_reason_and_no_other() -> None:
    part = (ROOT / "docs/report.md").read_text().split("## Why a point is invalid")[1]
    told = set(re.findall(r"`([a-z]+_[a-z_]+)`", part)) - {"requests_per_slot", "load_from"}
    named = finding_names()
    assert {name for name in told if name not in named} == set()
    assert {name for name in named if f"`{name}`" not in part} == set()


def test_the_report_page_and_the_report_explain_the_same_words() -> None:
    part = (ROOT / "docs/report.md").read_text().split("## The words")[1].split("\n## ")[0]
    assert dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", part, re.M)) == {"word": "meaning", **GLOSSARY}


def test_the_page_of_the_experiment_file_has_every_key() -> None:
    """`dynspec schema --md` prints the table."""
    assert key_table() in (ROOT / "docs/experiment.md").read_text()


def test_the_patch_page_explains_every_answer_of_check() -> None:
    part = (ROOT / "docs/writing-a-patch.md").read_text().split("## What `check` answers")[1]
    for state in FitState:
        assert f"`{state.words}`" in part


@pytest.mark.wheels
def test_the_patch_of_the_page_applies_to_the_release_with_the_hashes_of_the_page(tmp_path: Path) -> None:
    page = ROOT / "docs/writing-a-patch.md"
    manifest, listing = (text for text in blocks(page, "yaml") if "versions:" in text)
    (patcher,) = blocks(page, "python")
    folder = tmp_path / "memory_note"
    folder.mkdir()
    (folder / "patcher.py").write_text(patcher)
    (folder / "manifest.yaml").write_text(manifest)
    assert check_folder(load_patch(folder), wheel_tree("0.5.11")).state is FitState.FITS_UNLISTED
    (folder / "manifest.yaml").write_text(manifest.replace("versions: {}\n", listing))
    patch = load_patch(folder)
    assert check_folder(patch, wheel_tree("0.5.11")).state is FitState.FITS
    (target,) = patch.targets
    text = (wheel_tree("0.5.11") / target.path).read_text()
    assert "memory_note: mem_fraction_static" in target.edit(text, unique=True)

"""`dynspec init`: a commented experiment with what the node tells of itself filled in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from orchestrator.cli.nodes import Way, connected
from orchestrator.model.facts import Facts
from orchestrator.runner.doctor import Place, facts_at, find_trees

_MODEL = re.compile(r"--model(?:-path)?[= ](\S+)")
_TODO = "  # <--"
_COMMENT_AT = 29


@dataclass(frozen=True)
class Draft:
    """The text, and the keys that the node could not tell."""

    text: str
    left: tuple[str, ...]


def file_for(way: Way, python: str | None, cwd: str) -> Draft:
    """Asks the node, reads only."""
    with connected(way) as client:
        if python is None:
            trees = find_trees(client, cwd)
            found = next(iter(trees.items()), None)
            python, facts = found if found else (None, facts_at(client, Place("python3", cwd), ()))
        else:
            facts = facts_at(client, Place(python, cwd), ())
    return draft(way, facts, python if facts.tree is not None else None, cwd)


def draft(way: Way, facts: Facts, python: str | None, cwd: str) -> Draft:
    """The experiment as text; every line that needs a person ends in `<--`."""
    model = _served_model(facts)
    left = [
        *(["node.python"] if python is None else []),
        *(["server.args.model-path"] if model is None else []),
        "arms.eagle3.args.speculative-draft-model-path",
    ]
    lines = [
        *_head(way, facts),
        *_node(way, facts, python, cwd),
        *_server(facts, model),
        _REST.rstrip(),
    ]
    return Draft("\n".join(lines) + "\n", tuple(left))


def _head(way: Way, facts: Facts) -> Iterator[str]:
    yield f"# An experiment on {way.node}, written by `dynspec init` after asking the node what it has."
    yield "# Fill in the lines marked <--, then: dynspec validate FILE, dynspec plan FILE, dynspec run FILE."
    yield "# An editor with a YAML language server checks this file while you type, after"
    yield "#   dynspec schema -o dynspec.schema.json"
    yield "# yaml-language-server: $schema=dynspec.schema.json"
    yield "schema: 1"
    host = re.sub(r"[^A-Za-z0-9]+", "-", way.node.rpartition("@")[2]).strip("-")
    yield _noted(f"name: first-{host}", "names the folders under results/")
    yield ""


def _node(way: Way, facts: Facts, python: str | None, cwd: str) -> Iterator[str]:
    tree = facts.tree
    yield "node:"
    yield f"  host: {_quoted(way.node)}"
    for key, value in (
        ("ssh_config", way.ssh_config),
        ("known_hosts", way.known_hosts),
        ("host_key", way.host_key),
    ):
        if value is not None:
            yield f"  {key}: {_quoted(value)}"
    if python is not None and tree is not None:
        yield f"  # {tree.package} {tree.version or '(no version)'} at {tree.path}"
        yield f"  python: {_quoted(python)}"
    else:
        yield f"  # none was found in the usual places: {_short(facts.tree_problem)}"
        yield f"  python: /path/to/venv/bin/python3{_TODO} the interpreter that serves"
    yield _noted(f"  cwd: {_quoted(cwd) if cwd != '~' else cwd}", "the folder it serves from")
    free = facts.disk_free_mib // 1024
    yield _noted("  workdir: ~/.dynspec/work", f"logs and backups; {free} GiB are free there")
    yield _noted("  gpus: all", _gpu_words(facts))
    yield _noted("  free: own", "own | wait | listed | all: what may be stopped to free the GPUs")
    yield ""


def _server(facts: Facts, model: str | None) -> Iterator[str]:
    yield "server:"
    port = 30000
    taken = facts.port.in_use and facts.port.port == port
    yield _noted(f"  port: {port + 1}", f"{port} is in use there") if taken else f"  port: {port}"
    yield _noted("  args:", "flags without dashes; true makes a bare flag")
    if model is not None:
        yield f"    model-path: {_quoted(model)}  # a process there serves it"
    else:
        yield f"    model-path: /path/to/model{_TODO}"
    yield _noted(f"    tp: {max(1, len(facts.gpus))}", "tensor parallel size: GPUs of one server")
    yield _noted("    max-running-requests: 64", "write it: with speculation SGLang quietly sets 48")
    yield "  ready: {timeout: 30m, silence: 5m}"
    yield ""


_REST = """\
arms:
  baseline: {}
  eagle3:
    args:
      speculative-algorithm: EAGLE3
      speculative-draft-model-path: /path/to/draft  # <--
      speculative-num-steps: 3
      speculative-eagle-topk: 1
      speculative-num-draft-tokens: 4

sweep:
  concurrency: [1, 4, 16, 48]  # requests in flight; one point each
  prompts: {source: builtin, kinds: [coding, agentic]}
  output_tokens: 256
  requests_per_slot: 4         # requests at a point = concurrency x this
  repeats: 3                   # server boots per arm; below 3 a difference is hard to tell from noise
  temperature: 0
"""


def _noted(text: str, comment: str) -> str:
    return f"{text:<{_COMMENT_AT - 1}} # {comment}"


def _served_model(facts: Facts) -> str | None:
    """The model of a server that runs there now."""
    for process in (*facts.tree_processes, *facts.holders):
        match = _MODEL.search(process.command)
        if match:
            return match[1]
    return None


def _gpu_words(facts: Facts) -> str:
    if facts.gpu_problem is not None:
        return f"the GPUs could not be read: {_short(facts.gpu_problem)}"
    names = sorted({gpu.name for gpu in facts.gpus})
    return f"{len(facts.gpus)} x {', '.join(names)}" if names else "no GPU was seen"


def _short(text: str | None) -> str:
    return " ".join((text or "unknown").split())[:100]


def _quoted(value: Any) -> str:
    """Plain where YAML reads it as the same text, else in double quotes."""
    text = str(value)
    if re.fullmatch(r"[A-Za-z/~][\w./~@+-]*", text) and text.lower() not in {
        "yes",
        "no",
        "on",
        "off",
        "true",
        "false",
        "null",
    }:
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'

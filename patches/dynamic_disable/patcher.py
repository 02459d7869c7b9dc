"""Hooks of the dynamic-disable patch: text of one SGLang file in, the hooked text out.

Every hook is a few whole statements that call `sglang.srt.speculative.dynspec`; what they do is written there.
No statement of SGLang is changed or removed. The anchors hold for 0.5.8 to 0.5.12.post1; in a release where one
of them is missing or ambiguous, AnchorError says which.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from orchestrator.anchors import Edits, FunctionNode, Source, call_to, own_nodes
from orchestrator.errors import AnchorError

MARK = "dynspec:dynamic_disable"
_COMMENT = f"# {MARK}"


def patch(path: str, text: str) -> str:
    """The hooked text of the package-relative file `path`; AnchorError if it does not fit or is hooked already."""
    hook = HOOKS.get(path)
    if hook is None:
        raise AnchorError(f"{path}: the dynamic-disable patch has no hook for this file")
    source = Source(text, path)
    source.refuse_marked(MARK)
    edits = Edits(source)
    hook(source, edits)
    return edits.result()


def _server_args(source: Source, edits: Edits) -> None:
    """Three options, and the refusal of arguments that the patch does not support."""
    args = source.klass("ServerArgs")
    edits.insert_after(
        source.field(args, "speculative_num_draft_tokens"),
        [
            _COMMENT,
            "speculative_disable_batch_threshold: Optional[int] = None",
            "speculative_disable_draft_sync: Optional[str] = None",
            "enable_speculative_threshold_switch: bool = False",
        ],
    )
    cli = source.method(args, "add_cli_args")
    last = source.statement_with_call(
        cli, call_to("add_argument", "--speculative-num-draft-tokens"), "--speculative-num-draft-tokens"
    )
    edits.insert_after(
        last,
        [
            _COMMENT,
            "from sglang.srt.speculative.dynspec.arguments import add_cli_arguments",
            "",
            "add_cli_arguments(parser)",
        ],
    )
    handler = source.method(args, "_handle_speculative_decoding")
    _refuse_early_return(source, handler)
    edits.insert_after(
        handler.body[-1],
        [
            _COMMENT,
            "from sglang.srt.speculative.dynspec.arguments import check_server_args",
            "",
            "check_server_args(self)",
        ],
    )


def _worker_v2(source: Source, edits: Edits) -> None:
    """Start-up after the worker is built; prefills noted, results seen; a decode step taken over while it is plain."""
    worker = source.klass("EAGLEWorkerV2")
    _attach(source, edits, source.method(worker, "__init__"), "v2")
    split, batch = _extend_or_decode(source, source.method(worker, "forward_batch_generation"))
    edits.insert_before(
        split.body[0],
        [
            _COMMENT,
            'if getattr(self, "dynspec", None) is not None:',
            f"    self.dynspec.on_prefill({batch})",
        ],
    )
    edits.insert_before(split.orelse[0], _take_over(batch))
    for branch in (split.body, split.orelse):
        result, name = _only_result(source, branch)
        edits.insert_before(
            result,
            [
                _COMMENT,
                'if getattr(self, "dynspec", None) is not None:',
                f"    self.dynspec.on_result({batch}, {name})",
            ],
        )


def _worker_v1(source: Source, edits: Edits) -> None:
    """Start-up; a decode step taken over while it is plain; verified tokens counted otherwise."""
    worker = source.klass("EAGLEWorker")
    _attach(source, edits, source.method(worker, "__init__"), "v1")
    split, batch = _extend_or_decode(source, source.method(worker, "forward_batch_generation"))
    edits.insert_before(split.orelse[0], _take_over(batch))
    result = split.orelse[-1]
    if not isinstance(result, ast.Return) or not _mentions(result, "verify_output"):
        raise AnchorError(f"{source.path}: EAGLEWorker.forward_batch_generation: no result of verify_output")
    edits.insert_before(
        result,
        [
            _COMMENT,
            'if getattr(self, "dynspec", None) is not None:',
            "    self.dynspec.on_verified(verify_output)",
        ],
    )


def _future_map(source: Source, edits: Edits) -> None:
    """A plain step relays one token a request, not the whole draft state."""
    futures = source.klass("FutureMap")
    edits.insert_before(
        source.first_statement(source.method(futures, "resolve_future")),
        [
            _COMMENT,
            "from sglang.srt.speculative.dynspec import hooks",
            "",
            "if hooks.resolve_future(self, model_worker_batch):",
            "    return",
        ],
    )
    edits.insert_before(
        source.first_statement(source.method(futures, "store_to_map_for_new_batch")),
        [
            _COMMENT,
            "from sglang.srt.speculative.dynspec import hooks",
            "",
            "if hooks.store_future(self, future_indices, draft_input):",
            "    return",
        ],
    )


def _output_processor(source: Source, edits: Edits) -> None:
    """Accepted tokens of each step counted where they arrive on the host (v2)."""
    mixin = source.klass("SchedulerOutputProcessorMixin")
    resolve = _one_of(source, mixin, "_resolve_spec_overlap_token_ids", "_resolve_spec_overlap_tokens")
    last = resolve.body[-1]
    if not isinstance(last, ast.Return) or not _assigns(resolve, "accept_lens"):
        raise AnchorError(f"{source.path}: {resolve.name} does not resolve accept_lens as expected")
    edits.insert_before(
        last,
        [
            _COMMENT,
            "from sglang.srt.speculative.dynspec import hooks",
            "",
            "hooks.on_resolved(batch.reqs, result, accept_lens)",
        ],
    )


def _scheduler(source: Source, edits: Edits) -> None:
    """The threshold can be switched while the server runs."""
    handler = source.method(source.klass("Scheduler"), "set_internal_state")
    edits.insert_before(
        source.first_statement(handler),
        [
            _COMMENT,
            "from sglang.srt.speculative.dynspec import hooks",
            "",
            "answer = hooks.set_internal_state(recv_req)",
            "if answer is not None:",
            "    return answer",
        ],
    )


def _attach(source: Source, edits: Edits, init: FunctionNode, worker: str) -> None:
    _refuse_early_return(source, init)
    edits.insert_after(
        init.body[-1],
        [
            _COMMENT,
            "from sglang.srt.speculative.dynspec import attach",
            "",
            f'self.dynspec = attach(self, "{worker}")',
        ],
    )


def _take_over(batch: str) -> list[str]:
    return [
        _COMMENT,
        'if getattr(self, "dynspec", None) is not None:',
        f"    plain_result = self.dynspec.decode({batch})",
        "    if plain_result is not None:",
        "        return plain_result",
    ]


def _extend_or_decode(source: Source, function: FunctionNode) -> tuple[ast.If, str]:
    """The statement `if <extend>: prefill else: decode` of a worker, and the name of its batch argument."""

    def splits(stmt: ast.stmt) -> bool:
        return (
            isinstance(stmt, ast.If)
            and bool(stmt.orelse)
            and any(isinstance(n, ast.Call) and call_to("is_extend")(n) for n in own_nodes(stmt))
        )

    split = source.statement(function, splits, "if/else on forward_mode.is_extend()")
    assert isinstance(split, ast.If)
    return split, function.args.args[1].arg


def _only_result(source: Source, branch: list[ast.stmt]) -> tuple[ast.Return, str]:
    """The one `return <name>` of a branch of EAGLEWorkerV2.forward_batch_generation, wherever it is nested."""
    found = [n for stmt in branch for n in ast.walk(stmt) if isinstance(n, ast.Return)]
    match found:
        case [ast.Return(value=ast.Name(id=name)) as result]:
            return result, name
    raise AnchorError(
        f"{source.path}: EAGLEWorkerV2.forward_batch_generation: expected one `return <name>` in each branch, "
        f"found {[ast.unparse(n) for n in found]}"
    )


def _one_of(source: Source, klass: ast.ClassDef, *names: str) -> FunctionNode:
    present = [n.name for n in klass.body if isinstance(n, ast.FunctionDef) and n.name in names]
    if len(present) != 1:
        raise AnchorError(f"{source.path}: {klass.name}: expected one of {', '.join(names)}, found {present}")
    return source.method(klass, present[0])


def _refuse_early_return(source: Source, function: FunctionNode) -> None:
    if any(isinstance(n, ast.Return) for n in ast.walk(function)):
        raise AnchorError(f"{source.path}: {function.name} returns early: a hook at its end could be skipped")


def _mentions(node: ast.AST, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(node))


def _assigns(function: FunctionNode, name: str) -> bool:
    return any(
        isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store) for n in ast.walk(function)
    )


HOOKS: dict[str, Callable[[Source, Edits], None]] = {
    "srt/server_args.py": _server_args,
    "srt/speculative/eagle_worker_v2.py": _worker_v2,
    "srt/speculative/eagle_worker.py": _worker_v1,
    "srt/managers/overlap_utils.py": _future_map,
    "srt/managers/scheduler_output_processor_mixin.py": _output_processor,
    "srt/managers/scheduler.py": _scheduler,
}

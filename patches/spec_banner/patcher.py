"""Log lines that say which EAGLE worker the arguments choose and which one really serves, from which file.

Whole statements are added and nothing else changes; each block carries the marker in a comment.
"""

from __future__ import annotations

import ast

from orchestrator.anchors import Edits, Source
from orchestrator.errors import AnchorError

MARKER = "dynspec:spec_banner"
SERVER_ARGS = "srt/server_args.py"
WORKERS = {
    "srt/speculative/eagle_worker.py": "EAGLEWorker",
    "srt/speculative/eagle_worker_v2.py": "EAGLEWorkerV2",
}

# A warning, as SGLang's own lines on this choice: releases before 0.5.11 have not set up logging yet when
# the arguments are resolved, and INFO would be dropped.
ARGUMENTS_LINE = f"""\
# {MARKER}: the path that the resolved arguments choose
if self.speculative_algorithm in ("EAGLE", "EAGLE3"):
    logger.warning(
        "dynspec: arguments choose path=%s algorithm=%s topk=%s steps=%s draft_tokens=%s",
        "v1" if self.disable_overlap_schedule else "v2",
        self.speculative_algorithm,
        self.speculative_eagle_topk,
        self.speculative_num_steps,
        self.speculative_num_draft_tokens,
    )"""

WORKER_LINE = f"""\
# {MARKER}: the worker in use, once per rank
logger.info(
    "dynspec: worker=%s tp_rank=%s topk=%s steps=%s draft_tokens=%s file=%s",
    type(self).__name__,
    tp_rank,
    self.topk,
    self.speculative_num_steps,
    self.speculative_num_draft_tokens,
    __file__,
)"""


def patch(path: str, text: str) -> str:
    """The text of `path` (package-relative) with the line added at the end of the method that knows."""
    source = Source(text, path)
    source.refuse_marked(MARKER)
    edits = Edits(source)
    if path == SERVER_ARGS:
        # The end of __post_init__, since handlers after the one for speculation still change the overlap.
        # Its early return is for models "none" and "dummy", which serve nothing.
        method = source.method(source.klass("ServerArgs"), "__post_init__")
        edits.insert_after(method.body[-1], ARGUMENTS_LINE.split("\n"))
    elif path in WORKERS:
        method = source.method(source.klass(WORKERS[path]), "__init__")
        _refuse_early_end(path, method)
        edits.insert_after(method.body[-1], WORKER_LINE.split("\n"))
    else:
        raise AnchorError(f"{path}: not a file of spec_banner")
    return edits.result()


def _refuse_early_end(path: str, method: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    """A line at the end of `method` is reached on every way through it only without `return`."""
    if any(isinstance(node, ast.Return) for node in ast.walk(method)):
        raise AnchorError(f"{path}: {method.name} returns early, so a line at its end may be skipped")

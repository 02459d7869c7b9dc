"""Were penalties applied as SGLang counts tokens for them? Asks the model, step by step, on a CPU.

    python tests/gpu/penalties.py ANSWERS.json... [--model .gpu/models/target] [--serial]

For answers of behaviour_probe.py: the float32 model of the same weights is fed what a server said, and its logits are
penalised for what SGLang counts by then. Each time a step is prepared under the overlap scheduler, the last known token
of each request is counted: at first the last one of the prompt, then the outputs, one step late. A prefill of another
request lets an answer in between: then one token is never counted, and the one after it a step earlier and once more by
the next step. Servers with and without speculation miss different ones, and then their texts differ. A server without
overlap (v1; --serial) counts each output at once, and never the prompt.

For each request: every step fits, or fits once these tokens are missed, or fits nothing, which is a penalty applied
wrongly. Exit status 1 for the last. Needs torch and transformers, as near_ties.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from behaviour_requests import Request, penalty_requests
from near_ties import Reference

FITS = 0.4  # nats; bfloat16 logits between 8 and 16 come in steps of 0.0625, and penalties multiply or add to them
MISSED = 3


def counts(prompt: list[int], said: list[int], missed: Collection[int] = ()) -> list[list[int]]:
    """The tokens that count at each step under overlap; `missed`: outputs never counted, -1 for the prompt's last."""
    known = [*prompt[-1:], *said]
    counted = [known[at + 1 if at - 1 in missed else at] for at in range(len(said))]
    return [counted[:t] for t in range(len(said))]


def penalised(logits: Any, counted: list[int], sampling: dict[str, Any]) -> Any:
    """Log probabilities [vocab] after the penalties of `sampling` for the tokens in `counted`."""
    changed = np.array(logits, dtype=np.float64)
    for token in set(counted):
        scale = sampling.get("repetition_penalty", 1.0)
        changed[token] *= scale if changed[token] < 0 else 1 / scale
        changed[token] -= sampling.get("presence_penalty", 0.0)
    for token in counted:
        changed[token] -= sampling.get("frequency_penalty", 0.0)
    return changed - np.logaddexp.reduce(changed)


def misfits(
    logits: Any, entry: dict[str, Any], counted: list[list[int]], sampling: dict[str, Any]
) -> list[int]:
    """The steps whose log probability is another than these counts give."""
    return [
        t
        for t, (token, told) in enumerate(zip(entry["ids"], entry["output_token_logprobs"], strict=True))
        if abs(penalised(logits[t], counted[t], sampling)[token] - told) > FITS
    ]


def missed_tokens(
    logits: Any, prompt: list[int], entry: dict[str, Any], sampling: dict[str, Any]
) -> tuple[list[int], list[int]]:
    """What was never counted, as `counts` names it, and the steps that no MISSED such tokens explain."""

    def left_by(missed: list[int]) -> list[int]:
        return misfits(logits, entry, counts(prompt, entry["ids"], missed), sampling)

    missed: list[int] = []
    left = left_by(missed)
    while left and len(missed) < MISSED:
        # Of those before the first step that does not fit, the one that explains the most steps from there on.
        tried = {at: left_by([*missed, at]) for at in range(-1, left[0]) if at not in missed}
        best = max(tried, key=lambda at: (tried[at] or [len(entry["ids"])])[0])
        if (tried[best] or [len(entry["ids"])])[0] <= left[0]:
            break
        missed.append(best)
        left = tried[best]
    return missed, left


def judged(
    logits: Any, prompt: list[int], entry: dict[str, Any], sampling: dict[str, Any], serial: bool = False
) -> tuple[str, bool]:
    """In words, and whether all steps fit; `logits` [outputs, vocab] are the model's at each step of `entry`."""
    if serial:
        at_once = [entry["ids"][:t] for t in range(len(entry["ids"]))]
        missed, left = [], misfits(logits, entry, at_once, sampling)
    else:
        missed, left = missed_tokens(logits, prompt, entry, sampling)
    if left:
        return f"FITS NOTHING at {left}, with {missed} never counted", False
    return "every step fits" + f", with {missed} never counted and the next one twice" * bool(missed), True


def logits_of(model: Reference, request: Request, said: list[int]) -> Any:
    with model.torch.no_grad():
        whole = model.model(model.torch.tensor([[*request.ids, *said]])).logits[0]
    return whole[len(request.ids) - 1 :].numpy()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("answers", nargs="+", type=Path)
    parser.add_argument("--model", type=Path, default=Path(".gpu/models/target"))
    parser.add_argument("--serial", action="store_true", help="the servers ran without overlap")
    given = parser.parse_args()
    model, fine = Reference(given.model), True
    for path in given.answers:
        entries = json.loads(path.read_text())["entries"]
        print(path.stem)
        for request in penalty_requests():
            entry = entries[request.key]
            logits = logits_of(model, request, entry["ids"])
            told, fits = judged(logits, list(request.ids), entry, request.sampling, given.serial)
            fine = fine and fits
            print(f"  {request.key}: {told}")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())

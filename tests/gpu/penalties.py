"""Were penalties applied as SGLang counts tokens for them? Asks the model, step by step, on a CPU.

    python tests/gpu/penalties.py ANSWERS.json... [--model .gpu/models/target]

For answers of behaviour_probe.py: the float32 model of the same weights is fed what a server said, and its logits are
penalised for what SGLang counts by then. Each time a step is prepared under the overlap scheduler, the last known token
of each request is counted: at first the last one of the prompt, then the outputs, one step late. A prefill of another
request lets an answer in between, and a token is never counted. Servers with and without speculation miss different
ones, and then their texts differ.

For each request: every step fits, or fits once these positions of the output are left out, or fits nothing, which is a
penalty applied wrongly. Exit status 1 for the last. Needs torch and transformers, as near_ties.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from behaviour_requests import Request, penalty_requests
from near_ties import Reference

FITS = 0.4  # nats; bfloat16 logits between 8 and 16 come in steps of 0.0625, and penalties multiply or add to them
MISSED = 3


def counts(prompt: list[int], said: list[int], missed: Collection[int]) -> list[list[int]]:
    """The tokens that count at each step, without the outputs at positions `missed`."""
    kept = [(at, token) for at, token in enumerate(said) if at not in missed]
    return [prompt[-1:] * (t > 0) + [token for at, token in kept if at < t - 1] for t in range(len(said))]


def penalised(logits: Any, counted: list[int], sampling: dict[str, Any]) -> Any:
    """Log probabilities [vocab] after the penalties of `sampling` for the tokens in `counted`."""
    changed = logits.clone()
    for token in set(counted):
        scale = sampling.get("repetition_penalty", 1.0)
        changed[token] *= scale if changed[token] < 0 else 1 / scale
        changed[token] -= sampling.get("presence_penalty", 0.0)
    for token in counted:
        changed[token] -= sampling.get("frequency_penalty", 0.0)
    return changed.log_softmax(-1)


def misfits(
    logits: Any, entry: dict[str, Any], counted: list[list[int]], sampling: dict[str, Any]
) -> list[int]:
    """The steps whose log probability is another than these counts give."""
    return [
        t
        for t, (token, told) in enumerate(zip(entry["ids"], entry["output_token_logprobs"], strict=True))
        if abs(float(penalised(logits[t], counted[t], sampling)[token]) - told) > FITS
    ]


def judged(model: Reference, request: Request, entry: dict[str, Any]) -> tuple[str, bool]:
    prompt, said = list(request.ids), entry["ids"]
    with model.torch.no_grad():
        whole = model.model(model.torch.tensor([prompt + said])).logits[0]
    logits = whole[len(prompt) - 1 :]
    missed: list[int] = []
    while len(missed) <= MISSED:
        left = misfits(logits, entry, counts(prompt, said, missed), request.sampling)
        if not left:
            return "every step fits" + f", with the outputs at {missed} never counted" * bool(missed), True
        # A token matters again where it would be said again, which is the step that does not fit.
        again = [at for at in range(left[0]) if said[at] == said[left[0]] and at not in missed]
        if not again:
            break
        missed.append(again[-1])
    return f"FITS NOTHING at {left}, with the outputs at {missed} left out", False


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("answers", nargs="+", type=Path)
    parser.add_argument("--model", type=Path, default=Path(".gpu/models/target"))
    given = parser.parse_args()
    model, fine = Reference(given.model), True
    for path in given.answers:
        entries = json.loads(path.read_text())["entries"]
        print(path.stem)
        for request in penalty_requests():
            told, fits = judged(model, request, entries[request.key])
            fine = fine and fits
            print(f"  {request.key}: {told}")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())

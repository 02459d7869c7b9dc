"""Is an output that differs from the reference's wrong, or the other side of a near-tie? Asks the model, on a CPU.

    python -m tests.gpu.near_ties RUN REFERENCE_ARM ARM... [--model .gpu/models/target]

For each request of a run with `prompts: {source: input_ids}` whose outputs differ, the float32 model of the same
weights continues the same prompt greedily. A near-tie is a step at which its two best logits lie within NEAR; bfloat16
logits between 8 and 16 come in steps of 0.0625. An output is *explained* when it is the model's own continuation with
at most FLIPS near-ties decided the other way, by the digests of the records. Exit status 1 if one is not explained.

Needs torch and transformers (`make test-torch` installs the first), and the models of the bundle.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.load.point import read_records
from orchestrator.records.begun import begun_experiment
from orchestrator.runner.loading import Loads
from orchestrator.store import RunStore

NEAR = 0.5
FLIPS = 2
Flip = tuple[int, int, int, float]  # position, the model's token, the other one, their logits' difference


def digest(tokens: list[int]) -> str:
    """As the load generator digests token ids."""
    return hashlib.sha256(",".join(map(str, tokens)).encode()).hexdigest()


def prompts_of(run: Path) -> list[tuple[Any, ...]]:
    """The prompts of each point's measured requests, in sweep order, as the run made them."""
    sweep = begun_experiment(RunStore(run)).sweep
    return [point.load for point in Loads.of(sweep, port=0, model="", base=run).prompts]


def outputs_of(boot: Path) -> dict[tuple[int, int], dict[str, Any]]:
    """Records of measured requests by point and index."""
    return {
        (int(path.name[6:8]), record["i"]): record
        for path in sorted(boot.glob("point-*.jsonl"))
        for record in read_records(path)
        if record["phase"] == "load" and record["ok"]
    }


class Reference:
    """The model of the served weights in float32."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import LlamaForCausalLM

        self.torch = torch
        self.model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def greedy(self, prompt: list[int], count: int) -> tuple[list[int], list[tuple[float, int]]]:
        """`count` tokens, and at each by how much the second best was behind, and which it was."""
        tokens, second = [], []
        with self.torch.no_grad():
            step = self.model(self.torch.tensor([prompt]), use_cache=True)
            while len(tokens) < count:
                best = self.torch.topk(step.logits[0, -1], 2)
                tokens.append(int(best.indices[0]))
                second.append((float(best.values[0] - best.values[1]), int(best.indices[1])))
                step = self.model(
                    self.torch.tensor([tokens[-1:]]), past_key_values=step.past_key_values, use_cache=True
                )
        return tokens, second

    def continuations(
        self, prompt: list[int], count: int, begun: list[int], flips: tuple[Flip, ...] = ()
    ) -> Iterator[tuple[str, tuple[Flip, ...]]]:
        """Digests of the greedy text and of those with near-ties decided the other way, fewest flips first."""
        tokens, second = self.greedy(prompt + begun, count - len(begun))
        whole = begun + tokens
        yield digest(whole), flips
        if len(flips) == FLIPS:
            return
        for at in sorted(range(len(tokens)), key=lambda at: second[at][0]):
            gap, other = second[at]
            position = len(begun) + at
            if gap < NEAR:
                flip = (position, whole[position], other, round(gap, 3))
                yield from self.continuations(prompt, count, [*whole[:position], other], (*flips, flip))

    def explain(self, prompt: list[int], record: dict[str, Any]) -> tuple[Flip, ...] | None:
        """The flips that make the record's output of the model's own; None if none do."""
        found = (
            flips
            for text, flips in self.continuations(prompt, record["output_tokens"], [])
            if text == record["output_sha256"]
        )
        return next(found, None)


def told(flips: tuple[Flip, ...] | None) -> str:
    if flips is None:
        return "NOT EXPLAINED"
    return (
        "; ".join(
            f"near-tie at token {at}: {other} for {token}, {gap} behind" for at, token, other, gap in flips
        )
        or "the float32 model's own text"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("reference")
    parser.add_argument("arms", nargs="+")
    parser.add_argument("--model", type=Path, default=Path(".gpu/models/target"))
    given = parser.parse_args()
    prompts, model, lost = prompts_of(given.run), Reference(given.model), 0
    expected = outputs_of(given.run / "arms" / given.reference / "boot-1")
    for arm in given.arms:
        got = outputs_of(given.run / "arms" / arm / "boot-1")
        pairs = [(key, expected[key], got[key]) for key in sorted(expected.keys() & got.keys())]
        differing = [pair for pair in pairs if pair[1]["output_sha256"] != pair[2]["output_sha256"]]
        print(
            f"{arm}: {len(pairs) - len(differing)} of {len(pairs)} outputs equal those of {given.reference}"
        )
        for (point, index), one, two in differing:
            print(f"  point {point}, request {index}")
            for name, record in ((given.reference, one), (arm, two)):
                flips = model.explain(list(prompts[point][index]), record)
                lost += flips is None
                print(f"    {name}: {told(flips)}")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())

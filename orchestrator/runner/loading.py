"""The load of every point of a boot, worked out before the first: same prompts, same order, for every arm and boot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.load.point import bodies_sha256, body_template, build_spec, request_count, straddle_bounds
from orchestrator.load.prompts import PointPrompts, Prompt, allot
from orchestrator.model.experiment import Load, Prompts, Sweep

_CANARY_TOKENS = 16
_CANARY_SEED_STEP = 7919  # the canary's generated prompts must not be the sweep's


@dataclass(frozen=True)
class Loads:
    """Builds load generator specs. `model` is the name that the chat and completions endpoints want."""

    sweep: Sweep
    port: int
    model: str
    prompts: tuple[PointPrompts, ...]

    @classmethod
    def of(cls, sweep: Sweep, port: int, model: str, base: Path) -> Loads:
        needs = [
            (_warmups(sweep, concurrency), _requests(sweep, concurrency)) for concurrency in sweep.concurrency
        ]
        return cls(sweep, port, model, allot(sweep.prompts, needs, base))

    @property
    def template(self) -> dict[str, Any]:
        return body_template(
            self.sweep.endpoint,
            model=self.model,
            output_tokens=self.sweep.output_tokens,
            temperature=self.sweep.temperature,
            ignore_eos=self.sweep.ignore_eos,
        )

    def warmup(self, index: int) -> dict[str, Any] | None:
        """Same shape as the point, closed, left out of the numbers. None when the experiment wants none."""
        prompts = self.prompts[index].warmup
        return self._spec(self.template, prompts, self._slots(index), Load()) if prompts else None

    def point(self, index: int) -> dict[str, Any]:
        return self._spec(
            self.template, self.prompts[index].load, self.sweep.concurrency[index], self.sweep.load
        )

    def bodies(self, index: int) -> str:
        return bodies_sha256(self.sweep.endpoint, self.template, self.prompts[index].load)

    def requests(self, index: int) -> int:
        return len(self.prompts[index].load)

    def canary(self, concurrency: int) -> dict[str, Any]:
        """A few short greedy requests, with prompts that no point uses."""
        template = body_template(self.sweep.endpoint, model=self.model, output_tokens=_CANARY_TOKENS)
        prompts = allot(_canary_prompts(self.sweep.prompts), [(0, concurrency)])[0].load
        return self._spec(template, [_marked(prompt, concurrency) for prompt in prompts], concurrency, Load())

    def _slots(self, index: int) -> int:
        load = self.sweep.load
        if load.kind == "straddle" and load.around is not None:
            return straddle_bounds(load.around)[1]
        return self.sweep.concurrency[index]

    def _spec(
        self, template: Mapping[str, Any], prompts: Sequence[Prompt], concurrency: int, load: Load
    ) -> dict[str, Any]:
        return build_spec(
            host="127.0.0.1",
            port=self.port,
            endpoint=self.sweep.endpoint,
            template=template,
            prompts=prompts,
            concurrency=concurrency,
            load=load,
            seed=self.sweep.prompts.seed,
            idle_timeout_s=self.sweep.idle_timeout_s,
            request_timeout_s=self.sweep.request_timeout_s,
            record_chunks=self.sweep.record_chunks,
        )


def _requests(sweep: Sweep, concurrency: int) -> int:
    return request_count(concurrency, sweep.requests_per_slot, sweep.min_requests)


def _warmups(sweep: Sweep, concurrency: int) -> int:
    return concurrency * sweep.warmup_requests_per_slot


def _canary_prompts(prompts: Prompts) -> Prompts:
    if prompts.source == "input_ids" and prompts.path is None:
        return Prompts(source="input_ids", vocab=prompts.vocab, seed=prompts.seed + _CANARY_SEED_STEP)
    return Prompts(kinds=("coding",)) if prompts.source != "input_ids" else prompts


def _marked(prompt: Prompt, concurrency: int) -> Prompt:
    """Text gets a first word of its own, so that the prefix cache holds nothing that a point will ask for."""
    return f"(check at {concurrency}) {prompt}" if isinstance(prompt, str) else prompt

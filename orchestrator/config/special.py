"""Kinds with a form of their own: which GPUs, how load is offered, which prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.config.kinds import BAD, Bad, Choice, Json, ListOf, Text, Whole, wrong
from orchestrator.config.measures import RATE, duration
from orchestrator.config.sections import Field, Section
from orchestrator.config.tree import ListNode, MapNode, Problems, ScalarNode, TreeNode
from orchestrator.model.experiment import PROMPT_KINDS, Load, Prompts

_INDICES = ListOf(Whole(0, 1023), "GPU indices", unique=True)


@dataclass(frozen=True)
class GpuChoice:
    """`all` or a list of indices as nvidia-smi counts them."""

    def read(self, node: TreeNode, path: str, problems: Problems) -> Any:
        if isinstance(node, ListNode):
            return _INDICES.read(node, path, problems)
        if isinstance(node, ScalarNode) and node.text == "all":
            return "all"
        return wrong(node, path, problems, "`all` or a list of indices", "write all, or [0, 1]")

    def schema(self) -> Json:
        return {"anyOf": [{"const": "all"}, _INDICES.schema()]}

    def spell(self, value: object) -> object:
        return value


@dataclass(frozen=True)
class _Open:
    open: str
    rate: float


@dataclass(frozen=True)
class _Around:
    around: int
    period: float


_OPEN = Section(
    _Open,
    (
        Field("open", Choice(("constant", "poisson")), "spacing of arrivals", required=True),
        Field("rate", RATE, "arrivals per second, such as 8/s", required=True),
    ),
)
_SHORTEST_PERIOD_S = 0.1  # a step that lasts a few decode steps is none: requests join and leave one by one
_AROUND = Section(
    _Around,
    (
        Field("around", Whole(1, 100_000), "the threshold to step across", required=True),
        Field(
            "period",
            duration(_SHORTEST_PERIOD_S),
            "how long one step up and one down last together",
            required=True,
        ),
    ),
)
_FORMS = "closed, {open: poisson, rate: 8/s} or {straddle: {around: 5, period: 2s}}"


@dataclass(frozen=True)
class LoadChoice:
    """How requests are offered: one of three forms."""

    def read(self, node: TreeNode, path: str, problems: Problems) -> Load | Bad:
        if isinstance(node, ScalarNode) and node.text == "closed":
            return Load()
        if isinstance(node, MapNode) and node.get("open") is not None:
            found = _OPEN.read(node, path, problems)
            return BAD if isinstance(found, Bad) else Load("open", arrival=found.open, rate_per_s=found.rate)
        straddle = node.get("straddle") if isinstance(node, MapNode) else None
        if isinstance(node, MapNode) and straddle is not None and len(node.entries) == 1:
            found = _AROUND.read(straddle, f"{path}.straddle", problems)
            return (
                BAD
                if isinstance(found, Bad)
                else Load("straddle", around=found.around, period_s=found.period)
            )
        return wrong(node, path, problems, "a load model", f"write {_FORMS}")

    def schema(self) -> Json:
        straddle: Json = {
            "type": "object",
            "properties": {"straddle": {"description": "to and fro across a threshold", **_AROUND.schema()}},
            "required": ["straddle"],
            "additionalProperties": False,
        }
        return {"anyOf": [{"const": "closed"}, _OPEN.schema(), straddle]}

    def spell(self, value: object) -> object:
        return value


@dataclass(frozen=True)
class _WrittenPrompts:
    source: str | None = None
    kinds: tuple[str, ...] | None = None
    file: str | None = None
    vocab: int | None = None
    seed: int | None = None


_PROMPTS = Section(
    _WrittenPrompts,
    (
        Field("source", Choice(("builtin", "file", "input_ids")), "where prompts come from"),
        Field(
            "kinds",
            ListOf(Choice(PROMPT_KINDS), "kinds of prompts", unique=True),
            "builtin: what the prompts are",
        ),
        Field("file", Text("a path"), "file, input_ids: JSONL with one prompt a line"),
        Field("vocab", Whole(17, 10**7), "input_ids: token ids are drawn from 16 up to below this number"),
        Field("seed", Whole(0, 2**31), "builtin and input_ids: the same seed gives the same prompts"),
    ),
)
_BELONGS = {"builtin": ("kinds", "seed"), "file": ("file",), "input_ids": ("file", "vocab", "seed")}
_NEEDS: dict[str, tuple[str, ...]] = {
    "builtin": (),
    "file": ("file",),
    "input_ids": ("vocab", "file"),
}  # one of these


@dataclass(frozen=True)
class PromptsChoice:
    """`{kinds: [...]}`, `{file: prompts.jsonl}` or `{source: input_ids, vocab: 32000}`."""

    def read(self, node: TreeNode, path: str, problems: Problems) -> Prompts | Bad:
        written = _PROMPTS.read(node, path, problems)
        if isinstance(written, Bad):
            return BAD
        given = [key for key in ("kinds", "file", "vocab", "seed") if getattr(written, key) is not None]
        source = written.source or (
            "file" if "file" in given else "input_ids" if "vocab" in given else "builtin"
        )
        strange = [key for key in given if key not in _BELONGS[source]]
        if strange:
            problems.add(node.where, f"{path}.{strange[0]}", f"does not go with source {source}")
            return BAD
        needs = _NEEDS[source]
        if needs and not any(key in given for key in needs):
            problems.add(
                node.where, f"{path}.{needs[0]}", f"missing: source {source} needs {' or '.join(needs)}"
            )
            return BAD
        return _build(source, written)

    def schema(self) -> Json:
        return _PROMPTS.schema()

    def spell(self, value: object) -> object:
        return value


def _build(source: Any, written: _WrittenPrompts) -> Prompts:
    found = Prompts(source, path=written.file, vocab=written.vocab)
    kinds = written.kinds if written.kinds is not None else (found.kinds if source == "builtin" else ())
    seed = written.seed if written.seed is not None else found.seed
    return Prompts(source, kinds=kinds, path=written.file, vocab=written.vocab, seed=seed)

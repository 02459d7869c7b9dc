"""Scripted faults, by name, from `DYNSPEC_DEMO_FAULT` (several: comma separated; a number after a colon).

| name | what happens |
|---|---|
| exit-during-load[:CODE] | exits while loading weights, code 3 (or CODE), after one error line |
| exit0-during-load | the same with exit code 0 |
| oom-at-load | torch.OutOfMemoryError traceback while loading, exit as SGLang does |
| stuck-load[:SECONDS] | no log byte for that long (default 3600) in the middle of the load |
| crash-at-N (crash-at-10) | the scheduler dies with a shape error when N requests speculate in one step |
| hang | /health 200, generate requests are taken and nothing ever comes |
| busy-health | /health 503 while requests run, although tokens flow |
| worker-escapes | a twice forked process in its own session holds port + 1 and outlives the server |
| slow-stop | SIGTERM is ignored |
| error-in-stream[:N] | every Nth request (default 4): an error event inside a 200 stream, before any token |
| abort[:N] | every Nth request ends with finish reason "abort" after a few tokens |
| empty[:N] | every Nth request: 200 with no token at all |
| reject[:N] | every Nth request: 503 |
| short-output[:TOKENS] | stops after that many tokens (default 37) although ignore_eos was asked |
| no-usage | the OpenAI endpoints leave out usage |
| divergent | speculative steps give other text than plain ones |
| leak-secret | dumps HF_TOKEN and all arguments into the log |
| lost-lines | prints three lines without a flush and dies by SIGKILL during load |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

VARIABLE = "DYNSPEC_DEMO_FAULT"
NAMES: dict[str, int] = {
    "exit-during-load": 3,
    "exit0-during-load": 0,
    "oom-at-load": 0,
    "stuck-load": 3600,
    "crash-at": 10,
    "hang": 0,
    "busy-health": 0,
    "worker-escapes": 0,
    "slow-stop": 0,
    "error-in-stream": 4,
    "abort": 4,
    "empty": 4,
    "reject": 4,
    "short-output": 37,
    "no-usage": 0,
    "divergent": 0,
    "leak-secret": 0,
    "lost-lines": 0,
}


class UnknownFault(Exception):
    pass


@dataclass
class Faults:
    """`numbers`: active fault -> its number. `_requests` counts generate requests, for every-Nth faults."""

    numbers: dict[str, int] = field(default_factory=dict)
    _requests: int = 0

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Faults:
        chosen = cls()
        for word in filter(None, env.get(VARIABLE, "").split(",")):
            name, _, number = word.strip().partition(":")
            if name.startswith("crash-at-") and name[len("crash-at-") :].isdigit():
                name, number = "crash-at", name[len("crash-at-") :]
            if name not in NAMES or (number and not number.isdigit()):
                raise UnknownFault(f"{VARIABLE}: no fault {word!r}; there are {', '.join(sorted(NAMES))}")
            chosen.numbers[name] = int(number) if number else NAMES[name]
        return chosen

    def has(self, name: str) -> bool:
        return name in self.numbers

    def number(self, name: str) -> int | None:
        return self.numbers.get(name)

    def for_request(self) -> str:
        """The fault that hits the request that just came, or "". Requests are counted from 1."""
        self._requests += 1
        for name in ("error-in-stream", "abort", "empty", "reject"):
            every = self.numbers.get(name)
            if every and self._requests % every == 0:
                return name
        return ""

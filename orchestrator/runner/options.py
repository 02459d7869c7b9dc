"""What the command line adds to an experiment, and what the environment must hold for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.errors import UsageError
from orchestrator.model.experiment import EnvValue, Experiment, SecretRef
from orchestrator.records.typed import Typed
from orchestrator.runner.events import Listener
from orchestrator.runner.runlock import RunLock
from orchestrator.store import RunStore


@dataclass(frozen=True)
class RunOptions:
    results: Path = Path("results")
    arms: tuple[str, ...] = ()  # empty: all
    resume: str | None = None  # run id
    lock_wait_s: float | None = None  # None: the experiment's
    yes: bool = False  # consent to `free: all`
    blocks: int = 0  # repetitions inside each boot of arms that share it; 0: boots are repeated
    typed: Typed | None = None  # for the run folder, to tell how it is gone on with
    detached: bool = False  # nobody sits before this controller
    lock: RunLock | None = field(
        default=None, repr=False
    )  # of whoever must outlive the run; None: one of its own
    accepted: Callable[[RunStore], None] = field(
        default=lambda store: None, repr=False
    )  # node locked, plan fits
    watchers: tuple[Listener, ...] = field(default=(), repr=False)  # screens that draw what passes


def resolve_secrets(experiment: Experiment, environ: Mapping[str, str]) -> dict[str, str]:
    """Values of every `{from_env: NAME}` of the experiment. All missing ones are named at once."""
    names = sorted(
        {
            value.from_env
            for env in (experiment.server.env, *(arm.env for arm in experiment.arms))
            for value in env.values()
            if isinstance(value, SecretRef)
        }
    )
    missing = [name for name in names if not environ.get(name)]
    if missing:
        raise UsageError(
            f"the experiment takes {', '.join(missing)} from the environment, and it is not set here",
            help=f"export {missing[0]}=... before running dynspec",
        )
    return {name: environ[name] for name in names}


def launch_env(env: Mapping[str, EnvValue], secrets: Mapping[str, str]) -> dict[str, str]:
    """The server's environment with references replaced. Lives in memory only."""
    return {
        key: secrets[value.from_env] if isinstance(value, SecretRef) else value for key, value in env.items()
    }


def public_env(env: Mapping[str, EnvValue]) -> dict[str, str]:
    """The part of an environment that holds no secret: enough to find the tree that would be loaded."""
    return {key: value for key, value in env.items() if isinstance(value, str)}

"""Commands as words. Nothing here knows a shell: quoting happens once, where a command leaves for the node.

`node_command` alone is text: what a person types here.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from orchestrator.model.experiment import ArgValue, Arm, EnvValue, Scalar
from orchestrator.model.experiment import Node as NodeChoice


def launch_argv(python: str, module: str, args: Mapping[str, ArgValue], port: int) -> tuple[str, ...]:
    """`python -m module --flag value ... --port N`. True is a bare flag, a tuple one flag with several words."""
    words = [python, "-m", module]
    for name, value in args.items():
        words += _flag_words(f"--{name}", value)
    return (*words, "--port", str(port))


def _flag_words(flag: str, value: ArgValue) -> list[str]:
    if value is True:
        return [flag]
    if isinstance(value, tuple):
        return [flag, *map(_word, value)]
    word = _word(value)
    # argparse takes a separate word that starts with a dash for the next flag.
    return [f"{flag}={word}"] if word.startswith("-") else [flag, word]


def _word(value: Scalar) -> str:
    return repr(value) if isinstance(value, float) else str(value)


def expand_home(path: str, home: str) -> str:
    """`~` and `~/x` with the home folder of the user on the node; other paths stay as they are."""
    if path == "~":
        return home
    return f"{home.rstrip('/')}/{path[2:]}" if path.startswith("~/") else path


def server_env(arm: Arm, gpus: tuple[int, ...] | None) -> dict[str, EnvValue]:
    """The arm's environment, limited to the chosen GPUs (None: all). Secrets stay references."""
    limits: dict[str, EnvValue] = {}
    if gpus is not None:
        limits["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
    return {**limits, **arm.env}


def node_command(verb: str, choice: NodeChoice) -> str:
    """`dynspec VERB NODE` with whatever it takes to reach this node."""
    words = ["dynspec", verb, choice.host]
    for option, value, default in (
        ("--ssh-config", choice.ssh_config, None),
        ("--known-hosts", choice.known_hosts, NodeChoice.known_hosts),
        ("--host-key", choice.host_key, None),
    ):
        if value is not None and value != default:
            words += [option, value]
    return shlex.join(words)

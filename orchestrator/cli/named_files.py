"""Files of this machine that an experiment names: looked at before anything is asked of a node."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.load.point import check_prompts
from orchestrator.load.prompts import load_file
from orchestrator.model.experiment import Experiment, Node
from orchestrator.remote.ssh_config import require_config


def look(experiment: Experiment, base: Path) -> tuple[str, ...]:
    """What may be meant and is not there, as notes. A relative path of prompts counts from `base`.

    Raises UsageError for a file that a run could not use: prompts, node.ssh_config.
    """
    prompts = experiment.sweep.prompts
    if prompts.path is not None:
        check_prompts(experiment.sweep.endpoint, load_file(base / prompts.path))
    if experiment.node.host == "local":  # nothing of ssh is read
        return ()
    require_config(experiment.node.ssh_config)
    return _known_hosts(experiment.node)


def _known_hosts(node: Node) -> tuple[str, ...]:
    """An absent file is an empty one, as for ssh: it refuses the node's key, and says which line to add."""
    named = node.known_hosts != Node.known_hosts and node.host_key is None
    if not named or os.path.isfile(os.path.expanduser(node.known_hosts)):
        return ()
    return (f"node.known_hosts: no file {node.known_hosts} here, so no key of {node.host} is known",)

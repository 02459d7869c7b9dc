"""A server flag that no known release has, and that is spelled nearly like one: a hint, never a refusal.

The file is checked without a node, so the release is unknown here, and a fork may have flags of its own; `dynspec plan`
asks the node's own parser.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from difflib import get_close_matches

from orchestrator.config.tree import TreeNode, owner
from orchestrator.model.experiment import Arm
from orchestrator.server_flags.history import flag_history

NEAR = 0.84  # likeness from which a name is taken for a misspelling; two real flags are often more alike


def flag_hints(
    arms: Iterable[Arm], root: TreeNode, added: Collection[str]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Key paths of doubtful flags, each with its hint. `added`: flags that carried patches add, without dashes."""
    history = flag_history()
    known = {name.lstrip("-") for name in history.names} | set(added)
    releases = f"SGLang {history.releases[0]} to {history.releases[-1]}"
    for arm in arms:
        for key in arm.args:
            if key in known or any(name.startswith(key) for name in known):  # argparse takes abbreviations
                continue
            near = get_close_matches(key, known, n=1, cutoff=NEAR)
            if near:
                meant = f"did you mean `{near[0]}`? dynspec plan asks the node's own release"
                yield owner(root, arm.name, "args", key), f"no flag of {releases}; {meant}"

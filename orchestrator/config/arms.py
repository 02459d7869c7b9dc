"""`extends`: arms as written -> complete arms. Server's args and env first, then the ancestors', then the arm's own."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.config.kinds import nearest
from orchestrator.config.preset import RawArm
from orchestrator.config.tree import Problems, TreeNode, place
from orchestrator.model.experiment import ArgValue, Arm, EnvValue


def complete_arms(
    raw: Mapping[str, RawArm],
    args: Mapping[str, ArgValue | None],
    env: Mapping[str, EnvValue | None],
    root: TreeNode,
    problems: Problems,
) -> tuple[Arm, ...]:
    """Arms whose chain of `extends` is sound; the others become problems."""
    arms = []
    for name in raw:
        chain = _chain(name, raw, root, problems)
        if chain is not None:
            arms.append(_merge(name, [raw[item] for item in chain], args, env))
    return tuple(arms)


def _chain(name: str, raw: Mapping[str, RawArm], root: TreeNode, problems: Problems) -> list[str] | None:
    """Root ancestor first, the arm last; None after a problem."""
    chain = [name]
    while (parent := raw[chain[-1]].extends) is not None:
        where = place(root, "arms", chain[-1], "extends")
        path = f"arms.{chain[-1]}.extends"
        if parent not in raw:
            problems.add(where, path, f"no arm is called `{parent}`{nearest(parent, raw)}")
            return None
        if parent in chain:
            circle = chain[chain.index(parent) :]
            start = circle.index(min(circle))  # the same words whichever arm led here
            first, loop = min(circle), " -> ".join([*circle[start:], *circle[:start], min(circle)])
            problems.add(place(root, "arms", first, "extends"), f"arms.{first}.extends", f"a circle: {loop}")
            return None
        chain.append(parent)
    return chain[::-1]


def _merge(
    name: str, chain: list[RawArm], args: Mapping[str, ArgValue | None], env: Mapping[str, EnvValue | None]
) -> Arm:
    merged_args, merged_env = dict(args), dict(env)
    patches: tuple[str, ...] = ()
    for arm in chain:
        merged_args |= arm.args
        merged_env |= arm.env
        patches = patches if arm.patches is None else arm.patches
    return Arm(
        name,
        args={key: value for key, value in merged_args.items() if value is not None},
        env={key: value for key, value in merged_env.items() if value is not None},
        patches=patches,
        only_by=chain[-1].only_by,
    )

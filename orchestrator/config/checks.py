"""What no single key shows: whether arms can start, and whether the sweep can answer the question asked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from orchestrator.config.kinds import nearest
from orchestrator.config.tree import Problem, Problems, TreeNode, made_by_preset, owner, place
from orchestrator.model.experiment import Arm, Node, Prompts, Server, Sweep
from orchestrator.model.path_flags import read_by
from orchestrator.model.speculation import (
    BASE_GPU_FLAG,
    DRAFT_SYNC_FLAG,
    LEAST,
    SPECULATIVE_RUNNING_LIMIT,
    SPELLINGS,
    SWITCH_FLAG,
    THRESHOLD_FLAG,
    algorithm,
    first_gpu,
    gpus_needed,
    running_limit,
    setting,
    threshold,
    whole,
)

SGLANG = "sglang.launch_server"
PLACEHOLDER = "/path/to/"  # what `dynspec init` writes where the node cannot tell
_NEEDS_DRAFT = ("EAGLE", "EAGLE3", "STANDALONE", "DFLASH")  # NEXTN, NGRAM and others bring their own
_LOOPBACK = ("127.0.0.1", "localhost", "0.0.0.0", "::")


def check_node(node: Node, root: TreeNode, problems: Problems) -> None:
    """An interpreter was filled in; `free` and `free_list` must agree."""
    if node.python.startswith(PLACEHOLDER):
        text = f"`{node.python}` only keeps the place; write the interpreter that serves on the node"
        problems.rule(place(root, "node", "python"), "node.python", text)
    if node.free == "listed" and not node.free_list:
        text = "listed needs free_list: [{user: alice, command: sglang}]"
        problems.rule(place(root, "node", "free"), "node.free", text)
    if node.free_list and node.free != "listed":
        text = f"has no effect with free: {node.free}; write free: listed"
        problems.rule(place(root, "node", "free_list"), "node.free_list", text)


def check_arms(
    arms: Iterable[Arm],
    server: Server,
    node: Node | None,
    patches: Collection[str] | None,
    root: TreeNode,
    problems: Problems,
    patch_folder: str = "",
) -> None:
    """Arms that could not start, or would not be what they are called."""
    for arm in arms:
        for keys, text in _arm_faults(arm, server, node, patches, patch_folder):
            path = owner(root, arm.name, *keys)
            problems.rule(place(root, *path), ".".join(path), text)


Fault = tuple[tuple[str, ...], str]  # keys below the arm, and what is wrong


def _arm_faults(
    arm: Arm, server: Server, node: Node | None, patches: Collection[str] | None, patch_folder: str
) -> Iterator[Fault]:
    for patch in arm.patches:
        if patches is not None and patch not in patches:
            hint = nearest(patch, patches) or (f"; there are none in {patch_folder}" if patch_folder else "")
            yield ("patches",), f"no patch is called `{patch}`{hint}"
    if node is not None and isinstance(node.gpus, tuple):
        yield from _gpu_faults(arm, len(node.gpus))
    yield from _unfilled(arm)
    spelling = list(_spelling_faults(arm))
    yield from spelling
    if server.module == SGLANG and not spelling:
        yield from _sglang_faults(arm)
        yield from _range_faults(arm)
        yield from _home_faults(arm)


def _unfilled(arm: Arm) -> Iterator[Fault]:
    for key, value in arm.args.items():
        if isinstance(value, str) and value.startswith(PLACEHOLDER):
            yield (
                ("args", key),
                f"`{value}` only keeps the place; write where it lies on the node, or its name",
            )


def _gpu_faults(arm: Arm, count: int) -> Iterator[Fault]:
    if "CUDA_VISIBLE_DEVICES" in arm.env:
        yield ("env", "CUDA_VISIBLE_DEVICES"), "node.gpus sets this variable; keep one of the two"
    if gpus_needed(arm) > count:
        sizes = ("tp-size", "pp-size", "dp-size")
        key = next(key for key in arm.args if any(key in SPELLINGS[flag] for flag in sizes))
        yield (
            ("args", key),
            f"the server needs {gpus_needed(arm)} GPUs (tp x pp x dp), and node.gpus lists {count}",
        )
    elif first_gpu(arm) + gpus_needed(arm) > count:
        text = f"{first_gpu(arm)} counts among the {count} of node.gpus, from 0 on, and the server needs"
        yield ("args", BASE_GPU_FLAG), f"{text} {gpus_needed(arm)} from there"


def _spelling_faults(arm: Arm) -> Iterator[Fault]:
    """argparse takes abbreviations; dynspec reads these flags too, so they must be written out, and once."""
    known = {spelling for spellings in SPELLINGS.values() for spelling in spellings}
    for key in arm.args:
        meant = next((flag for flag in SPELLINGS if flag.startswith(key) and key not in known), None)
        if meant is not None and key.startswith(("speculative-", "max-run", "disable-over")):
            yield ("args", key), f"an abbreviation; write {meant}"
    for spellings in SPELLINGS.values():
        used = [key for key in arm.args if key in spellings]
        if len(used) > 1:
            yield ("args", used[-1]), f"`{used[0]}` and `{used[-1]}` are the same flag; keep one spelling"


def _empty_models(arm: Arm) -> Iterator[Fault]:
    for flag in ("model-path", "speculative-draft-model-path"):
        for key in SPELLINGS[flag]:
            if isinstance(value := arm.args.get(key), str) and not value.strip():
                yield ("args", key), "is empty; write where it lies on the node, or its name"


def _sglang_faults(arm: Arm) -> Iterator[Fault]:
    if setting(arm, "model-path") is None:
        yield ("args", "model-path"), "missing: the model to serve"
    yield from _empty_models(arm)
    if "port" in arm.args:
        yield (
            ("args", "port"),
            "write server.port instead; dynspec passes it on and talks to the server there",
        )
    if "host" in arm.args and arm.args["host"] not in _LOOPBACK:
        yield (
            ("args", "host"),
            f"dynspec talks to the server on the node's loopback; write {' or '.join(_LOOPBACK)}",
        )
    name = algorithm(arm)
    if name in _NEEDS_DRAFT and setting(arm, "speculative-draft-model-path") is None:
        own = "; for a model with a draft head of its own write NEXTN" if name == "EAGLE" else ""
        text = f"{name} without speculative-draft-model-path would load the target as its own draft{own}"
        yield ("args", "speculative-algorithm"), text
    if name is None:
        yield from _idle_flags(arm)


def _range_faults(arm: Arm) -> Iterator[Fault]:
    """Values that the server's own parser takes, and that end it while it starts."""
    for flag, least in LEAST.items():
        value = whole(arm, flag)
        if value is not None and value < least:
            key = next(key for key in arm.args if key in SPELLINGS[flag])
            yield ("args", key), f"{value} is below the least value, {least}"
    for flag in (DRAFT_SYNC_FLAG, SWITCH_FLAG):
        if arm.args.get(flag) and THRESHOLD_FLAG not in arm.args:
            yield ("args", flag), f"needs {THRESHOLD_FLAG}; the server would end without it"


def _home_faults(arm: Arm) -> Iterator[Fault]:
    """The server is started without a shell, and SGLang reads these paths as they are: by its source 0.5.8 to 0.5.23,
    where only the expert packs of the last one look for a home folder."""
    for flag, path in read_by(arm):
        if path.startswith("~"):
            text = f"no shell and no SGLang replaces the `~` of `{path}`; write the whole path on the node"
            yield ("args", flag), text


def _idle_flags(arm: Arm) -> Iterator[Fault]:
    """Settings of speculation in an arm that does not speculate: nearly always a forgotten algorithm."""
    for key in arm.args:
        if key.startswith("speculative-") and any(key in SPELLINGS[flag] for flag in SPELLINGS):
            yield (
                ("args", key),
                "has no effect without speculative-algorithm; add the algorithm or remove this",
            )
            return


def check_sweep(sweep: Sweep, arms: Iterable[Arm], root: TreeNode, problems: Problems) -> None:
    """A stepping load must be able to step; prompts, endpoint and tokenizer must go together."""
    for value in _below_the_step(sweep):
        text = f"{value} is not above {sweep.load.around}, which load.straddle steps across; write a larger number"
        problems.rule(place(root, "sweep", "concurrency"), "sweep.concurrency", text)
    if sweep.prompts.source == "input_ids" and sweep.endpoint != "generate":
        text = "token ids can only be sent to /generate; write endpoint: generate"
        problems.rule(place(root, "sweep", "endpoint"), "sweep.endpoint", text)
    if sweep.prompts.source == "input_ids":
        return
    for arm in arms:
        if setting(arm, "skip-tokenizer-init") is True:
            text = (
                "a server with skip-tokenizer-init takes token ids only; write {source: input_ids, vocab: N}"
            )
            problems.rule(place(root, "sweep", "prompts"), "sweep.prompts", text)


def _below_the_step(sweep: Sweep) -> list[int]:
    """Concurrencies with too few requests to stay on both sides of a stepping load."""
    around = sweep.load.around
    return [] if around is None else [value for value in dict.fromkeys(sweep.concurrency) if value <= around]


def warnings(
    arms: tuple[Arm, ...], sweep: Sweep, root: TreeNode, hints: Iterable[Fault] = ()
) -> Iterator[Problem]:
    """What runs, and may not mean what its author thinks. `hints`: further ones, by key path in the file."""
    shared = made_by_preset(root)
    said = {Problem(place(root, *path), ".".join(path), text): None for path, text in hints}
    for keys, text in _notes(arms, sweep):
        path = ("arms", *keys[2:]) if shared and keys[0] == "arms" else keys
        said[Problem(place(root, *path), ".".join(path), text)] = None
    yield from said


def _notes(arms: tuple[Arm, ...], sweep: Sweep) -> Iterator[tuple[tuple[str, ...], str]]:
    for arm in arms:
        for text in _threshold_notes(arm, sweep):
            yield ("arms", arm.name, "args", THRESHOLD_FLAG), text
        for text in _limit_notes(arm, sweep):
            yield ("arms", arm.name), text
    for text in _prompt_notes(arms, sweep.prompts):
        yield ("sweep", "prompts"), text
    if sweep.requests_per_slot == 1:
        text = "1 leaves little between the first burst and the drain; 3 or more give a steady window"
        yield ("sweep", "requests_per_slot"), text
    for first, second in _twins(arms):
        yield ("arms", second), f"is the same as arm {first}: an A/A comparison"


def _threshold_notes(arm: Arm, sweep: Sweep) -> Iterator[str]:
    limit = threshold(arm)
    if limit is None or limit <= 0 or (sweep.load.kind == "straddle" and sweep.load.around == limit):
        return
    low, high = min(sweep.concurrency), max(sweep.concurrency)
    if high <= limit:
        yield f"the sweep (up to {high}) never goes above {limit}: this arm always speculates; add {limit + 1} or more"
    elif low > limit:
        yield f"the sweep (from {low}) never goes down to {limit}: this arm never speculates; add {limit} or fewer"


def _limit_notes(arm: Arm, sweep: Sweep) -> Iterator[str]:
    limit = running_limit(arm)
    above = [str(value) for value in dict.fromkeys(sweep.concurrency) if limit is not None and value > limit]
    if not above:
        return
    if setting(arm, "max-running-requests") is None:
        why = f"speculation quietly sets max-running-requests to {SPECULATIVE_RUNNING_LIMIT}; write it for all arms"
    else:
        why = "that is its max-running-requests"
    yield f"concurrency {', '.join(above)} measures queueing, since the server runs {limit} requests at once ({why})"


def _prompt_notes(arms: Iterable[Arm], prompts: Prompts) -> Iterator[str]:
    if prompts.source == "input_ids" and prompts.path is None and any(arm.speculates for arm in arms):
        yield "made-up token ids: how often drafts are accepted on them says nothing about real text"


def _twins(arms: tuple[Arm, ...]) -> Iterator[tuple[str, str]]:
    for index, arm in enumerate(arms):
        for other in arms[:index]:
            if (arm.args, arm.env, arm.patches) == (other.args, other.env, other.patches):
                yield other.name, arm.name
                break

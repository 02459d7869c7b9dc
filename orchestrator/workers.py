"""Which speculative worker an arm's server will use, and why, read off the arguments before anything is launched.

The rules are those of `ServerArgs` and `SpeculativeAlgorithm.create_worker` of the SGLang releases 0.5.6 to
0.5.23. A patch of the worker file that is not in use changes nothing and looks as if it had: hence the prediction.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from orchestrator.model.experiment import Arm
from orchestrator.model.plan import WorkerPath
from orchestrator.model.speculation import algorithm, setting, whole

FOLDER = "srt/speculative/"
SPEC_V2 = "SGLANG_ENABLE_SPEC_V2"
_KNOWN = ((0, 5, 6), (0, 5, 23))
_V1_ENDS = (0, 5, 13)  # first release without v1
_V2_DEFAULT = (0, 5, 11)  # first release where v2 is the default
_OVERLAP_FREE = (0, 5, 14)  # the variable is gone
_YES, _NO = ("true", "1", "yes", "y"), ("false", "0", "no", "n")
_EAGLE = ("EAGLE", "EAGLE3", "NEXTN")
_OWN_WORKER = {
    "NGRAM": ("ngram_worker.py",),
    "DFLASH": ("dflash_worker.py", "dflash_worker_v2.py"),
    "FROZEN_KV_MTP": ("frozen_kv_mtp_worker.py", "frozen_kv_mtp_worker_v2.py"),
}

Version = tuple[int, int, int]


def parse_version(text: str | None) -> Version | None:
    """`0.5.10.post1`, `0.5.12rc1`, `0.5.11+cu130` -> (0, 5, n); None where there is no such start."""
    match = re.match(r"v?(\d{1,9})\.(\d{1,9})\.(\d{1,9})(?!\d)", text or "")
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def worker_path(version: str | None, arm: Arm) -> WorkerPath:
    """The prediction for one arm on a tree of this version.

    `version` is the tree's own, as its package says it. Nothing is guessed for releases that were not read.
    """
    name = algorithm(arm)
    if name is None:
        return WorkerPath("none", "no speculative-algorithm")
    release = parse_version(version)
    if name not in (*_EAGLE, "STANDALONE"):
        files = tuple(f"{FOLDER}{file}" for file in _OWN_WORKER.get(name, ()))
        return WorkerPath("other", f"{name} has a worker of its own", files)
    if release is None or not _KNOWN[0] <= release <= _KNOWN[1]:
        return WorkerPath("unknown", f"the rules of release {version or '(no version)'} are not known here")
    worker, why = _eagle_worker(release, arm)
    files = () if worker == "refused" else _files(name, worker, arm)
    return WorkerPath(worker, why, tuple(f"{FOLDER}{file}" for file in files))


def _eagle_worker(release: Version, arm: Arm) -> tuple[str, str]:
    if release >= _V1_ENDS:
        mode = "without overlap" if _no_overlap(release, arm) else "with overlap"
        return "v2", f"from 0.5.13 on there is only v2; it runs {mode}"
    if release >= _V2_DEFAULT:
        return _by_reasons_against(arm)
    return _by_opt_in(arm)


def _no_overlap(release: Version, arm: Arm) -> bool:
    asked = setting(arm, "disable-overlap-schedule") is True or (whole(arm, "pp-size") or 1) > 1
    return asked or (release < _OVERLAP_FREE and not _spec_v2(arm, default=True))


def _by_reasons_against(arm: Arm) -> tuple[str, str]:
    """0.5.11 and 0.5.12: v2 unless something turns overlap off."""
    topk = whole(arm, "speculative-eagle-topk")
    if setting(arm, "disable-overlap-schedule") is True:
        return "v1", "disable-overlap-schedule is set"
    if (whole(arm, "pp-size") or 1) > 1:
        return "v1", "pipeline parallelism turns overlap off"
    if topk is not None and topk > 1:
        return "v1", f"speculative-eagle-topk is {topk}, and v2 takes only 1"
    if not _spec_v2(arm, default=True):
        return "v1", f"{SPEC_V2}={arm.env[SPEC_V2]}"
    return (
        "v2",
        f"overlap is on and topk is {topk if topk is not None else 'not set'}: v2 is the default from 0.5.11 on",
    )


def _by_opt_in(arm: Arm) -> tuple[str, str]:
    """Up to 0.5.10: v2 only on request, and then only with topk 1; the request turns overlap back on."""
    topk = whole(arm, "speculative-eagle-topk")
    if not _spec_v2(arm, default=False):
        return "v1", f"{SPEC_V2} is not set, and before 0.5.11 v2 is on request only"
    if topk is not None and topk > 1:
        return (
            "refused",
            f"{SPEC_V2} is set with speculative-eagle-topk {topk}: before 0.5.11 the server exits on that",
        )
    return "v2", f"{SPEC_V2}={arm.env[SPEC_V2]}"


def _spec_v2(arm: Arm, *, default: bool) -> bool:
    """The variable as SGLang's EnvBool reads it: an unknown word counts as the default, with a warning."""
    value = arm.env.get(SPEC_V2)
    word = value.lower() if isinstance(value, str) else ""
    return True if word in _YES else False if word in _NO else default


def _files(name: str, worker: str, arm: Arm) -> tuple[str, ...]:
    """Files that hold the worker; the standalone one is a subclass of EAGLE's, so both count."""
    suffix = "_v2" if worker == "v2" else ""
    if name == "STANDALONE":
        return f"standalone_worker{suffix}.py", f"eagle_worker{suffix}.py"
    if setting(arm, "enable-multi-layer-eagle") is True:
        return (f"multi_layer_eagle_worker{suffix}.py",)
    return (f"eagle_worker{suffix}.py",)


def worker_files(paths: Iterable[str]) -> tuple[str, ...]:
    """Those of the package-relative paths that hold a speculative worker."""
    return tuple(path for path in paths if re.fullmatch(rf"{FOLDER}\w*worker\w*\.py", path))

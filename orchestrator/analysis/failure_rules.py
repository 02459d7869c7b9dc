"""Known ways for an SGLang server to fail: pattern in the log, likely cause, what helps. Data for `failure.py`.

Rules are tried in this order on one line; a line belongs to the first that matches. `phases` limits a rule to what the
server was doing: load, capture (CUDA graphs), serving. `{0}`, `{1}` in texts are the pattern's groups.
`fix_unpatched` is what helps an arm that has no patch, where `fix` speaks of one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    name: str
    pattern: re.Pattern[str]
    title: str
    cause: str
    fix: str
    phases: tuple[str, ...] = ()
    fix_unpatched: str = ""


def _rule(
    name: str, pattern: str, title: str, cause: str, fix: str, *phases: str, unpatched: str = ""
) -> Rule:
    return Rule(name, re.compile(pattern), title, cause, fix, phases, unpatched)


_OOM = r"(?:OutOfMemoryError|CUDA out of memory|cudaErrorMemoryAllocation|CUDA error: out of memory)"
_DRAFT_FIX = (
    "check speculative-draft-model-path on the node: the folder must hold config.json and the weights"
)

RULES: tuple[Rule, ...] = (
    _rule(
        "oom_graph_capture",
        _OOM,
        "out of GPU memory while capturing CUDA graphs",
        "weights and KV cache left too little memory for the graphs; speculation captures graphs for draft and target",
        "lower mem-fraction-static or cuda-graph-max-bs (or set fewer cuda-graph-bs)",
        "capture",
    ),
    _rule(
        "oom_serving",
        _OOM,
        "out of GPU memory while serving",
        "activations or logits of a large batch did not fit beside the KV cache",
        "lower mem-fraction-static, max-running-requests or chunked-prefill-size",
        "serving",
    ),
    _rule(
        "oom_load",
        _OOM,
        "out of GPU memory while loading",
        "the weights do not fit, or another process still holds memory on the GPU",
        "look at `dynspec status NODE` for holders; else raise tp, quantize, or use fewer draft weights",
    ),
    _rule(
        "oom_load",
        r"Not enough memory\. Please try to increase --mem-fraction-static",
        "no GPU memory left for the KV cache after loading",
        "target and draft weights take more than mem-fraction-static allows",
        "raise mem-fraction-static, raise tp, or drop the draft model",
    ),
    _rule(
        "kv_exhausted",
        r"(?:Prefill|Decode) out of memory\. Try to lower your batch size",
        "the KV cache ran out",
        "more tokens were in flight than the KV cache holds; speculation reserves extra slots for each request",
        "lower max-running-requests or the sweep's concurrency, or raise mem-fraction-static",
    ),
    _rule(
        "port_taken",
        r"(?:[Aa]ddress already in use|[Pp]ort (\d+) is (?:already )?in use|at (\d+) is not available)",
        "a port is taken",
        "another server, or a worker left over from an earlier one, listens there",
        "look at `dynspec status NODE`; stop it with `dynspec stop NODE` if it is yours, or set server.port",
    ),
    _rule(
        "draft_weights",
        r"(?i)Cannot find any model weights with [`'\"]?([^`'\"]*(?:draft|eagle|mtp)[^`'\"]*)",
        "draft weights are missing",
        "{0} holds no weights",
        _DRAFT_FIX,
    ),
    _rule(
        "draft_weights",
        r"(?i)(?:draft)[\w\s.-]*(?:not found|does not exist|must be (?:set|provided|specified)|is required)",
        "draft weights are missing",
        "the draft model's path is empty or wrong",
        _DRAFT_FIX,
    ),
    _rule(
        "model_path",
        r"(?:Cannot find any model weights with|does not appear to have (?:a file|files) named"
        r"|Incorrect path_or_model_id|Repository Not Found|Repo id must "
        r"|is not a local folder and is not a valid model identifier|Can't load the (?:configuration|model) (?:of|for)"
        r"|Can't load tokenizer for|Unrecognized model in "
        r"|No such file or directory: '[^']*(?:config\.json|tokenizer\w*\.\w+|\.safetensors(?:\.index\.json)?)')",
        "a model's files are missing",
        "the path does not exist on the node (nor a model of that name on the hub), or holds no config.json or weights",
        "check model-path and speculative-draft-model-path as the serving user on the node",
    ),
    _rule(
        "model_path",
        r"(?:We couldn't connect to .* to load|LocalEntryNotFoundError|OfflineModeIsEnabled)",
        "a model is not on the node, and the model hub cannot be reached",
        "what is no folder of the node is taken for a name on the hub: a wrong path, or a model that was never fetched",
        "write the model's folder on the node as model-path or speculative-draft-model-path, or fetch it there first",
    ),
    _rule(
        "gated_model",
        r"(?:GatedRepoError|401 Client Error|Access to model .* is restricted)",
        "the model hub refused access",
        "the model is gated and the server had no valid token",
        "give the token by reference: server.env: {{HF_TOKEN: {{from_env: HF_TOKEN}}}}",
    ),
    _rule(
        "kernel_arch",
        r"(?:no kernel image is available for execution|Unsupported (?:gpu|GPU) arch|not supported on (?:sm|SM)_?\d+"
        r"|Value 'sm_\w+' is not defined|requires (?:sm|SM)_?\d+|unsupported GPU architecture)",
        "a kernel does not support this GPU",
        "the installed kernels were not built for this GPU's architecture",
        "choose another attention-backend (triton runs everywhere), or install builds for this GPU",
    ),
    _rule(
        "graph_size",
        r"The size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)",
        "tensor sizes differ: {0} against {1}",
        "under speculation this is a plain batch in a graph captured for verify steps "
        "(requests x draft tokens against requests), or a draft input that was not filtered with its batch",
        "run the arm without the patch; if that holds, the patch must swap the graph runner for plain steps",
        unpatched="run the arm with disable-cuda-graph: if that holds, the release misplaces a batch in its graphs",
    ),
    _rule(
        "shape_mismatch",
        r"(?:expanded size of the tensor \((\d+)\) must match the existing size \((\d+)\)"
        r"|shape mismatch|shape '\[[^\]]*\]' is invalid for input of size"
        r"|mat1 and mat2 shapes cannot be multiplied|Sizes of tensors must match)",
        "tensor shapes differ",
        "a batch and the state kept for it disagree on the number of requests or tokens",
        "run the arm without its patches, then with the concurrency at which it failed",
        unpatched="run the arm at the concurrency at which it failed alone, then with disable-cuda-graph",
    ),
    _rule(
        "unpack_mismatch",
        r"(?:(?:too many|not enough) values to unpack \(expected (?:at least )?(\d+)"
        r"|cannot unpack non-iterable (\w+) object)",
        "a call returned another number of values than the code takes",
        "two pieces of code disagree on what a function returns: patched and unpatched, or of two versions",
        "run `dynspec patch check` against this tree; look at the call in the traceback",
        unpatched="look at the call in the traceback: the packages of its two sides may be of different releases",
    ),
    _rule(
        "nccl",
        r"(?:NCCL error|ncclInternalError|ncclSystemError|ncclUnhandledCudaError|ncclRemoteError|DistBackendError"
        r"|Watchdog caught collective operation timeout)",
        "the GPUs could not talk to each other",
        "a rank died or hung, or NCCL found no usable path between the GPUs",
        "look for an earlier error of another rank; else set NCCL_DEBUG=INFO, or disable-custom-all-reduce",
    ),
    _rule(
        "watchdog",
        r"(?i)watchdog timeout",
        "the server's watchdog found it stuck",
        "one forward step took longer than watchdog-timeout: a hang in a kernel or collective, or a first compilation",
        "look at the stack dump in the log; raise watchdog-timeout only if a long compilation is expected",
    ),
    _rule(
        "import_error",
        r"(?:ModuleNotFoundError: No module named '?([\w.]+)|ImportError: (.+))",
        "an import failed: {0}",
        "the serving interpreter lacks a package, or a patched module names something that is not there",
        "check node.python and run `dynspec smoke` on this experiment",
    ),
    _rule(
        "bad_argument",
        r"error: (?:unrecognized arguments: (.+)|argument (.+))",
        "the server refused its arguments: {0}",
        "this SGLang version does not know the flag or the value",
        "check the arm's args against this version; `dynspec smoke` parses them without a GPU",
    ),
    _rule(
        "illegal_access",
        r"(?:an illegal memory access was encountered|device-side assert triggered|misaligned address)",
        "a kernel accessed memory out of bounds",
        "an index or length is wrong; the traceback shows a later call, as kernels run asynchronously",
        "run again with server.env: {{CUDA_LAUNCH_BLOCKING: '1'}} to see the call",
    ),
    _rule(
        "disk_full",
        r"No space left on device",
        "a disk of the node is full",
        "caches, /dev/shm or the work folder have no space left",
        "free space; look at `df -h` for workdir, /tmp and /dev/shm",
    ),
    _rule(
        "oom_killer",
        r"(?:exit code is -9|exitcode=-9|exit code: -9\b|Killed process \d+|oom-kill)",
        "a worker was killed (SIGKILL)",
        "most often the kernel's OOM killer: the host, not the GPU, ran out of memory",
        "look at `dmesg -T | grep -i oom` on the node; load fewer workers at a time or a smaller model",
    ),
)

CLASSES = (
    *dict.fromkeys(rule.name for rule in RULES),
    "exception",
    "native_crash",
    "killed",
    "exit",
    "workdir_gone",
    "not_ready",
    "unknown",
)

#!/bin/bash
# Sourced by the probes on the GPU machine, from the project root: the bundle unpacked, SGLang patched in place, and
#     start NAME PORT ARGUMENTS...   a server of the small model in a process group of its own, log in $OUT/NAME.log
# Ports stay below 32768, where the ones of outgoing connections begin; $SHIFT moves them all.
# Every server that was started is ended when the script ends, whatever happens. Needs $OUT; `pid` and `port` by name.
: "${OUT:?a folder for the results}" "${PYTHON:=/opt/torch/.venv/bin/python3}"
. tests/gpu/prepare.sh
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false SGLANG_ENABLE_JIT_DEEPGEMM=0

# A copy, since dynspec wants to find the tree as it was unpacked; with times kept, so that bytecode stays valid. One
# probe at a time makes it, under another name until it is whole, and anew when the patch is another one.
exec 8>"$home/patched.lock"
flock 8
patch=$(cat patches/dynamic_disable/patcher.py patches/dynamic_disable/runtime/dynspec/*.py | cksum)
if [ "$(cat "$home/patched/.patch" 2>/dev/null || echo none)" != "$patch" ]; then
    rm -rf "$home/patched" "$home/patched.part"
    cp -a "$home/site" "$home/patched.part"
    "$PYTHON" - "$home/patched.part/sglang" <<'PY'
import sys
from pathlib import Path
from orchestrator.patchset import find_patch

package, patch = Path(sys.argv[1]), find_patch("dynamic_disable")
for target in patch.targets:
    file = package / target.path
    file.write_text(target.edit(file.read_text(), unique=False))
for add in patch.adds:
    (package / add.path).parent.mkdir(parents=True, exist_ok=True)
    (package / add.path).write_text(add.text)
PY
    echo "$patch" >"$home/patched.part/.patch"
    mv "$home/patched.part" "$home/patched"
    echo patched
fi
exec 8>&-
export PYTHONPATH="$PWD:$home/patched"
# flashinfer writes the folder that it was loaded from into what it builds, and finds nothing when that folder is another.
export FLASHINFER_WORKSPACE_BASE="$home/patched"

declare -A pid port
end_servers() {
    for group in "${pid[@]}"; do kill -TERM -- "-$group" 2>/dev/null || continue; done
    for _ in $(seq 20); do
        sleep 0.5
        kill -0 "${pid[@]}" 2>/dev/null || break
    done
    for group in "${pid[@]}"; do kill -KILL -- "-$group" 2>/dev/null || continue; done
}
trap end_servers EXIT
trap 'exit 143' INT TERM

# As experiments/gpu/h200-correct.yaml; $EACH adds what a probe wants of all its servers, $DEVICES the GPUs.
start() {
    port[$1]=$(($2 + ${SHIFT:-0}))
    (cd /tmp && CUDA_VISIBLE_DEVICES=${DEVICES:-0} exec setsid "$PYTHON" -m sglang.launch_server --host 127.0.0.1 \
        --port "${port[$1]}" --nccl-port "$((${port[$1]} + 500))" --model-path "$home/models/target" --attention-backend triton \
        --sampling-backend pytorch --mem-fraction-static 0.5 --max-running-requests 64 \
        --disable-piecewise-cuda-graph ${EACH:-} "${@:3}") >"$OUT/$1.log" 2>&1 &
    pid[$1]=$!
}
eagle="--speculative-algorithm EAGLE3 --speculative-draft-model-path $home/models/draft"
v1="$eagle --speculative-num-steps 2 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16"
v2="$eagle --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"

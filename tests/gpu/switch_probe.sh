#!/bin/bash
# On the GPU machine, from the project root: do outputs survive changes of mode? Needs the bundle in .gpu/, writes to $OUT.
#     OUT=/tmp/out bash tests/gpu/switch_probe.sh        # about six minutes on one H200, SECONDS_EACH=40 a server
# The servers start together, since most of a start is imports and kernel compiles; they are probed one after another,
# so that one at a time has work. Each is ended by its process group, whatever happens.
set -eu
: "${OUT:?a folder for the results}" "${SECONDS_EACH:=40}" "${PYTHON:=/opt/torch/.venv/bin/python3}"
began=$SECONDS
. tests/gpu/prepare.sh
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false SGLANG_ENABLE_JIT_DEEPGEMM=0
work=$(mktemp -d)

"$PYTHON" - "$home/site/sglang" <<'PY'
import sys
from pathlib import Path
from orchestrator.patchset import find_patch

package, patch = Path(sys.argv[1]), find_patch("dynamic_disable")
files = [package / target.path for target in patch.targets]
if any(patch.marker in file.read_text() for file in files):
    print("patched already")
else:
    texts = [target.edit(file.read_text(), unique=False) for target, file in zip(patch.targets, files, strict=True)]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    for add in patch.adds:
        (package / add.path).parent.mkdir(parents=True, exist_ok=True)
        (package / add.path).write_text(add.text)
    print("patched")
PY

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

start() { # NAME PORT ARGUMENTS...: as experiments/gpu/h200-correct.yaml; few KV slots, so that all servers fit
    port[$1]=$2
    (cd /tmp && exec setsid "$PYTHON" -m sglang.launch_server --host 127.0.0.1 --port "$2" --nccl-port "$((${2} + 1000))" \
        --model-path "$home/models/target" --skip-tokenizer-init --attention-backend triton \
        --sampling-backend pytorch --grammar-backend none --mem-fraction-static 0.5 --max-total-tokens 65536 \
        --cuda-graph-max-bs 64 --max-running-requests 64 --disable-radix-cache --disable-piecewise-cuda-graph \
        "${@:3}") >"$OUT/$1.log" 2>&1 &
    pid[$1]=$!
}
eagle="--speculative-algorithm EAGLE3 --speculative-draft-model-path $home/models/draft"
v1="$eagle --speculative-num-steps 2 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16"
v2="$eagle --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
threshold="--speculative-disable-batch-threshold 6 --speculative-disable-draft-sync"
start none 30000
start v1-step 30010 $v1 $threshold step
start v2-lazy 30020 $v2 $threshold lazy
start v1-static 30030 $v1

status=0
probe() { # SERVER NAME SECONDS
    local left=$((420 - (SECONDS - began) - 20))
    if [ "$left" -lt "$3" ]; then echo "$2: no time left"; return; fi
    timeout $((left - 5)) "$PYTHON" tests/gpu/switch_probe.py run --port "${port[$1]}" --pid "${pid[$1]}" \
        --out "$work/$2.json" --seconds "$3" --ready $((left - $3)) || status=1
}
for arm in none v1-step v2-lazy v1-static; do probe "$arm" "$arm" "$SECONDS_EACH"; done
probe none none-again 20
others=()
for arm in v1-step v2-lazy v1-static none-again; do
    if [ -f "$work/$arm.json" ]; then others+=("$work/$arm.json"); fi
done
"$PYTHON" tests/gpu/switch_probe.py compare "$work/none.json" "${others[@]}" --port "${port[none]}" \
    >"$OUT/compare.txt" 2>&1 || status=1
cat "$OUT/compare.txt"
tar -C "$work" -czf "$OUT/outputs.tar.gz" .
echo "status $status after $((SECONDS - began)) s"
exit $status

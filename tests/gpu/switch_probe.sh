#!/bin/bash
# On the GPU machine, from the project root: do outputs survive changes of mode? Needs the bundle in .gpu/, writes to $OUT.
#     OUT=/tmp/out bash tests/gpu/switch_probe.sh        # about six minutes on one H200, SECONDS_EACH=40 a server
# The servers start together, since most of a start is imports and kernel compiles; they are probed one after another,
# so that one at a time has work.
set -eu
: "${SECONDS_EACH:=40}"
began=$SECONDS
. tests/gpu/servers.sh
work=$(mktemp -d)

# Few KV slots, so that all servers fit.
EACH="--skip-tokenizer-init --grammar-backend none --max-total-tokens 65536 --cuda-graph-max-bs 64 --disable-radix-cache"
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

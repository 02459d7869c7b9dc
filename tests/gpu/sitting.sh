#!/bin/bash
# One of the three commands of a sitting of thirty minutes, on the GPU machine, from the project root; results to $OUT.
#     OUT=/tmp/out bash tests/gpu/sitting.sh 1|2|3|tp2 [SECONDS, 550]
# Each keeps its limit: what is under way then is ended, the node given back, and the next command goes on. What each
# runs, and in which order, is in README.md. On a machine with one GPU the lanes run one after the other.
set -eu
: "${OUT:?a folder for the results}"
part=$1 limit=${2:-550}
. tests/gpu/prepare.sh
if [ "$(nvidia-smi -L | grep -c '^GPU')" -ge 2 ]; then second=1; else second=0; fi
status=0

left() { echo $((limit - SECONDS - 20)); } # 20 s to unwind and to pack

run() { # EXPERIMENT OPTIONS...: a new run of it, or the one that an earlier command left unfinished
    local name resume=()
    name=$(basename "$1" .yaml)
    for folder in results/*-"$name"-????; do
        if [ -d "$folder" ] && ! grep -qs '"exit_code": 0' "$folder/outcome.json"; then
            resume=(--resume "${folder#results/}")
        fi
    done
    if [ "$(left)" -lt 60 ]; then echo "$name: no time left" && return; fi
    timeout "$(left)" dynspec run "$@" "${resume[@]}" >>"$OUT/$part-$name.txt" 2>&1 || echo "$name: exit $?"
    tail -3 "$OUT/$part-$name.txt"
}

both() { # FIRST SECOND: two lanes, at once if there are two GPUs
    if [ "$second" = 1 ]; then
        $2 &
        local other=$!
        $1
        wait "$other"
    else
        $1
        $2
    fi
}

on_first() { run "$@" --set 'node.gpus=[0]'; }

straddle() {
    on_first experiments/gpu/h200-straddle-steady.yaml --arm dynamic
    on_first experiments/gpu/h200-straddle.yaml --arm dynamic
}
behaviour() {
    local seconds
    seconds=$(left)
    if [ "$seconds" -gt 330 ]; then seconds=330; fi
    DEVICES=$second LIMIT_S=$seconds bash tests/gpu/behaviour.sh || echo "behaviour: differences or failures, above"
}
timing() { on_first experiments/gpu/h200-timing.yaml; }
beside() { # BUNDLE EXPERIMENTS...: one boot an arm of each
    local bundle=$1 file name
    shift
    for file in "$@"; do
        name=$(basename "$file" .yaml)
        if [ "$(left)" -lt 60 ]; then echo "$name: no time left" && return; fi
        BUNDLE=$bundle timeout "$(left)" tests/gpu/beside.sh dynspec run "$file" --set sweep.repeats=1 \
            --set "node.gpus=[$second]" >>"$OUT/$part-$name.txt" 2>&1 || echo "$name: exit $?"
        tail -3 "$OUT/$part-$name.txt"
    done
}
older() { beside .gpu12 experiments/gpu/h200-0512-correct.yaml experiments/h200-small.yaml; }
native() { beside .gpu14 experiments/gpu/h200-native-0514.yaml; }

case $part in
1)
    both straddle behaviour
    if [ "$second" = 1 ]; then run experiments/gpu/h200-tp2.yaml; fi
    ;;
2) both timing older ;;
3) both timing native ;;
tp2)
    export NCCL_NVLS_ENABLE=0
    export ONLY="none v2 serial v1" DEVICES=0,1 MORE="--tp-size 2 --disable-custom-all-reduce"
    LIMIT_S=260 bash tests/gpu/behaviour.sh || status=1
    run experiments/gpu/h200-tp2-straddle.yaml --arm v2-lazy
    run experiments/gpu/h200-tp2-timing.yaml --set sweep.repeats=1
    ;;
*) echo "1, 2, 3 or tp2, not $part" && exit 2 ;;
esac
tar -C results --exclude=./examples --exclude=./README.md -czf "$OUT/results-$part.tar.gz" .
echo "part $part: $SECONDS s"
exit "$status"

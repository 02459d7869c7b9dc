#!/bin/bash
# One command of a sitting on the GPU machine, from the project root: jobs of GPU 0, jobs of GPU 1 beside them, then jobs
# that want both. Everything goes to $OUT/NAME.tar.gz, results/ included.
#     OUT=/tmp/out bash tests/gpu/sitting.sh NAME SECONDS "straddle" "behaviour" "timing tp2 tp2-straddle"
# It keeps the limit of SECONDS: what is under way then is ended, the node given back, and a later command resumes the run.
# dynspec is one run a node: beside one of GPU 0, one of GPU 1 wants a node of its own (@), or it ends with exit code 3.
# JOB:SECOND ends a job earlier. @NODE=BUNDLE among the jobs of GPU 1: those after it run beside.sh with that bundle. On a
# machine with one GPU the second list follows the first one, on the node itself. README.md has the jobs.
set -eu
: "${OUT:?a folder for the results}"
name=$1 limit=$2 first=$3 second=${4:-} both=${5:-}
logs=/tmp/sitting/$name
mkdir -p "$logs"
. tests/gpu/prepare.sh
echo "prepared after $SECONDS s"
gpus=$(nvidia-smi -L | grep -c '^GPU')

left() { # seconds for a job that starts now: 15 of them are kept to pack
    local end=${until:-$limit}
    if [ "$end" -gt "$limit" ]; then end=$limit; fi
    echo $((end - SECONDS - 15))
}

told() { echo "$SECONDS s: $*"; }

run() { # EXPERIMENT OPTIONS...: a new run of it, or the one that an earlier command left unfinished; through $via if set
    local experiment resume=() status=0
    experiment=$(basename "$1" .yaml)
    for folder in results/*-"$experiment"-????; do
        if [ -d "$folder" ] && ! grep -qs '"exit_code": 0' "$folder/outcome.json"; then
            resume=(--resume "${folder#results/}")
        fi
    done
    if [ "$(left)" -lt 45 ]; then told "$experiment: no time left" && return; fi
    told "$experiment: begins ${resume[*]}"
    timeout "$(left)" ${via:-} dynspec run "$@" "${resume[@]}" >>"$logs/$experiment.txt" 2>&1 || status=$?
    told "$experiment: exit $status"
    tail -3 "$logs/$experiment.txt" | cut -c1-300
}

beside() { # NODE=BUNDLE
    via="env NODE=${1%=*} BUNDLE=${1#*=} tests/gpu/beside.sh"
}

job() {
    # A server that starts opens every GPU for a moment, so the lanes wait for each other.
    local one=(--set "node.gpus=[${gpu%%,*}]" --set node.free=wait) # of both GPUs: the first
    case $1 in
    straddle)
        run experiments/gpu/h200-straddle-steady.yaml --arm dynamic "${one[@]}"
        run experiments/gpu/h200-straddle.yaml --arm dynamic "${one[@]}"
        ;;
    warm) run experiments/gpu/h200-straddle-steady.yaml --arm dynamic "${one[@]}" ;; # compiles what the 8B shape needs
    timing) run experiments/gpu/h200-timing.yaml "${one[@]}" ;;
    tax) run experiments/gpu/h200-tax.yaml "${one[@]}" ;;
    small) run experiments/h200-small.yaml "${one[@]}" ;;
    correct) run experiments/gpu/h200-correct.yaml "${one[@]}" ;;
    older) run experiments/gpu/h200-0512-correct.yaml "${one[@]}" ;;
    native) run experiments/gpu/h200-native-0514.yaml "${one[@]}" ;;
    native-short) run experiments/gpu/h200-native-0514.yaml --arm none --arm native "${one[@]}" --set sweep.repeats=2 ;;
    early) ${via:-} tests/gpu/named_early.sh "$gpu" 2>&1 | tee "$logs/named-early.txt" ;;
    behaviour) behaviour "$logs/behaviour" 300 DEVICES="$gpu" ;;
    behaviour-v1) behaviour "$logs/behaviour-v1" 260 DEVICES="$gpu" ONLY="serial v1" ;;
    behaviour-v2) behaviour "$logs/behaviour-v2" 260 DEVICES="$gpu" ONLY="none v2 text text-v2 small small-v2" ;;
    tp2-behaviour)
        behaviour "$logs/tp2-behaviour" 260 SHIFT=-5000 DEVICES=0,1 NCCL_NVLS_ENABLE=0 ONLY="none v2 serial v1" \
            MORE="--tp-size 2 --disable-custom-all-reduce"
        ;;
    tp2) run experiments/gpu/h200-tp2.yaml ;;
    tp2-straddle) run experiments/gpu/h200-tp2-straddle.yaml --arm v2-lazy ;;
    tp2-choose) run experiments/gpu/h200-tp2-timing.yaml --arm none --arm static --set sweep.repeats=1 ;;
    tp2-timing)
        local threshold
        threshold=$(python3 tests/gpu/best_threshold.py results/*-h200-tp2-timing-????) || return 0
        told "h200-tp2-timing: threshold $threshold"
        run experiments/gpu/h200-tp2-timing.yaml --set sweep.repeats=1 \
            --set "arms.dynamic.args.speculative-disable-batch-threshold=$threshold"
        ;;
    later) sleep 20 ;; # a run that begins beside this lane has looked at the GPUs by then
    *) echo "no job $1" && exit 2 ;;
    esac
}

behaviour() { # FOLDER SECONDS VARIABLES...
    local seconds
    seconds=$(left)
    if [ "$seconds" -gt "$2" ]; then seconds=$2; fi
    mkdir -p "$1"
    told "$(basename "$1"): begins"
    env OUT="$1" LIMIT_S="$seconds" "${@:3}" bash tests/gpu/behaviour.sh >"$1/screen.txt" 2>&1 ||
        told "$(basename "$1"): differences or failures"
    told "$(basename "$1"): ends"
    tail -25 "$1/screen.txt" | cut -c1-200
}

jobs_of() { # GPU JOBS...
    gpu=$1 via=
    shift
    for word in "$@"; do
        until=
        case $word in
        @*)
            if [ "$gpus" -ge 2 ]; then beside "${word:1}"; fi
            continue
            ;;
        *:*) until=${word#*:} ;;
        esac
        job "${word%:*}"
    done
}

pack() {
    tar -czf "$OUT/$name.tar.gz" --exclude=./results/examples -C "$PWD" ./results -C /tmp/sitting "./$name"
    ls -l "$OUT"
    told "end of $name"
}
trap pack EXIT

if [ "$gpus" -ge 2 ]; then
    jobs_of 1 $second &
    lane=$!
    jobs_of 0 $first
    wait "$lane" || told "a job of GPU 1 failed"
    jobs_of 0,1 $both
else
    jobs_of 0 $first $second
fi

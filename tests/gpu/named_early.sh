#!/bin/bash
# On the GPU machine, from the project root, after prepare.sh: how soon are three mistakes named that once cost a model load
# each? An unknown flag, a patch for the worker that does not serve, a patch that leaves a SyntaxError in server_args.py.
#     tests/gpu/named_early.sh [GPU, 0]       seconds of the whole `dynspec run`; exit 1 if one is not named or too late
set -eu
project=$PWD gpus=${1:-0} bar_s=10 status=0
work=$(mktemp -d)
cp -r orchestrator patches "$work/"
made() { # NAME FILE WORKERS: a patch beside the carried ones
    mkdir "$work/patches/$1"
    printf 'schema: 1\nname: %s\nsummary: a mistake\npackage: sglang\nworkers: [%s]\ntargets:\n  - {path: %s, patcher: patcher.py}\nversions: {}\n' \
        "$1" "$3" "$2" >"$work/patches/$1/manifest.yaml"
}
made broken srt/server_args.py ""
printf 'def patch(path, text):\n    return text + "\\ndef broken(:\\n"\n' >"$work/patches/broken/patcher.py"
made other_worker srt/speculative/eagle_worker.py v1
printf 'def patch(path, text):\n    return text + "\\nOTHER = 1\\n"\n' >"$work/patches/other_worker/patcher.py"

cd "$work" # Python looks here first
named() { # WORD OPTIONS...
    local began took code=0
    began=$(date +%s.%N)
    dynspec run "$project/experiments/h200-small.yaml" --set "node.gpus=[$gpus]" --set node.allow_unlisted=true "${@:2}" \
        >said.txt 2>&1 || code=$?
    took=$(python3 -c "print(f'{$(date +%s.%N) - $began:.1f}')")
    echo "$took s, exit $code: $(grep -- "$1" said.txt | tail -1 || echo "not named: $(tail -3 said.txt)")" | cut -c1-240
    if [ "$code" != 4 ] || ! grep -q -- "$1" said.txt || python3 -c "raise SystemExit($took < $bar_s)"; then status=1; fi
}
python3 -c 'import sglang.srt.server_args' # imported there once
for _ in 1 2; do
    named "arm static: .*stepz" --set arms.static.args.speculative-num-stepz=3
    named v1 --set 'arms.static.patches=[other_worker]'
    named SyntaxError --set 'arms.static.patches=[broken]'
done
rm -r "$work"
exit $status

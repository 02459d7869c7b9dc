#!/bin/bash
# On the GPU machine, from the project root: do plain steps keep what requests ask for (behaviour_probe.py)? Needs the
# bundle in .gpu/, writes to $OUT.
#     OUT=/tmp/out bash tests/gpu/behaviour.sh           # five minutes on one H200; LIMIT_S=400 for all of it
#     ONLY="none v2 serial v1" DEVICES=0,1 MORE="--tp-size 2 --disable-custom-all-reduce" NCCL_NVLS_ENABLE=0 ...
# References without speculation and the servers that must answer alike:
#     none    page 1, radix cache, chunked prefill    v2
#     serial  the same without overlap, which decides when a penalty counts a token    v1
#     text    page 16, a tokenizer and grammars, batch-invariant kernels (seeds)    text-v2
#     small   1536 KV slots    small-v2
# They start together: most of a start is imports and compiles. Then all are probed at once.
set -eu # no pipefail: grep may find nothing
: "${LIMIT_S:=400}" "${ONLY:=none v2 serial v1 text text-v2 small small-v2}"
began=$SECONDS
. tests/gpu/servers.sh
work=$(mktemp -d)
python3 tests/gpu/byte_tokenizer.py "$home/models/target"
# The first sampled request of a server that speculates would wait a minute or two for this build, and all others with it.
build_sampling() { "$PYTHON" -c 'from flashinfer.sampling import get_sampling_module as build; build()' >"$work/build.txt" 2>&1; }
build_sampling &
building=$!

# Deterministic inference cuts prefills at multiples of this, 4096 unless said: no chunk of 128 would ever be scheduled.
export SGLANG_TRITON_PREFILL_TRUNCATION_ALIGN_SIZE=16
EACH="--chunked-prefill-size 128 --cuda-graph-bs 1 2 4 6 7 8 12 16 24 32 48 64 --enable-metrics ${MORE:-}"
threshold="--speculative-disable-batch-threshold 6"
skip="--skip-tokenizer-init --grammar-backend none --max-total-tokens"
text="--grammar-backend xgrammar --enable-deterministic-inference --page-size 16 --max-total-tokens 65536"
for name in $ONLY; do
    case $name in
    none) start none 32000 $skip 65536 ;;
    v2) start v2 32010 $skip 65536 $v2 $threshold --enable-speculative-threshold-switch ;;
    serial) start serial 32070 $skip 65536 --disable-overlap-schedule ;;
    v1) start v1 32020 $skip 65536 $v1 $threshold ;;
    text) start text 32030 $text ;;
    text-v2) start text-v2 32040 $text $v2 $threshold ;;
    small) start small 32050 $skip 1536 --schedule-conservativeness 0.1 ;;
    small-v2) start small-v2 32060 $skip 1536 --schedule-conservativeness 0.1 $v2 $threshold ;;
    esac
done

wait "$building" || cat "$work/build.txt"
all=plain,text,seeds,crossing
declare -A phases=([small]=retract [small-v2]=retract [text]=$all [text-v2]=$all)
declare -A probes
for name in $ONLY; do
    timeout $((LIMIT_S - (SECONDS - began) - 25)) "$PYTHON" tests/gpu/behaviour_probe.py run --port "${port[$name]}" \
        --pid "${pid[$name]}" --out "$work/$name.json" --ready $((LIMIT_S - (SECONDS - began) - 90)) \
        --phases "${phases[$name]:-plain,crossing,switch}" >"$work/$name.txt" 2>&1 &
    probes[$name]=$!
done
status=0
for name in $ONLY; do
    wait "${probes[$name]}" || status=1
    cat "$work/$name.txt"
done

against() { # REFERENCE OTHERS...: the ones that have answers
    local reference=$work/$1.json found=()
    for name in "${@:2}"; do if [ -f "$work/$name.json" ]; then found+=("$work/$name.json"); fi; done
    if [ ! -f "$reference" ] || [ ${#found[@]} -eq 0 ]; then echo "$*: nothing to compare"; status=1; return; fi
    "$PYTHON" tests/gpu/behaviour_probe.py compare "$reference" "${found[@]}" || status=1
}
{
    against none v2
    case $ONLY in *serial*) against serial v1 ;; esac
    case $ONLY in *text*) against text text-v2 ;; esac
    case $ONLY in *small*) against small small-v2 ;; esac
} >"$work/compare.txt" 2>&1
worth="leak|Retract requests|dynspec: ready|Traceback|Error:"
grep -iE "$worth" "$OUT"/*.log | cut -c1-240 | head -100 >"$work/log-lines.txt"
cat "$work/compare.txt" "$work/log-lines.txt"
cp "$work/compare.txt" "$OUT/behaviour.txt"
tar -C "$work" -czf "$OUT/answers.tar.gz" .
tar -C "$OUT" -czf "$OUT/logs.tar.gz" $(cd "$OUT" && ls ./*.log) && rm -f "$OUT"/*.log
echo "status $status after $((SECONDS - began)) s"
exit $status

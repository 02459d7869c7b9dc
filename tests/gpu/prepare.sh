#!/bin/sh
# On the GPU machine, from the project root: unpack the bundle ($BUNDLE, .gpu when not said; see README.md) to
# /tmp/dynspec-gpu and name the command that runs dynspec there. Usage: . tests/gpu/prepare.sh
# Another bundle replaces the packages of the one before; models and kernel caches stay.
set -eu
bundle=${BUNDLE:-.gpu}
home=/tmp/dynspec-gpu
stamp=$(cksum <"$bundle/site.tar.xz")
if [ "$(cat "$home/.done" 2>/dev/null)" != "$stamp" ]; then
    rm -rf "$home/site" "$home/patched" "$home/.done"
    mkdir -p "$home/site" "$home/models"
    tar -C "$home/site" -xJf "$bundle/site.tar.xz"
    for wheel in "$bundle"/extra/*.whl; do
        if [ -f "$wheel" ]; then python3 -m zipfile -e "$wheel" "$home/site"; fi
    done
    cp tests/gpu/sitecustomize.py "$home/site/"
    if [ -d "$bundle/models" ]; then cp -r "$bundle/models/." "$home/models/"; fi
    cp experiments/gpu/adaptive-*.json "$home/"
    chmod -R u+w "$home"
    # Bytecode at once, on all cores: each server would compile the same files otherwise.
    if ! PYTHONPATH="$home/site" python3 -m compileall -q -j 0 "$home/site" >/dev/null; then
        echo "prepare: some files do not compile, as in the wheels"
    fi
    echo "$stamp" >"$home/.done"
fi
export PYTHONPATH="$PWD:$home/site" PYTHONUNBUFFERED=1
python3 -c 'import aiohttp, huggingface_hub, pydantic, pygments, sentencepiece, tiktoken, yaml' # what the image brings
dynspec() { python3 -c 'from orchestrator.cli import main; main()' "$@"; }

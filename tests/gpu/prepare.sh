#!/bin/sh
# On the GPU machine, from the project root: unpack the bundle ($BUNDLE, .gpu when not said; see README.md) to
# /tmp/dynspec-gpu and put `dynspec` on the PATH. Usage: . tests/gpu/prepare.sh
# Another bundle replaces the packages of the one before; models and kernel caches stay. Without a bundle what is
# unpacked already is used, since a later command on the same machine need not bring it again.
set -eu
bundle=${BUNDLE:-.gpu}
home=/tmp/dynspec-gpu
unpacked=$(cat "$home/.done" 2>/dev/null || echo nothing)
if [ -f "$bundle/site.tar.xz" ]; then stamp=$(cksum <"$bundle/site.tar.xz"); else stamp=$unpacked; fi
if [ "$stamp" = nothing ]; then echo "prepare: no $bundle/site.tar.xz, and nothing was unpacked before" && exit 1; fi
if [ "$unpacked" != "$stamp" ]; then
    rm -rf "$home/site" "$home/patched" "$home/.done"
    mkdir -p "$home/site" "$home/models" "$home/bin"
    tar -C "$home/site" -xJf "$bundle/site.tar.xz"
    for wheel in "$bundle"/extra/*.whl; do
        if [ -f "$wheel" ]; then python3 -m zipfile -e "$wheel" "$home/site"; fi
    done
    cp tests/gpu/sitecustomize.py "$home/site/"
    if [ -d "$bundle/models" ]; then cp -r "$bundle/models/." "$home/models/"; fi
    chmod -R u+w "$home"
    # Bytecode at once, on all cores: each server would compile the same files otherwise. An image that brings none, and
    # says PYTHONDONTWRITEBYTECODE, makes each process compile torch anew: half a minute of a start.
    if ! python3 -m compileall -q -j 0 "$home/site" >/dev/null; then
        echo "prepare: some files do not compile, as in the wheels"
    fi
        began=$(date +%s)
        python3 - >/tmp/.dynspec-brought <<'PY'
import importlib.util, sysconfig

brought = (
    "torch sympy mpmath networkx numpy scipy triton cuda aiohttp yarl multidict frozenlist propcache huggingface_hub hf_xet "
    "pygments tiktoken regex PIL torchvision safetensors sentencepiece uvloop ml_dtypes setuptools"
).split()
found = [importlib.util.find_spec(name) for name in brought]
print(*[place for spec in found if spec for place in spec.submodule_search_locations or ()])
print(sysconfig.get_path("stdlib"))
PY
        if ! python3 -m compileall -qq -j 0 $(cat /tmp/.dynspec-brought); then echo "prepare: some do not compile"; fi
        echo "prepare: bytecode of what the image brings: $(($(date +%s) - began)) s"
    printf '%s\n' '#!/bin/sh' 'exec python3 -c "from orchestrator.cli import main; main()" "$@"' >"$home/bin/dynspec"
    chmod +x "$home/bin/dynspec"
    echo "$stamp" >"$home/.done"
fi
export PYTHONPATH="$PWD:$home/site" PYTHONUNBUFFERED=1
python3 -c 'import aiohttp, huggingface_hub, pydantic, pygments, sentencepiece, tiktoken, yaml' # what the image brings
export PATH="$home/bin:$PATH"

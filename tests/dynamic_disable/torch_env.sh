#!/bin/sh
# The patch's runtime against real SGLang code on CPU tensors: makes an environment with torch in .cache/torch-env (apart
# from .venv, since torch is large), then runs these tests in it.
#     tests/dynamic_disable/torch_env.sh [pytest arguments]
# The CPU build of torch is enough. Where pip's index has only the CUDA build, name one that has the other:
#     TORCH_INDEX=https://... tests/dynamic_disable/torch_env.sh
set -eu
cd "$(dirname "$0")/../.."
env=.cache/torch-env
wanted=tests/dynamic_disable/torch_requirements.txt
if ! cmp -s "$wanted" "$env/installed.txt"; then
    "${PYTHON:-python3}" -m venv "$env"
    "$env/bin/python" -m pip install -q --disable-pip-version-check -c constraints.txt \
        ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch triton
    "$env/bin/python" -m pip install -q --disable-pip-version-check -c constraints.txt -r "$wanted"
    cp "$wanted" "$env/installed.txt"
fi
exec "$env/bin/python" -m pytest -q "${@:-tests/dynamic_disable}"

#!/bin/bash
# The peer of the load generator bench: sglang 0.5.23 with what its serving benchmark imports, in a virtual environment.
#     tests/bench/setup_peer.sh [FOLDER]        default /tmp/dynspec-bench; about 6 GB
set -euo pipefail
folder=${1:-/tmp/dynspec-bench}
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3.11}
mkdir -p "$folder"
[ -d "$folder/sglang" ] || "$python" -m venv "$folder/sglang"
pip() { "$folder/sglang/bin/pip" install -q --disable-pip-version-check "$@"; }
# The wheel alone and then what `python -m sglang.benchmark.serving` imports: its full dependencies need a GPU to be of use.
pip --no-deps sglang==0.5.23
pip torch==2.14.1 torchvision==0.29.1
pip aiohttp numpy requests tqdm transformers tokenizers pillow pybase64 msgspec orjson psutil pyzmq packaging fastapi uvicorn \
  uvloop setproctitle datasets einops prometheus-client zstandard python-multipart
pip --no-deps IPython traitlets apache-tvm-ffi==0.1.11 sentencepiece==0.2.1 compressed-tensors loguru gguf tiktoken \
  openai==2.8.0 openai-harmony==0.0.4 partial-json-parser xxhash jiter distro regex pydantic blobfile watchfiles llguidance \
  interegular xgrammar==0.2.7 scipy soundfile cffi pycparser
"$folder/sglang/bin/python" "$here/make_tokenizer.py" "$folder/tokenizer"
"$folder/sglang/bin/python" -m sglang.benchmark.serving --help > /dev/null
echo "peer ready in $folder"

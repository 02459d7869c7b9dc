#!/bin/sh
# On the GPU machine, from the project root: unpack the bundle (.gpu/, see README.md) to /tmp/dynspec-gpu and name
# the command that runs dynspec there. Usage: . tests/gpu/prepare.sh
set -eu
bundle=.gpu
home=/tmp/dynspec-gpu
if [ ! -f "$home/.done" ]; then
    mkdir -p "$home/site"
    tar -C "$home/site" -xJf "$bundle/site.tar.xz"
    for wheel in "$bundle"/extra/*.whl; do python3 -m zipfile -e "$wheel" "$home/site"; done
    cp -r "$bundle/models" "$home/models"
    chmod -R u+w "$home"
    touch "$home/.done"
fi
export PYTHONPATH="$PWD:$home/site" PYTHONUNBUFFERED=1
dynspec() { python3 -c 'from orchestrator.cli import main; main()' "$@"; }

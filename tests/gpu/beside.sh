#!/bin/bash
# A second "node" on a machine with two GPUs: a command with a network of its own (ports, and the lock of dynspec, which
# is one run a node), and a /tmp/dynspec-gpu, /tmp/dynspec-work and registry of its own, so that it can have another bundle.
#     NODE=two BUNDLE=.gpu12 tests/gpu/beside.sh dynspec run experiments/gpu/h200-0512-correct.yaml --set 'node.gpus=[1]'
# As root, from the project root. Models come from the first node's bundle where this one has none.
set -eu
node=/tmp/beside/${NODE:-one}
if [ ! -f "${BUNDLE:-.gpu}/site.tar.xz" ] && [ ! -f "$node/dynspec-gpu/.done" ]; then
    echo "beside: ${BUNDLE:-.gpu} was not brought: skipped" && exit 4
fi
for folder in dynspec-gpu dynspec-work; do mkdir -p "/tmp/$folder" "$node/$folder"; done
if [ ! -d "${BUNDLE:-.gpu}/models/target" ] && [ ! -d "$node/dynspec-gpu/models" ]; then
    cp -r /tmp/dynspec-gpu/models "$node/dynspec-gpu/"
fi
export NODE_FOLDER=$node DYNSPEC_HOME=$node/home FLASHINFER_WORKSPACE_BASE=$node
exec unshare --net --mount bash -c '
    set -eu
    for folder in dynspec-gpu dynspec-work; do mount --bind "$NODE_FOLDER/$folder" "/tmp/$folder"; done
    python3 -c "
import fcntl, socket, struct
up = struct.pack(\"16sh22x\", b\"lo\", 0x1 | 0x40)  # IFF_UP, IFF_RUNNING
fcntl.ioctl(socket.socket(), 0x8914, up)  # SIOCSIFFLAGS
"
    . tests/gpu/prepare.sh
    exec "$@"
' beside "$@"

#!/bin/bash
# A second "node" on a machine with two GPUs: a command with a network of its own (ports, and the lock of dynspec, which
# is one run a node) and a /tmp/dynspec-gpu and /tmp/dynspec-work of its own, so that it can have another bundle.
#     BUNDLE=.gpu12 tests/gpu/beside.sh dynspec run experiments/gpu/h200-0512-correct.yaml --set 'node.gpus=[1]'
# As root, from the project root. Models come from the first node's bundle where this one has none.
set -eu
if [ ! -f "${BUNDLE:-.gpu}/site.tar.xz" ] && [ ! -f /tmp/beside/dynspec-gpu/.done ]; then
    echo "beside: ${BUNDLE:-.gpu} was not brought: skipped" && exit 0
fi
for folder in dynspec-gpu dynspec-work; do mkdir -p "/tmp/$folder" "/tmp/beside/$folder"; done
if [ ! -d "${BUNDLE:-.gpu}/models" ] && [ ! -d /tmp/beside/dynspec-gpu/models ]; then
    cp -r /tmp/dynspec-gpu/models /tmp/beside/dynspec-gpu/
fi
exec unshare --net --mount bash -c '
    set -eu
    for folder in dynspec-gpu dynspec-work; do mount --bind "/tmp/beside/$folder" "/tmp/$folder"; done
    python3 -c "
import fcntl, socket, struct
up = struct.pack(\"16sh22x\", b\"lo\", 0x1 | 0x40)  # IFF_UP, IFF_RUNNING
fcntl.ioctl(socket.socket(), 0x8914, up)  # SIOCSIFFLAGS
"
    . tests/gpu/prepare.sh
    exec "$@"
' beside "$@"

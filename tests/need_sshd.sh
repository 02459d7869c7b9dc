#!/bin/sh
# Installs openssh-server where it is missing and can be installed. Without it the sshd tests are skipped, loudly.
set -eu
if command -v sshd >/dev/null 2>&1 || [ -x /usr/sbin/sshd ]; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing openssh-server (needed by the tests over a real sshd)"
    apt-get update -qq
    # The package would start a daemon of its own; the tests start theirs on a loopback port.
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends openssh-server openssh-client >/dev/null
else
    echo "no sshd and no way to install one (needs root and apt-get): tests over a real sshd will be skipped"
fi

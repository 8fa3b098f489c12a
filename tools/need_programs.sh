#!/bin/bash
# What the tests drive besides Python: a browser for the chat page, sandboxes and their network, and an ssh server for
# workspaces. Installs from Debian what is missing, when that can be done without asking.
set -euo pipefail
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

missing=()
need() { # PACKAGE PROGRAM...: one of the programs must be there
    local package=$1 program
    shift
    for program in "$@"; do
        command -v "$program" >/dev/null && return
    done
    missing+=("$package")
}
need chromium chromium chromium-browser google-chrome
need bubblewrap bwrap
need passt pasta
need nftables nft
need iproute2 ip
need util-linux nsenter
need util-linux setpriv
need bsdutils script
need git git
need openssh-client ssh
need openssh-server sshd
[ ${#missing[@]} -gt 0 ] || exit 0

# Where services are managed, installing a server would start it: that is for the owner of the machine to do.
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && [ ! -d /run/systemd/system ]; then
    echo "Installing ${missing[*]} for the tests."
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}" >/dev/null
else
    echo "Some tests cannot run without what is missing here: sudo apt install ${missing[*]}" >&2
fi

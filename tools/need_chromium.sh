#!/bin/bash
# The tests of the chat page drive Debian's Chromium. Install it when that can be done without asking.
set -euo pipefail

for candidate in chromium chromium-browser google-chrome; do
    command -v "$candidate" >/dev/null && exit 0
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing chromium for the tests of the chat page."
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null
else
    echo "Chromium is not installed, so the tests of the chat page cannot run: sudo apt install chromium" >&2
fi

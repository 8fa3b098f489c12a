#!/bin/bash
# Make the virtual environment $1 with the first Python >= 3.11 found, or say in one sentence what is missing.
set -euo pipefail

python=""
for candidate in "${PYTHON:-python3}" python3.14 python3.13 python3.12 python3.11; do
    if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "Tidegate needs Python 3.11 or newer and found none: install it (Debian, Ubuntu: apt install python3 python3-venv) and try again." >&2
    exit 1
fi

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    package=$("$python" -c 'import sys; print(f"python{sys.version_info[0]}.{sys.version_info[1]}-venv")')
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "Installing $package, which Python needs to make a virtual environment."
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package" >/dev/null
    else
        echo "Python's venv module is missing: install it (Debian, Ubuntu: sudo apt install $package) and try again." >&2
        exit 1
    fi
fi

echo "Making $1 with $("$python" --version)."
"$python" -m venv "$1"

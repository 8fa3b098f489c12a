#!/bin/bash
# Runs the sandbox tests, or those in the arguments, as an ordinary user when started by root:
# `test_as_user.sh PYTHON [ARGUMENT...]`. They run in a copy of the tree, in a mount namespace in which that user has a
# name and can reach the copy and Python even below folders that only root may enter. Nothing on the machine is changed.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath --no-symlinks "$1")
shift
[ $# -gt 0 ] || set -- -m sandbox tests
if [ "$(id -u)" != 0 ]; then
    echo "You are not root: make test has already run these tests as an ordinary user."
    exit 0
fi

user=60700 # unassigned, and outside the range that a gateway started by root chooses from
own=$(mktemp -d)
trap 'rm -rf "$own"' EXIT
chmod 755 "$own"
mkdir "$own/tree" "$own/home" "$own/tmp"
tar --exclude=./.git --exclude=./.venv --exclude=./.clients --exclude=__pycache__ --exclude=./.hypothesis \
    --exclude=./.mypy_cache --exclude=./.ruff_cache -cf - . | tar -xf - -C "$own/tree"
chown -R "$user:$user" "$own"
chmod 700 "$own/home" "$own/tmp"
{ cat /etc/passwd && echo "tester:x:$user:$user::$own/home:/bin/bash"; } >"$own/passwd"
{ cat /etc/group && echo "tester:x:$user:"; } >"$own/group"
base=$("$python" -c 'import sys; print(sys.base_prefix)')
venv=$("$python" -c 'import sys; print(sys.prefix)')

# shellcheck disable=SC2016  # for the inner shell
unshare --mount --propagation private bash -euc '
    own=$1 python=$2 user=$3 base=$4 venv=$5
    shift 5
    mount --bind "$own/passwd" /etc/passwd
    mount --bind "$own/group" /etc/group
    cd "$own/tree"
    exec env -i PATH="$PATH" HOME="$own/home" TMPDIR="$own/tmp" LANG=C.UTF-8 USER=tester LOGNAME=tester \
        PYTHONPATH=src PYTHONDONTWRITEBYTECODE=1 \
        "$python" -I -S -B src/tidegate/workspaces/kernel/drop_privileges.py "$user" "$user" "$own" "$base" "$venv" -- \
        "$python" tools/run_tests.py "$@"
' bash "$own" "$python" "$user" "$base" "$venv" "$@"

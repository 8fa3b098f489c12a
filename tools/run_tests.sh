#!/bin/bash
# Every test, two files at a time. What failed is run once more, file by file and alone: on a busy machine a test that
# waits for another process may lose a race that is not what it tests. What then passes is named, so that it is mended;
# what fails again has failed.
set -uo pipefail
python=$1
shift
said=$(mktemp)
trap 'rm -f "$said"' EXIT

"$python" -m pytest -q -n 2 --dist loadfile "$@" | tee "$said" && exit 0
files=$(grep -E '^(FAILED|ERROR) tests/' "$said" | sed -E 's/^[A-Z]+ (tests\/[^: ]+).*/\1/' | sort -u)
[ -n "$files" ] || exit 1
echo "Once more, alone: $files"
# shellcheck disable=SC2086  # one word for each file
"$python" -m pytest -q $files || exit 1
echo "These passed alone, and should do so beside others: $files"

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# quickstart.sh ROOT: launch/quickstart tells its story on a short training, and refuses settings that make no sense.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

fail() {
    echo "$*" >&2
    cat "$dir/out" >&2
    exit 1
}

for steps in 0 39 many -5 1.5; do
    QUICKSTART_STEPS=$steps QUICKSTART_DIR=$dir/story sh "$1/launch/quickstart" >"$dir/out" 2>&1 &&
        fail "QUICKSTART_STEPS=$steps was taken"
    grep -q QUICKSTART_STEPS "$dir/out" || fail "QUICKSTART_STEPS=$steps was refused without saying so"
done
QUICKSTART_DIR=/proc/story sh "$1/launch/quickstart" >"$dir/out" 2>&1 && fail "a folder in /proc was taken"
grep -q QUICKSTART_DIR "$dir/out" || fail "the folder was refused without saying so"

QUICKSTART_STEPS=40 QUICKSTART_DIR=$dir/story sh "$1/launch/quickstart" >"$dir/out" 2>&1 || fail "the script failed"
for text in "killed rank 1 (process" "starting again (restart 1 of 1)" "all weights bit for bit" "steps lost" \
    "a trigram table's" "exposed communication" "h5dump -d /weights/positions"; do
    grep -qF "$text" "$dir/out" || fail "nothing is said of: $text"
done
# The line that it shows reads numbers, from any folder.
reader=$(sed -n 's/^read a tensor *//p' "$dir/out")
(cd / && $reader | grep -q '(0,0): -*[0-9]') || fail "the line '$reader' does not read the tensor"

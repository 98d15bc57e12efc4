#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# example.sh CHECKPOINT MPIRUN...: 04_checkpoint on 2 ranks, then on 3, ends as on 1 rank without a stop; a signal
# saves and stops.
set -eu
program=$1
shift
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

"$@" -np 2 "$program" "$dir/a" 12
"$@" -np 3 "$program" "$dir/a" 20 | tee "$dir/stopped"
"$@" -np 1 "$program" "$dir/b" 20 | tee "$dir/straight"
grep -q "resumed after step 10, which 2 ranks saved" "$dir/stopped"
test "$(tail -n 1 "$dir/stopped")" = "$(cat "$dir/straight")"

"$program" "$dir/c" 1000000000 &
job=$!
while ! ls "$dir"/c/step-* >/dev/null 2>&1; do
    kill -0 "$job"
    sleep 0.05
done
kill -USR1 "$job"
status=0
wait "$job" || status=$?
test "$status" = 143
saved=$(find "$dir/c" -name 'step-*' | sort | tail -n 1 | sed 's/.*step-0*//')
"$program" "$dir/c" "$saved" | tee "$dir/again"
grep -q "resumed after step $saved, which 1 ranks saved" "$dir/again"

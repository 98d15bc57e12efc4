#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# example.sh CHECKPOINT MPIRUN...: 04_checkpoint on 2 ranks, then on 3, ends as on 1 rank without a stop.
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

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# patched.sh CALL ID LEAST PROGRAM...: takes the first, second ... sixth CALL of rank 1 out of a program that is right, one
# at a time, until LEAST of them have ended in the finding ID; fewer among the six are a failure. Not every wait is the
# only one, but the simulator must not be blind. With `numbers` for ID every CALL of every rank is taken out, which breaks no
# rule: then it is the program's own numbers that must be wrong.
call=$1 id=$2 least=$3
shift 3
report=$(mktemp) || exit 1
trap 'rm -f "$report"' EXIT
if [ "$id" = numbers ]; then
    SIMGPU_SKIP="$call:*" timeout 60 "$@" >"$report" 2>&1 && exit 1
    grep -m1 '"rank .*\(is .*, not \|want\)' "$report"
    exit
fi
found=0
for n in 1 2 3 4 5 6; do
    : >"$report"
    # What only a rank that waits for ever shows is reported after two seconds.
    SIMGPU_REPORT=$report SIMGPU_SKIP="$call:$n@1" SIMGPU_PATIENCE=2000 timeout 60 "$@" >/dev/null 2>&1
    if grep -q "\]: $id: " "$report"; then
        found=$((found + 1))
        [ "$found" -lt "$least" ] || break # no need to see the others
    fi
done
echo "$call taken out of $1: $found of the first $n found as $id"
[ "$found" -ge "$least" ]

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ends_with.sh STATUS TEXT command...: the command must end by itself within 60 s with that exit status, and its output
# must contain the text.
want=$1 text=$2
shift 2
output=$(timeout 60 "$@" 2>&1)
status=$?
if [ "$status" -ne "$want" ]; then
    printf '%s\nexit status %s, expected %s\n' "$output" "$status" "$want"
    exit 1
fi
case $output in
*"$text"*) ;;
*)
    printf '%s\nwithout "%s"\n' "$output" "$text"
    exit 1
    ;;
esac

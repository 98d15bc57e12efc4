#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# two_nodes.sh [--rates "RATE..."] [--ranks "PER_NODE..."] [--bytes "N..."] [--rounds N] [--build FOLDER]
#
# all_reduce between two nodes made of this machine (tests/support/two-nodes), joined by a link of each RATE (1gbit, and as
# fast as the machine goes: "none"), beside the best pipelined exchange of the same bytes and MPI_Allreduce in the same run
# (two_nodes.c). The goals: at least 0.9 of the exchange; at 1 Gbit/s at least 1.5 times as fast as MPI_Allreduce.
# The machine should be idle: the nodes share its cores. Status 77: two nodes cannot be made here.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
build=$here/build
rates="1gbit none"
ranks="1 2"
bytes="16777216 67108864"
rounds=5
while [ $# -gt 0 ]; do
    [ $# -gt 1 ] || { sed -n '3p' "$0" >&2; exit 2; }
    case $1 in
    --rates) rates=$2 ;;
    --ranks) ranks=$2 ;;
    --bytes) bytes=$2 ;;
    --rounds) rounds=$2 ;;
    --build) build=$(cd "$2" && pwd) ;;
    *) sed -n '3p' "$0" >&2 && exit 2 ;;
    esac
    shift 2
done
export TUTTI_BACKEND=host
for rate in $rates; do
    for per in $ranks; do
        for n in $bytes; do
            echo "== link $rate, 2 x $per"
            limit="--rate $rate"
            [ "$rate" != none ] || limit=
            # shellcheck disable=SC2086 # two words or none
            sh "$here/tests/support/two-nodes" $limit "$per" "$build/bin/bench_nodes" "$n" "$rounds"
        done
    done
done

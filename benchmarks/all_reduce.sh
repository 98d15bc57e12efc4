#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# sh benchmarks/all_reduce.sh [BUILD] [SECONDS]: all_reduce of fp32 in place on 2 ranks bound to 2 cores, from 8 B to 128 MiB, in
# registered and in plain memory, against Open MPI as it is and as it can be set (shared-memory collectives, no CMA, UCX),
# and against the hand-written limit. Every ratio is the median of interleaved rounds of one run (tutti bench);
# "best MPI" is the setting against which tutti does worst. Run it on an idle machine: about 2 minutes.
set -eu
build=${1:-build}
seconds=${2:-0.3}
tutti=$build/bin/tutti
root=
[ "$(id -u)" != 0 ] || root=--allow-run-as-root

# The value of a row's own key: key NAME "JSON", the first of that name. The peers' come behind it, and are read behind their names.
key() {
    printf '%s\n' "$2" | grep -o "\"$1\":[-0-9.e]*" | sed -n '1s/.*://p'
}
peer() {
    printf '%s\n' "$3" | sed -n "s/.*\"$1\":{[^}]*\"$2\":\\([-0-9.e]*\\).*/\\1/p"
}

# One row: bytes, memory, more options of mpirun.
row() {
    bytes=$1 memory=$2
    shift 2
    # shellcheck disable=SC2086 # $root is an option or nothing
    TUTTI_BACKEND=host mpirun $root --bind-to core -np 2 "$@" "$tutti" bench all_reduce -b "$bytes" -e "$bytes" --place in \
        --memory "$memory" --peer mpi,limit --rounds 5 --time "$seconds" --json 2>/dev/null
}

printf '%9s %-10s %10s %9s %9s %-10s %12s\n' bytes memory us x.MPI x.best of time/limit
for bytes in 8 1K 64K 1M 16M 128M; do
    for memory in registered plain; do
        line=$(row $bytes $memory) || { echo "$bytes $memory: failed" >&2; exit 1; }
        us=$(key us "$line")
        plain=$(peer mpi ratio "$line")
        limit=$(peer limit ratio "$line")
        best=$plain which=default
        for name in sm nocma ucx; do
            case $name in
            sm) options="--mca coll_sm_priority 100" ;;
            nocma) options="--mca btl_vader_single_copy_mechanism none" ;;
            ucx) options="--mca pml ucx" ;;
            esac
            # shellcheck disable=SC2086 # options are words
            other=$(row $bytes $memory $options) || continue # a setting that this MPI has not
            ratio=$(peer mpi ratio "$other")
            if [ -n "$ratio" ] && [ "$(echo "$ratio $best" | awk '{print ($1 < $2)}')" = 1 ]; then
                best=$ratio which=$name
            fi
        done
        over=$(echo "$limit" | awk '{printf "%.2f", 1 / $1}')
        printf '%9s %-10s %10.2f %8.1fx %8.1fx %-10s %12s\n' "$bytes" "$memory" "$us" "$plain" "$best" "$which" "$over"
    done
done

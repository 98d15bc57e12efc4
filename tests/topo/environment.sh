#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# environment.sh TUTTI PROGRAM MPIRUN...: which NCCL_* variables a job on simulated GPUs has at NCCL's first call, on a
# machine with one port slower than the others.
set -eu
tutti=$1
program=$2
shift 2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$tutti" topo --machine "${SIMGPU_MACHINE:?}" --export-nccl "$dir/all.xml"
sed '/<net /{s/speed="400000"/speed="100000"/;:rest;n;b rest}' "$dir/all.xml" > "$dir/slow.xml"
slow=$(sed -n 's/.*<net name="\([^"]*\)".*speed="100000".*/\1/p' "$dir/slow.xml")
test -n "$slow"

# job NAME [VARIABLE=VALUE]...: its record in NAME.sim, what it said in NAME.log
job() {
    name=$1
    shift
    env TUTTI_TOPO="$dir/slow.xml" SIMGPU_LOG="$dir/$name.sim" TUTTI_LOG=info "$@" sh -c '"$@"' job $run > "$dir/$name.log" 2>&1 || {
        cat "$dir/$name.log"
        exit 1
    }
    grep 'environment NCCL_IB_HCA' "$dir/$name.sim" > "$dir/$name.hca" || true
}
run="$* $program"

job planned
test "$(wc -l < "$dir/planned.hca")" -eq 2
if grep -q -e "[=,]$slow\$" -e "[=,]$slow," "$dir/planned.hca"; then
    echo "the slow port is in use"
    exit 1
fi
grep -q 'NCCL_IB_HCA==mlx' "$dir/planned.hca"
test "$(grep -c 'topo: NCCL_IB_HCA=' "$dir/planned.log")" -eq 1

job kept NCCL_IB_HCA="$slow"
test "$(grep -c "NCCL_IB_HCA=$slow\$" "$dir/kept.hca")" -eq 2
test "$(grep -c 'is set and stays' "$dir/kept.log")" -eq 1

job off TUTTI_NCCL_ENV=0
test ! -s "$dir/off.hca"

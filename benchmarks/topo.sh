#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What reading a machine and planning for it costs: seconds and memory of `tutti topo`, process start included.
# usage: benchmarks/topo.sh [build-folder]   (GNU time is needed for the memory)
set -eu
tutti=${1:-build}/bin/tutti
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
measure() {
    what=$1
    shift
    /usr/bin/env time -f '%e %M' -o "$scratch/t" "$@" >"$scratch/out"
    read -r seconds kib <"$scratch/t"
    printf '%-44s %6s s  %6d KiB\n' "$what" "$seconds" "$kib"
}
measure "nothing (tutti version)" "$tutti" version
"$tutti" topo --machine hgx-h100 --export-nccl "$scratch/one.xml"
measure "8 GPUs from NCCL XML, all but a plan's costs" "$tutti" topo --file "$scratch/one.xml" --export-nccl "$scratch/again.xml"
for hosts in 1 16 64 256 1024 4096; do
    measure "$hosts hosts x 8 GPUs, dp=$hosts,tp=8" "$tutti" topo --machine hgx-h100 --hosts $hosts --plan dp=$hosts,tp=8 --json
done

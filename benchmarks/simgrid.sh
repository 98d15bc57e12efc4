#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# simgrid.sh [--op all_reduce|broadcast|all_gather] [--bytes N] [--chunk BYTES] [--build FOLDER] [--mpi yes|no]
#     [--cfg OPTION]... [RANKS...]
#
# How does a collective (an all_reduce) scale beyond the machines at hand? Runs libtutti, linked statically and unmodified, under
# SimGrid's smpirun on a simulated fat tree: one rank a host, 8 hosts a leaf, links of 25 GB/s and 1 us, as much bandwidth above the
# leaves as below. Prints for 64 and 256 ranks (or RANKS, a multiple of 8) the simulated time, its bound
#
#     2 (p - 1) / p * bytes / bandwidth + 2 log2(p) * latency of the longest path
#
# (a broadcast: bytes / bandwidth + log2(p) * latency, an all_gather: (p - 1) / p of that; bytes are those of the result),
# MPI's by the algorithms that Open MPI would choose, and tutti's simulation's wall time and memory (shared pages once).
#
# What SimGrid asks for: ranks are coroutines of one thread, so every wait must call MPI and nothing may sleep or spin
# without it (TUTTI_SPIN_US; MPI_THREAD_SINGLE, so tutti starts no thread that calls MPI); a test of a request within the
# measured call waits, so no time passes between a message's arrival and its sight; global variables are made
# private by loading the program once a rank, which works for what is linked statically only; buffers are folded, those
# for messages too, so that sums are wrong and messages right; factors of 1 instead of those of Gigabit Ethernet.
# Computation costs nothing. CHUNK is TUTTI_NODE_CHUNK: its default leaves few enough messages to simulate.
# Status 77: SimGrid is not here.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
op=all_reduce
bytes=25000000
chunk=4M
build=$here/build/simgrid
mpi=yes
more=
while :; do
    case ${1:-} in
    --op) op=$2 && shift 2 ;;
    --bytes) bytes=$2 && shift 2 ;;
    --chunk) chunk=$2 && shift 2 ;;
    --build) build=$2 && shift 2 ;;
    --mpi) mpi=$2 && shift 2 ;;
    --cfg) more="$more --cfg=$2" && shift 2 ;;
    *) break ;;
    esac
done
[ $# -gt 0 ] || set -- 64 256
for program in smpicc smpirun cmake; do
    command -v $program >/dev/null || { echo "skipped: needs $program (libsimgrid-dev)"; exit 77; }
done

export SMPI_PRETEND_CC=1
[ -f "$build/CMakeCache.txt" ] || cmake -S "$here" -B "$build" -DCMAKE_C_COMPILER=smpicc -DTUTTI_CUDA=OFF -DTUTTI_TESTS=OFF \
    -DTUTTI_PROGRAMS=OFF -DTUTTI_EXAMPLES=OFF >/dev/null
unset SMPI_PRETEND_CC # compiled for the simulation, save for cmake's own trials
cmake --build "$build" --target tutti_static -j2 >/dev/null
libs=$(sed -n 's/^Libs.private: //p' "$build/tutti.pc")
# shellcheck disable=SC2086 # several words
smpicc -O2 -std=gnu11 -I"$here/runtime/include" -I"$here/collectives/include" "$here/benchmarks/simgrid.c" \
    "$build/lib/libtutti.a" $libs -Wl,--wrap=MPI_Test,--wrap=tt_grow,--wrap=free -o "$build/simgrid"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

platform() { # RANKS
    cat <<END
<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="tree" prefix="n" suffix="" radical="0-$(($1 - 1))" speed="100Gf" bw="25GBps" lat="1us"
    topology="FAT_TREE" topo_parameters="2;8,$(($1 / 8));1,8;1,1" loopback_bw="100GBps" loopback_lat="0"/>
</platform>
END
}

# One simulation: prints microseconds, seconds and MiB.
simulate() { # RANKS WHO
    platform "$1" >"$work/platform.xml"
    i=0
    while [ $i -lt "$1" ]; do
        echo "n$i"
        i=$((i + 1))
    done >"$work/hosts"
    # shellcheck disable=SC2086 # several words
    GLIBC_TUNABLES=glibc.rtld.optional_static_tls=$(($1 * 8192)) TUTTI_NODE_CHUNK=$chunk TUTTI_SPIN_US=1000000 \
        TUTTI_TIMEOUT=0 TUTTI_LOG=error TMPDIR=$work /usr/bin/time -f "wall %e" -o "$work/time" \
        smpirun -np "$1" -platform "$work/platform.xml" -hostfile "$work/hosts" \
        --cfg=smpi/simulate-computation:no --cfg=smpi/bw-factor:0:1 --cfg=smpi/lat-factor:0:1 \
        --cfg=network/bandwidth-factor:1 --cfg=network/latency-factor:1 --cfg=network/weight-S:0 \
        --cfg=smpi/test:1e-6 --cfg=smpi/iprobe:1e-6 --cfg=smpi/grow-injected-times:no \
        --cfg=smpi/coll-selector:ompi --cfg=smpi/shared-malloc-blocksize:33554432 --cfg=contexts/stack-size:8192 \
        --log=root.thres:error $more \
        "$build/simgrid" "$bytes" "$2" "$op" >"$work/out" 2>"$work/err" || { cat "$work/out" "$work/err" >&2; return 1; }
    us=$(sed -n "s/^$2 .* us //p" "$work/out")
    mib=$(sed -n "s/^$2 .* MiB \([0-9]*\) .*/\1/p" "$work/out")
    awk -v us="$us" -v mib="$mib" '/^wall/ { printf "%.1f %.1f %d", us, $2, mib }' "$work/time"
}

printf '%6s %10s %10s %7s %10s %8s %8s\n' ranks bound_us tutti_us x.bound openmpi_us wall_s MiB
for ranks in "$@"; do
    result=$(simulate "$ranks" tutti)
    other=-
    [ "$mpi" = no ] || other=$(simulate "$ranks" mpi | cut -d' ' -f1)
    echo "$ranks $bytes $result $other" | awk -v op="$op" '{
        all = $2 / 25e9 * 1e6
        some = ($1 - 1) / $1 * all
        latency = log($1) / log(2) * 4
        bound = op == "broadcast" ? all + latency : op == "all_gather" ? some + latency : 2 * (some + latency)
        printf "%6d %10.1f %10.1f %7.2f %10s %8.1f %8d\n", $1, bound, $3, $3 / bound, $6, $4, $5 }'
done

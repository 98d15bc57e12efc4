#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# sh benchmarks/ckpt.sh [BUILD] [DIR] [MIB] [ROUNDS] ["1x1 2x100"]: checkpoints against parallel HDF5 (h5pcc, mpirun) and h5py, the same
# tensors, each durable: data, file and folder synced. tutti checks every byte's checksum when it loads, the peers have none.
# Each round runs all of them in turn; a ratio is the median over the rounds of peer's seconds / tutti's, so above 1 tutti
# is faster. A peer that is not installed has no row. DIR (default .) decides which disk is measured; shapes are ranks x tensors.
set -eu
build=${1:-build}
scratch=$(mktemp -d "${2:-.}/tutti-bench-ckpt.XXXXXX")
mib=${3:-256}
rounds=${4:-9}
shapes=${5:-1x1 1x1000 2x100}
here=$(dirname "$0")
trap 'rm -rf "$scratch"' EXIT
root=
[ "$(id -u)" != 0 ] || root=--allow-run-as-root

hdf5=
source=$(cd "$here" && pwd)/ckpt_hdf5.c
if command -v h5pcc >/dev/null && (cd "$scratch" && h5pcc -O2 -o ckpt_hdf5 "$source") 2>"$scratch/log"; then # leaves a .o
    hdf5=$scratch/ckpt_hdf5
else
    echo "no parallel HDF5: no h5pcc, or it failed" >&2
fi
python=
for candidate in python3 /usr/bin/python3; do
    [ -n "$python" ] || ! "$candidate" -c 'import h5py' 2>/dev/null || python=$candidate
done
[ -n "$python" ] || echo "no h5py" >&2

tutti() { # ranks, tensors: seconds to save, to load from disk, from the page cache
    "$build/bin/bench_ckpt" "$scratch/run" --mib "$mib" --ranks "$1" --tensors "$2" --rounds 1 --save --load --json |
        sed -n 's/.*"tutti_s": \([0-9.]*\).*/\1/p' | tr '\n' ' '
}

# The peer $1 with $2 ranks and $3 tensors, else as `tutti`.
peer() {
    mkdir "$scratch/peer"
    # shellcheck disable=SC2086 # $root is an option or nothing
    case $1 in
    hdf5) mpirun $root --oversubscribe -np "$2" "$hdf5" "$scratch/peer" "$mib" "$3" ;;
    h5py) "$python" "$here/ckpt_h5py.py" "$scratch/peer" "$mib" "$3" ;;
    esac
    rm -rf "$scratch/peer"
}

# Medians of the rounds' seconds and ratios; lines: peer's three, then tutti's three.
table() {
    awk -v who="$1" -v ranks="$2" -v tensors="$3" '
        function median(v, n,   i, j, t) {
            for (i = 2; i <= n; i++)
                for (j = i; j > 1 && v[j - 1] > v[j]; j--) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
            return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2
        }
        NF == 6 { n++; for (k = 1; k <= 3; k++) { p[k, n] = $k; t[k, n] = $(k + 3); r[k, n] = $k / $(k + 3) } }
        END {
            split("save,load from disk,load from cache", what, ",")
            for (k = 1; k <= 3 && n > 0; k++) {
                for (i = 1; i <= n; i++) { a[i] = p[k, i]; b[i] = t[k, i]; c[i] = r[k, i] }
                printf "%-14s %5d %7d %-16s %9.3f %9.3f %7.2f\n", who, ranks, tensors, what[k], median(b, n), median(a, n), median(c, n)
            }
        }' "$4"
}

printf '%d MiB, %d rounds, in %s\n' "$mib" "$rounds" "${2:-.}"
printf '%-14s %5s %7s %-16s %9s %9s %7s\n' peer ranks tensors what 'tutti s' 'peer s' ratio
for shape in $shapes; do
    ranks=${shape%x*} tensors=${shape#*x}
    i=0
    while [ $i -lt "$rounds" ]; do
        i=$((i + 1))
        mine=$(tutti "$ranks" "$tensors")
        [ -z "$hdf5" ] || echo "$(peer hdf5 "$ranks" "$tensors") $mine" >>"$scratch/hdf5.$ranks.$tensors"
        [ -z "$python" ] || [ "$ranks" != 1 ] || echo "$(peer h5py 1 "$tensors") $mine" >>"$scratch/h5py.$ranks.$tensors"
    done
    [ -z "$hdf5" ] || table "parallel HDF5" "$ranks" "$tensors" "$scratch/hdf5.$ranks.$tensors"
    [ -z "$python" ] || [ "$ranks" != 1 ] || table h5py 1 "$tensors" "$scratch/h5py.$ranks.$tensors"
done

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# sh benchmarks/ckpt.sh [BUILD] [DIR] [MIB] [ROUNDS] ["1x1 2x100"]
#
# One table: checkpoints of tutti, of parallel HDF5 (h5pcc, mpirun), of torch's distributed checkpoint (PYTHON names the
# python3 that has torch) and of h5py; the same tensors, saved and loaded, each save durable: data, file and folder
# synced. tutti compares every byte's checksum when it loads, the peers have none. Each round runs all of them in turn;
# seconds are medians over the rounds, and x is the median of the rounds' peer's seconds / tutti's: above 1 tutti is
# faster. A peer that is not installed, and h5py where there are several ranks, has a dash. DIR (default .) decides which
# disk is measured; shapes are ranks x tensors.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${1:-build}" && pwd)
scratch=$(mktemp -d "$(cd "${2:-.}" && pwd)/tutti-bench-ckpt.XXXXXX")
mib=${3:-256}
rounds=${4:-9}
shapes=${5:-1x1 1x1000 2x100}
trap 'rm -rf "$scratch"' EXIT
export TUTTI_BACKEND=host # in host memory, as the peers
root=
[ "$(id -u)" != 0 ] || root=--allow-run-as-root

hdf5=
if command -v h5pcc >/dev/null && (cd "$scratch" && h5pcc -O2 -o ckpt_hdf5 "$here/ckpt_hdf5.c") 2>"$scratch/log"; then # leaves a .o
    hdf5=$scratch/ckpt_hdf5
else
    echo "no parallel HDF5: no h5pcc, or it failed" >&2
fi
with() { # MODULE: the first python3 that has it
    for candidate in "${PYTHON:-python3}" python3 /usr/bin/python3; do
        ! "$candidate" -c "import $1" 2>/dev/null || { echo "$candidate" && return; }
    done
    echo "no python3 with $1 (PYTHON names one)" >&2
}
h5py=$(with h5py)
torch=$(with torch.distributed)

ranks_of() { # RANKS COMMAND...
    ranks=$1
    shift
    # shellcheck disable=SC2086 # $root is an option or nothing
    mpirun $root --oversubscribe --bind-to none -np "$ranks" "$@"
}

# WHO RANKS TENSORS: a line of seconds, to save, to load from disk, from the page cache.
seconds() {
    mkdir "$scratch/peer"
    case $1 in
    tutti) ranks_of "$2" "$build/bin/tutti" bench ckpt "$scratch/run" --mib "$mib" --tensors "$3" --alone --json |
        sed -n 's/.*"ours_s":\([0-9.]*\).*/\1/p' | tr '\n' ' ' && echo ;;
    hdf5) ranks_of "$2" "$hdf5" "$scratch/peer" "$mib" "$3" ;;
    torch) ranks_of "$2" "$torch" "$here/ckpt_torch.py" "$scratch/peer" "$mib" "$3" ;;
    h5py) "$h5py" "$here/ckpt_h5py.py" "$scratch/peer" "$mib" "$3" ;;
    esac
    rm -rf "$scratch/peer"
}

has() { # WHO RANKS
    case $1 in
    hdf5) [ -n "$hdf5" ] ;;
    torch) [ -n "$torch" ] ;;
    h5py) [ -n "$h5py" ] && [ "$2" = 1 ] ;;
    esac
}

# Lines WHO SAVE DISK CACHE, those of a round behind its tutti.
rows() { # SHAPE
    awk -v shape="$1" '
        function median(v, n,   i, j, t) {
            for (i = 2; i <= n; i++)
                for (j = i; j > 1 && v[j - 1] > v[j]; j--) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
            return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2
        }
        function of(who, k, ratio,   i, v) {
            for (i = 1; i <= n[who]; i++) v[i] = ratio ? s[who, i, k] / s["tutti", i, k] : s[who, i, k]
            return median(v, n[who])
        }
        NF == 4 { n[$1]++; for (k = 1; k <= 3; k++) s[$1, n[$1], k] = $(k + 1) }
        END {
            split("save,load from disk,load from cache", what, ","); split("hdf5 torch h5py", peer, " ")
            for (k = 1; k <= 3; k++) {
                printf "%-8s %-16s %8.3f", shape, what[k], of("tutti", k, 0)
                for (p = 1; p <= 3; p++)
                    if (n[peer[p]] > 0) printf " %8.3f %6.2f", of(peer[p], k, 0), of(peer[p], k, 1)
                    else printf " %8s %6s", "-", "-"
                print ""
            }
        }' "$2"
}

printf '%d MiB, %d rounds, in %s\n' "$mib" "$rounds" "${2:-.}"
printf '%-8s %-16s %8s %8s %6s %8s %6s %8s %6s\n' shape what 'tutti s' 'hdf5 s' x 'torch s' x 'h5py s' x
for shape in $shapes; do
    i=0
    while [ $i -lt "$rounds" ]; do
        i=$((i + 1))
        for who in tutti hdf5 torch h5py; do
            if [ $who = tutti ] || has $who "${shape%x*}"; then
                line=$(seconds $who "${shape%x*}" "${shape#*x}")
                echo "$who $line" >>"$scratch/$shape"
            fi
        done
    done
    rows "$shape" "$scratch/$shape"
done

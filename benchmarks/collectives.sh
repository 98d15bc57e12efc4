#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# sh benchmarks/collectives.sh [--cold] [--seconds S] [BUILD [OP...]]: every collective of fp32, out of place, on 2 ranks bound
# to 2 cores, from 8 B to 128 MiB, in registered and in plain memory, against Open MPI as it is and as it can be set
# (shared-memory collectives, no CMA, UCX), and against the hand-written limit. Ratios are peer's time / ours, medians of the
# interleaved rounds of one run (tutti bench); "best" is the setting against which tutti does worst. Rows below the goals
# (0.85 of the limit in registered memory, 0.95 of the best MPI) end in a "<". Run it on an idle machine: 30 s an OP.
set -eu
seconds=0.1 cold=
while [ $# -gt 0 ]; do
    case $1 in
    --cold) cold=--cold ;;
    --seconds) seconds=${2:?--seconds S} && shift ;;
    -*) echo "collectives.sh: $1 is not an option" >&2 && exit 2 ;;
    *) break ;;
    esac
    shift
done
build=${1:-build}
[ $# = 0 ] || shift
[ $# -gt 0 ] || set -- all_reduce reduce_scatter reduce all_gather broadcast gather scatter all_to_all
root=
[ "$(id -u)" != 0 ] || root=--allow-run-as-root
rows=$(mktemp)
trap 'rm -f "$rows"' EXIT

# measure OP PEERS OPTIONS...: the rows of an OP, as JSON; the options are mpirun's.
measure() {
    op=$1 peers=$2
    shift 2
    for range in "8 16M" "1M 128M"; do
        # shellcheck disable=SC2086 # $root, $cold and $range are words or nothing
        TUTTI_BACKEND=host mpirun $root --bind-to core -np 2 "$@" "$build/bin/tutti" bench "$op" -b ${range% *} -e ${range#* } \
            -f 128 --place out --memory both --peer "$peers" --rounds 5 --time "$seconds" $cold --json 2>/dev/null
    done
}

# The merged table of the rows in $rows, each of which has its setting in front.
table() {
    awk '
    function value(object, key) { # of a number in an object of JSON, or ""
        if (!match(object, "\"" key "\":[-0-9.e+]+"))
            return ""
        return substr(object, RSTART + length(key) + 3, RLENGTH - length(key) - 3)
    }
    function peer(name) {
        return match($0, "\"" name "\":{[^}]*}") ? value(substr($0, RSTART, RLENGTH), "ratio") : ""
    }
    {
        row = sprintf("%9d %s", value($0, "bytes"), /"registered":true/ ? "registered" : "plain     ")
        ratio = peer("mpi")
        if ($1 == "default") {
            order[++n] = row
            us[row] = value($0, "us")
            limit[row] = peer("limit")
            default_ratio[row] = best[row] = ratio
            which[row] = "default"
        } else if (ratio != "" && (best[row] == "" || ratio + 0 < best[row] + 0)) {
            best[row] = ratio
            which[row] = $1
        }
    }
    END {
        for (i = 1; i <= n; i++) {
            row = order[i]
            low = best[row] < 0.95 || (row ~ /registered/ && limit[row] != "" && limit[row] < 0.85)
            printf "%-15s %s %10.2f %8.2f %8.2f %-8s %8.2f%s\n", op, row, us[row], default_ratio[row], best[row], which[row],
                limit[row], low ? " <" : ""
        }
    }' op="$1" "$rows"
}

printf '%-15s %9s %-10s %10s %8s %8s %-8s %8s\n' op bytes memory us x.MPI x.best "" limit
for op in "$@"; do
    measure "$op" mpi,limit | sed 's/^/default /' >"$rows"
    [ -s "$rows" ] || { echo "collectives.sh: tutti bench gave no rows of '$op'" >&2 && exit 1; }
    for setting in sm nocma ucx; do
        case $setting in
        sm) options="--mca coll_sm_priority 100" ;;
        nocma) options="--mca btl_vader_single_copy_mechanism none" ;;
        ucx) options="--mca pml ucx" ;;
        esac
        # shellcheck disable=SC2086 # options are words
        measure "$op" mpi $options | sed "s/^/$setting /" >>"$rows" || true # a setting that this MPI has not
    done
    table "$op"
done

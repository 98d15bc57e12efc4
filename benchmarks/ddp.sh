#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ddp.sh [--compute "C..."] [--rate RATE] [--layers N] [--bytes N] [--ms T] [--steps N] [--build FOLDER]
#
# The same made-up step by `tutti bench step` and by torch's DistributedDataParallel on gloo (ddp.py), one rank on each of
# two nodes made of this machine (tests/support/two-nodes), each with half of its processors, and joined by a link of
# 1 Gbit/s. A line of JSON each, and a line of a table; both programs measure alike:
#
#     last     an all-reduce of the last bucket's size by itself, between barriers
#     exposed  = step - compute
#     beyond   = step - compute - last: exposed although it could have been hidden
#     floors   step / max(compute + last, first gradient + all buckets), where known
#
# C is cpu (arithmetic on the rank's core, which communication disturbs) or device (the core is free meanwhile, as with a
# GPU); both. torch comes twice: with its own buckets, then with one for each layer as tutti has them, so that its last
# bucket is as small. T is to be at least 1.3 times what all buckets take. The machine should be idle.
# PYTHON names the python3 that has torch.
# Status 77: skipped, there is no torch or two nodes cannot be made here.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
build=$here/build
python=${PYTHON:-python3}
compute="cpu device"
rate=1gbit
layers=12
bytes=2097152
ms=300
steps=9
while [ $# -gt 0 ]; do
    [ $# -gt 1 ] || { sed -n '3p' "$0" >&2; exit 2; }
    case $1 in
    --compute) compute=$2 ;;
    --rate) rate=$2 ;;
    --layers) layers=$2 ;;
    --bytes) bytes=$2 ;;
    --ms) ms=$2 ;;
    --steps) steps=$2 ;;
    --build) build=$(cd "$2" && pwd) ;;
    *) sed -n '3p' "$0" >&2 && exit 2 ;;
    esac
    shift 2
done
"$python" -c 'import torch.distributed as d; exit(0 if d.is_available() else 1)' 2>/dev/null || {
    echo "skipped: $python has no torch with torch.distributed"
    exit 77
}
out=$(mktemp)
table=$(mktemp)
trap 'rm -f "$out" "$table"' EXIT
run() { # WHO COMMAND...
    who=$1
    shift
    status=0
    sh "$here/tests/support/two-nodes" --rate "$rate" --cores 1 "$@" >"$out" || status=$?
    grep '^{\|skipped' "$out" || cat "$out" >&2
    [ "$status" = 0 ] || exit "$status"
    "$python" -c 'import json, sys
t = json.loads([line for line in open(sys.argv[2]) if line.startswith("{")][-1])
floors = "%.3f" % t["over_floor"] if "over_floor" in t else "-"
print("%-7s %-16s %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f %7s" % (t["compute"], sys.argv[1], t["compute_ms"], t["comm_ms"],
    t["step_ms"], t["last_bucket_ms"], t["step_ms"] - t["compute_ms"], t["beyond_ms"], floors))' "$who" "$out" >>"$table"
}
torch() { # WHO CAP of its buckets
    # shellcheck disable=SC2016 # expanded on each node, whose network has its own name
    run "$1" sh -c 'link=$(ip -o -4 address | sed -n "s/^[0-9]*: \([^ ]*\) *inet 10\.77\.0\..*/\1/p") &&
        exec "$@" --address 10.77.0.1 --interface "$link"' sh "$python" "$here/benchmarks/ddp.py" \
        --compute "$c" --layers "$layers" --bytes "$bytes" --ms "$ms" --steps "$steps" --bucket "$2"
}
for c in $compute; do
    run tutti "$build/bin/tutti" bench step --json --compute "$c" --layers "$layers" --bytes "$bytes" --ms "$ms" \
        --steps "$steps"
    torch torch 26214400 # its default
    torch "torch, as tutti" "$bytes"
done
printf '%-7s %-16s %8s %8s %8s %8s %8s %8s %7s\n' compute ms: compute comm step last exposed beyond floors
cat "$table"

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ddp.sh [--rate RATE] [--layers N] [--bytes N] [--ms T] [--steps N] [--build FOLDER]
#
# The same made-up step by `tutti bench step` and by torch's DistributedDataParallel on gloo (ddp.py), one rank on each of
# two nodes made of this machine (tests/support/two-nodes) and joined by a link of 1 Gbit/s: a line of JSON each, and
#
#     beyond = step - compute - last bucket
#
# the time that either leaves exposed though it could have been hidden; torch's with its own buckets, then with one for
# each layer as tutti has them. T is to be at least 1.3 times what all buckets take. The machine should be idle. PYTHON
# names the python3 that has torch.
# Status 77: skipped, there is no torch or two nodes cannot be made here.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
build=$here/build
python=${PYTHON:-python3}
rate=1gbit
layers=12
bytes=2097152
ms=300
steps=9
while [ $# -gt 0 ]; do
    [ $# -gt 1 ] || { sed -n '3p' "$0" >&2; exit 2; }
    case $1 in
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
trap 'rm -f "$out"' EXIT
run() {
    status=0
    sh "$here/tests/support/two-nodes" --rate "$rate" 1 "$@" >"$out" || status=$?
    grep '^{\|skipped' "$out" || cat "$out" >&2
    [ "$status" = 0 ] || exit "$status"
}
beyond() { # WHO
    "$python" -c 'import json, sys
t = json.loads([line for line in open(sys.argv[2]) if line.startswith("{")][-1])
over = t["step_ms"] - t["compute_ms"] - t["last_bucket_ms"]
print("%-6s beyond %8.2f ms of a step of %8.2f ms" % (sys.argv[1], over, t["step_ms"]))' "$1" "$out"
}
run "$build/bin/tutti" bench step --json --layers "$layers" --bytes "$bytes" --ms "$ms" --steps "$steps"
beyond tutti
torch() { # CAP of its buckets
    # shellcheck disable=SC2016 # expanded on each node, whose network has its own name
    run sh -c 'link=$(ip -o -4 address | sed -n "s/^[0-9]*: \([^ ]*\) *inet 10\.77\.0\..*/\1/p") &&
        exec "$@" --address 10.77.0.1 --interface "$link"' sh "$python" "$here/benchmarks/ddp.py" \
        --layers "$layers" --bytes "$bytes" --ms "$ms" --steps "$steps" --bucket "$1"
    beyond torch
}
torch 26214400  # its default
torch "$bytes"  # buckets like ours

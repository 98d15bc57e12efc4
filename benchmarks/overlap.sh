#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# overlap.sh [--ranks PER_NODE] [--rate RATE] [--ms "T..."] [--build FOLDER] [ARGUMENT...]
#
# Is overlap real? Runs examples/03_overlap on two nodes made of this machine (tests/support/two-nodes), each with half of
# its processors and joined by a link of 1 Gbit/s, with layers that compute for less time, as long and longer than the averaging of their gradients takes
# (T ms each). It passes if the overlapped step takes at most 1.1 times its floor:
#
#     floor = max(compute + last bucket, first ready + all buckets)
#
# where the time of each bucket is that of its all-reduce when nothing else runs, measured in the same run; all figures
# are medians, each of the slowest rank. ARGUMENTs go to the example. The machine should be idle: computation that
# others disturb is not told from computation that communication disturbs.
# Status 0: passed; 3: it did not; 77: two nodes cannot be made here.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
build=$here/build
ranks=1
rate=1gbit
layer_ms="18 36 72"
while :; do
    case ${1:-} in
    --ranks) ranks=$2 && shift 2 ;;
    --rate) rate=$2 && shift 2 ;;
    --ms) layer_ms=$2 && shift 2 ;;
    --build) build=$(cd "$2" && pwd) && shift 2 ;;
    *) break ;;
    esac
done
echo "two nodes, $ranks ranks each, link $rate"
result=0
for ms in $layer_ms; do
    status=0
    sh "$here/tests/support/two-nodes" --rate "$rate" --cores "$ranks" "$build/bin/overlap" \
        --limit 1.1 --layers 8 --mib 4 --ms "$ms" --steps 9 "$@" || status=$?
    [ "$status" != 77 ] || exit 77
    [ "$status" = 0 ] || result=$status
done
exit "$result"

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# libfuzzer.sh READER SECONDS [SEEDS...]: coverage-guided fuzzing of one reader of machine descriptions (nccl, hwloc,
# matrix, words, p2p, tree, any) under AddressSanitizer and UndefinedBehaviorSanitizer, with clang. The program is built once,
# as fuzz.exe of the current directory; what crashes it is left there, and the corpus is kept in fuzz-READER.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
case ${1:?reader} in
any) number=0 ;;
nccl) number=1 ;;
hwloc) number=2 ;;
matrix) number=3 ;;
words) number=4 ;;
p2p) number=5 ;;
tree) number=6 ;;
*)
    echo "no reader $1" >&2
    exit 2
    ;;
esac
name=$1
seconds=${2:?seconds}
shift 2
mkdir -p "fuzz-$name"
for seed in "$@"; do
    cp "$seed" "fuzz-$name/"
done
if [ ! -x fuzz.exe ]; then
    # shellcheck disable=SC2046 # lists of words
    ${CLANG:-clang} -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined -D_GNU_SOURCE \
        -I"$root/runtime" -I"$root/runtime/include" -I"$root/tests/fuzz" -o fuzz.exe "$root/tests/fuzz/fuzz_topo.c" "$root/tests/fuzz/tree.c" \
        $(find "$root/runtime/topo" "$root/runtime/core" -name '*.c' | sort) \
        $(pkg-config --cflags --libs expat libxxhash jansson) -lm -lpthread -ldl
fi
TT_FUZZ_READER=$number exec ./fuzz.exe -max_total_time="$seconds" -max_len=65536 -timeout=20 -rss_limit_mb=1500 \
    -print_final_stats=1 -artifact_prefix="crash-$name-" "fuzz-$name"

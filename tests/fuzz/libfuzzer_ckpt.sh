#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# libfuzzer_ckpt.sh READER SECONDS: coverage-guided fuzzing of one reader of checkpoints and model files (manifest, folder,
# verify, nodes, safetensors, llmc) under AddressSanitizer and UndefinedBehaviorSanitizer, with clang. The library is built so
# once, in fuzz-build of the current directory; what crashes it is left there, and the corpus is kept in fuzz-READER.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
case ${1:?reader} in
manifest) number=0 ;;
folder) number=1 ;;
verify) number=2 ;;
nodes) number=3 ;;
safetensors) number=4 ;;
llmc) number=5 ;;
*)
    echo "no reader $1" >&2
    exit 2
    ;;
esac
seconds=${2:?seconds}
mkdir -p "fuzz-$1"
if [ ! -x fuzz-build/bin/fuzz_ckpt ]; then
    cmake -G Ninja -S "$root" -B fuzz-build -DCMAKE_C_COMPILER="${CLANG:-clang}" -DCMAKE_BUILD_TYPE=None -DCMAKE_C_FLAGS="-O1 -g" \
        -DTUTTI_SANITIZE=fuzzer-no-link,address,undefined -DTUTTI_CUDA=OFF -DTUTTI_PROGRAMS=OFF -DTUTTI_EXAMPLES=OFF >fuzz-build.log
    ninja -C fuzz-build fuzz_ckpt >>fuzz-build.log
fi
export TT_FUZZ_READER=$number
TT_FUZZ_SEEDS=fuzz-$1 fuzz-build/bin/fuzz_ckpt
exec fuzz-build/bin/fuzz_ckpt -max_total_time="$seconds" -max_len=65536 -len_control=0 -timeout=120 -rss_limit_mb=2500 \
    -handle_abrt=0 -handle_segv=0 -handle_bus=0 -handle_fpe=0 -handle_ill=0 -report_slow_units=60 -print_final_stats=1 -artifact_prefix="crash-$1-" "fuzz-$1"

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# sh tests/cuda/nccl_headers.sh FOLDER...: compiles the NCCL backend (syntax and warnings only) against the nccl.h in each
# folder. For versions other than the installed one; docs/porting.md says which have been tried.
set -eu
cd "$(dirname "$0")/../.."
[ $# -gt 0 ] || { echo "usage: sh tests/cuda/nccl_headers.sh FOLDER..." >&2; exit 2; }
cuda=${CUDA_HOME:-/usr/local/cuda}
status=0
for folder in "$@"; do
    version=$(sed -n 's/^#define NCCL_VERSION_CODE //p' "$folder/nccl.h")
    failed=
    for source in collectives/nccl/*.c; do
        cc -std=c11 -D_GNU_SOURCE -DTUTTI_HAVE_CUDA=1 -fsyntax-only -Wall -Wextra -Werror -I"$folder" -Iruntime -Icollectives \
            -Iruntime/include -Icollectives/include -isystem "$cuda/include" "$source" || failed="$failed $source"
    done
    if [ -n "$failed" ]; then
        echo "NCCL $version:$failed" >&2
        status=1
    else
        echo "NCCL $version: compiles"
    fi
done
exit $status

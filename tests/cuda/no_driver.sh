#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# no_driver.sh PROGRAM: a program of a build with CUDA, with NVIDIA's own libraries and no driver, says in one line that no
# GPU is usable and runs on the host. Skipped where there is a driver.
set -eu
[ ! -e /dev/nvidiactl ] || exit 77
unset LD_LIBRARY_PATH TUTTI_BACKEND TUTTI_TEST_SHARED # the last one is the tests' own
said=$(mktemp)
trap 'rm -f "$said"' EXIT
"$@" >/dev/null 2>"$said"
cat "$said"
[ "$(grep -c 'no GPU is usable (cudaGetDeviceCount.*using the host backend' "$said")" = 1 ] || {
    echo "it was to say so once"
    exit 1
}
[ "$(wc -l <"$said")" = 1 ] || {
    echo "it was to say nothing else"
    exit 1
}

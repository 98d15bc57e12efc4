#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# doctor.sh TUTTI: `tutti doctor --links` under $TT_MPIRUN says that two GPUs miss what the topology promises.
set -eu
# shellcheck disable=SC2086 # a list of words
out=$($TT_MPIRUN -np 2 "$1" doctor --links --seconds 0.3)
echo "$out"
echo "$out" | grep -q '^warn  links .*1 of 1 pairs of GPUs reach less than a quarter .* of 240.00 GB/s'

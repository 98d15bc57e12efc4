#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ends.sh threads|mpi PROGRAM CALL: a rank stays inside CALL for ever (SIMGPU_FAULT). The job must end by itself, with a status
# that is no success, saying which call it was. The other rank of an MPI job is told and leaves; mpirun then ends the stuck one,
# unless that has ended itself.
text="all_reduce 0 on comm world, world rank 1: $3 has not returned after"
case $1 in
threads) out=$(timeout 60 "$2" inside "$text" 2>&1) ;;
mpi) out=$(timeout 60 $TT_MPIRUN -np 2 "$2" inside "$text" 2>&1) ;;
esac
status=$?
echo "$out"
[ "$status" = 1 ] || { echo "ended with $status"; exit 1; }
case $1 in
threads) echo "$out" | grep -q "aborting the job: all_reduce 0 on comm world, world rank 1: $3 does not return" ;;
mpi) echo "$out" | grep -q "all_reduce 0 on comm world, world rank 1: $3 has not returned: aborting all the same" &&
    echo "$out" | grep -q "rank 0: told, and left" ;;
esac

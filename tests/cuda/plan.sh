#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# plan.sh PROGRAM MESH EACH SLOW MACHINE...: PROGRAM as an MPI job of EACH ranks on each of some simulated hosts, one for each
# MACHINE (a line of the grammar in docs/topology.md). A host's GPUs and the description that the plan reads are of one
# MACHINE; port SLOW (-: none) of each is made a slow one. TT_BUILD is the build, TT_MPIRUN mpirun with its options.
if [ "$1" = rank ]; then
    host=$((${OMPI_COMM_WORLD_RANK:?} / PLAN_EACH))
    SIMGPU_HOST=$host SIMGPU_MACHINE=$PLAN_DIR/$host.machine SIMGPU_LOG=$PLAN_DIR/$OMPI_COMM_WORLD_RANK.log \
        TUTTI_TOPO=$PLAN_DIR/$host.xml TUTTI_HOST_ID=planned-$host LD_LIBRARY_PATH=$TT_BUILD/simgpu
    export SIMGPU_HOST SIMGPU_MACHINE SIMGPU_LOG TUTTI_TOPO TUTTI_HOST_ID LD_LIBRARY_PATH
    exec "$2" "$3" "$PLAN_EACH" "$PLAN_HOSTS" "$PLAN_DIR"
fi
set -e
program=$1 mesh=$2 slow=$4
PLAN_EACH=$3 PLAN_HOSTS=0 PLAN_DIR=$(mktemp -d)
trap 'rm -rf "$PLAN_DIR"' EXIT
shift 4
for machine in "$@"; do
    "$TT_BUILD/tests/simgpu_machines" "$machine" >"$PLAN_DIR/$PLAN_HOSTS.machine"
    "$TT_BUILD/bin/tutti" topo --machine "$machine" --export-nccl "$PLAN_DIR/$PLAN_HOSTS.xml" >/dev/null
    if [ "$slow" != - ]; then
        sed -i "/<net name=\"$slow\"/s/speed=\"[0-9]*\"/speed=\"10000\"/" "$PLAN_DIR/$PLAN_HOSTS.xml"
    fi
    PLAN_HOSTS=$((PLAN_HOSTS + 1))
done
export PLAN_EACH PLAN_HOSTS PLAN_DIR
# shellcheck disable=SC2086 # mpirun with options
$TT_MPIRUN -np $((PLAN_EACH * PLAN_HOSTS)) sh "$0" rank "$program" "$mesh"

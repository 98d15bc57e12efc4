#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# host.sh EACH COMMAND...: COMMAND as an MPI rank of a job on several simulated hosts, EACH ranks on each.
each=$1
shift
SIMGPU_HOST=$((${OMPI_COMM_WORLD_RANK:?} / each)) exec "$@"

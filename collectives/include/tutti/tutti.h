/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tutti: communication runtime for training on many GPUs. This header includes the whole API:
 *   status.h   codes, last error, element types        context.h  init, step, abort
 *   stream.h   streams                                 comm.h     communicators, registered memory
 *   coll.h     collectives                             reducer.h  overlapped gradient averaging
 *   mesh.h     ranks in a grid with named axes         ckpt.h     sharded checkpoints
 *   pipeline.h pipeline schedules and their runs       tensor_parallel.h  split layers
 *   version.h  version numbers
 * and, on demand, interop_mpi.h (your MPI_Comm).
 */
#ifndef TUTTI_TUTTI_H
#define TUTTI_TUTTI_H

#include "tutti/ckpt.h"
#include "tutti/coll.h"
#include "tutti/comm.h"
#include "tutti/context.h"
#include "tutti/mesh.h"
#include "tutti/pipeline.h"
#include "tutti/reducer.h"
#include "tutti/status.h"
#include "tutti/stream.h"
#include "tutti/tensor_parallel.h"
#include "tutti/topo.h"
#include "tutti/version.h"

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Header-only bridge to the ncclComm_t of a communicator. Nothing in the library includes this. */
#ifndef TUTTI_INTEROP_NCCL_H
#define TUTTI_INTEROP_NCCL_H

#include <nccl.h>

#include "tutti/coll.h"

/* tutti_comm_native_begin with NCCL's type: calls on *nccl_out go to tutti_stream_to_cuda(stream)
 * and are followed by tutti_comm_native_end. */
static inline tutti_status tutti_comm_nccl_begin(tutti_comm *comm, tutti_stream stream,
                                                 ncclComm_t *nccl_out)
{
    void *native = NULL;
    tutti_status status = tutti_comm_native_begin(comm, stream, &native);
    if (status == TUTTI_OK)
        *nccl_out = (ncclComm_t)native;
    return status;
}

static inline tutti_status tutti_comm_nccl_end(tutti_comm *comm)
{
    return tutti_comm_native_end(comm);
}

#endif

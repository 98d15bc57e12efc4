/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The MPI library's own collectives, in the same processes, on plain memory of their own. MPI has
 * no 16-bit floating-point types: rows that sum them have no MPI figure. The communicator is a copy
 * of MPI_COMM_WORLD, so that its calls and tutti's bootstrap never meet.
 */
#include <limits.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "core/mem.h"

typedef struct mpi_state {
    MPI_Comm comm;
} mpi_state;

static MPI_Datatype type_of(tutti_dtype dtype)
{
    switch (dtype) {
    case TUTTI_FLOAT32:
        return MPI_FLOAT;
    case TUTTI_FLOAT64:
        return MPI_DOUBLE;
    case TUTTI_INT8:
        return MPI_INT8_T;
    case TUTTI_UINT8:
        return MPI_UINT8_T;
    case TUTTI_INT32:
        return MPI_INT32_T;
    case TUTTI_UINT32:
        return MPI_UINT32_T;
    case TUTTI_INT64:
        return MPI_INT64_T;
    case TUTTI_UINT64:
        return MPI_UINT64_T;
    default:
        return MPI_UINT16_T; /* moved, never summed */
    }
}

static MPI_Op op_of(tutti_op op)
{
    switch (op) {
    case TUTTI_MAX:
        return MPI_MAX;
    case TUTTI_MIN:
        return MPI_MIN;
    case TUTTI_PROD:
        return MPI_PROD;
    default:
        return MPI_SUM;
    }
}

static bool mpi_can(const bench_variant *v, const bench_case *c)
{
    bool half = c->dtype == TUTTI_BFLOAT16 || c->dtype == TUTTI_FLOAT16;

    (void)v;
    if (c->n > INT_MAX)
        return false;
    if (c->in_place && strcmp(c->op->name, "reduce_scatter") == 0)
        return false; /* MPI leaves the result elsewhere */
    return !c->op->reduces || (!half && c->redop != TUTTI_AVG);
}

static int mpi_reduce(const bench_case *c, MPI_Comm comm, const void *in, void *out)
{
    MPI_Datatype type = type_of(c->dtype);
    const void *from = c->in_place ? MPI_IN_PLACE : in;
    MPI_Op op = op_of(c->redop);
    int n = (int)c->n;

    if (strcmp(c->op->name, "all_reduce") == 0)
        return MPI_Allreduce(from, out, n, type, op, comm);
    if (strcmp(c->op->name, "reduce") == 0)
        return MPI_Reduce(c->rank == c->root ? from : in, out, n, type, op, c->root, comm);
    return MPI_Reduce_scatter_block(in, out, n, type, op, comm);
}

static int mpi_move(const bench_case *c, MPI_Comm comm, const void *in, void *out)
{
    MPI_Datatype type = type_of(c->dtype);
    bool at_root = c->rank == c->root;
    int n = (int)c->n, next = (c->rank + 1) % c->size, before = (c->rank + c->size - 1) % c->size;

    if (strcmp(c->op->name, "all_gather") == 0)
        return MPI_Allgather(c->in_place ? MPI_IN_PLACE : in, n, type, out, n, type, comm);
    if (strcmp(c->op->name, "all_to_all") == 0)
        return MPI_Alltoall(in, n, type, out, n, type, comm);
    if (strcmp(c->op->name, "gather") == 0)
        return MPI_Gather(c->in_place && at_root ? MPI_IN_PLACE : in, n, type, out, n, type,
                          c->root, comm);
    if (strcmp(c->op->name, "scatter") == 0)
        return MPI_Scatter(in, n, type, c->in_place && at_root ? MPI_IN_PLACE : out, n, type,
                           c->root, comm);
    if (strcmp(c->op->name, "send_recv") == 0)
        return MPI_Sendrecv(in, n, type, next, 0, out, n, type, before, 0, comm, MPI_STATUS_IGNORE);
    /* MPI's broadcast has one buffer: out of place the root copies, as the others here do. */
    if (at_root && in != out)
        memcpy(out, in, c->n * tutti_dtype_size(c->dtype));
    return MPI_Bcast(out, n, type, c->root, comm);
}

static tutti_status mpi_call(bench_variant *v, const bench_case *c, const void *in, void *out)
{
    mpi_state *s = v->state;
    int rc = c->op->reduces ? mpi_reduce(c, s->comm, in, out) : mpi_move(c, s->comm, in, out);

    return rc == MPI_SUCCESS ? TUTTI_OK : tt_fail(TUTTI_ERR_MPI, "MPI's %s failed", c->op->name);
}

static void mpi_close(bench_variant *v)
{
    mpi_state *s = v->state;

    if (s == NULL)
        return;
    MPI_Comm_free(&s->comm);
    free(s);
    free(v->in);
    free(v->out);
    v->state = NULL;
}

tutti_status bench_mpi_open(bench_job *job, size_t bytes, bench_variant *out)
{
    void *in, *result;
    mpi_state *s;

    (void)job;
    TT_TRY(tt_calloc(1, sizeof *s, &s));
    if (posix_memalign(&in, 4096, bytes) != 0)
        goto no_memory;
    if (posix_memalign(&result, 4096, bytes) != 0)
        goto no_second;
    memset(in, 0, bytes);
    memset(result, 0, bytes);
    if (MPI_Comm_dup(MPI_COMM_WORLD, &s->comm) != MPI_SUCCESS)
        goto no_comm;
    *out = (bench_variant){.name = "mpi",
                           .state = s,
                           .in = in,
                           .out = result,
                           .bytes = bytes,
                           .can = mpi_can,
                           .call = mpi_call,
                           .close = mpi_close};
    return TUTTI_OK;
no_comm:
    free(result);
no_second:
    free(in);
no_memory:
    free(s);
    return tt_fail(TUTTI_ERR_NO_MEMORY,
                   "tutti bench: no memory for the MPI peer's two buffers of "
                   "%zu MiB",
                   bytes >> 20);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reductions of a reproducible communicator. NCCL promises no order of a sum; here the data goes to
 * its owners by an all-to-all, each owner adds the ranks' parts in one balanced tree with a kernel
 * of ours, in fp32 for 16-bit types, and the results go where the call wants them. The result is
 * bit for bit that of the host backend's reproducible mode, whatever the layout.
 *
 * An element has one owner: the rank that reduce_scatter gives it to, else the ranks own slices.
 * The exchange goes in rounds of what the scratch memory holds, so its size bounds the memory and
 * not the call's. In place is safe: a round reads from `in` all that it will overwrite in `out`,
 * before it does.
 *
 * Sums and products of floating point only: integers wrap and maxima have no order, NCCL does
 * those.
 */
#include "cuda/kernels.h"
#include "nccl/backend.h"

enum { SCRATCH_BYTES = 32 << 20, PART_ALIGN = 256 };

bool tt_call_is_composite(const tt_call *call)
{
    bool floating = call->dtype == TUTTI_FLOAT32 || call->dtype == TUTTI_FLOAT64 ||
                    call->dtype == TUTTI_BFLOAT16 || call->dtype == TUTTI_FLOAT16;
    return tt_nccl_of(call->comm)->scratch != NULL && tt_is_reduction(call->kind) && floating &&
           (call->op == TUTTI_SUM || call->op == TUTTI_AVG || call->op == TUTTI_PROD);
}

tutti_status tt_composite_prepare(tutti_comm *comm)
{
    tt_nccl *own = tt_nccl_of(comm);
    if ((comm->flags & TUTTI_COMM_REPRODUCIBLE) == 0 || own->share->comm == NULL)
        return TUTTI_OK;
    /* One part per rank, and one for a result on its way to a root. */
    size_t parts = (size_t)comm->group.size + 1, bytes = SCRATCH_BYTES;
    if (bytes / parts < PART_ALIGN)
        bytes = parts * PART_ALIGN;
    TT_TRY(comm->ctx->dev_ops->mem_alloc(comm->ctx->dev, bytes, &own->scratch));
    own->scratch_bytes = bytes;
    return TUTTI_OK;
}

void tt_composite_free(tutti_comm *comm)
{
    tt_nccl *own = tt_nccl_of(comm);
    if (own->scratch != NULL)
        comm->ctx->dev_ops->mem_free(comm->ctx->dev, own->scratch);
    own->scratch = NULL;
}

typedef struct sum_job {
    const tt_call *call;
    tt_nccl_ctx *nc;
    tt_share *share;
    ncclDataType_t type;
    cudaStream_t stream;
    size_t element, part; /* bytes of one; elements that a rank's part of the scratch holds */
    size_t slice; /* where there are no counts: elements per owner */
    char *scratch;
} sum_job;

/* Elements [*first_out, + returned) are rank's. */
static size_t owned(const sum_job *j, int rank, size_t *first_out)
{
    const tt_call *call = j->call;
    size_t first = 0;
    if (call->counts != NULL) {
        for (int r = 0; r < rank; r++)
            first += call->counts[r];
        *first_out = first;
        return call->counts[rank];
    }
    *first_out = (size_t)rank * j->slice;
    if (call->kind == TT_REDUCE_SCATTER)
        return call->n;
    if (*first_out >= call->n)
        return 0;
    return tt_min_size(j->slice, call->n - *first_out);
}

static size_t in_round(const sum_job *j, int rank, size_t at, size_t *first_out)
{
    size_t n = owned(j, rank, first_out);
    *first_out += at;
    return n <= at ? 0 : tt_min_size(j->part, n - at);
}

static char *slot(const sum_job *j, int rank)
{
    return j->scratch + (size_t)rank * j->part * j->element;
}

static tutti_status end_group(const sum_job *j, ncclResult_t result)
{
    ncclResult_t end = TT_INSIDE(j->nc, ncclGroupEnd());
    char text[192];
    TT_TRY(tt_nccl_call_status(result, "ncclSend or ncclRecv", j->call));
    TT_TRY(tt_nccl_call_status(end, "ncclGroupEnd", j->call));
    if (end != ncclInProgress && result != ncclInProgress)
        return TUTTI_OK;
    tt_call_text(j->call, text, sizeof text);
    tutti_ctx *ctx = j->call->comm->ctx;
    return tt_nccl_settle_inside(j->nc, j->share->comm, text, ctx->timeout_s);
}

/* Every owner's part of this round to it. */
static tutti_status exchange(const sum_job *j, size_t at)
{
    const char *in = j->call->in;
    tutti_ctx *ctx = j->call->comm->ctx;
    ncclResult_t result = ncclSuccess;
    size_t first, mine = in_round(j, j->share->rank, at, &first);
    TT_TRY(ctx->dev_ops->copy(ctx->dev, slot(j, j->share->rank), in + first * j->element,
                              mine * j->element, j->call->stream));
    TT_TRY(tt_nccl_call_status(ncclGroupStart(), "ncclGroupStart", j->call));
    for (int r = 0; r < j->share->size && result == ncclSuccess; r++) {
        size_t n = in_round(j, r, at, &first);
        if (r == j->share->rank)
            continue;
        if (n > 0)
            result = TT_INSIDE(
                j->nc, ncclSend(in + first * j->element, n, j->type, r, j->share->comm, j->stream));
        if (mine > 0 && (result == ncclSuccess || result == ncclInProgress))
            result =
                TT_INSIDE(j->nc, ncclRecv(slot(j, r), mine, j->type, r, j->share->comm, j->stream));
        if (result == ncclInProgress)
            result = ncclSuccess; /* GroupEnd says it again */
    }
    return end_group(j, result);
}

static tutti_status add_parts(const sum_job *j, size_t n, char *out)
{
    const tt_call *call = j->call;
    const tt_cuda_tree_job job = {.out = out,
                                  .part = j->scratch,
                                  .stride = j->part,
                                  .parts = j->share->size,
                                  .n = n,
                                  .type = call->dtype,
                                  .multiply = call->op == TUTTI_PROD,
                                  .scale = call->op == TUTTI_AVG ? 1.0 / j->share->size : 1.0};
    return tt_cuda_tree(&job, j->stream);
}

/* Owners' results of this round to the root of a reduce. */
static tutti_status to_root(const sum_job *j, size_t at)
{
    const tt_call *call = j->call;
    ncclResult_t result = ncclSuccess;
    size_t first, n = in_round(j, j->share->rank, at, &first);
    char *out = call->out;
    TT_TRY(tt_nccl_call_status(ncclGroupStart(), "ncclGroupStart", call));
    if (j->share->rank != call->root && n > 0)
        result = TT_INSIDE(j->nc, ncclSend(slot(j, j->share->size), n, j->type, call->root,
                                           j->share->comm, j->stream));
    for (int r = 0; j->share->rank == call->root && r < j->share->size; r++) {
        n = in_round(j, r, at, &first);
        if (r != call->root && n > 0 && (result == ncclSuccess || result == ncclInProgress))
            result = TT_INSIDE(j->nc, ncclRecv(out + first * j->element, n, j->type, r,
                                               j->share->comm, j->stream));
    }
    return end_group(j, result);
}

/* Where this rank's results of a round go. */
static char *result_place(const sum_job *j, size_t first, size_t at)
{
    char *out = j->call->out;
    if (j->call->kind == TT_REDUCE_SCATTER)
        return out + at * j->element;
    if (j->call->kind == TT_REDUCE && j->share->rank != j->call->root)
        return slot(j, j->share->size);
    return out + first * j->element;
}

static tutti_status one_round(const sum_job *j, size_t at)
{
    size_t first, n = in_round(j, j->share->rank, at, &first);
    TT_TRY(exchange(j, at));
    if (n > 0)
        TT_TRY(add_parts(j, n, result_place(j, first, at)));
    return j->call->kind == TT_REDUCE ? to_root(j, at) : TUTTI_OK;
}

static tutti_status spread(const sum_job *j)
{
    char *out = j->call->out;
    ncclResult_t result = ncclSuccess;
    TT_TRY(tt_nccl_call_status(ncclGroupStart(), "ncclGroupStart", j->call));
    for (int r = 0; r < j->share->size && (result == ncclSuccess || result == ncclInProgress);
         r++) {
        size_t first, n = owned(j, r, &first);
        char *part = out + first * j->element;
        if (n > 0)
            result = TT_INSIDE(j->nc,
                               ncclBroadcast(part, part, n, j->type, r, j->share->comm, j->stream));
    }
    return end_group(j, result);
}

tutti_status tt_call_composite(const tt_call *call)
{
    const tt_nccl *own = tt_nccl_of(call->comm);
    size_t element = tutti_dtype_size(call->dtype), size = (size_t)own->share->size, most = 0;
    sum_job j = {.call = call,
                 .nc = own->nc,
                 .share = own->share,
                 .stream = (cudaStream_t)call->stream.handle,
                 .element = element,
                 .part = own->scratch_bytes / (size + 1) / PART_ALIGN * PART_ALIGN / element,
                 .scratch = own->scratch};
    if (!tt_nccl_dtype(call->dtype, &j.type))
        return tt_fail(TUTTI_ERR_INTERNAL, "no NCCL type for %s", tutti_dtype_name(call->dtype));
    j.slice = call->kind == TT_REDUCE_SCATTER
                  ? call->n
                  : tt_round_up((call->n + size - 1) / size, PART_ALIGN / element);
    for (int r = 0; r < own->share->size; r++) {
        size_t first, n = owned(&j, r, &first);
        most = n > most ? n : most;
    }
    for (size_t at = 0; at < most; at += j.part)
        TT_TRY(one_round(&j, at));
    return call->kind == TT_ALL_REDUCE && most > 0 ? spread(&j) : TUTTI_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a checked call to NCCL's: what NCCL has is called; gather, scatter and all-to-all are
 * grouped sends and receives (newer versions have calls for them, which do the same inside); a
 * v-variant is a group of one broadcast or reduce per rank with something to give. A rank's own
 * part of these is copied on the stream. Counts of 0 are left out, on both sides of a pair alike.
 *
 * A single rank has no NCCL communicator: its collectives are copies, and its sends meet its
 * receives within the group they were given in.
 */
#include <string.h>

#include "nccl/backend.h"

bool tt_nccl_dtype(tutti_dtype dtype, ncclDataType_t *out)
{
    static const struct {
        bool known;
        ncclDataType_t type;
    } table[] = {
        [TUTTI_FLOAT32] = {true, ncclFloat32}, [TUTTI_BFLOAT16] = {true, ncclBfloat16},
        [TUTTI_UINT8] = {true, ncclUint8},     [TUTTI_INT64] = {true, ncclInt64},
        [TUTTI_FLOAT64] = {true, ncclFloat64}, [TUTTI_FLOAT16] = {true, ncclFloat16},
        [TUTTI_INT8] = {true, ncclInt8},       [TUTTI_INT32] = {true, ncclInt32},
        [TUTTI_UINT32] = {true, ncclUint32},   [TUTTI_UINT64] = {true, ncclUint64},
    };
    if ((unsigned)dtype >= sizeof table / sizeof table[0] || !table[dtype].known)
        return false;
    *out = table[dtype].type;
    return true;
}

ncclRedOp_t tt_nccl_op(tutti_op op)
{
    static const ncclRedOp_t table[] = {[TUTTI_SUM] = ncclSum,
                                        [TUTTI_AVG] = ncclAvg,
                                        [TUTTI_MAX] = ncclMax,
                                        [TUTTI_MIN] = ncclMin,
                                        [TUTTI_PROD] = ncclProd};
    return table[op];
}

bool tt_call_needs_group(const tt_call *call)
{
    return call->counts != NULL || call->kind == TT_GATHER || call->kind == TT_SCATTER ||
           call->kind == TT_ALL_TO_ALL;
}

/* One call's pieces on their way to NCCL. */
typedef struct target {
    const tt_call *call;
    ncclComm_t comm;
    cudaStream_t stream;
    ncclDataType_t type;
    size_t element;
    int rank, size;
    ncclResult_t *result; /* ncclInProgress is kept */
} target;

static tutti_status take(const target *t, ncclResult_t result, const char *name)
{
    if (__builtin_expect(result == ncclSuccess, 1))
        return TUTTI_OK;
    if (result == ncclInProgress) {
        *t->result = result;
        return TUTTI_OK;
    }
    return tt_nccl_call_status(result, name, t->call);
}
#define TAKE(t, nccl_call)                                                                         \
    TT_TRY(take((t), TT_INSIDE(tt_nccl_of((t)->call->comm)->nc, nccl_call), #nccl_call))

static tutti_status copy_own(const target *t, void *to, const void *from, size_t n)
{
    tutti_ctx *ctx = t->call->comm->ctx;
    if (to == from || n == 0)
        return TUTTI_OK;
    return ctx->dev_ops->copy(ctx->dev, to, from, n * t->element, t->call->stream);
}

static tutti_status send_part(const target *t, const void *from, size_t n, int peer)
{
    if (n > 0)
        TAKE(t, ncclSend(from, n, t->type, peer, t->comm, t->stream));
    return TUTTI_OK;
}

static tutti_status recv_part(const target *t, void *to, size_t n, int peer)
{
    if (n > 0)
        TAKE(t, ncclRecv(to, n, t->type, peer, t->comm, t->stream));
    return TUTTI_OK;
}

static tutti_status gather(const target *t)
{
    const tt_call *call = t->call;
    char *out = call->out;
    if (t->rank != call->root)
        return send_part(t, call->in, call->n, call->root);
    for (int r = 0; r < t->size; r++) {
        char *part = out == NULL ? NULL : out + (size_t)r * call->n * t->element;
        TT_TRY(r == t->rank ? copy_own(t, part, call->in, call->n)
                            : recv_part(t, part, call->n, r));
    }
    return TUTTI_OK;
}

static tutti_status scatter(const target *t)
{
    const tt_call *call = t->call;
    const char *in = call->in;
    if (t->rank != call->root)
        return recv_part(t, call->out, call->n, call->root);
    for (int r = 0; r < t->size; r++) {
        const char *part = in == NULL ? NULL : in + (size_t)r * call->n * t->element;
        TT_TRY(r == t->rank ? copy_own(t, call->out, part, call->n)
                            : send_part(t, part, call->n, r));
    }
    return TUTTI_OK;
}

static tutti_status all_to_all(const target *t)
{
    const tt_call *call = t->call;
    const char *in = call->in;
    char *out = call->out;
    for (int r = 0; r < t->size; r++) {
        size_t sent = call->counts != NULL ? call->counts[r] : call->n;
        size_t got = call->recv_counts != NULL ? call->recv_counts[r] : call->n;
        if (r == t->rank) {
            if (sent != got)
                return tt_fail(TUTTI_ERR_MISMATCH,
                               "all_to_allv on comm %s: rank %d sends itself %zu elements and "
                               "expects %zu",
                               call->comm->name, r, sent, got);
            TT_TRY(copy_own(t, out, in, sent));
        } else {
            TT_TRY(send_part(t, in, sent, r));
            TT_TRY(recv_part(t, out, got, r));
        }
        in = in == NULL ? NULL : in + sent * t->element;
        out = out == NULL ? NULL : out + got * t->element;
    }
    return TUTTI_OK;
}

static tutti_status all_gatherv(const target *t)
{
    const tt_call *call = t->call;
    char *out = call->out;
    for (int r = 0; r < t->size; r++) {
        size_t n = call->counts[r];
        if (n > 0)
            TAKE(t, ncclBroadcast(r == t->rank ? call->in : out, out, n, t->type, r, t->comm,
                                  t->stream));
        out = out == NULL ? NULL : out + n * t->element;
    }
    return TUTTI_OK;
}

static tutti_status reduce_scatterv(const target *t)
{
    const tt_call *call = t->call;
    const char *in = call->in;
    for (int r = 0; r < t->size; r++) {
        size_t n = call->counts[r];
        if (n > 0)
            TAKE(t, ncclReduce(in, r == t->rank ? call->out : NULL, n, t->type,
                               tt_nccl_op(call->op), r, t->comm, t->stream));
        in = in == NULL ? NULL : in + n * t->element;
    }
    return TUTTI_OK;
}

static tutti_status v_variant(const target *t)
{
    switch (t->call->kind) {
    case TT_ALL_GATHER:
        return all_gatherv(t);
    case TT_REDUCE_SCATTER:
        return reduce_scatterv(t);
    default:
        return all_to_all(t);
    }
}

static tutti_status plain(const target *t)
{
    const tt_call *c = t->call;
    switch (c->kind) {
    case TT_ALL_REDUCE:
        TAKE(t, ncclAllReduce(c->in, c->out, c->n, t->type, tt_nccl_op(c->op), t->comm, t->stream));
        return TUTTI_OK;
    case TT_REDUCE_SCATTER:
        TAKE(t, ncclReduceScatter(c->in, c->out, c->n, t->type, tt_nccl_op(c->op), t->comm,
                                  t->stream));
        return TUTTI_OK;
    case TT_ALL_GATHER:
        TAKE(t, ncclAllGather(c->in, c->out, c->n, t->type, t->comm, t->stream));
        return TUTTI_OK;
    case TT_BROADCAST: {
        const void *in = c->in != NULL ? c->in : c->out;
        void *out = c->out != NULL ? c->out : (void *)(size_t)c->in;
        TAKE(t, ncclBroadcast(in, out, c->n, t->type, c->root, t->comm, t->stream));
        return TUTTI_OK;
    }
    case TT_REDUCE:
        TAKE(t, ncclReduce(c->in, c->out, c->n, t->type, tt_nccl_op(c->op), c->root, t->comm,
                           t->stream));
        return TUTTI_OK;
    case TT_GATHER:
        return gather(t);
    case TT_SCATTER:
        return scatter(t);
    case TT_ALL_TO_ALL:
        return all_to_all(t);
    case TT_SEND:
        return send_part(t, c->in, c->n, c->root);
    default:
        return recv_part(t, c->out, c->n, c->root);
    }
}

tutti_status tt_call_enqueue(const tt_call *call, ncclResult_t *result_inout)
{
    const tt_share *share = tt_nccl_of(call->comm)->share;
    target t = {.call = call,
                .comm = share->comm,
                .stream = (cudaStream_t)call->stream.handle,
                .element = tutti_dtype_size(call->dtype),
                .rank = share->rank,
                .size = share->size,
                .result = result_inout};
    if (!tt_nccl_dtype(call->dtype, &t.type))
        return tt_fail(TUTTI_ERR_UNSUPPORTED, "NCCL has no type %s", tutti_dtype_name(call->dtype));
    if (call->counts != NULL)
        return v_variant(&t);
    return call->n == 0 ? TUTTI_OK : plain(&t);
}

/* The receive that meets send `at`: as many sends to itself come before it as receives before that.
 */
static tt_call *meeting(tt_call *calls, size_t n, size_t at)
{
    size_t before = 0;
    for (size_t i = 0; i < at; i++)
        before += calls[i].kind == TT_SEND && calls[i].comm == calls[at].comm;
    for (size_t i = 0; i < n; i++)
        if (calls[i].kind == TT_RECV && calls[i].comm == calls[at].comm && before-- == 0)
            return &calls[i];
    return NULL;
}

static tutti_status meet_self(tt_call *calls, size_t n, size_t at)
{
    const tt_call *send = &calls[at];
    const tt_call *recv = meeting(calls, n, at);
    tutti_ctx *ctx = send->comm->ctx;
    if (recv == NULL || recv->n != send->n || recv->dtype != send->dtype)
        return tt_fail(TUTTI_ERR_MISMATCH,
                       "send of %zu %s to itself on comm %s: its group has no recv like it",
                       send->n, tutti_dtype_name(send->dtype), send->comm->name);
    if (recv->stream.handle != send->stream.handle)
        return tt_fail(TUTTI_ERR_UNSUPPORTED,
                       "send and recv of a rank to itself on comm %s are on two streams",
                       send->comm->name);
    return ctx->dev_ops->copy(ctx->dev, recv->out, send->in,
                              send->n * tutti_dtype_size(send->dtype), send->stream);
}

tutti_status tt_call_local(tt_call *calls, size_t n, size_t at)
{
    const tt_call *call = &calls[at];
    tutti_ctx *ctx = call->comm->ctx;
    if (call->kind == TT_SEND)
        return meet_self(calls, n, at);
    if (call->kind == TT_RECV || call->in == NULL || call->out == NULL || call->in == call->out)
        return TUTTI_OK;
    return ctx->dev_ops->copy(ctx->dev, call->out, call->in,
                              call->n * tutti_dtype_size(call->dtype), call->stream);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/issue.h"

#include "boot/circle.h"
#include "comm/key.h"
#include "core/mem.h"

tutti_status tt_submit(tt_call *call, const tt_counts *v)
{
    tutti_status status;
    if (call->comm == NULL)
        status = tt_fail(TUTTI_ERR_ARG, "%s: the communicator is NULL", tt_kind_name(call->kind));
    else
        status = tt_call_check(call, v);
    if (status == TUTTI_OK && tt_group_open())
        return tt_group_add(call);
    if (status == TUTTI_OK && call->n < call->comm->quick_n &&
        call->stream.kind == TUTTI_STREAM_INLINE && !tt_is_p2p(call->kind) &&
        call->comm->ops->quick(call, &status))
        return status;
    if (status == TUTTI_OK)
        return tt_issue(call, 1, NULL);
    tt_call_free(call);
    /* What is unsupported is so on all ranks; anything else may be this rank's mistake alone. */
    if (call->comm != NULL && call->comm->group.size > 1 && status != TUTTI_ERR_UNSUPPORTED)
        status = tt_ctx_fail(call->comm->ctx, status);
    tt_group_refuse(status);
    return status;
}

static void number(tt_call *call)
{
    uint64_t *next = tt_is_p2p(call->kind) ? &call->comm->next_p2p : &call->comm->next_seq;
    call->seq = (*next)++;
    if (tt_is_p2p(call->kind))
        call->meeting = tt_circle_come_next(
            call->comm->ctx, call->kind == TT_SEND ? TT_SPOT_SEND : TT_SPOT_RECV,
            &call->comm->group, call->comm->group.world[call->root]);
}

static tutti_status compare(const tt_call *call)
{
    if (!call->comm->ctx->check || call->comm->group.size == 1 || tt_is_p2p(call->kind))
        return TUTTI_OK;
    tutti_ctx *ctx = call->comm->ctx;
    uint64_t capture = 0;
    tutti_status status = tt_device_capture(ctx->dev, call->stream, &capture);
    if (status == TUTTI_OK && capture != 0)
        status = tt_fail(TUTTI_ERR_STATE,
                         "%s on comm %s: TUTTI_CHECK=1 compares calls over the ranks, which a "
                         "stream that is being captured does not allow",
                         tt_kind_name(call->kind), call->comm->name);
    if (status == TUTTI_OK)
        status = tt_key_compare(call);
    return status == TUTTI_OK ? TUTTI_OK : tt_ctx_fail(call->comm->ctx, status);
}

static bool same_launch(const tt_call *a, const tt_call *b)
{
    return a->comm->ctx == b->comm->ctx &&
           (a->comm->ops->any_streams ||
            (a->stream.handle == b->stream.handle && a->stream.kind == b->stream.kind));
}

static bool is_queued(const tt_call *first, const tt_call *call)
{
    (void)first;
    return call->stream.kind != TUTTI_STREAM_INLINE;
}

/* Moves the calls that `goes` (asked with the first one) to the front, keeping the order of both
 * parts; returns their number. */
static size_t to_front(tt_call *calls, size_t n, tt_call *rest,
                       bool (*goes)(const tt_call *first, const tt_call *call))
{
    size_t mine = 0, others = 0;
    tt_call first = calls[0];
    for (size_t i = 0; i < n; i++) {
        if (goes(&first, &calls[i]))
            calls[mine++] = calls[i];
        else
            rest[others++] = calls[i];
    }
    for (size_t i = 0; i < others; i++)
        calls[mine + i] = rest[i];
    return mine;
}

static tutti_status launch_all(tt_call *calls, size_t n, tt_call *scratch)
{
    tutti_status first = TUTTI_OK;
    /* Inline calls come last: they block, and what runs on streams may have to meet them. */
    to_front(calls, n, scratch, is_queued);
    for (size_t at = 0; at < n;) {
        size_t mine = to_front(calls + at, n - at, scratch, same_launch);
        tutti_ctx *ctx = calls[at].comm->ctx;
        tutti_status status = calls[at].comm->ops->launch(calls + at, mine);
        if (status != TUTTI_OK) {
            status = tt_ctx_fail(ctx, status); /* its number was given away: nothing can follow */
            first = first == TUTTI_OK ? status : first;
        }
        at += mine;
    }
    return first;
}

tutti_status tt_issue(tt_call *calls, size_t n, tt_call *scratch)
{
    tutti_status status = TUTTI_OK;
    for (size_t i = 0; i < n && status == TUTTI_OK; i++)
        status = compare(&calls[i]);
    if (status != TUTTI_OK) {
        for (size_t i = 0; i < n; i++)
            tt_call_free(&calls[i]);
        return status;
    }
    for (size_t i = 0; i < n; i++)
        number(&calls[i]);
    if (n == 1) {
        tutti_ctx *ctx = calls[0].comm->ctx;
        status = calls[0].comm->ops->launch(calls, 1);
        return status == TUTTI_OK ? TUTTI_OK : tt_ctx_fail(ctx, status);
    }
    return launch_all(calls, n, scratch);
}

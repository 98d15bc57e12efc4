/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor parallelism: products and transfers, chunk by chunk.
 *
 * With one chunk everything is issued on the caller's stream. With more, transfers go to a stream
 * of the group's own: a reduction waits for the event behind its product; a product waits for the
 * event behind its gather, all of which are issued first. Chunks follow each other on both streams,
 * so one event per chunk is enough, and they are reused by the next call: a later recording only
 * ever waits for more.
 *
 * An inline caller computes in its own thread, so there the transfer stream's thread would fight
 * for the same core: chunks are then done one after the other, inline.
 */
#include <stdlib.h>
#include <string.h>

#include "boot/live.h"
#include "comm/issue.h"
#include "core/mem.h"
#include "parallel/tensor.h"
#include "tutti/coll.h"

enum { CHUNKS_DEFAULT = 4, CHUNKS_MAX = 256 };

struct tutti_tp {
    tutti_ctx *ctx;
    tutti_comm *comm;
    int chunks;
    bool sequence;
    tutti_stream transfers;
    tt_event **chunk_done; /* [chunks] */
    tt_event *all_done;
    tt_tp_scratch scratch;
    tt_live live;
};

static void free_tp(tutti_tp *tp)
{
    const tt_device_ops *dev = tp->ctx->dev_ops;

    for (int i = 0; tp->chunk_done != NULL && i < tp->chunks; i++)
        dev->event_destroy(tp->ctx->dev, tp->chunk_done[i]);
    dev->event_destroy(tp->ctx->dev, tp->all_done);
    tt_tp_scratch_free(&tp->scratch, tp->ctx);
    tutti_stream_destroy(tp->ctx, tp->transfers);
    free(tp->chunk_done);
    free(tp);
}

static void destroy_left(void *tp)
{
    free_tp(tp);
}

static const tt_live_ops live_ops = {destroy_left, destroy_left};

static tutti_status check_opts(const tutti_tp_opts *opts)
{
    if (opts == NULL)
        return TUTTI_OK;
    if (opts->size != sizeof *opts)
        return tt_fail(TUTTI_ERR_ARG,
                       "tp_create: opts->size is %zu, not %zu (begin with "
                       "TUTTI_TP_OPTS_INIT)",
                       opts->size, sizeof *opts);
    if (opts->chunks < 0 || opts->chunks > CHUNKS_MAX)
        return tt_fail(TUTTI_ERR_ARG, "tp_create: %d chunks: 0 to %d expected", opts->chunks,
                       CHUNKS_MAX);
    if ((opts->flags & ~(uint32_t)TUTTI_TP_SEQUENCE) != 0)
        return tt_fail(TUTTI_ERR_ARG, "tp_create: flags 0x%x: no such flag", opts->flags);
    return TUTTI_OK;
}

/* Everything but the other ranks. */
static tutti_status make(tutti_comm *comm, const tutti_tp_opts *opts, tutti_tp **out)
{
    const tt_device_ops *dev = comm->ctx->dev_ops;
    tutti_status status;
    tutti_tp *tp;

    TT_TRY(check_opts(opts));
    TT_TRY(tt_calloc(1, sizeof *tp, &tp));
    tp->ctx = comm->ctx;
    tp->comm = comm;
    tp->chunks = opts == NULL || opts->chunks == 0 ? CHUNKS_DEFAULT : opts->chunks;
    tp->sequence = opts != NULL && (opts->flags & TUTTI_TP_SEQUENCE) != 0;
    status = tt_calloc((size_t)tp->chunks, sizeof(tt_event *), &tp->chunk_done);
    for (int i = 0; i < tp->chunks && status == TUTTI_OK; i++)
        status = dev->event_create(tp->ctx->dev, false, &tp->chunk_done[i]);
    if (status == TUTTI_OK)
        status = dev->event_create(tp->ctx->dev, false, &tp->all_done);
    if (status == TUTTI_OK && tp->chunks > 1)
        status = tutti_stream_create(tp->ctx, "tensor parallel", -1, &tp->transfers);
    if (status != TUTTI_OK)
        free_tp(tp);
    else
        *out = tp;
    return status;
}

static tutti_status compare(tutti_tp *tp)
{
    int32_t mine[2] = {tp->chunks, tp->sequence}, theirs[2];
    tutti_status status = TUTTI_OK;
    tt_blobs all;

    TT_TRY(tt_all_gather_blobs(&tp->comm->group, "tp_create", mine, sizeof mine, &all));
    for (int r = 0; r < all.n && status == TUTTI_OK; r++) {
        memcpy(theirs, tt_blob(&all, r), sizeof theirs);
        if (memcmp(mine, theirs, sizeof mine) != 0)
            status = tt_fail(TUTTI_ERR_MISMATCH,
                             "tp_create on comm %s: %d chunks%s here, but %d chunks%s on rank %d",
                             tp->comm->name, mine[0], mine[1] ? ", rows dealt out" : "", theirs[0],
                             theirs[1] ? ", rows dealt out" : "", r);
    }
    tt_blobs_free(&all);
    return tt_agree(&tp->comm->group, "tp_create", status);
}

tutti_status tutti_tp_create(tutti_comm *comm, const tutti_tp_opts *opts, tutti_tp **tp_out)
{
    tutti_tp *tp = NULL;
    tutti_status status;

    if (comm == NULL || tp_out == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tp_create: %s is NULL", comm == NULL ? "comm" : "tp_out");
    TT_TRY(tt_ctx_check(comm->ctx));
    status = tt_agree(&comm->group, "tp_create", make(comm, opts, &tp));
    if (status == TUTTI_OK)
        status = compare(tp);
    if (status != TUTTI_OK && tp != NULL)
        free_tp(tp);
    TT_TRY(status);
    tt_live_add(&tp->live, tp->ctx, &live_ops, tp);
    *tp_out = tp;
    return TUTTI_OK;
}

void tutti_tp_destroy(tutti_tp *tp)
{
    if (tp == NULL)
        return;
    tt_live_remove(&tp->live);
    free_tp(tp);
}

tutti_status tutti_tp_range(const tutti_comm *comm, const char *what, size_t n, size_t *first_out,
                            size_t *count_out)
{
    size_t size;

    if (comm == NULL || first_out == NULL || count_out == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tp_range: a pointer is NULL");
    size = (size_t)comm->group.size;
    if (n % size != 0)
        return tt_fail(TUTTI_ERR_ARG,
                       "tp_range: %zu %s cannot be shared out evenly to the %zu ranks "
                       "of comm %s",
                       n, what != NULL ? what : "things", size, comm->name);
    *first_out = n / size * (size_t)comm->group.rank;
    *count_out = n / size;
    return TUTTI_OK;
}

tutti_comm *tt_tp_comm(const tutti_tp *tp)
{
    return tp->comm;
}

tt_tp_scratch *tt_tp_scratch_of(tutti_tp *tp)
{
    return &tp->scratch;
}

size_t tutti_tp_row(const tutti_tp *tp, size_t rows, size_t local)
{
    size_t ranks, each, chunk;

    if (tp == NULL)
        return 0;
    if (!tp->sequence)
        return local;
    ranks = (size_t)tp->comm->group.size;
    each = rows / (size_t)tp->chunks / ranks; /* of a chunk, on one rank */
    if (each == 0)
        return local;
    chunk = local / each;
    return (chunk * ranks + (size_t)tp->comm->group.rank) * each + local % each;
}

/* A call's arguments once they are checked. */
typedef struct chunked {
    tutti_tp *tp;
    const tutti_tp_matrix *m;
    tutti_tp_fn fn;
    void *arg;
    tutti_stream stream, transfers; /* the same when nothing overlaps */
    size_t row_bytes;
    int chunks;
} chunked;

static tutti_status prepare(tutti_tp *tp, const tutti_tp_matrix *m, const char *what,
                            tutti_stream stream, chunked *out)
{
    size_t deal;

    if (tp == NULL || m == NULL || m->full == NULL)
        return tt_fail(TUTTI_ERR_ARG, "%s: %s is NULL", what,
                       tp == NULL  ? "tp"
                       : m == NULL ? "the matrix"
                                   : "matrix.full");
    TT_TRY(tt_ctx_check(tp->ctx));
    TT_TRY(tt_group_forbid(what));
    TT_TRY(tp->ctx->dev_ops->stream_check(tp->ctx->dev, stream));
    deal = (size_t)tp->chunks * (size_t)tp->comm->group.size;
    TT_TRY(tt_dtype_check(m->dtype, what, NULL));
    if (tp->sequence && m->part == NULL)
        return tt_fail(TUTTI_ERR_ARG, "%s: matrix.part is NULL", what);
    if (tp->sequence && m->rows % deal != 0)
        return tt_fail(TUTTI_ERR_ARG, "%s: %zu rows are no multiple of %d chunks x %d ranks", what,
                       m->rows, tp->chunks, tp->comm->group.size);
    *out = (chunked){.tp = tp,
                     .m = m,
                     .stream = stream,
                     .transfers = stream,
                     .row_bytes = m->cols * tutti_dtype_size(m->dtype),
                     .chunks = tp->chunks};
    if (tp->chunks > 1 && stream.kind != TUTTI_STREAM_INLINE)
        out->transfers = tp->transfers;
    return TUTTI_OK;
}

static bool overlaps(const chunked *c)
{
    return c->tp->chunks > 1 && c->stream.kind != TUTTI_STREAM_INLINE;
}

/* Rows of chunk k: without SEQUENCE the last ones may be fewer, or none. */
static size_t chunk_rows(const chunked *c, int k, size_t *first_out)
{
    size_t each = (c->m->rows + (size_t)c->chunks - 1) / (size_t)c->chunks;

    *first_out = tt_min_size(c->m->rows, each * (size_t)k);
    return tt_min_size(each, c->m->rows - *first_out);
}

static char *full_at(const chunked *c, size_t row)
{
    return (char *)c->m->full + row * c->row_bytes;
}

/* Chunk k's rows of this rank's part. */
static char *part_at(const chunked *c, size_t first)
{
    return (char *)c->m->part + first / (size_t)c->tp->comm->group.size * c->row_bytes;
}

/* Makes `stream` wait for what `until` has been given, by an event of chunk k. */
static tutti_status order(const chunked *c, int k, tutti_stream stream, tutti_stream until)
{
    const tt_device_ops *dev = c->tp->ctx->dev_ops;

    if (!overlaps(c))
        return TUTTI_OK;
    TT_TRY(dev->event_record(c->tp->ctx->dev, c->tp->chunk_done[k], until));
    return dev->event_wait(c->tp->ctx->dev, c->tp->chunk_done[k], stream);
}

static tutti_status reduce_chunk(const chunked *c, int k)
{
    size_t first, rows = chunk_rows(c, k, &first), size = (size_t)c->tp->comm->group.size;

    if (rows == 0)
        return TUTTI_OK;
    TT_TRY(c->fn(c->arg, first, rows, c->stream));
    TT_TRY(order(c, k, c->transfers, c->stream));
    if (c->tp->sequence)
        return tutti_reduce_scatter(c->tp->comm, full_at(c, first), part_at(c, first),
                                    rows / size * c->m->cols, c->m->dtype, TUTTI_SUM, c->transfers);
    return tutti_all_reduce(c->tp->comm, full_at(c, first), full_at(c, first), rows * c->m->cols,
                            c->m->dtype, TUTTI_SUM, c->transfers);
}

/* The caller's stream goes on when the transfers are done. */
static tutti_status join(const chunked *c)
{
    const tt_device_ops *dev = c->tp->ctx->dev_ops;

    if (!overlaps(c))
        return TUTTI_OK;
    TT_TRY(dev->event_record(c->tp->ctx->dev, c->tp->all_done, c->transfers));
    return dev->event_wait(c->tp->ctx->dev, c->tp->all_done, c->stream);
}

static tutti_status fail_for_all(const chunked *c, tutti_status status)
{
    if (status == TUTTI_OK || c->tp->comm->group.size == 1)
        return status;
    return tt_ctx_fail(c->tp->ctx, status);
}

tutti_status tutti_tp_reduce(tutti_tp *tp, const tutti_tp_matrix *m, tutti_tp_fn fn, void *arg,
                             tutti_stream stream)
{
    tutti_status status = TUTTI_OK;
    chunked c;

    TT_TRY(prepare(tp, m, "tp_reduce", stream, &c));
    if (fn == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tp_reduce: the product is NULL");
    c.fn = fn;
    c.arg = arg;
    for (int k = 0; k < c.chunks && status == TUTTI_OK; k++)
        status = reduce_chunk(&c, k);
    if (status == TUTTI_OK)
        status = join(&c);
    return fail_for_all(&c, status);
}

static tutti_status gather_chunk(const chunked *c, int k)
{
    const tt_device_ops *dev = c->tp->ctx->dev_ops;
    size_t first, rows = chunk_rows(c, k, &first), size = (size_t)c->tp->comm->group.size;

    TT_TRY(tutti_all_gather(c->tp->comm, part_at(c, first), full_at(c, first),
                            rows / size * c->m->cols, c->m->dtype, c->transfers));
    return overlaps(c) ? dev->event_record(c->tp->ctx->dev, c->tp->chunk_done[k], c->transfers)
                       : TUTTI_OK;
}

static tutti_status use_chunk(const chunked *c, int k)
{
    const tt_device_ops *dev = c->tp->ctx->dev_ops;
    size_t first, rows = chunk_rows(c, k, &first);

    if (overlaps(c))
        TT_TRY(dev->event_wait(c->tp->ctx->dev, c->tp->chunk_done[k], c->stream));
    return c->fn != NULL && rows > 0 ? c->fn(c->arg, first, rows, c->stream) : TUTTI_OK;
}

tutti_status tutti_tp_gather(tutti_tp *tp, const tutti_tp_matrix *m, tutti_tp_fn fn, void *arg,
                             tutti_stream stream)
{
    tutti_status status = TUTTI_OK;
    chunked c;
    int k;

    TT_TRY(prepare(tp, m, "tp_gather", stream, &c));
    c.fn = fn;
    c.arg = arg;
    if (!tp->sequence)
        return fn != NULL && m->rows > 0 ? fail_for_all(&c, fn(arg, 0, m->rows, stream)) : TUTTI_OK;
    if (overlaps(&c)) { /* what was written to `part` before */
        status = tp->ctx->dev_ops->event_record(tp->ctx->dev, tp->all_done, stream);
        if (status == TUTTI_OK)
            status = tp->ctx->dev_ops->event_wait(tp->ctx->dev, tp->all_done, c.transfers);
    }
    for (k = 0; k < c.chunks && status == TUTTI_OK; k++)
        status = gather_chunk(&c, k);
    for (k = 0; k < c.chunks && status == TUTTI_OK; k++)
        status = use_chunk(&c, k);
    return fail_for_all(&c, status);
}

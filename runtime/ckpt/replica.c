/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/saver.h"
#include "core/hash.h"

enum { PIECE = 4 << 20 };

/* What one rank holds of one box. */
typedef struct holding {
    const char *name;
    uint64_t box, data; /* hashes */
    const int64_t *dim; /* offset, then extent */
    int rank, ndim;
} holding;

/* Of the data as it will be copied; memory of a device passes through `piece`. */
static tutti_status hash_data(tutti_ctx *ctx, const tt_item *item, tutti_stream stream, char *piece,
                              uint64_t *hash_out)
{
    const tt_device_ops *ops = ctx->dev_ops;
    uint64_t hash = 0;
    for (uint64_t at = 0; at < item->bytes_total; at += PIECE) {
        size_t bytes = tt_min_size(PIECE, item->bytes_total - at);
        const char *from = (const char *)item->data + at;
        if (!item->bytes && ops->kind != TUTTI_BACKEND_HOST) {
            TT_TRY(ops->copy(ctx->dev, piece, from, bytes, stream));
            TT_TRY(ops->stream_sync(ctx->dev, stream));
            from = piece;
        }
        hash = tt_hash64(from, bytes, hash);
    }
    *hash_out = hash;
    return TUTTI_OK;
}

static tutti_status describe(tutti_ctx *ctx, const tutti_ckpt *ck, tutti_stream stream, tt_buf *out)
{
    char *piece;
    TT_TRY(tt_calloc(1, PIECE, &piece));
    tutti_status status = ctx->dev_ops->stream_sync(ctx->dev, stream);
    for (size_t i = 0; i < ck->nitem && status == TUTTI_OK; i++) {
        const tt_item *item = &ck->item[i];
        uint64_t hash = 0;
        status = hash_data(ctx, item, stream, piece, &hash);
        tt_buf_put_str(out, item->name);
        tt_buf_put_u64(out, hash);
        tt_buf_put_u64(out, (uint64_t)item->ndim);
        tt_buf_put(out, item->shape + item->ndim, 2 * (size_t)item->ndim * sizeof *item->shape);
    }
    free(piece);
    if (status == TUTTI_OK && out->failed)
        status = tt_fail(TUTTI_ERR_NO_MEMORY, "no memory to compare replicas");
    return status;
}

static tutti_status read_holdings(const tt_blobs *all, tt_arena *arena, holding **list_out,
                                  size_t *n_out)
{
    size_t cap = 0;
    for (int r = 0; r < all->n; r++) {
        tt_buf in = tt_buf_view(tt_blob(all, r), tt_blob_bytes(all, r));
        while (in.at < in.size && !in.failed) {
            holding h = {.name = tt_buf_get_str(&in), .rank = r};
            int64_t *dim;
            h.data = tt_buf_get_u64(&in);
            h.ndim = (int)tt_buf_get_u64(&in);
            if (in.failed || h.ndim < 0 || h.ndim > TUTTI_CKPT_MAX_DIMS)
                return tt_fail(TUTTI_ERR_INTERNAL, "rank %d described its boxes wrongly", r);
            size_t bytes = 2 * (size_t)h.ndim * sizeof *dim;
            TT_TRY(tt_arena_alloc(arena, bytes, &dim));
            tt_buf_get(&in, dim, bytes);
            h.dim = dim;
            h.box = tt_hash64(dim, bytes, tt_hash64(h.name, strlen(h.name), 0));
            TT_TRY(tt_grow(list_out, &cap, *n_out + 1, sizeof **list_out));
            (*list_out)[(*n_out)++] = h;
        }
    }
    return TUTTI_OK;
}

/* Holders of one box stand together, in order of rank. */
static int compare_holding(const void *a, const void *b)
{
    const holding *x = a, *y = b;
    if (x->box != y->box)
        return x->box < y->box ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* The first difference in order of name, so that it is the same one each time. */
static tutti_status compare_all(tutti_ctx *ctx, holding *list, size_t n)
{
    const holding *a = NULL, *b = NULL;
    size_t first = 0;
    qsort(list, n, sizeof *list, compare_holding);
    for (size_t i = 1; i < n; i++) {
        if (list[i].box != list[first].box)
            first = i;
        else if (list[i].data != list[first].data &&
                 (a == NULL || strcmp(list[i].name, a->name) < 0)) {
            a = &list[first];
            b = &list[i];
        }
    }
    if (a == NULL)
        return TUTTI_OK;
    char box[TT_CKPT_BOX_TEXT], one[TT_HOST_MAX + 64], other[TT_HOST_MAX + 64];
    return tt_fail(TUTTI_ERR_ARG, "%s %s is a replica, but differs between %s and %s", a->name,
                   tt_box_text(a->dim, a->ndim, box, sizeof box),
                   tt_ctx_rank_name(ctx, a->rank, one, sizeof one),
                   tt_ctx_rank_name(ctx, b->rank, other, sizeof other));
}

tutti_status tt_replicas_compare(tutti_ctx *ctx, const tutti_ckpt *ck, tutti_stream stream)
{
    tt_buf mine = {0};
    tt_blobs all = {0};
    tt_arena arena = {0};
    holding *list = NULL;
    size_t n = 0;
    tutti_status status =
        tt_agree(&ctx->world, "tutti_ckpt_commit", describe(ctx, ck, stream, &mine));
    if (status == TUTTI_OK)
        status = tt_all_gather_blobs(&ctx->world, "tutti_ckpt_commit", mine.data, mine.size, &all);
    tt_buf_free(&mine);
    if (status != TUTTI_OK)
        return status;
    status = read_holdings(&all, &arena, &list, &n);
    if (status == TUTTI_OK && n > 0)
        status = compare_all(ctx, list, n);
    free(list);
    tt_arena_free(&arena);
    tt_blobs_free(&all);
    return tt_agree(&ctx->world, "tutti_ckpt_commit", status);
}

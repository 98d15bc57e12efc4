/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "ckpt/loader.h"

enum { BATCH = 4096 }; /* pieces read at once */

typedef struct scan {
    const tt_source *src;
    uint64_t limit;
    tt_scan_fn fn;
    void *arg;
    char *data;
    uint64_t used;
    tt_want *want;
    tt_piece *piece;
    int64_t (*dims)[2 * TUTTI_CKPT_MAX_DIMS];
    size_t n;
} scan;

uint64_t tt_tensor_bytes(const tt_ctensor *t)
{
    return t->elems * tutti_dtype_size(t->dtype);
}

static tutti_status flush(scan *s)
{
    TT_TRY(tt_source_read(s->src, s->want, s->n));
    for (size_t i = 0; i < s->n; i++)
        TT_TRY(s->fn(s->arg, &s->piece[i]));
    s->n = 0;
    s->used = 0;
    return TUTTI_OK;
}

static tutti_status add(scan *s, const tt_ctensor *t, const int64_t *dim, uint64_t at,
                        uint64_t bytes)
{
    if (s->n == BATCH || s->used + bytes > s->limit)
        TT_TRY(flush(s));
    memcpy(s->dims[s->n], dim, 2 * (size_t)t->ndim * sizeof *dim);
    s->want[s->n] = (tt_want){t, s->dims[s->n], s->data + s->used};
    s->piece[s->n] = (tt_piece){t, at, bytes, s->data + s->used};
    s->used += tt_round_up(bytes, sizeof(uint64_t)); /* values are aligned in memory */
    if (s->used > s->limit)
        s->used = s->limit;
    s->n++;
    return TUTTI_OK;
}

/* The axis along which the tensor is cut: all behind it fits into the limit. */
static int cut_axis(const scan *s, const tt_ctensor *t, uint64_t *row_out)
{
    uint64_t row = tutti_dtype_size(t->dtype);
    int axis = t->ndim - 1;
    while (axis > 0 && row * (uint64_t)t->shape[axis] <= s->limit)
        row *= (uint64_t)t->shape[axis--];
    *row_out = row;
    return axis;
}

/* Slabs: one index on every axis before `axis`, a run along it, everything behind. */
static tutti_status add_slabs(scan *s, const tt_ctensor *t)
{
    int64_t dim[2 * TUTTI_CKPT_MAX_DIMS] = {0};
    uint64_t row, at = 0, total = tt_tensor_bytes(t);
    int n = t->ndim, axis = cut_axis(s, t, &row);
    int64_t run = (int64_t)(s->limit / row);
    for (int d = 0; d < n; d++)
        dim[n + d] = d < axis ? 1 : t->shape[d];
    while (at < total) {
        int64_t left = t->shape[axis] - dim[axis];
        dim[n + axis] = left < run ? left : run;
        TT_TRY(add(s, t, dim, at, (uint64_t)dim[n + axis] * row));
        at += (uint64_t)dim[n + axis] * row;
        dim[axis] += dim[n + axis];
        for (int d = axis; d > 0 && dim[d] == t->shape[d]; d--) {
            dim[d] = 0;
            dim[d - 1]++;
        }
    }
    return TUTTI_OK;
}

static tutti_status add_tensor(scan *s, const tt_ctensor *t)
{
    int64_t dim[2 * TUTTI_CKPT_MAX_DIMS] = {0};
    if (t->ndim > 0 && t->elems > 0 && tt_tensor_bytes(t) > s->limit)
        return add_slabs(s, t);
    memcpy(dim + t->ndim, t->shape, (size_t)t->ndim * sizeof *dim);
    return add(s, t, dim, 0, tt_tensor_bytes(t));
}

tutti_status tt_source_scan(const tt_source *src, const tt_ctensor *const *list, size_t n,
                            uint64_t limit, tt_scan_fn fn, void *arg)
{
    scan s = {.src = src, .limit = limit < 4096 ? 4096 : limit, .fn = fn, .arg = arg};
    tutti_status status = tt_calloc(1, s.limit, &s.data);
    if (status == TUTTI_OK)
        status = tt_calloc(BATCH, sizeof *s.want, &s.want);
    if (status == TUTTI_OK)
        status = tt_calloc(BATCH, sizeof *s.piece, &s.piece);
    if (status == TUTTI_OK)
        status = tt_calloc(BATCH, sizeof *s.dims, &s.dims);
    for (size_t i = 0; i < n && status == TUTTI_OK; i++)
        status = add_tensor(&s, list[i]);
    if (status == TUTTI_OK)
        status = flush(&s);
    free(s.dims);
    free(s.piece);
    free(s.want);
    free(s.data);
    return status;
}

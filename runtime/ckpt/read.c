/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading from an open checkpoint: what it holds, boxes of tensors, values.
 *
 * Boxes in host memory and of the stored type are filled straight from verified blocks. Others (a
 * device's memory, another float type) pass through memory of ours, 64 MiB of them at a time or one
 * that is larger, so that small ones that lie in one block are read together.
 */
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/convert.h"
#include "ckpt/open.h"
#include "ckpt/ranks.h"

enum { PASS_BYTES = 64 << 20 };

const char *tutti_ckpt_dir(const tutti_ckpt_reader *rd)
{
    return rd == NULL ? NULL : rd->path;
}

int64_t tutti_ckpt_step(const tutti_ckpt_reader *rd)
{
    return rd == NULL ? -1 : rd->src.m.step;
}

int tutti_ckpt_world(const tutti_ckpt_reader *rd)
{
    return rd == NULL ? 0 : rd->src.m.world;
}

/* By its name, else as this rank's own among those kept per rank; NULL: neither. */
static const tt_ctensor *find(const tutti_ckpt_reader *rd, const char *name, bool own_first,
                              bool *own_out)
{
    char full[TT_CKPT_FULL_NAME_MAX + 1];
    const tt_ctensor *plain = tt_catalog_find(&rd->src.m.cat, name), *own = NULL;
    if ((size_t)snprintf(full, sizeof full, "rank/%d/%s", rd->ctx->world.rank, name) < sizeof full)
        own = tt_catalog_find(&rd->src.m.cat, full);
    *own_out = own != NULL && (own_first || plain == NULL);
    return own_first || plain == NULL ? own : plain;
}

tutti_status tutti_ckpt_stat(const tutti_ckpt_reader *rd, const char *name, tutti_tensor *info_out)
{
    tutti_tensor info = TUTTI_TENSOR_INIT;
    bool own;
    if (rd == NULL || name == NULL || info_out == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_stat: an argument is NULL");
    const tt_ctensor *t = find(rd, name, false, &own);
    if (t == NULL)
        return tt_fail(TUTTI_ERR_NOT_FOUND, "%s holds no tensor %.200s", rd->src.name, name);
    info.name = own ? t->name + (strlen(t->name) - strlen(name)) : t->name;
    info.dtype = t->dtype;
    info.ndim = t->ndim;
    info.flags = own ? TUTTI_CKPT_PER_RANK : 0;
    memcpy(info.shape, t->shape, (size_t)t->ndim * sizeof *t->shape);
    memcpy(info.extent, t->shape, (size_t)t->ndim * sizeof *t->shape);
    *info_out = info;
    return TUTTI_OK;
}

tutti_status tutti_ckpt_next(const tutti_ckpt_reader *rd, const char *pattern, size_t *at_inout,
                             tutti_tensor *info_out)
{
    if (rd == NULL || pattern == NULL || at_inout == NULL || info_out == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_next: an argument is NULL");
    while (*at_inout < rd->src.m.cat.ntensor) {
        const tt_ctensor *t = &rd->src.m.cat.tensor[(*at_inout)++];
        if (fnmatch(pattern, t->name, 0) == 0)
            return tutti_ckpt_stat(rd, t->name, info_out);
    }
    return tt_fail(TUTTI_ERR_NOT_FOUND, "%s holds no more tensors that match %.200s", rd->src.name,
                   pattern);
}

static tutti_status check_read_args(const tutti_tensor *t)
{
    if (t->size != sizeof *t || t->name == NULL || t->ndim < 0 || t->ndim > TUTTI_CKPT_MAX_DIMS ||
        (t->flags & ~(uint32_t)(TUTTI_CKPT_PER_RANK | TUTTI_CKPT_CONVERT)) != 0)
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_read: a tensor does not begin with "
                                      "TUTTI_TENSOR_INIT, or its name, ndim or flags is wrong");
    return TUTTI_OK;
}

static tutti_status check_stored_as(const tt_ctensor *have, const tutti_tensor *t)
{
    char a[TT_CKPT_BOX_TEXT], b[TT_CKPT_BOX_TEXT];
    bool type = have->dtype == t->dtype ||
                ((t->flags & TUTTI_CKPT_CONVERT) != 0 && tt_convertible(have->dtype, t->dtype));
    if (type && have->ndim == t->ndim &&
        memcmp(have->shape, t->shape, (size_t)t->ndim * sizeof *t->shape) == 0)
        return TUTTI_OK;
    return tt_fail(TUTTI_ERR_SHAPE, "tensor %s is stored as %s %s and asked for as %s %s", t->name,
                   tutti_dtype_name(have->dtype),
                   tt_shape_text(have->shape, have->ndim, a, sizeof a), tutti_dtype_name(t->dtype),
                   tt_shape_text(t->shape, t->ndim, b, sizeof b));
}

static uint64_t want_bytes(const tt_want *want)
{
    uint64_t elems = 0;
    tt_dims_elems(want->dim + want->tensor->ndim, want->tensor->ndim, &elems);
    return elems * tutti_dtype_size(want->tensor->dtype);
}

/* What one tensor asks for; dims: room for offset and extent. */
static tutti_status make_want(const tutti_ckpt_reader *rd, const tutti_tensor *t, int64_t *dims,
                              tt_want *want)
{
    bool own, whole = true, per_rank = (t->flags & TUTTI_CKPT_PER_RANK) != 0;
    TT_TRY(check_read_args(t));
    const tt_ctensor *have = find(rd, t->name, per_rank, &own);
    if (have == NULL)
        return tt_fail(TUTTI_ERR_NOT_FOUND, "%s holds no tensor %.200s%s", rd->src.name, t->name,
                       per_rank ? " of this rank" : "");
    TT_TRY(check_stored_as(have, t));
    for (int d = 0; d < t->ndim; d++)
        whole = whole && t->offset[d] == 0 && t->extent[d] == 0;
    size_t row = (size_t)t->ndim * sizeof *dims;
    memcpy(dims, t->offset, row);
    memcpy(dims + t->ndim, whole ? t->shape : t->extent, row);
    *want = (tt_want){have, dims, t->data};
    if (!tt_box_inside(dims, have->shape, t->ndim) || (t->data == NULL && want_bytes(want) > 0))
        return tt_fail(TUTTI_ERR_ARG,
                       "tutti_ckpt_read: tensor %s: the box is not inside its shape, or data is "
                       "NULL",
                       t->name);
    return TUTTI_OK;
}

/* Boxes that go through memory of ours: those of a device, and those that are converted. */
typedef struct passage {
    tutti_ckpt_reader *rd;
    tutti_stream stream;
    const tutti_tensor *tensors;
    const tt_want *want;
    char *data, *converted;
    size_t data_cap, converted_cap;
} passage;

static tutti_status hand_over(passage *p, size_t i, const char *data)
{
    const tt_device_ops *ops = p->rd->ctx->dev_ops;
    tutti_dtype have = p->want[i].tensor->dtype, asked = p->tensors[i].dtype;
    uint64_t elems = want_bytes(&p->want[i]) / tutti_dtype_size(have);
    uint64_t bytes = elems * tutti_dtype_size(asked);
    if (bytes == 0)
        return TUTTI_OK;
    if (ops->kind == TUTTI_BACKEND_HOST) {
        tt_convert(asked, p->tensors[i].data, have, data, elems);
        return TUTTI_OK;
    }
    if (asked != have) {
        TT_TRY(tt_grow(&p->converted, &p->converted_cap, bytes, 1));
        tt_convert(asked, p->converted, have, data, elems);
        data = p->converted;
    }
    TT_TRY(ops->copy(p->rd->ctx->dev, p->tensors[i].data, data, bytes, p->stream));
    return ops->stream_sync(p->rd->ctx->dev, p->stream);
}

/* The boxes [from, to) at once. */
static tutti_status pass_run(passage *p, size_t from, size_t to, uint64_t bytes)
{
    tt_want *want;
    uint64_t at = 0;
    TT_TRY(tt_grow(&p->data, &p->data_cap, bytes + 1, 1));
    TT_TRY(tt_calloc(to - from, sizeof *want, &want));
    for (size_t i = from; i < to; i++) {
        want[i - from] = p->want[i];
        want[i - from].to = p->data + at;
        at += tt_round_up(want_bytes(&p->want[i]), sizeof(uint64_t));
    }
    tutti_status status = tt_source_read(&p->rd->src, want, to - from);
    for (size_t i = from; i < to && status == TUTTI_OK; i++)
        status = hand_over(p, i, want[i - from].to);
    free(want);
    return status;
}

static tutti_status pass_all(passage *p, size_t n)
{
    for (size_t i = 0, to; i < n; i = to) {
        uint64_t bytes = 0;
        for (to = i; to < n; to++) {
            uint64_t more = tt_round_up(want_bytes(&p->want[to]), sizeof(uint64_t));
            if (to > i && bytes + more > PASS_BYTES)
                break;
            bytes += more;
        }
        TT_TRY(pass_run(p, i, to, bytes));
    }
    return TUTTI_OK;
}

static tutti_status read_wanted(tutti_ckpt_reader *rd, const tutti_tensor *tensors,
                                const tt_want *want, size_t n, tutti_stream stream)
{
    bool direct = rd->ctx->dev_ops->kind == TUTTI_BACKEND_HOST;
    passage p = {.rd = rd, .stream = stream, .tensors = tensors, .want = want};
    for (size_t i = 0; i < n; i++)
        direct = direct && tensors[i].dtype == want[i].tensor->dtype;
    if (direct)
        return tt_source_read(&rd->src, want, n);
    tutti_status status = pass_all(&p, n);
    free(p.data);
    free(p.converted);
    return status;
}

static tutti_status make_wants(const tutti_ckpt_reader *rd, const tutti_tensor *tensors, size_t n,
                               tutti_stream stream, tt_want **want, int64_t **dims)
{
    const size_t row = 2 * TUTTI_CKPT_MAX_DIMS;
    if (tensors == NULL && n > 0)
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_read: tensors is NULL");
    TT_TRY(rd->ctx->dev_ops->stream_check(rd->ctx->dev, stream));
    TT_TRY(tt_calloc(n, sizeof **want, want));
    TT_TRY(tt_calloc(n, row * sizeof **dims, dims));
    for (size_t i = 0; i < n; i++)
        TT_TRY(make_want(rd, &tensors[i], *dims + i * row, &(*want)[i]));
    return TUTTI_OK;
}

static tutti_status read_boxes(tutti_ckpt_reader *rd, const tutti_tensor *tensors, size_t n,
                               tutti_stream stream)
{
    const tt_device_ops *ops = rd->ctx->dev_ops;
    tt_want *want = NULL;
    int64_t *dims = NULL;
    uint64_t bytes = 0;
    tutti_status status = make_wants(rd, tensors, n, stream, &want, &dims);
    if (rd->nodes != NULL)
        status = tt_agree(&rd->ctx->world, "tutti_ckpt_read", status);
    if (rd->nodes != NULL && status == TUTTI_OK)
        status = tt_nodes_fetch(rd->ctx, rd->nodes, &rd->src, want, n);
    for (size_t i = 0; i < n && status == TUTTI_OK; i++)
        bytes += want_bytes(&want[i]);
    tt_ranks_busy(rd->ctx, bytes);
    if (status == TUTTI_OK)
        status = ops->stream_sync(rd->ctx->dev, stream); /* earlier work on the buffers */
    if (status == TUTTI_OK)
        status = read_wanted(rd, tensors, want, n, stream);
    free(want);
    free(dims);
    return status;
}

tutti_status tutti_ckpt_read(tutti_ckpt_reader *rd, const tutti_tensor *tensors, size_t n,
                             tutti_stream stream)
{
    if (rd == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_read: rd is NULL");
    TT_TRY(tt_ctx_check(rd->ctx));
    return tt_agree(&rd->ctx->world, "tutti_ckpt_read", read_boxes(rd, tensors, n, stream));
}

static const tt_ctensor *find_value(const tutti_ckpt_reader *rd, const char *name, int saved_rank)
{
    char full[TT_CKPT_FULL_NAME_MAX + 1];
    const tt_ctensor *t = tt_catalog_find(&rd->src.m.cat, name);
    if (t == NULL && saved_rank >= 0 &&
        (size_t)snprintf(full, sizeof full, "rank/%d/%s", saved_rank, name) < sizeof full)
        t = tt_catalog_find(&rd->src.m.cat, full);
    return t != NULL && t->bytes ? t : NULL;
}

tutti_status tutti_ckpt_read_bytes(tutti_ckpt_reader *rd, const char *name, int saved_rank,
                                   void *buf, size_t cap, size_t *bytes_out)
{
    int64_t dims[2] = {0, 0};
    if (rd == NULL || name == NULL || (buf == NULL && cap > 0))
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_read_bytes: an argument is NULL");
    const tt_ctensor *t = find_value(rd, name, saved_rank);
    if (t == NULL)
        return tt_fail(TUTTI_ERR_NOT_FOUND, "%s holds no value %.200s of rank %d", rd->src.name,
                       name, saved_rank);
    if (t->elems > cap)
        return tt_fail(TUTTI_ERR_ARG,
                       "tutti_ckpt_read_bytes: %s has %llu bytes, there is room for %zu", name,
                       (unsigned long long)t->elems, cap);
    dims[1] = t->shape[0];
    tt_want want = {t, dims, buf};
    TT_TRY(tt_source_read(&rd->src, &want, 1));
    if (bytes_out != NULL)
        *bytes_out = t->elems;
    return TUTTI_OK;
}

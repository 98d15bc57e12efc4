/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loading half of the public interface.
 *
 * Rank 0 alone lists the directory and reads the manifest; the others get its text, so that all
 * work from the same one. Then each rank verifies a share of all blocks and they agree: a newest
 * checkpoint in which one bit is wrong is passed over by all, loudly, for the one before it.
 * What is read later is verified again, block by block, as it is read.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "boot/context.h"
#include "ckpt/loader.h"
#include "ckpt/ranks.h"
#include "core/log.h"

struct tutti_ckpt_reader {
    tutti_ctx *ctx;
    tt_source src;
};

typedef struct opener {
    tutti_ctx *ctx;
    const char *path;
    int dir;
    int64_t *steps; /* rank 0's */
    size_t nsteps;
    tt_source src;
} opener;

static tutti_status list_steps(opener *o, int64_t step)
{
    if (step == TUTTI_CKPT_STEP_BEST)
        TT_TRY(tt_tag_read(o->dir, TT_BEST_NAME, &step));
    if (step >= 0) {
        TT_TRY(tt_calloc(1, sizeof *o->steps, &o->steps));
        o->steps[0] = step;
        o->nsteps = 1;
        return TUTTI_OK;
    }
    TT_TRY(tt_dir_steps(o->dir, &o->steps, &o->nsteps));
    return o->nsteps > 0 ? TUTTI_OK
                         : tt_fail(TUTTI_ERR_NOT_FOUND, "there is no checkpoint in %s", o->path);
}

/* Rank 0 has read the manifest into text, or failed with `status`. */
static tutti_status share_manifest(opener *o, int64_t step, tt_buf *text)
{
    tt_group *world = &o->ctx->world;
    tt_buf got = {0};
    tutti_status status = tt_bcast_blob(world, "tutti_ckpt_open", 0, text->data, text->size, &got);
    if (status == TUTTI_OK && world->rank != 0)
        status = tt_source_open(o->dir, step, &got, &o->src);
    if (status == TUTTI_ERR_NOT_FOUND)
        status = tt_fail(TUTTI_ERR_IO, "rank 0 sees step %lld in %s, this rank does not",
                         (long long)step, o->path);
    tt_buf_free(&got);
    return status;
}

static tutti_status verify_share(opener *o)
{
    const tt_catalog *cat = &o->src.m.cat;
    uint64_t bytes = 0;
    for (size_t i = 0; i < cat->nfile; i++)
        bytes += cat->file[i].bytes;
    tt_ranks_busy(o->ctx, bytes / (uint64_t)o->ctx->world.size);
    return tt_source_verify(&o->src, o->ctx->world.rank, o->ctx->world.size);
}

/* One candidate, on all ranks or on none. */
static tutti_status try_step(opener *o, int64_t step)
{
    tt_group *world = &o->ctx->world;
    tt_buf text = {0};
    tutti_status status = TUTTI_OK;
    if (world->rank == 0)
        status = tt_source_open(o->dir, step, &text, &o->src);
    status = tt_agree(world, "tutti_ckpt_open", status);
    if (status == TUTTI_OK)
        status = tt_agree(world, "tutti_ckpt_open", share_manifest(o, step, &text));
    if (status == TUTTI_OK)
        status = tt_agree(world, "tutti_ckpt_open", verify_share(o));
    tt_buf_free(&text);
    if (status != TUTTI_OK)
        tt_source_close(&o->src);
    return status;
}

static tutti_status tell_steps(opener *o)
{
    tt_buf all = {0};
    tutti_status status = tt_bcast_blob(&o->ctx->world, "tutti_ckpt_open", 0, o->steps,
                                        o->nsteps * sizeof *o->steps, &all);
    if (status == TUTTI_OK && o->ctx->world.rank != 0) {
        status = tt_calloc(all.size / sizeof *o->steps, sizeof *o->steps, &o->steps);
        if (status == TUTTI_OK) {
            o->nsteps = all.size / sizeof *o->steps;
            memcpy(o->steps, all.data, all.size);
        }
    }
    tt_buf_free(&all);
    return tt_agree(&o->ctx->world, "tutti_ckpt_open", status);
}

static tutti_status try_steps(opener *o, bool any)
{
    tutti_status status = TUTTI_OK;
    for (size_t i = 0; i < o->nsteps; i++) {
        status = try_step(o, o->steps[i]);
        bool damaged = status == TUTTI_ERR_CORRUPT || status == TUTTI_ERR_NOT_FOUND;
        if (status == TUTTI_ERR_NOT_FOUND && !any)
            return tt_fail(status, "there is no checkpoint of step %lld in %s",
                           (long long)o->steps[i], o->path);
        if (status == TUTTI_OK)
            return TUTTI_OK;
        if (!any || !damaged)
            return tt_fail_more(status, "checkpoint in %s", o->path);
        if (o->ctx->world.rank == 0)
            tt_log_error(TT_CKPT, "%s: the checkpoint of step %lld is damaged and passed over: %s",
                         o->path, (long long)o->steps[i], tutti_last_error());
    }
    return tt_fail_more(tt_fail_text(TUTTI_ERR_CORRUPT, tutti_last_error()),
                        "all %zu checkpoints in %s are damaged; the oldest", o->nsteps, o->path);
}

/* No directory on all ranks is a fresh start; on some it is not, or a job would begin anew though
 * its checkpoints are there. */
static tutti_status open_dir(opener *o)
{
    char who[512];
    int blind;
    tutti_status status = tt_dir_open(o->path, &o->dir);
    TT_TRY(tt_ranks_that(o->ctx, "tutti_ckpt_open", status == TUTTI_ERR_NOT_FOUND, &blind, who,
                         sizeof who));
    if (blind == o->ctx->world.size)
        return tt_fail(TUTTI_ERR_NOT_FOUND, "there is no directory %s", o->path);
    if (blind > 0)
        return tt_fail(TUTTI_ERR_IO,
                       "%s cannot see the directory %s, other ranks can: all must share it", who,
                       o->path);
    return tt_agree(&o->ctx->world, "tutti_ckpt_open", status);
}

static tutti_status open_newest(opener *o, int64_t step)
{
    tt_group *world = &o->ctx->world;
    TT_TRY(tt_ranks_alike(o->ctx, "tutti_ckpt_open", o->path, step));
    TT_TRY(open_dir(o));
    tutti_status status = world->rank == 0 ? list_steps(o, step) : TUTTI_OK;
    TT_TRY(tt_agree(world, "tutti_ckpt_open", status));
    TT_TRY(tell_steps(o));
    return try_steps(o, step == TUTTI_CKPT_STEP_NEWEST);
}

static tutti_status open_args(const char *dir, int64_t step, tutti_ckpt_reader **rd_out)
{
    if (dir == NULL || dir[0] == '\0' || step < TUTTI_CKPT_STEP_BEST || rd_out == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_open: it needs a directory, a step of -2 or "
                                      "more and a place for the result");
    return TUTTI_OK;
}

tutti_status tutti_ckpt_open(tutti_ctx *ctx, const char *dir, int64_t step,
                             tutti_ckpt_reader **rd_out)
{
    tutti_ckpt_reader *rd = NULL;
    opener o = {.ctx = ctx, .path = dir, .dir = -1};
    if (ctx == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_open: ctx is NULL");
    TT_TRY(tt_ctx_check(ctx));
    tutti_status status = open_args(dir, step, rd_out);
    if (status == TUTTI_OK)
        status = tt_calloc(1, sizeof *rd, &rd);
    status = tt_agree(&ctx->world, "tutti_ckpt_open", status);
    if (status == TUTTI_OK)
        status = open_newest(&o, step);
    if (o.dir >= 0)
        close(o.dir);
    free(o.steps);
    if (status != TUTTI_OK) {
        free(rd);
        return status;
    }
    rd->ctx = ctx;
    rd->src = o.src;
    *rd_out = rd;
    return TUTTI_OK;
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

static tutti_status check_read_args(const tutti_tensor *t)
{
    if (t->size != sizeof *t || t->name == NULL || t->ndim < 0 || t->ndim > TUTTI_CKPT_MAX_DIMS ||
        (t->flags & ~(uint32_t)TUTTI_CKPT_PER_RANK) != 0)
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_read: a tensor does not begin with "
                                      "TUTTI_TENSOR_INIT, or its name, ndim or flags is wrong");
    return TUTTI_OK;
}

static tutti_status check_stored_as(const tt_ctensor *have, const tutti_tensor *t)
{
    char a[TT_CKPT_BOX_TEXT], b[TT_CKPT_BOX_TEXT];
    if (have->dtype == t->dtype && have->ndim == t->ndim &&
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

/* Memory of a device is filled from host memory, box by box. */
static tutti_status read_device(tutti_ckpt_reader *rd, const tt_want *want, size_t n,
                                tutti_stream stream)
{
    const tt_device_ops *ops = rd->ctx->dev_ops;
    for (size_t i = 0; i < n; i++) {
        tt_want host = want[i];
        TT_TRY(tt_calloc(1, want_bytes(&host), &host.to));
        tutti_status status = tt_source_read(&rd->src, &host, 1);
        if (status == TUTTI_OK)
            status = ops->copy(rd->ctx->dev, want[i].to, host.to, want_bytes(&host), stream);
        if (status == TUTTI_OK)
            status = ops->stream_sync(rd->ctx->dev, stream);
        free(host.to);
        if (status != TUTTI_OK)
            return status;
    }
    return TUTTI_OK;
}

static tutti_status read_boxes(tutti_ckpt_reader *rd, const tutti_tensor *tensors, size_t n,
                               tutti_stream stream)
{
    const tt_device_ops *ops = rd->ctx->dev_ops;
    tt_want *want = NULL;
    int64_t *dims = NULL;
    uint64_t bytes = 0;
    if (tensors == NULL && n > 0)
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_read: tensors is NULL");
    TT_TRY(ops->stream_check(rd->ctx->dev, stream));
    tutti_status status = tt_calloc(n, sizeof *want, &want);
    if (status == TUTTI_OK)
        status = tt_calloc(n, 2 * TUTTI_CKPT_MAX_DIMS * sizeof *dims, &dims);
    for (size_t i = 0; i < n && status == TUTTI_OK; i++)
        status = make_want(rd, &tensors[i], dims + i * 2 * TUTTI_CKPT_MAX_DIMS, &want[i]);
    for (size_t i = 0; i < n && status == TUTTI_OK; i++)
        bytes += want_bytes(&want[i]);
    tt_ranks_busy(rd->ctx, bytes);
    if (status == TUTTI_OK)
        status = ops->stream_sync(rd->ctx->dev, stream); /* earlier work on the buffers */
    if (status == TUTTI_OK)
        status = ops->kind == TUTTI_BACKEND_HOST ? tt_source_read(&rd->src, want, n)
                                                 : read_device(rd, want, n, stream);
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

void tutti_ckpt_close(tutti_ckpt_reader *rd)
{
    if (rd == NULL)
        return;
    tt_source_close(&rd->src);
    free(rd);
}

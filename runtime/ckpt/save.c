/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The saving half of the public interface: begin, add, commit, wait.
 *
 * begin makes the temporary directory (rank 0; node-local, the leader of each part) and has every
 * rank read a token in it, for ranks that do not see one directory would each commit a part. commit
 * exchanges what each rank added, makes the plan, and copies this rank's share in stream order into
 * the saver's own memory, after which the program may change its data. The plan is kept: while all
 * ranks add the same boxes as the last time, which one hash per rank shows, nothing is exchanged or
 * planned anew.
 *
 * Each step that may fail on one rank alone is followed by tt_agree before the next collective one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/ranks.h"
#include "ckpt/saver.h"
#include "core/env.h"
#include "core/log.h"

enum { VALUE_MAX = 16 << 20 };

void tt_ckpt_discard(tutti_ckpt *ck)
{
    if (ck == NULL)
        return;
    tt_arena_free(&ck->arena);
    free(ck->item);
    free(ck);
}

static tutti_status lock_folder(tt_saver *s)
{
    double wait_s;
    if (tt_folder_lock_is_of(s->lock, s->dir) && tt_folder_lock_check(s->lock) == TUTTI_OK)
        return TUTTI_OK;
    tt_folder_lock_release(s->lock);
    s->lock = NULL;
    TT_TRY(tt_env_get_seconds(TT_ENV_CKPT_WAIT_LOCK, &wait_s));
    tutti_expect_quiet(s->ctx, wait_s);
    return tt_folder_lock_take(s->dir, s->path, wait_s, &s->lock);
}

bool tt_saver_leads(const tt_saver *s)
{
    int rank = s->ctx->world.rank;
    if (!s->node_local)
        return rank == 0;
    return s->parts.of != NULL && s->parts.leader[s->parts.of[rank]] == rank;
}

/* The leader: the directory, free of what dead owners left, and the temporary one in it. */
static tutti_status make_temp(tt_saver *s)
{
    TT_TRY(tt_dir_make(s->path));
    if (s->dir < 0)
        TT_TRY(tt_dir_open(s->path, &s->dir));
    TT_TRY(lock_folder(s));
    return tt_owner_make_temp(s->dir, s->path, s->step, s->temp_name, &s->temp, &s->owner);
}

static tutti_status check_seen(tt_saver *s)
{
    char who[512];
    int blind;
    TT_TRY(tt_ranks_that(s->ctx, "tutti_ckpt_begin",
                         !tt_owner_sees_temp(s->path, s->temp_name, &s->dir, &s->temp), &blind, who,
                         sizeof who));
    if (blind > 0 && s->node_local)
        return tt_fail(TUTTI_ERR_IO,
                       "%s cannot see what the first rank of the node made in %s: the ranks of a "
                       "node must share one directory",
                       who, s->path);
    if (blind > 0)
        return tt_fail(TUTTI_ERR_IO,
                       "%s cannot see what rank 0 made in %s: all ranks must share one directory, "
                       "unless the save is TUTTI_CKPT_NODE_LOCAL",
                       who, s->path);
    return TUTTI_OK;
}

static tutti_status tell_temp(tt_saver *s)
{
    tt_buf name = {0};
    tutti_status status = tt_bcast_blob(&s->ctx->world, "tutti_ckpt_begin", 0, s->temp_name,
                                        strlen(s->temp_name), &name);
    if (status == TUTTI_OK && s->ctx->world.rank != 0)
        snprintf(s->temp_name, sizeof s->temp_name, "%.*s", (int)name.size,
                 (const char *)name.data);
    tt_buf_free(&name);
    return status;
}

static tutti_status begin_temp(tt_saver *s)
{
    if (s->node_local)
        TT_TRY(tt_parts_find(s));
    TT_TRY(
        tt_agree(&s->ctx->world, "tutti_ckpt_begin", tt_saver_leads(s) ? make_temp(s) : TUTTI_OK));
    TT_TRY(s->node_local ? tt_parts_tell_temp(s) : tell_temp(s));
    return check_seen(s);
}

static tutti_status open_save(tt_saver *s, const char *dir, int64_t step,
                              const tutti_ckpt_begin_opts *opts, tutti_ckpt **ck_out)
{
    tt_group *world = &s->ctx->world;
    tutti_ckpt *ck = NULL;
    tutti_status status = tt_strdup(dir, &s->path);
    s->step = step;
    s->node_local = (opts->flags & TUTTI_CKPT_NODE_LOCAL) != 0;
    if (status == TUTTI_OK)
        status = tt_calloc(1, sizeof *ck, &ck);
    status = tt_agree(world, "tutti_ckpt_begin", status);
    if (status == TUTTI_OK)
        status = begin_temp(s);
    if (status != TUTTI_OK) {
        tt_ckpt_discard(ck);
        return tt_saver_drop(s, status);
    }
    ck->ctx = s->ctx;
    s->open = ck;
    s->phase = TT_SAVE_OPEN;
    tt_schedule_began(s);
    *ck_out = ck;
    return TUTTI_OK;
}

static tutti_status begin_args(const char *dir, int64_t step, const tutti_ckpt_begin_opts *opts,
                               tutti_ckpt **ck_out)
{
    const uint32_t busy = TUTTI_CKPT_BUSY_MERGE | TUTTI_CKPT_BUSY_REFUSE;
    if (opts->size != sizeof *opts || (opts->flags & ~(busy | TUTTI_CKPT_NODE_LOCAL)) != 0 ||
        (opts->flags & busy) == busy)
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_begin: size or flags of the options is wrong");
    if (dir == NULL || dir[0] == '\0' || step < 0 || ck_out == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_begin: it needs a directory, a step of 0 or "
                                      "more and a place for the result");
    return TUTTI_OK;
}

/* The same on all ranks: what tells whether a save has ended is exchanged. */
static tutti_status meet_earlier(tt_saver *s, const tutti_ckpt_begin_opts *opts, bool *begin_out)
{
    bool wait = (opts->flags & (TUTTI_CKPT_BUSY_MERGE | TUTTI_CKPT_BUSY_REFUSE)) == 0;
    TT_TRY(tt_saver_progress(s, wait));
    *begin_out = s->phase == TT_SAVE_NONE;
    if (*begin_out)
        return TUTTI_OK;
    if ((opts->flags & TUTTI_CKPT_BUSY_REFUSE) != 0)
        return tt_fail(TUTTI_ERR_STATE, "tutti_ckpt_begin: the save of step %lld is being written",
                       (long long)s->step);
    if (wait)
        return tt_fail(
            TUTTI_ERR_TIMEOUT,
            "tutti_ckpt_begin: the save of step %lld, which was given up, still hangs in "
            "the disk",
            (long long)s->step);
    s->merged = true;
    return TUTTI_OK;
}

tutti_status tutti_ckpt_begin_with(tutti_ctx *ctx, const char *dir, int64_t step,
                                   const tutti_ckpt_begin_opts *opts, tutti_ckpt **ck_out)
{
    static const tutti_ckpt_begin_opts defaults = TUTTI_CKPT_BEGIN_OPTS_INIT;
    tt_saver *s = NULL;
    bool begin;
    if (opts == NULL)
        opts = &defaults;
    if (ctx == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_begin: ctx is NULL");
    TT_TRY(tt_ctx_check(ctx));
    tutti_status status = begin_args(dir, step, opts, ck_out);
    if (status == TUTTI_OK)
        status = tt_saver_get(ctx, &s);
    if (status == TUTTI_OK && s->phase == TT_SAVE_OPEN)
        status = tt_fail(TUTTI_ERR_STATE,
                         "tutti_ckpt_begin: the save of step %lld is begun and not committed",
                         (long long)s->step);
    TT_TRY(tt_agree(&ctx->world, "tutti_ckpt_begin", status));
    TT_TRY(tt_ranks_alike(ctx, "tutti_ckpt_begin",
                          (opts->flags & TUTTI_CKPT_NODE_LOCAL) != 0 ? "" : dir, step,
                          opts->flags));
    TT_TRY(meet_earlier(s, opts, &begin));
    if (!begin) {
        *ck_out = NULL;
        return TUTTI_OK;
    }
    s->merged = false;
    return open_save(s, dir, step, opts, ck_out);
}

tutti_status tutti_ckpt_begin(tutti_ctx *ctx, const char *dir, int64_t step, tutti_ckpt **ck_out)
{
    return tutti_ckpt_begin_with(ctx, dir, step, NULL, ck_out);
}

static tutti_status add_failed(tutti_ckpt *ck, tutti_status status)
{
    if (ck->status == TUTTI_OK) {
        ck->status = status;
        snprintf(ck->text, sizeof ck->text, "%s", tutti_last_error());
    }
    return status;
}

static bool all_zero(const int64_t *dim, int n)
{
    for (int d = 0; d < n; d++)
        if (dim[d] != 0)
            return false;
    return true;
}

static tutti_status check_tensor(const tutti_tensor *t)
{
    uint64_t elems;
    if (t->name == NULL || !tt_name_ok(t->name, TT_CKPT_NAME_MAX))
        return tt_fail(TUTTI_ERR_ARG,
                       "tutti_ckpt_add: '%.200s' is no name: [A-Za-z0-9._/-], at most %d bytes, no "
                       "empty, '.' or '..' part",
                       t->name == NULL ? "NULL" : t->name, TT_CKPT_NAME_MAX);
    if (strcmp(t->name, "rank") == 0 || strncmp(t->name, "rank/", 5) == 0)
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_add: %s: rank/ holds what is kept per rank",
                       t->name);
    if (!tt_dtype_ok(t->dtype) || t->ndim < 0 || t->ndim > TUTTI_CKPT_MAX_DIMS ||
        (t->flags & ~(uint32_t)TUTTI_CKPT_PER_RANK) != 0)
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_add: %s: dtype %d, ndim %d or flags %#x is wrong",
                       t->name, (int)t->dtype, t->ndim, t->flags);
    if (!tt_dims_elems(t->shape, t->ndim, &elems))
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_add: %s: an impossible shape", t->name);
    return TUTTI_OK;
}

/* The name in the catalog, and shape, offset and extent behind one another. */
static tutti_status keep_tensor(tutti_ckpt *ck, const tutti_tensor *t, tt_item *item)
{
    char full[TT_CKPT_FULL_NAME_MAX + 1];
    size_t n = (size_t)t->ndim, row = n * sizeof(int64_t);
    int64_t *dims;
    if ((t->flags & TUTTI_CKPT_PER_RANK) != 0)
        snprintf(full, sizeof full, "rank/%d/%s", ck->ctx->world.rank, t->name);
    else
        snprintf(full, sizeof full, "%s", t->name);
    TT_TRY(tt_arena_text(&ck->arena, full, strlen(full), &item->name));
    TT_TRY(tt_arena_alloc(&ck->arena, 3 * row, &dims));
    memcpy(dims, t->shape, row);
    if (all_zero(t->offset, t->ndim) && all_zero(t->extent, t->ndim)) {
        memset(dims + n, 0, row);
        memcpy(dims + 2 * n, t->shape, row);
    } else {
        memcpy(dims + n, t->offset, row);
        memcpy(dims + 2 * n, t->extent, row);
    }
    item->shape = dims;
    return TUTTI_OK;
}

static tutti_status add_item(tutti_ckpt *ck, const tutti_tensor *t, tt_item *item)
{
    uint64_t elems = 0;
    size_t n = (size_t)t->ndim;
    TT_TRY(check_tensor(t));
    TT_TRY(tt_grow(&ck->item, &ck->item_cap, ck->nitem + 1, sizeof *ck->item));
    TT_TRY(keep_tensor(ck, t, item));
    if (!tt_box_inside(item->shape + n, item->shape, t->ndim))
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_add: %s: the box is not inside the shape",
                       t->name);
    tt_dims_elems(item->shape + 2 * n, t->ndim, &elems);
    item->data = t->data;
    item->bytes_total = elems * tutti_dtype_size(t->dtype);
    item->dtype = t->dtype;
    item->ndim = t->ndim;
    if (t->data == NULL && elems > 0)
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_add: %s: data is NULL", t->name);
    ck->item[ck->nitem++] = *item;
    return TUTTI_OK;
}

tutti_status tutti_ckpt_add(tutti_ckpt *ck, const tutti_tensor *tensor)
{
    tt_item item = {0};
    if (ck == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_add: ck is NULL");
    if (tensor == NULL || tensor->size != sizeof *tensor)
        return add_failed(ck, tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_add: the tensor is NULL or does "
                                                     "not begin with TUTTI_TENSOR_INIT"));
    tutti_status status = add_item(ck, tensor, &item);
    return status == TUTTI_OK ? TUTTI_OK : add_failed(ck, status);
}

static tutti_status add_value(tutti_ckpt *ck, const char *name, const void *data, size_t bytes,
                              uint32_t flags)
{
    tutti_tensor t = TUTTI_TENSOR_INIT;
    tt_item item = {.bytes = true, .same = flags == TUTTI_CKPT_SAME};
    char *copy;
    if ((data == NULL && bytes > 0) || bytes > VALUE_MAX ||
        (flags != TUTTI_CKPT_SAME && flags != TUTTI_CKPT_PER_RANK))
        return tt_fail(TUTTI_ERR_ARG,
                       "tutti_ckpt_add_bytes: %.200s: data is NULL, larger than 16 MiB, or flags "
                       "are not SAME or PER_RANK",
                       name == NULL ? "NULL" : name);
    TT_TRY(tt_arena_alloc(&ck->arena, bytes, &copy));
    if (bytes > 0)
        memcpy(copy, data, bytes);
    t.name = name;
    t.dtype = TUTTI_UINT8;
    t.ndim = 1;
    t.shape[0] = (int64_t)bytes;
    t.data = copy;
    t.flags = flags & TUTTI_CKPT_PER_RANK;
    return add_item(ck, &t, &item);
}

tutti_status tutti_ckpt_add_bytes(tutti_ckpt *ck, const char *name, const void *data, size_t bytes,
                                  uint32_t flags)
{
    if (ck == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_add_bytes: ck is NULL");
    tutti_status status = add_value(ck, name, data, bytes, flags);
    return status == TUTTI_OK ? TUTTI_OK : add_failed(ck, status);
}

tutti_status tutti_ckpt_wait(tutti_ctx *ctx, int64_t *last_durable_step_out)
{
    if (ctx == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_wait: ctx is NULL");
    TT_TRY(tt_ctx_check(ctx));
    TT_TRY(tt_ctx_hooks_run(ctx, -1));
    if (last_durable_step_out != NULL) {
        tt_saver *s = tt_ctx_hook_find(ctx, "ckpt");
        *last_durable_step_out = s == NULL ? -1 : s->last_durable;
    }
    return TUTTI_OK;
}

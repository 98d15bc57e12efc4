/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a checkpoint.
 *
 * Rank 0 alone lists the directory and reads the manifest; the others get its text, so that all
 * work from the same one. Then (unless it is opened lazily) each rank verifies a share of all
 * blocks and they agree: a newest checkpoint in which one bit is wrong is passed over by all,
 * loudly, for the one before it. What is read later is verified again, block by block, as it is
 * read.
 *
 * Node-local, every node has its say about what is there (nodeopen.c), and verifies its own files.
 * Values, which a rank reads without the others, are brought to every node at once.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/open.h"
#include "ckpt/ranks.h"
#include "core/log.h"

typedef struct opener {
    tutti_ctx *ctx;
    const char *path;
    int dir;
    const tutti_ckpt_open_opts *opts;
    int64_t *steps; /* rank 0's */
    size_t nsteps;
    tt_source src;
    tt_nodes *nodes;
} opener;

static bool node_local(const opener *o)
{
    return (o->opts->flags & TUTTI_CKPT_OPEN_NODE_LOCAL) != 0;
}

static tutti_status drop_late_steps(opener *o)
{
    size_t n = 0;
    for (size_t i = 0; i < o->nsteps; i++)
        if (o->opts->before == 0 || o->steps[i] < o->opts->before)
            o->steps[n++] = o->steps[i];
    o->nsteps = n;
    return o->nsteps > 0 ? TUTTI_OK
                         : tt_fail(TUTTI_ERR_NOT_FOUND, "there is no checkpoint in %s", o->path);
}

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
    return drop_late_steps(o);
}

static tutti_status list_node_steps(opener *o, int64_t step)
{
    TT_TRY(tt_nodes_steps(o->ctx, o->dir, step, &o->steps, &o->nsteps));
    if (step == TUTTI_CKPT_STEP_NEWEST)
        return drop_late_steps(o);
    if (step >= 0) {
        o->steps[0] = step; /* there is room for one */
        o->nsteps = 1;
    }
    o->nsteps = o->nsteps > 1 ? 1 : o->nsteps;
    return o->nsteps > 0 ? TUTTI_OK
                         : tt_fail(TUTTI_ERR_NOT_FOUND, "no checkpoint is tagged " TT_BEST_NAME);
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

static tutti_status verify_share(opener *o, int part, int parts)
{
    size_t absent;
    tt_ranks_busy(o->ctx, tt_source_bytes(&o->src, &absent) / (uint64_t)parts);
    return tt_source_verify(&o->src, part, parts);
}

static tutti_status fetch_values(opener *o)
{
    const tt_catalog *cat = &o->src.m.cat;
    tt_want *want = NULL;
    int64_t *dims = NULL;
    size_t n = 0;
    tutti_status status = tt_calloc(cat->ntensor, sizeof *want, &want);
    if (status == TUTTI_OK)
        status = tt_calloc(cat->ntensor, 2 * sizeof *dims, &dims);
    status = tt_agree(&o->ctx->world, "tutti_ckpt_open", status);
    for (size_t i = 0; i < cat->ntensor && status == TUTTI_OK; i++) {
        if (!cat->tensor[i].bytes)
            continue;
        dims[2 * i + 1] = cat->tensor[i].shape[0];
        want[n++] = (tt_want){&cat->tensor[i], &dims[2 * i], NULL};
    }
    if (status == TUTTI_OK)
        status = tt_nodes_fetch(o->ctx, o->nodes, &o->src, want, n);
    free(want);
    free(dims);
    return status;
}

static tutti_status try_node_step(opener *o, int64_t step)
{
    const tutti_ctx *ctx = o->ctx;
    tutti_status status = tt_nodes_open(o->ctx, o->path, o->dir, step, &o->src, &o->nodes);
    if (status == TUTTI_OK && (o->opts->flags & TUTTI_CKPT_OPEN_LAZY) == 0)
        status = tt_agree(&o->ctx->world, "tutti_ckpt_open",
                          verify_share(o, ctx->place[ctx->world.rank].local_rank, ctx->local_size));
    if (status == TUTTI_OK)
        status = fetch_values(o);
    if (status != TUTTI_OK) {
        tt_source_close(&o->src);
        tt_nodes_free(o->nodes);
        o->nodes = NULL;
    }
    return status;
}

/* A part of a checkpoint, opened as if it were whole. */
static tutti_status check_whole(const opener *o)
{
    if (o->src.absent == NULL)
        return TUTTI_OK;
    return tt_fail_more(tt_source_lacks(&o->src, o->src.absent),
                        "%s (opened without TUTTI_CKPT_OPEN_NODE_LOCAL)", o->src.name);
}

/* One candidate, on all ranks or on none. */
static tutti_status try_step(opener *o, int64_t step)
{
    tt_group *world = &o->ctx->world;
    if (node_local(o))
        return try_node_step(o, step);
    tt_buf text = {0};
    tutti_status status = TUTTI_OK;
    if (world->rank == 0)
        status = tt_source_open(o->dir, step, &text, &o->src);
    if (world->rank == 0 && status == TUTTI_OK)
        status = check_whole(o);
    status = tt_agree(world, "tutti_ckpt_open", status);
    if (status == TUTTI_OK)
        status = tt_agree(world, "tutti_ckpt_open", share_manifest(o, step, &text));
    if (status == TUTTI_OK && (o->opts->flags & TUTTI_CKPT_OPEN_LAZY) == 0)
        status = tt_agree(world, "tutti_ckpt_open", verify_share(o, world->rank, world->size));
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
    if (blind > 0 && !node_local(o))
        return tt_fail(TUTTI_ERR_IO,
                       "%s cannot see the directory %s, other ranks can: all must share it", who,
                       o->path);
    if (status == TUTTI_ERR_NOT_FOUND) /* a node's new disk: the others have the parts */
        status = TUTTI_OK;
    return tt_agree(&o->ctx->world, "tutti_ckpt_open", status);
}

static tutti_status open_newest(opener *o, int64_t step)
{
    tt_group *world = &o->ctx->world;
    TT_TRY(tt_ranks_alike(o->ctx, "tutti_ckpt_open", node_local(o) ? "" : o->path, step,
                          o->opts->flags));
    TT_TRY(open_dir(o));
    if (node_local(o)) {
        TT_TRY(list_node_steps(o, step));
    } else {
        tutti_status status = world->rank == 0 ? list_steps(o, step) : TUTTI_OK;
        TT_TRY(tt_agree(world, "tutti_ckpt_open", status));
        TT_TRY(tell_steps(o));
    }
    return try_steps(o, step == TUTTI_CKPT_STEP_NEWEST &&
                            (o->opts->flags & TUTTI_CKPT_OPEN_STRICT) == 0);
}

static tutti_status open_args(const char *dir, int64_t step, const tutti_ckpt_open_opts *opts,
                              tutti_ckpt_reader **rd_out)
{
    if (dir == NULL || dir[0] == '\0' || step < TUTTI_CKPT_STEP_BEST || rd_out == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_open: it needs a directory, a step of -2 or "
                                      "more and a place for the result");
    if (opts->size != sizeof *opts || opts->before < 0 ||
        (opts->flags & ~(uint32_t)(TUTTI_CKPT_OPEN_LAZY | TUTTI_CKPT_OPEN_STRICT |
                                   TUTTI_CKPT_OPEN_NODE_LOCAL)) != 0)
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_open: size, flags or before of the options is "
                                      "wrong");
    return TUTTI_OK;
}

tutti_status tutti_ckpt_open_with(tutti_ctx *ctx, const char *dir, int64_t step,
                                  const tutti_ckpt_open_opts *opts, tutti_ckpt_reader **rd_out)
{
    static const tutti_ckpt_open_opts defaults = TUTTI_CKPT_OPEN_OPTS_INIT;
    tutti_ckpt_reader *rd = NULL;
    opener o = {.ctx = ctx, .path = dir, .dir = -1, .opts = opts == NULL ? &defaults : opts};
    if (ctx == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_open: ctx is NULL");
    TT_TRY(tt_ctx_check(ctx));
    tutti_status status = open_args(dir, step, o.opts, rd_out);
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
    rd->nodes = o.nodes;
    *rd_out = rd;
    return TUTTI_OK;
}

tutti_status tutti_ckpt_open(tutti_ctx *ctx, const char *dir, int64_t step,
                             tutti_ckpt_reader **rd_out)
{
    return tutti_ckpt_open_with(ctx, dir, step, NULL, rd_out);
}

void tutti_ckpt_close(tutti_ckpt_reader *rd)
{
    if (rd == NULL)
        return;
    tt_source_close(&rd->src);
    tt_nodes_free(rd->nodes);
    free(rd);
}

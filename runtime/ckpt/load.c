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
 *
 * With a second tier the checkpoints of both folders are one list, by step, the first tier's before
 * its copy. It is gone through in that order until one is whole, so that neither a damaged file nor
 * a lost disk costs more than it must; whatever is passed over is said.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/open.h"
#include "ckpt/ranks.h"
#include "core/log.h"

typedef struct tier {
    const char *path;
    bool node_local;
    int dir; /* -1: not there, on this rank */
    tutti_status status; /* of looking there, the same on all ranks */
    char text[TT_ERROR_TEXT_MAX];
    int64_t *steps; /* newest first */
    size_t nsteps;
} tier;

typedef struct candidate {
    int64_t step;
    tier *in;
} candidate;

enum { TIERS = 2 };

typedef struct opener {
    tutti_ctx *ctx;
    const tutti_ckpt_open_opts *opts;
    tier tier[TIERS];
    int ntier;
    candidate *list;
    size_t nlist;
    const tier *opened;
    tt_source src;
    tt_nodes *nodes;
} opener;

static tutti_status drop_late_steps(const opener *o, tier *t)
{
    size_t n = 0;
    for (size_t i = 0; i < t->nsteps; i++)
        if (o->opts->before == 0 || t->steps[i] < o->opts->before)
            t->steps[n++] = t->steps[i];
    t->nsteps = n;
    return n > 0 ? TUTTI_OK : tt_fail(TUTTI_ERR_NOT_FOUND, "there is no checkpoint in %s", t->path);
}

static tutti_status list_steps(const opener *o, tier *t, int64_t step)
{
    if (step == TUTTI_CKPT_STEP_BEST)
        TT_TRY(tt_tag_read(t->dir, TT_BEST_NAME, &step));
    if (step >= 0) {
        TT_TRY(tt_calloc(1, sizeof *t->steps, &t->steps));
        t->steps[0] = step;
        t->nsteps = 1;
        return TUTTI_OK;
    }
    TT_TRY(tt_dir_steps(t->dir, &t->steps, &t->nsteps));
    return drop_late_steps(o, t);
}

static tutti_status list_node_steps(const opener *o, tier *t, int64_t step)
{
    TT_TRY(tt_nodes_steps(o->ctx, t->dir, step, &t->steps, &t->nsteps));
    if (step == TUTTI_CKPT_STEP_NEWEST)
        return drop_late_steps(o, t);
    if (step >= 0) {
        t->steps[0] = step; /* there is room for one */
        t->nsteps = 1;
    }
    t->nsteps = t->nsteps > 1 ? 1 : t->nsteps;
    return t->nsteps > 0 ? TUTTI_OK
                         : tt_fail(TUTTI_ERR_NOT_FOUND, "no checkpoint is tagged " TT_BEST_NAME);
}

/* Rank 0 has read the manifest into text, or failed with `status`. */
static tutti_status share_manifest(opener *o, const tier *t, int64_t step, tt_buf *text)
{
    tt_group *world = &o->ctx->world;
    tt_buf got = {0};
    tutti_status status = tt_bcast_blob(world, "tutti_ckpt_open", 0, text->data, text->size, &got);
    if (status == TUTTI_OK && world->rank != 0)
        status = tt_source_open(t->dir, step, &got, &o->src);
    if (status == TUTTI_ERR_NOT_FOUND)
        status = tt_fail(TUTTI_ERR_IO, "rank 0 sees step %lld in %s, this rank does not",
                         (long long)step, t->path);
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

static tutti_status try_node_step(opener *o, const tier *t, int64_t step)
{
    const tutti_ctx *ctx = o->ctx;
    tutti_status status = tt_nodes_open(o->ctx, t->path, t->dir, step, &o->src, &o->nodes);
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
static tutti_status try_step(opener *o, const tier *t, int64_t step)
{
    tt_group *world = &o->ctx->world;
    if (t->node_local)
        return try_node_step(o, t, step);
    tt_buf text = {0};
    tutti_status status = TUTTI_OK;
    if (world->rank == 0)
        status = tt_source_open(t->dir, step, &text, &o->src);
    if (world->rank == 0 && status == TUTTI_OK)
        status = check_whole(o);
    status = tt_agree(world, "tutti_ckpt_open", status);
    if (status == TUTTI_OK)
        status = tt_agree(world, "tutti_ckpt_open", share_manifest(o, t, step, &text));
    if (status == TUTTI_OK && (o->opts->flags & TUTTI_CKPT_OPEN_LAZY) == 0)
        status = tt_agree(world, "tutti_ckpt_open", verify_share(o, world->rank, world->size));
    tt_buf_free(&text);
    if (status != TUTTI_OK)
        tt_source_close(&o->src);
    return status;
}

static tutti_status tell_steps(opener *o, tier *t)
{
    tt_buf all = {0};
    tutti_status status = tt_bcast_blob(&o->ctx->world, "tutti_ckpt_open", 0, t->steps,
                                        t->nsteps * sizeof *t->steps, &all);
    if (status == TUTTI_OK && o->ctx->world.rank != 0) {
        status = tt_calloc(all.size / sizeof *t->steps, sizeof *t->steps, &t->steps);
        if (status == TUTTI_OK) {
            t->nsteps = all.size / sizeof *t->steps;
            memcpy(t->steps, all.data, all.size);
        }
    }
    tt_buf_free(&all);
    return tt_agree(&o->ctx->world, "tutti_ckpt_open", status);
}

static void note(tier *t, tutti_status status)
{
    t->status = status;
    snprintf(t->text, sizeof t->text, "%s", tutti_last_error());
}

/* What the program is told when nothing could be opened: that there is none only where no tier has
 * one, else what is wrong with the first that should have. */
static tutti_status tell_failure(const opener *o)
{
    for (int i = 0; i < o->ntier; i++)
        if (o->tier[i].status != TUTTI_ERR_NOT_FOUND && o->tier[i].status != TUTTI_OK)
            return tt_fail_text(o->tier[i].status, o->tier[i].text);
    return tt_fail_text(o->tier[0].status, o->tier[0].text);
}

static bool is_damage(tutti_status status)
{
    return status == TUTTI_ERR_CORRUPT || status == TUTTI_ERR_NOT_FOUND;
}

/* Beside another tier a folder may fail in any way that leaves the job whole. */
static bool may_pass_over(const opener *o, tutti_status status)
{
    return is_damage(status) || (o->ntier > 1 && tt_ctx_check(o->ctx) == TUTTI_OK);
}

static void say_passed_over(const opener *o, const candidate *c)
{
    if (o->ctx->world.rank == 0)
        tt_log_error(TT_CKPT, "%s: the checkpoint of step %lld is damaged and passed over: %s",
                     c->in->path, (long long)c->step, c->in->text);
}

/* That it is a copy must be known: the first tier should have had it. */
static void say_copy(const opener *o, const candidate *c)
{
    const tier *first = &o->tier[0];
    if (c->in == first || o->ctx->world.rank != 0)
        return;
    if (first->nsteps == 0)
        tt_log_error(TT_CKPT, "step %lld is opened from its copy in %s: %s", (long long)c->step,
                     c->in->path, first->text);
    else
        tt_log_error(TT_CKPT, "step %lld is opened from its copy in %s, not from %s",
                     (long long)c->step, c->in->path, first->path);
}

/* It failed, in a way that lets the others be tried. */
static void pass_over(const opener *o, const candidate *c, tutti_status status, bool newest)
{
    if (status == TUTTI_ERR_NOT_FOUND && !newest) {
        tt_fail(status, "there is no checkpoint of step %lld in %s", (long long)c->step,
                c->in->path);
        note(c->in, status);
        return;
    }
    note(c->in, status);
    if (newest || o->ntier > 1)
        say_passed_over(o, c);
    if (!newest || !is_damage(status))
        note(c->in, tt_fail_more(status, "checkpoint in %s", c->in->path));
}

/* newest: older steps will do. */
static tutti_status try_list(opener *o, bool newest)
{
    size_t tried = 0;
    for (size_t i = 0; i < o->nlist; i++) {
        const candidate *c = &o->list[i];
        if (!newest && c->step != o->list[0].step)
            break;
        tutti_status status = try_step(o, c->in, c->step);
        if (status == TUTTI_OK) {
            say_copy(o, c);
            o->opened = c->in;
            return TUTTI_OK;
        }
        if (!may_pass_over(o, status))
            return tt_fail_more(status, "checkpoint in %s", c->in->path);
        pass_over(o, c, status, newest);
        tried++;
    }
    tutti_status status = tell_failure(o);
    if (!newest)
        return status;
    return tt_fail_more(
        tt_fail_text(is_damage(status) ? TUTTI_ERR_CORRUPT : status, tutti_last_error()),
        "all %zu checkpoints in %s%s%s are damaged; the oldest", tried, o->tier[0].path,
        o->ntier > 1 ? " and " : "", o->ntier > 1 ? o->tier[1].path : "");
}

/* No directory on all ranks is a fresh start; on some it is not, or a job would begin anew though
 * its checkpoints are there. */
static tutti_status open_dir(opener *o, tier *t)
{
    char who[512];
    int blind;
    tutti_status status = tt_dir_open(t->path, &t->dir);
    TT_TRY(tt_ranks_that(o->ctx, "tutti_ckpt_open", status == TUTTI_ERR_NOT_FOUND, &blind, who,
                         sizeof who));
    if (blind == o->ctx->world.size)
        return tt_fail(TUTTI_ERR_NOT_FOUND, "there is no directory %s", t->path);
    if (blind > 0 && !t->node_local)
        return tt_fail(TUTTI_ERR_IO,
                       "%s cannot see the directory %s, other ranks can: all must share it", who,
                       t->path);
    if (status == TUTTI_ERR_NOT_FOUND) /* a node's new disk: the others have the parts */
        status = TUTTI_OK;
    return tt_agree(&o->ctx->world, "tutti_ckpt_open", status);
}

static tutti_status look_into(opener *o, tier *t, int64_t step)
{
    tt_group *world = &o->ctx->world;
    TT_TRY(open_dir(o, t));
    if (t->node_local)
        return list_node_steps(o, t, step);
    TT_TRY(
        tt_agree(world, "tutti_ckpt_open", world->rank == 0 ? list_steps(o, t, step) : TUTTI_OK));
    return tell_steps(o, t);
}

/* By step, the newest first; of one step the first tier's first. */
static tutti_status merge_lists(opener *o)
{
    size_t at[TIERS] = {0}, n = 0;
    for (int i = 0; i < o->ntier; i++)
        n += o->tier[i].nsteps;
    TT_TRY(tt_calloc(n, sizeof *o->list, &o->list));
    while (o->nlist < n) {
        tier *best = NULL;
        for (int i = 0; i < o->ntier; i++) {
            tier *t = &o->tier[i];
            if (at[i] < t->nsteps &&
                (best == NULL || t->steps[at[i]] > best->steps[at[best - o->tier]]))
                best = t;
        }
        o->list[o->nlist++] = (candidate){best->steps[at[best - o->tier]++], best};
    }
    return TUTTI_OK;
}

/* A tier that cannot be looked into is worth a word when another goes on without it. */
static tutti_status look(opener *o, int64_t step)
{
    bool any = false;
    for (int i = 0; i < o->ntier; i++) {
        tier *t = &o->tier[i];
        note(t, look_into(o, t, step));
        TT_TRY(tt_ctx_check(o->ctx));
        any = any || t->status == TUTTI_OK;
        if (t->status != TUTTI_OK)
            t->nsteps = 0;
        /* which is the best, the first that knows says */
        if (step == TUTTI_CKPT_STEP_BEST && t->status == TUTTI_OK)
            step = t->steps[0];
    }
    if (!any)
        return tell_failure(o);
    for (int i = 1; i < o->ntier && o->ctx->world.rank == 0; i++)
        if (o->tier[i].status != TUTTI_OK && o->tier[i].status != TUTTI_ERR_NOT_FOUND)
            tt_log_warn(TT_CKPT, "%s", o->tier[i].text);
    return tt_agree(&o->ctx->world, "tutti_ckpt_open", merge_lists(o));
}

static tutti_status open_newest(opener *o, int64_t step)
{
    const uint32_t two = o->ntier > 1 ? UINT32_C(1) << 31 : 0;
    TT_TRY(tt_ranks_alike(o->ctx, "tutti_ckpt_open", o->tier[0].node_local ? "" : o->tier[0].path,
                          step, o->opts->flags | two));
    if (o->ntier > 1)
        TT_TRY(tt_ranks_alike(o->ctx, "tutti_ckpt_open", o->tier[1].path, step, 0));
    TT_TRY(look(o, step));
    return try_list(o, step == TUTTI_CKPT_STEP_NEWEST &&
                           (o->opts->flags & TUTTI_CKPT_OPEN_STRICT) == 0);
}

static tutti_status open_args(const char *dir, int64_t step, const tutti_ckpt_open_opts *opts,
                              tutti_ckpt_reader **rd_out)
{
    if (dir == NULL || dir[0] == '\0' || step < TUTTI_CKPT_STEP_BEST || rd_out == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_open: it needs a directory, a step of -2 or "
                                      "more and a place for the result");
    if (opts->size != sizeof *opts || opts->before < 0 ||
        (opts->copy != NULL && opts->copy[0] == '\0') ||
        (opts->flags & ~(uint32_t)(TUTTI_CKPT_OPEN_LAZY | TUTTI_CKPT_OPEN_STRICT |
                                   TUTTI_CKPT_OPEN_NODE_LOCAL)) != 0)
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_open: size, flags, before or copy of the options "
                                      "is wrong");
    return TUTTI_OK;
}

static void list_tiers(opener *o, const char *dir)
{
    o->tier[0] = (tier){
        .path = dir, .dir = -1, .node_local = (o->opts->flags & TUTTI_CKPT_OPEN_NODE_LOCAL) != 0};
    o->tier[1] = (tier){.path = o->opts->copy, .dir = -1};
    o->ntier = o->opts->copy != NULL ? 2 : 1;
}

static tutti_status make_reader(const opener *o, tutti_ckpt_reader **rd_out)
{
    size_t room = 0;
    for (int i = 0; i < o->ntier; i++)
        room = strlen(o->tier[i].path) > room ? strlen(o->tier[i].path) : room;
    return tt_calloc(1, sizeof **rd_out + room + 1, rd_out);
}

static void free_lists(opener *o)
{
    for (int i = 0; i < o->ntier; i++) {
        if (o->tier[i].dir >= 0)
            close(o->tier[i].dir);
        free(o->tier[i].steps);
    }
    free(o->list);
}

tutti_status tutti_ckpt_open_with(tutti_ctx *ctx, const char *dir, int64_t step,
                                  const tutti_ckpt_open_opts *opts, tutti_ckpt_reader **rd_out)
{
    static const tutti_ckpt_open_opts defaults = TUTTI_CKPT_OPEN_OPTS_INIT;
    tutti_ckpt_reader *rd = NULL;
    opener o = {.ctx = ctx, .opts = opts == NULL ? &defaults : opts};
    if (ctx == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_open: ctx is NULL");
    TT_TRY(tt_ctx_check(ctx));
    tutti_status status = open_args(dir, step, o.opts, rd_out);
    if (status == TUTTI_OK) {
        list_tiers(&o, dir);
        status = make_reader(&o, &rd);
    }
    status = tt_agree(&ctx->world, "tutti_ckpt_open", status);
    if (status == TUTTI_OK)
        status = open_newest(&o, step);
    free_lists(&o);
    if (status != TUTTI_OK) {
        free(rd);
        return status;
    }
    rd->ctx = ctx;
    memcpy(rd->path, o.opened->path, strlen(o.opened->path));
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

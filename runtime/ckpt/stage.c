/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tutti_ckpt_commit: agreeing on a plan, the snapshot, and the start of the writing.
 *
 * Every rank tells a hash of what it added. If all hashes are those of the plan at hand it is used
 * again; else the descriptions are exchanged and planned from. Values that should be the same on
 * all ranks are compared by their hashes too, for of those only one is kept. From the snapshot on a
 * rank does not return a failure of its own: it is kept and told where the ranks meet, so that all
 * of them return it from the same call.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/copy.h"
#include "core/clock.h"
#include "core/log.h"

/* What every rank tells every other at commit. */
typedef struct commit_note {
    tt_hash128 described; /* hash of this rank's description */
    uint64_t same; /* of its TUTTI_CKPT_SAME values, in any order */
    int64_t keep_last, keep_every, copy_keep_last, copy_keep_every;
    uint64_t copy_to; /* hash of the name */
    uint32_t flags;
    uint32_t padding;
} commit_note;

static uint64_t same_hash(const tutti_ckpt *ck)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < ck->nitem; i++) {
        const tt_item *item = &ck->item[i];
        if (item->same)
            sum += tt_hash64(item->data, item->bytes_total,
                             tt_hash64(item->name, strlen(item->name), 0));
    }
    return sum;
}

/* Whether the list of another rank gives `name` another hash. */
static bool differs(const tt_blobs *all, int rank, const char *name, uint64_t hash)
{
    tt_buf other = tt_buf_view(tt_blob(all, rank), tt_blob_bytes(all, rank));
    while (other.at < other.size && !other.failed) {
        bool same_name = strcmp(tt_buf_get_str(&other), name) == 0;
        if (tt_buf_get_u64(&other) != hash && same_name)
            return true;
    }
    return false;
}

static tutti_status first_difference(const tt_blobs *all)
{
    tt_buf first = tt_buf_view(tt_blob(all, 0), tt_blob_bytes(all, 0));
    while (first.at < first.size && !first.failed) {
        const char *name = tt_buf_get_str(&first);
        uint64_t hash = tt_buf_get_u64(&first);
        for (int r = 1; r < all->n; r++)
            if (differs(all, r, name, hash))
                return tt_fail(TUTTI_ERR_ARG,
                               "the TUTTI_CKPT_SAME value %s differs between ranks 0 and %d", name,
                               r);
    }
    return tt_fail(TUTTI_ERR_ARG, "the ranks added different TUTTI_CKPT_SAME values");
}

/* Rare: which value it is must be said. */
static tutti_status name_difference(tt_saver *s, const tutti_ckpt *ck)
{
    tt_buf mine = {0};
    tt_blobs all = {0};
    for (size_t i = 0; i < ck->nitem; i++) {
        const tt_item *item = &ck->item[i];
        if (!item->same)
            continue;
        tt_buf_put_str(&mine, item->name);
        tt_buf_put_u64(&mine, tt_hash64(item->data, item->bytes_total, 0));
    }
    tutti_status status =
        tt_all_gather_blobs(&s->ctx->world, "tutti_ckpt_commit", mine.data, mine.size, &all);
    tt_buf_free(&mine);
    if (status != TUTTI_OK)
        return status;
    status = first_difference(&all);
    tt_blobs_free(&all);
    return status;
}

static bool same_options(const commit_note *a, const commit_note *b)
{
    return a->flags == b->flags && a->keep_last == b->keep_last && a->keep_every == b->keep_every &&
           a->copy_keep_last == b->copy_keep_last && a->copy_keep_every == b->copy_keep_every &&
           a->copy_to == b->copy_to;
}

static tutti_status check_notes(tt_saver *s, const tutti_ckpt *ck, const commit_note *all)
{
    for (int r = 1; r < s->ctx->world.size; r++) {
        if (!same_options(&all[r], &all[0]))
            return tt_fail(TUTTI_ERR_ARG, "rank %d commits with other options than rank 0", r);
        if (all[r].same != all[0].same)
            return name_difference(s, ck);
    }
    return TUTTI_OK;
}

static bool plan_fits(const tt_saver *s, const commit_note *all)
{
    for (int r = 0; r < s->ctx->world.size; r++)
        if (s->plan_key == NULL || s->plan_key[r].low != all[r].described.low ||
            s->plan_key[r].high != all[r].described.high)
            return false;
    return true;
}

static tutti_status make_plan(tt_saver *s, const tt_buf *described, const commit_note *all)
{
    tt_group *world = &s->ctx->world;
    tt_blobs blobs = {0};
    tt_hash128 *key = NULL;
    tutti_status status =
        tt_all_gather_blobs(world, "tutti_ckpt_commit", described->data, described->size, &blobs);
    if (status != TUTTI_OK)
        return status;
    free(s->plan_key);
    s->plan_key = NULL;
    tt_form_free(&s->shard_form);
    tt_form_free(&s->index_form);
    tt_buf_free(&s->tensors);
    tt_plan_free(&s->plan);
    status = tt_plan_make(&blobs, world->rank, s->block_bytes, &s->plan);
    tt_blobs_free(&blobs);
    if (status == TUTTI_OK)
        status = tt_calloc((size_t)world->size, sizeof *key, &key);
    /* a plan that is wrong is wrong on every rank, with the same text; memory may fail on one */
    status = tt_agree(world, "tutti_ckpt_commit", status);
    if (status != TUTTI_OK) {
        free(key);
        return status;
    }
    for (int r = 0; r < world->size; r++)
        key[r] = all[r].described;
    s->plan_key = key;
    return TUTTI_OK;
}

static tutti_status agree_plan(tt_saver *s, const tutti_ckpt *ck, const tutti_ckpt_save_opts *opts)
{
    tt_group *world = &s->ctx->world;
    tt_buf described = {0};
    commit_note *all = NULL;
    tutti_status status = tt_plan_describe(ck->item, ck->nitem, &described);
    if (status == TUTTI_OK)
        status = tt_calloc((size_t)world->size, sizeof *all, &all);
    status = tt_agree(world, "tutti_ckpt_commit", status);
    if (status == TUTTI_OK) {
        commit_note mine = {.described = tt_hash128_of(described.data, described.size),
                            .same = same_hash(ck),
                            .keep_last = opts->keep_last,
                            .keep_every = opts->keep_every,
                            .copy_keep_last = opts->copy_keep_last,
                            .copy_keep_every = opts->copy_keep_every,
                            .copy_to = opts->copy_to == NULL
                                           ? 0
                                           : tt_hash64(opts->copy_to, strlen(opts->copy_to), 1),
                            .flags = opts->flags};
        status = tt_all_gather_fixed(world, "tutti_ckpt_commit", &mine, sizeof mine, all);
    }
    if (status == TUTTI_OK)
        status = check_notes(s, ck, all);
    if (status == TUTTI_OK && !plan_fits(s, all))
        status = make_plan(s, &described, all);
    tt_buf_free(&described);
    free(all);
    return status;
}

static tutti_status reserve_stage(tt_saver *s, tutti_stream stream)
{
    if (stream.kind != TUTTI_STREAM_INLINE && s->staged == NULL)
        TT_TRY(s->ctx->dev_ops->event_create(s->ctx->dev, false, &s->staged));
    return s->plan.mine < 0
               ? TUTTI_OK
               : tt_stage_reserve(&s->stage, s->ctx->dev, s->plan.shard[s->plan.mine].stage_bytes);
}

/* The leader asks for all: a full disk is said before anything is written. */
static tutti_status check_space(const tt_saver *s)
{
    uint64_t need = 0, have;
    for (size_t i = 0; i < s->plan.nshard; i++)
        if (!s->node_local || s->parts.of[s->plan.shard[i].rank] == s->parts.of[s->ctx->world.rank])
            need += s->plan.shard[i].stage_bytes;
    if (!tt_saver_leads(s) || !tt_dir_space(s->dir, &have) || need <= have)
        return TUTTI_OK;
    return tt_fail(TUTTI_ERR_NO_SPACE, "%llu KiB are to be written, the file system has %llu left",
                   (unsigned long long)(need >> 10), (unsigned long long)(have >> 10));
}

/* A save that the program waits for is written from where its data is. */
static tutti_status point_pieces(tt_saver *s, const tutti_ckpt *ck)
{
    TT_TRY(tt_calloc(s->plan.ncopy, sizeof *s->piece, &s->piece));
    for (size_t i = 0; i < s->plan.ncopy; i++) {
        const tt_copy *copy = &s->plan.copy[i];
        s->piece[i] = (tt_shard_piece){copy->box->dset, copy->box->within, copy->bytes,
                                       (const char *)ck->item[copy->item].data + copy->from};
    }
    return TUTTI_OK;
}

static bool waited_for(const tt_saver *s, tutti_stream stream, const tutti_ckpt_save_opts *opts)
{
    return (opts->flags & TUTTI_CKPT_SYNC) != 0 && stream.kind == TUTTI_STREAM_INLINE &&
           s->ctx->dev_ops->kind == TUTTI_BACKEND_HOST;
}

static tutti_status queue_copies(tt_saver *s, const tutti_ckpt *ck, tutti_stream stream)
{
    const tt_device_ops *ops = s->ctx->dev_ops;
    for (size_t i = 0; i < s->plan.ncopy; i++) {
        const tt_copy *copy = &s->plan.copy[i];
        const tt_item *item = &ck->item[copy->item];
        const tt_dset *dset = &s->plan.shard[s->plan.mine].dset[copy->box->dset];
        char *to = s->stage.base + dset->stage + copy->box->within;
        const char *from = (const char *)item->data + copy->from;
        if (item->bytes) /* ours: it goes with ck, which is gone before the stream gets there */
            memcpy(to, from, copy->bytes);
        else
            TT_TRY(ops->copy(s->ctx->dev, to, from, copy->bytes, stream));
    }
    if (stream.kind != TUTTI_STREAM_INLINE)
        TT_TRY(ops->event_record(s->ctx->dev, s->staged, stream));
    return TUTTI_OK;
}

static tutti_status reserve_all(tt_saver *s, const tutti_ckpt *ck, tutti_stream stream,
                                const tutti_ckpt_save_opts *opts)
{
    TT_TRY(check_space(s));
    TT_TRY(tt_copy_prepare(s, opts));
    return waited_for(s, stream, opts) ? point_pieces(s, ck) : reserve_stage(s, stream);
}

static void start_writing(tt_saver *s, const tutti_ckpt *ck, tutti_stream stream,
                          const tutti_ckpt_save_opts *opts)
{
    s->keep = (tt_retention){.last = opts->keep_last, .every = opts->keep_every};
    s->worker.urgent = (opts->flags & TUTTI_CKPT_SYNC) != 0;
    s->best = (opts->flags & TUTTI_CKPT_BEST) != 0;
    snprintf(s->mesh, sizeof s->mesh, "%s", opts->mesh == NULL ? "" : opts->mesh);
    tt_late_start(s, opts->timeout_s);
    s->wait_staged = stream.kind != TUTTI_STREAM_INLINE;
    s->snapshot = s->piece != NULL ? TUTTI_OK : queue_copies(s, ck, stream);
    if (s->snapshot == TUTTI_OK)
        s->snapshot = tt_worker_start(&s->worker, tt_save_write, s);
    if (s->snapshot != TUTTI_OK) /* told to the others where the writers are asked */
        snprintf(s->snapshot_text, sizeof s->snapshot_text, "%s", tutti_last_error());
    s->phase = TT_SAVE_WRITING;
    tt_copy_give_way(s, true);
}

static tutti_status copy_args(const tt_saver *s, const tutti_ckpt_save_opts *opts)
{
    if (opts->copy_keep_last < -1 || opts->copy_keep_every < -1)
        return tt_fail(TUTTI_ERR_ARG, "copy_keep_last or copy_keep_every is below -1");
    if (opts->copy_to != NULL && opts->copy_to[0] == '\0')
        return tt_fail(TUTTI_ERR_ARG, "copy_to names no folder");
    if (opts->copy_to != NULL && strcmp(opts->copy_to, s->path) == 0)
        return tt_fail(TUTTI_ERR_ARG, "copy_to %s is the folder that the checkpoints are in",
                       s->path);
    return TUTTI_OK;
}

static tutti_status commit_args(tt_saver *s, const tutti_ckpt *ck, tutti_stream stream,
                                const tutti_ckpt_save_opts *opts)
{
    if (opts->size != sizeof *opts ||
        (opts->flags & ~(uint32_t)(TUTTI_CKPT_SYNC | TUTTI_CKPT_BEST)) != 0 ||
        opts->keep_last < 0 || opts->keep_every < 0 || !(opts->timeout_s >= 0) ||
        (opts->mesh != NULL && !tt_mesh_ok(opts->mesh)))
        return tt_fail(TUTTI_ERR_ARG,
                       "size, flags, keep_last, keep_every, mesh or timeout_s of the options is "
                       "wrong");
    TT_TRY(copy_args(s, opts));
    if (ck->status != TUTTI_OK)
        return tt_fail_text(ck->status, ck->text);
    return s->ctx->dev_ops->stream_check(s->ctx->dev, stream);
}

static tutti_status commit(tt_saver *s, const tutti_ckpt *ck, tutti_stream stream,
                           const tutti_ckpt_save_opts *opts)
{
    tt_group *world = &s->ctx->world;
    TT_TRY(tt_agree(world, "tutti_ckpt_commit", commit_args(s, ck, stream, opts)));
    TT_TRY(agree_plan(s, ck, opts));
    if (s->ctx->check)
        TT_TRY(tt_replicas_compare(s->ctx, ck, stream));
    TT_TRY(tt_agree(world, "tutti_ckpt_commit", reserve_all(s, ck, stream, opts)));
    start_writing(s, ck, stream, opts);
    return TUTTI_OK;
}

/* The worker may still run where the ranks lost touch: not with the program's memory. */
static void leave_pieces(tt_saver *s)
{
    char text[TT_ERROR_TEXT_MAX];
    snprintf(text, sizeof text, "%s", tutti_last_error());
    atomic_store(&s->worker.cancel, true);
    tutti_status ended = tt_worker_join(&s->worker);
    free(s->piece);
    s->piece = NULL;
    if (ended != TUTTI_OK || text[0] != '\0')
        tt_fail_text(ended, text);
}

tutti_status tutti_ckpt_commit(tutti_ckpt *ck, tutti_stream stream,
                               const tutti_ckpt_save_opts *opts)
{
    static const tutti_ckpt_save_opts defaults = TUTTI_CKPT_SAVE_OPTS_INIT;
    tt_saver *s;
    if (ck == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_commit: ck is NULL");
    s = tt_ctx_hook_find(ck->ctx, "ckpt");
    s->open = NULL;
    if (opts == NULL)
        opts = &defaults;
    tutti_status status = tt_ctx_check(s->ctx);
    int64_t start = tt_now_ns();
    if (status == TUTTI_OK)
        status = commit(s, ck, stream, opts);
    if (status != TUTTI_OK)
        status = tt_saver_drop(
            s, tt_fail_more(status, "checkpoint of step %lld in %s", (long long)s->step, s->path));
    else if ((opts->flags & TUTTI_CKPT_SYNC) != 0)
        status = tt_saver_progress(s, true);
    if (s->piece != NULL && s->phase != TT_SAVE_GIVEN_UP)
        leave_pieces(s);
    s->schedule.cost_s = 1e-9 * (double)(tt_now_ns() - start);
    tt_ckpt_discard(ck);
    return status;
}

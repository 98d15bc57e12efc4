/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a snapshot to a committed checkpoint.
 *
 * Workers do local I/O only; the ranks meet in the step hook (or in wait and finalize), where each
 * says whether its worker is done. So long as one is not, that exchange of a few bytes is all that
 * a pending save costs a step. When all have written, what they wrote is gathered, and rank 0's
 * worker makes index and manifest and commits by one rename: that too beside the training. A
 * failure on any rank is seen by all in the same exchange; rank 0 removes what is there.
 *
 * Node-local, rank 0's index and manifest go to the leaders of all parts, which first prepare and
 * then, when all have, rename; what is old goes when all have renamed (node.c).
 *
 * Only the leader, rank 0 or that of a part, ever removes files, and never while its own worker
 * runs: a rank that lost touch cannot know whether the directory it wrote into has been committed
 * meanwhile. What is left behind so (rank 0 died) is found and removed by the next begin.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/copy.h"
#include "core/clock.h"
#include "core/log.h"

enum { MEET_MAX_NS = 200000000 };
enum { DRAIN_TRIES = 5000, DRAIN_SLEEP_NS = 1000000 };
enum { AT_FINALIZE = -2 }; /* the hook's step */

int64_t tt_meet_wait(int64_t wait_ns, bool moved)
{
    if (moved)
        return TT_MEET_MIN_NS;
    return wait_ns > MEET_MAX_NS / 2 ? MEET_MAX_NS : 2 * wait_ns;
}

tutti_status tt_saver_drop(tt_saver *s, tutti_status status)
{
    char text[TT_ERROR_TEXT_MAX];
    snprintf(text, sizeof text, "%s", tutti_last_error());
    if (s->dir >= 0 && tt_saver_leads(s) && s->temp_name[0] != '\0' &&
        tt_dir_remove(s->dir, s->temp_name) != TUTTI_OK)
        tt_log_warn(TT_CKPT, "%s: %s", s->path, tutti_last_error());
    tt_fd_close(&s->owner);
    tt_fd_close(&s->temp);
    tt_fd_close(&s->dir);
    free(s->path);
    s->path = NULL;
    s->temp_name[0] = '\0';
    s->phase = TT_SAVE_NONE;
    tt_copy_give_way(s, false);
    tt_copy_discard(s->copy);
    s->copy = NULL;
    tt_shard_report_free(&s->report);
    tt_blobs_free(&s->reports);
    tt_buf_free(&s->index);
    tt_buf_free(&s->manifest);
    free(s->steps);
    s->steps = NULL;
    s->nsteps = 0;
    s->renamed = false;
    s->old_name[0] = '\0';
    free(s->piece);
    s->piece = NULL;
    return status == TUTTI_OK ? TUTTI_OK : tt_fail_text(status, text);
}

static tutti_status wait_staged(tt_saver *s)
{
    const tt_device_ops *ops = s->ctx->dev_ops;
    bool passed = !s->wait_staged;
    while (!passed) {
        TT_TRY(ops->event_query(s->ctx->dev, s->staged, &passed));
        if (passed)
            break;
        if (atomic_load(&s->worker.cancel) || atomic_load(&s->ctx->failed) != TUTTI_OK)
            return tt_fail(TUTTI_ERR_STATE, "the save was given up");
        tt_sleep_ns(200000);
    }
    /* what a failed stream copied is not what the program computed */
    return tt_ctx_check(s->ctx);
}

tutti_status tt_save_write(void *saver)
{
    tt_saver *s = saver;
    TT_TRY(wait_staged(s));
    if (s->plan.mine < 0)
        return TUTTI_OK;
    tt_shard_input in = {.shard = &s->plan.shard[s->plan.mine],
                         .form = &s->shard_form,
                         .stage = s->piece == NULL ? &s->stage : NULL,
                         .piece = s->piece,
                         .npiece = s->plan.ncopy,
                         .block_bytes = s->block_bytes,
                         .urgent = s->worker.urgent,
                         .cancel = &s->worker.cancel};
    TT_TRY(tt_shard_write(s->temp, s->plan.cat.file[s->plan.mine].name, &in, &s->report));
    return tt_save_read_scalars(s);
}

typedef struct outcome {
    bool all_done, failed, late; /* failed, late: one of them */
} outcome;

/* All say whether they are done. */
static tutti_status meet(tt_saver *s, bool done, tutti_status mine, outcome *out)
{
    tt_save_note note = {mine, done, tt_late(s)};
    tt_group *world = &s->ctx->world;
    TT_TRY(tt_all_gather_fixed(world, "save of a checkpoint", &note, sizeof note, s->notes));
    *out = (outcome){.all_done = true};
    for (int r = 0; r < world->size; r++) {
        out->all_done = out->all_done && s->notes[r].done != 0;
        out->failed = out->failed || s->notes[r].status != TUTTI_OK;
        out->late = out->late || s->notes[r].late != 0;
    }
    return TUTTI_OK;
}

static tutti_status gather_reports(tt_saver *s)
{
    tt_buf mine = {0};
    size_t ndset = s->plan.mine < 0 ? 0 : s->plan.shard[s->plan.mine].ndset;
    if (s->plan.mine >= 0) {
        tt_buf_put_u64(&mine, s->report.bytes);
        tt_buf_put_u64(&mine, s->report.blocks);
        tt_buf_put(&mine, s->report.hash, s->report.blocks * sizeof *s->report.hash);
        tt_buf_put(&mine, s->report.scalar, s->report.nscalar * sizeof *s->report.scalar);
        tt_buf_put(&mine, s->report.offset, ndset * sizeof *s->report.offset);
    }
    tutti_status status =
        mine.failed ? tt_fail(TUTTI_ERR_NO_MEMORY, "no memory for checksums") : TUTTI_OK;
    status = tt_agree(&s->ctx->world, "save of a checkpoint", status);
    if (status == TUTTI_OK)
        status = tt_all_gather_blobs(&s->ctx->world, "save of a checkpoint", mine.data, mine.size,
                                     &s->reports);
    tt_buf_free(&mine);
    return status;
}

/* The save's outcome, with the text of the rank where it went wrong, on all ranks. */
static tutti_status end_failed(tt_saver *s, tutti_status mine)
{
    int64_t step = s->step;
    tutti_status status = tt_agree(&s->ctx->world, "save of a checkpoint", mine);
    if (s->phase == TT_SAVE_RENAMING)
        tt_node_undo(s);
    status = tt_fail_more(status, "checkpoint of step %lld in %s", (long long)step, s->path);
    return tt_saver_drop(s, status);
}

/* This rank's part of the phase: done or not, and its status then. */
static bool part_done(tt_saver *s, int64_t wait_ns, tutti_status *status_out)
{
    *status_out = s->snapshot;
    if (s->snapshot != TUTTI_OK) {
        tt_fail_text(s->snapshot, s->snapshot_text);
        return true;
    }
    if (!tt_worker_done(&s->worker, wait_ns))
        return false;
    *status_out = tt_worker_join(&s->worker);
    return true;
}

static void start_phase(tt_saver *s, tt_save_phase phase, bool mine, tutti_status (*fn)(void *))
{
    s->worker.status = TUTTI_OK; /* of the other ranks, which have nothing to do */
    if (mine) {
        s->snapshot = tt_worker_start(&s->worker, fn, s);
        if (s->snapshot != TUTTI_OK)
            snprintf(s->snapshot_text, sizeof s->snapshot_text, "%s", tutti_last_error());
    }
    s->phase = phase;
}

static void end_committed(tt_saver *s)
{
    if (s->ctx->world.rank == 0)
        tt_log_info(TT_CKPT, "checkpoint of step %lld is durable in %s", (long long)s->step,
                    s->path);
    s->last_durable = s->step;
    s->schedule.durable_s = 1e-9 * (double)(tt_now_ns() - s->schedule.began_ns);
    tt_copy_offer(s);
    tt_saver_drop(s, TUTTI_OK); /* nothing is left to remove: it has another name now */
}

/* All have done their part of the phase. */
static tutti_status next_phase(tt_saver *s)
{
    bool leads = tt_saver_leads(s);
    tutti_status status = TUTTI_OK;
    switch (s->phase) {
    case TT_SAVE_WRITING:
        status = gather_reports(s);
        tt_copy_spare(s, &s->keep);
        start_phase(s, TT_SAVE_SEALING, status == TUTTI_OK && s->ctx->world.rank == 0,
                    tt_save_seal);
        break;
    case TT_SAVE_SEALING:
        if (!s->node_local) {
            end_committed(s);
            break;
        }
        status = tt_node_spread(s);
        start_phase(s, TT_SAVE_PREPARING, status == TUTTI_OK && leads, tt_node_prepare);
        break;
    case TT_SAVE_PREPARING:
        start_phase(s, TT_SAVE_RENAMING, leads, tt_node_rename);
        break;
    case TT_SAVE_RENAMING:
        status = tt_node_meet_steps(s);
        start_phase(s, TT_SAVE_PRUNING, status == TUTTI_OK && leads, tt_node_prune);
        break;
    default:
        end_committed(s);
    }
    return status == TUTTI_OK ? TUTTI_OK : tt_saver_drop(s, status);
}

/* Of a save that was given up: whether its workers have come back by now. */
static tutti_status look_again(tt_saver *s)
{
    tutti_status mine;
    outcome out;
    bool done = part_done(s, 0, &mine);
    TT_TRY(meet(s, done, mine, &out));
    if (!out.all_done)
        return TUTTI_OK;
    if (s->given_up_in == TT_SAVE_RENAMING)
        tt_node_undo(s);
    if (tt_late_committed(s))
        end_committed(s);
    else
        tt_saver_drop(s, TUTTI_OK);
    return TUTTI_OK;
}

/* Most have only been slow, and end between two writes. */
static tutti_status give_up(tt_saver *s)
{
    char text[TT_ERROR_TEXT_MAX];
    tutti_status status = tt_late_give_up(s);
    snprintf(text, sizeof text, "%s", tutti_last_error());
    TT_TRY(look_again(s));
    return tt_fail_text(status, text);
}

tutti_status tt_saver_progress(tt_saver *s, bool wait)
{
    int64_t wait_ns = wait ? TT_MEET_MIN_NS : 0;
    if (s->phase == TT_SAVE_GIVEN_UP)
        return look_again(s);
    while (s->phase >= TT_SAVE_WRITING) {
        tutti_status mine;
        outcome out;
        bool done = part_done(s, wait_ns, &mine);
        TT_TRY(meet(s, done, mine, &out));
        if (out.all_done && out.failed)
            return end_failed(s, mine);
        if (out.all_done)
            TT_TRY(next_phase(s));
        else if (out.late)
            return give_up(s);
        if (!wait)
            break;
        wait_ns = tt_meet_wait(wait_ns, out.all_done);
    }
    return TUTTI_OK;
}

/* Copies are told of by themselves: here only a context that failed shows. */
static tutti_status progress_copies(tt_saver *s, int64_t step)
{
    return step == AT_FINALIZE ? tt_copy_finish(s, -1, true) : tt_copy_progress(s);
}

static tutti_status progress_all(tt_saver *s, int64_t step)
{
    char text[TT_ERROR_TEXT_MAX];
    tutti_status status = tt_saver_progress(s, step < 0);
    snprintf(text, sizeof text, "%s", status == TUTTI_OK ? "" : tutti_last_error());
    if (s->copier != NULL && tt_ctx_check(s->ctx) == TUTTI_OK) {
        tutti_status copies = progress_copies(s, step);
        if (status == TUTTI_OK)
            return copies;
    }
    return status == TUTTI_OK ? TUTTI_OK : tt_fail_text(status, text);
}

static tutti_status hook(tutti_ctx *ctx, void *arg, int64_t step)
{
    tt_saver *s = arg;
    if (step >= 0)
        tt_schedule_step(s, step);
    tutti_status status = progress_all(s, step);
    if (s->merged && s->phase == TT_SAVE_NONE && step >= 0) {
        s->merged = false;
        tt_step_want_save(ctx);
    }
    return status;
}

/* Whether no stream copies into the staging memory any more. A failed context does not wait for
 * its streams, so it may be that one still does: then the memory is better lost than unmapped. */
static bool drained(tt_saver *s)
{
    bool passed = !s->wait_staged;
    for (int i = 0; i < DRAIN_TRIES && !passed; i++) {
        if (s->ctx->dev_ops->event_query(s->ctx->dev, s->staged, &passed) != TUTTI_OK)
            break;
        if (!passed)
            tt_sleep_ns(DRAIN_SLEEP_NS);
    }
    if (!passed)
        tt_log_warn(TT_CKPT, "%zu MiB of staging memory stay: a stream has not ended its copies",
                    s->stage.bytes >> 20);
    return passed;
}

static void saver_free(void *arg)
{
    tt_saver *s = arg;
    atomic_store(&s->worker.cancel, true);
    if (!tt_late_ended(s)) {
        tt_copy_free(s->copier);
        return;
    }
    if (tt_worker_join(&s->worker) != TUTTI_OK)
        tt_log_debug(TT_CKPT, "the save of step %lld ends with its context", (long long)s->step);
    tt_ckpt_discard(s->open);
    tt_saver_drop(s, TUTTI_OK);
    tt_copy_free(s->copier);
    tt_schedule_end(s);
    tt_folder_lock_release(s->lock);
    if (drained(s))
        tt_stage_free(&s->stage);
    if (s->staged != NULL)
        s->ctx->dev_ops->event_destroy(s->ctx->dev, s->staged);
    tt_form_free(&s->shard_form);
    tt_form_free(&s->index_form);
    tt_buf_free(&s->tensors);
    tt_plan_free(&s->plan);
    tt_parts_free(&s->parts);
    free(s->plan_key);
    free(s->notes);
    free(s);
}

tutti_status tt_saver_get(tutti_ctx *ctx, tt_saver **saver_out)
{
    tt_saver *s = tt_ctx_hook_find(ctx, "ckpt");
    if (s != NULL) {
        *saver_out = s;
        return TUTTI_OK;
    }
    TT_TRY(tt_calloc(1, sizeof *s, &s));
    s->ctx = ctx;
    s->block_bytes = ctx->ckpt_block_bytes;
    s->last_durable = -1;
    s->schedule.runs = -1;
    s->dir = s->temp = s->owner = -1;
    s->shard_form.memory = s->index_form.memory = -1;
    tutti_status status = tt_calloc((size_t)ctx->world.size, sizeof *s->notes, &s->notes);
    if (status == TUTTI_OK)
        status = tt_ctx_hook_add(ctx, "ckpt", hook, saver_free, s);
    if (status != TUTTI_OK) {
        free(s->notes);
        free(s);
        return status;
    }
    *saver_out = s;
    return TUTTI_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The second tier, at step boundaries.
 *
 * A copy is a save whose data lies on the first tier. Like a save it does all I/O in workers and
 * meets in the step hook, but in states of its own, so that neither waits for the other: a folder
 * that hangs holds up a copy, never a save. Whoever wrote a shard still has its checksums and its
 * directory open when the save is committed, and so needs nobody to tell it what to copy.
 *
 * A failure is no status of the program's calls. Even cleaning up is a worker's: the folder may be
 * on a server that has just gone. At the end of the job a worker that does not come back is left
 * to its system call, with the memory that it uses.
 */
#include "ckpt/copy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/env.h"
#include "core/log.h"

static const char call[] = "copy of a checkpoint";

/* After a copy was given up: for its current system call. */
#define LEAVE_NS INT64_C(10000000000)
#define SECONDS_MAX 1e9

typedef enum lateness { NOT_LATE, GIVE_UP, LEAVE } lateness;

void tt_copy_discard(tt_copy_job *job)
{
    if (job == NULL)
        return;
    if (job->from >= 0)
        close(job->from);
    free(job->file.hash);
    free(job->to);
    free(job);
}

static tutti_status make_copier(tutti_ctx *ctx, tt_copier **copier_out)
{
    static const tutti_ckpt_copy_info none = TUTTI_CKPT_COPY_INFO_INIT;
    tt_copier *c;
    TT_TRY(tt_calloc(1, sizeof *c, &c));
    tutti_status status = tt_calloc((size_t)ctx->world.size, sizeof *c->notes, &c->notes);
    if (status != TUTTI_OK) {
        free(c);
        return status;
    }
    c->ctx = ctx;
    c->info = none;
    c->dir = c->temp = c->owner = -1;
    *copier_out = c;
    return TUTTI_OK;
}

tutti_status tt_copy_prepare(tt_saver *s, const tutti_ckpt_save_opts *opts)
{
    tt_copy_job *job;
    if (opts->copy_to == NULL)
        return TUTTI_OK;
    if (s->copier == NULL)
        TT_TRY(make_copier(s->ctx, &s->copier));
    TT_TRY(tt_calloc(1, sizeof *job, &job));
    job->from = -1;
    job->step = s->step;
    job->block_bytes = s->block_bytes;
    job->keep.last = opts->copy_keep_last == 0 ? opts->keep_last : opts->copy_keep_last;
    job->keep.every = opts->copy_keep_every == 0 ? opts->keep_every : opts->copy_keep_every;
    if (job->keep.every < 0)
        job->keep.every = 0;
    job->best = (opts->flags & TUTTI_CKPT_BEST) != 0;
    tutti_status status = tt_strdup(opts->copy_to, &job->to);
    if (status != TUTTI_OK) {
        tt_copy_discard(job);
        return status;
    }
    s->copy = job;
    return TUTTI_OK;
}

static void start_phase(tt_copier *c, tt_copy_phase phase, bool mine, tutti_status (*fn)(void *))
{
    c->phase = phase;
    c->worker.status = TUTTI_OK; /* of ranks that have nothing to do */
    if (mine && tt_worker_start(&c->worker, fn, c) != TUTTI_OK)
        tt_log_debug(TT_CKPT, "%s; told where the ranks meet", tutti_last_error());
}

static void start_copy(tt_copier *c, tt_copy_job *job)
{
    c->job = job;
    start_phase(c, TT_COPY_OPENING, c->ctx->world.rank == 0, tt_copy_open);
}

/* No allocation: it fails on no rank alone. */
void tt_copy_offer(tt_saver *s)
{
    tt_copier *c = s->copier;
    tt_copy_job *job = s->copy;
    struct stat st;
    if (job == NULL)
        return;
    s->copy = NULL;
    job->committed_ns = tt_now_ns();
    job->from = s->temp;
    s->temp = -1;
    if (fstat(s->dir, &st) == 0) {
        job->dev = st.st_dev;
        job->ino = st.st_ino;
    }
    if (s->plan.mine >= 0) {
        job->file = s->plan.cat.file[s->plan.mine];
        job->file.bytes = s->report.bytes;
        job->file.blocks = s->report.blocks;
        job->file.hash = s->report.hash;
        s->report.hash = NULL;
    }
    if (c->phase == TT_COPY_NONE) {
        start_copy(c, job);
        return;
    }
    if (c->waiting != NULL) {
        c->info.skipped++;
        if (c->ctx->world.rank == 0)
            tt_log_info(TT_CKPT, "step %lld is not copied to %s: step %lld came before its turn",
                        (long long)c->waiting->step, c->waiting->to, (long long)job->step);
    }
    tt_copy_discard(c->waiting);
    c->waiting = job;
}

void tt_copy_spare(const tt_saver *s, tt_retention *keep)
{
    const tt_copier *c = s->copier;
    keep->nspare = 0;
    if (c != NULL && c->job != NULL)
        keep->spare[keep->nspare++] = c->job->step;
    if (c != NULL && c->waiting != NULL)
        keep->spare[keep->nspare++] = c->waiting->step;
}

void tt_copy_give_way(tt_saver *s, bool saving)
{
    if (s->copier != NULL)
        atomic_store(&s->copier->saving, saving);
}

static void drop_copy(tt_copier *c)
{
    tt_fd_close(&c->owner);
    tt_fd_close(&c->temp);
    tt_fd_close(&c->dir);
    c->temp_name[0] = '\0';
    tt_source_close(&c->src);
    tt_buf_free(&c->manifest);
    tt_copy_discard(c->job);
    c->job = NULL;
    c->phase = TT_COPY_NONE;
}

/* It is over, well or not; the next one's turn. */
static void end_copy(tt_copier *c)
{
    tt_copy_job *next = c->waiting;
    c->info.seconds = 1e-9 * (double)(tt_now_ns() - c->job->committed_ns);
    if (c->info.status == TUTTI_OK) {
        c->info.step = c->job->step;
        c->info.copied++;
        if (c->ctx->world.rank == 0)
            tt_log_info(TT_CKPT, "checkpoint of step %lld is copied to %s", (long long)c->job->step,
                        c->job->to);
    }
    drop_copy(c);
    c->waiting = NULL;
    if (next != NULL && !c->ending)
        start_copy(c, next);
    else
        tt_copy_discard(next);
}

/* On all ranks, with the text of the rank where it went wrong. What would fail the context, were it
 * a collective's, is a refusal of the system here. */
static void fail_copy(tt_copier *c, tutti_status mine)
{
    if (mine <= TUTTI_ERR_TIMEOUT)
        mine = tt_fail_text(TUTTI_ERR_IO, tutti_last_error());
    c->info.status = tt_agree(&c->ctx->world, call, mine);
    snprintf(c->info.text, sizeof c->info.text, "%s", tutti_last_error());
    c->info.failed++;
    if (c->ctx->world.rank == 0)
        tt_log_warn(TT_CKPT, "the checkpoint of step %lld is not copied to %s: %s%s",
                    (long long)c->job->step, c->job->to, tutti_last_error(),
                    c->ending ? "" : "; the next one will be");
    start_phase(c, TT_COPY_CLEANING, c->ctx->world.rank == 0, tt_copy_clean);
}

static tutti_status tell_temp(tt_copier *c)
{
    tt_buf name = {0};
    TT_TRY(tt_bcast_blob(&c->ctx->world, call, 0, c->temp_name, strlen(c->temp_name), &name));
    if (c->ctx->world.rank != 0)
        snprintf(c->temp_name, sizeof c->temp_name, "%.*s", (int)name.size,
                 (const char *)name.data);
    tt_buf_free(&name);
    start_phase(c, TT_COPY_WRITING, true, tt_copy_write);
    return TUTTI_OK;
}

/* All have done their part of the phase. */
static tutti_status next_phase(tt_copier *c, bool failed, tutti_status mine)
{
    if (c->phase == TT_COPY_CLEANING) {
        end_copy(c);
        return TUTTI_OK;
    }
    if (failed) {
        fail_copy(c, mine);
        return tt_ctx_check(c->ctx);
    }
    switch (c->phase) {
    case TT_COPY_OPENING:
        return tell_temp(c);
    case TT_COPY_WRITING:
        start_phase(c, TT_COPY_SEALING, c->ctx->world.rank == 0, tt_copy_seal);
        return TUTTI_OK;
    default:
        c->info.status = TUTTI_OK;
        c->info.text[0] = '\0';
        end_copy(c);
        return TUTTI_OK;
    }
}

static bool part_done(tt_copier *c, int64_t wait_ns, tutti_status *status_out)
{
    *status_out = TUTTI_OK;
    if (!tt_worker_done(&c->worker, wait_ns))
        return false;
    *status_out = tt_worker_join(&c->worker);
    return true;
}

/* All say whether they are done; *late_out is what rank 0's clock says. */
static tutti_status meet(tt_copier *c, int64_t wait_ns, lateness mine, lateness *late_out,
                         bool *moved_out)
{
    tutti_status status;
    bool all_done = true, failed = false, done = part_done(c, wait_ns, &status);
    tt_save_note note = {status, done, (uint16_t)mine};
    TT_TRY(tt_all_gather_fixed(&c->ctx->world, call, &note, sizeof note, c->notes));
    for (int r = 0; r < c->ctx->world.size; r++) {
        all_done = all_done && c->notes[r].done != 0;
        failed = failed || c->notes[r].status != TUTTI_OK;
    }
    *late_out = (lateness)c->notes[0].late;
    *moved_out = all_done;
    return all_done ? next_phase(c, failed, status) : TUTTI_OK;
}

tutti_status tt_copy_progress(tt_saver *s)
{
    lateness late;
    bool moved;
    if (s->copier == NULL || s->copier->phase == TT_COPY_NONE)
        return TUTTI_OK;
    return meet(s->copier, 0, NOT_LATE, &late, &moved);
}

static lateness how_late(int64_t end, bool last)
{
    int64_t now = tt_now_ns();
    if (now < end)
        return NOT_LATE;
    return last && now < end + LEAVE_NS ? GIVE_UP : LEAVE;
}

static tutti_status limit_of(tt_copier *c, double *seconds_inout)
{
    double all;
    if (*seconds_inout >= 0)
        return TUTTI_OK;
    TT_TRY(tt_env_get_seconds(TT_ENV_CKPT_COPY_WAIT, &all));
    *seconds_inout = c->waited ? 0 : all;
    c->waited = true;
    return TUTTI_OK;
}

tutti_status tt_copy_finish(tt_saver *s, double seconds, bool last)
{
    tt_copier *c = s->copier;
    if (c == NULL)
        return TUTTI_OK;
    TT_TRY(tt_agree(&c->ctx->world, call, limit_of(c, &seconds)));
    int64_t end = tt_end_of(seconds), wait_ns = TT_MEET_MIN_NS;
    lateness late = NOT_LATE;
    while (c->phase != TT_COPY_NONE && late != LEAVE) {
        bool moved;
        TT_TRY(meet(c, wait_ns, how_late(end, last), &late, &moved));
        wait_ns = tt_meet_wait(wait_ns, moved);
        c->ending = c->ending || late == GIVE_UP;
        if (c->ending && c->phase != TT_COPY_CLEANING)
            atomic_store(&c->worker.cancel, true);
    }
    return TUTTI_OK;
}

/* false: the worker does not come back. */
static bool end_worker(tt_copier *c)
{
    if (!tt_worker_done(&c->worker, LEAVE_NS)) {
        tt_log_warn(TT_CKPT, "a copy to %s does not come back from the system: it is left to it",
                    c->job->to);
        tt_worker_leave(&c->worker);
        return false;
    }
    if (tt_worker_join(&c->worker) != TUTTI_OK)
        tt_log_debug(TT_CKPT, "%s: %s", c->job->to, tutti_last_error());
    return true;
}

void tt_copy_free(tt_copier *c)
{
    if (c == NULL)
        return;
    atomic_store(&c->worker.cancel, true);
    bool ended = end_worker(c);
    if (ended && c->temp_name[0] != '\0' && c->ctx->world.rank == 0) {
        c->worker.status = TUTTI_OK;
        ended = tt_worker_start(&c->worker, tt_copy_clean, c) != TUTTI_OK || end_worker(c);
    }
    if (!ended) /* what it uses must stay */
        return;
    drop_copy(c);
    tt_copy_discard(c->waiting);
    tt_folder_lock_release(c->lock);
    free(c->notes);
    free(c);
}

static void tell(tutti_ctx *ctx, tutti_ckpt_copy_info *out)
{
    static const tutti_ckpt_copy_info none = TUTTI_CKPT_COPY_INFO_INIT;
    const tt_saver *s = tt_ctx_hook_find(ctx, "ckpt");
    const tt_copier *c = s == NULL ? NULL : s->copier;
    *out = c == NULL ? none : c->info;
    if (c != NULL && c->job != NULL)
        out->pending = c->waiting != NULL ? c->waiting->step : c->job->step;
}

static tutti_status info_args(const char *what, const tutti_ctx *ctx,
                              const tutti_ckpt_copy_info *info)
{
    if (ctx == NULL || (info != NULL && info->size != sizeof *info))
        return tt_fail(TUTTI_ERR_ARG,
                       "%s: ctx is NULL, or the info does not begin with "
                       "TUTTI_CKPT_COPY_INFO_INIT",
                       what);
    return TUTTI_OK;
}

tutti_status tutti_ckpt_copy_state(tutti_ctx *ctx, tutti_ckpt_copy_info *info_out)
{
    TT_TRY(info_args("tutti_ckpt_copy_state", ctx, info_out));
    if (info_out == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_copy_state: info_out is NULL");
    tell(ctx, info_out);
    return TUTTI_OK;
}

tutti_status tutti_ckpt_copy_wait(tutti_ctx *ctx, double seconds, tutti_ckpt_copy_info *info_out)
{
    TT_TRY(info_args("tutti_ckpt_copy_wait", ctx, info_out));
    if (!(seconds <= SECONDS_MAX))
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_copy_wait: more than %g seconds", SECONDS_MAX);
    TT_TRY(tt_ctx_check(ctx));
    tt_saver *s = tt_ctx_hook_find(ctx, "ckpt");
    tutti_status status = tutti_ckpt_wait(ctx, NULL);
    if (s != NULL && tt_ctx_check(ctx) == TUTTI_OK) {
        char text[TT_ERROR_TEXT_MAX];
        snprintf(text, sizeof text, "%s", tutti_last_error());
        tutti_status copy = tt_copy_finish(s, seconds, false);
        status = status == TUTTI_OK ? copy : tt_fail_text(status, text);
    }
    if (status == TUTTI_OK && info_out != NULL)
        tell(ctx, info_out);
    return status;
}

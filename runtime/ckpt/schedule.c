/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When to save. Rank 0 decides by its clock and puts the wish into the exchange of tutti_step, so
 * that all ranks save at the same step whatever their clocks say.
 *
 * `automatic` takes Daly's interval for the cost that the last save had for the program and for the
 * time between failures, but never less than twice what a save takes to become durable. Until a
 * save has been measured it is 10 minutes. The time between failures is given, or learnt: `.runs`
 * in the folder holds when its first run began, how many runs did not come to their end, and
 * whether one is under way. One day without a failure is taken for granted, so that a first crash
 * after a minute does not make it save all the time.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/ranks.h"
#include "ckpt/saver.h"
#include "core/clock.h"
#include "core/log.h"

#define DEFAULT_S 600.0
#define DAY_S 86400.0
#define RUNS_NAME ".runs"
#define RUNS_NEW_NAME ".runs.new"

typedef struct runs {
    int64_t first; /* seconds since 1970 */
    int64_t failed;
    int under_way;
} runs;

double tutti_ckpt_interval(double cost_s, double mtbf_s)
{
    if (!(cost_s > 0) || !(mtbf_s > 0))
        return 0;
    if (cost_s >= 2 * mtbf_s)
        return mtbf_s;
    double x = cost_s / (2 * mtbf_s);
    return sqrt(2 * cost_s * mtbf_s) * (1 + sqrt(x) / 3 + x / 9) - cost_s;
}

static bool runs_read(int dir, runs *r)
{
    char text[128] = "";
    int fd = openat(dir, RUNS_NAME, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    close(fd);
    return n > 0 &&
           sscanf(text, "first %" SCNd64 " failed %" SCNd64 " under_way %d", &r->first, &r->failed,
                  &r->under_way) == 3 &&
           r->first >= 0 && r->failed >= 0;
}

static tutti_status runs_write(int dir, const runs *r)
{
    char text[128];
    int fd;
    snprintf(text, sizeof text, "first %" PRId64 " failed %" PRId64 " under_way %d\n", r->first,
             r->failed, r->under_way);
    unlinkat(dir, RUNS_NEW_NAME, 0);
    TT_TRY(tt_file_create(dir, RUNS_NEW_NAME, &fd));
    tutti_status status = tt_file_write(fd, RUNS_NEW_NAME, text, strlen(text), 0);
    close(fd);
    if (status == TUTTI_OK && renameat(dir, RUNS_NEW_NAME, dir, RUNS_NAME) != 0)
        status = tt_fail_errno(TUTTI_ERR_IO, errno, "cannot make %s", RUNS_NAME);
    return status;
}

/* A run that is still under way in the file is one that was cut off: another job at the same time
 * would not get the folder's lock. */
static tutti_status learn(tt_schedule *sch, const char *path)
{
    runs r = {.first = (int64_t)time(NULL)};
    TT_TRY(tt_dir_make(path));
    TT_TRY(tt_dir_open(path, &sch->runs));
    if (runs_read(sch->runs, &r) && r.under_way != 0)
        r.failed++;
    r.under_way = 1;
    double age = (double)((int64_t)time(NULL) - r.first);
    sch->mtbf_s = (DAY_S + (age > 0 ? age : 0)) / (double)(r.failed + 1);
    tt_log_info(TT_CKPT, "%" PRId64 " runs in %s were cut off: one failure in %.0f s is assumed",
                r.failed, path, sch->mtbf_s);
    return runs_write(sch->runs, &r);
}

static void forget(tt_schedule *sch)
{
    runs r;
    if (sch->runs < 0)
        return;
    if (runs_read(sch->runs, &r)) {
        r.under_way = 0;
        if (runs_write(sch->runs, &r) != TUTTI_OK)
            tt_log_warn(TT_CKPT, "%s", tutti_last_error());
    }
    close(sch->runs);
    sch->runs = -1;
}

void tt_schedule_end(tt_saver *s)
{
    if (atomic_load(&s->ctx->failed) == TUTTI_OK)
        forget(&s->schedule);
    else if (s->schedule.runs >= 0)
        close(s->schedule.runs);
    s->schedule.runs = -1;
}

static double interval_s(const tt_schedule *sch)
{
    double best = sch->opts.every_s > 0 ? sch->opts.every_s : INFINITY;
    if (sch->opts.automatic) {
        double daly = tutti_ckpt_interval(sch->cost_s, sch->mtbf_s);
        if (daly == 0)
            daly = DEFAULT_S;
        daly = fmax(daly, 2 * sch->durable_s);
        best = fmin(best, daly);
    }
    return best;
}

void tt_schedule_step(tt_saver *s, int64_t step)
{
    tt_schedule *sch = &s->schedule;
    if (!sch->on || s->ctx->world.rank != 0)
        return;
    if (sch->began_step < 0)
        sch->began_step = step;
    if (sch->asked_step >= 0 && step <= sch->asked_step + 2)
        return; /* it is told one call later and may have been missed after two */
    double passed = 1e-9 * (double)(tt_now_ns() - sch->began_ns);
    bool due = passed >= interval_s(sch) ||
               (sch->opts.every_steps > 0 &&
                step - sch->began_step >= sch->opts.every_steps - 1); /* told one call later */
    if (!due)
        return;
    sch->asked_step = step;
    tt_step_want_save(s->ctx);
}

void tt_schedule_began(tt_saver *s)
{
    s->schedule.began_ns = tt_now_ns();
    s->schedule.began_step = atomic_load(&s->ctx->last_step);
    s->schedule.asked_step = -1;
}

static tutti_status check_opts(const char *dir, const tutti_ckpt_schedule_opts *opts)
{
    if (dir == NULL || dir[0] == '\0' || opts->size != sizeof *opts || opts->every_steps < 0 ||
        !(opts->every_s >= 0) || !(opts->mtbf_s >= 0))
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_schedule: the directory or an option is wrong");
    return TUTTI_OK;
}

static tutti_status set(tt_saver *s, const char *dir, const tutti_ckpt_schedule_opts *opts)
{
    tt_schedule *sch = &s->schedule;
    if (s->ctx->world.rank != 0)
        return TUTTI_OK;
    forget(sch);
    sch->opts = *opts;
    if (opts->every_steps == 0 && opts->every_s == 0 && !opts->automatic)
        sch->opts.every_s = DEFAULT_S;
    sch->mtbf_s = opts->mtbf_s;
    sch->began_ns = tt_now_ns();
    sch->began_step = sch->asked_step = -1;
    sch->on = true;
    return opts->automatic && opts->mtbf_s == 0 ? learn(sch, dir) : TUTTI_OK;
}

tutti_status tutti_ckpt_schedule(tutti_ctx *ctx, const char *dir,
                                 const tutti_ckpt_schedule_opts *opts)
{
    static const tutti_ckpt_schedule_opts defaults = TUTTI_CKPT_SCHEDULE_OPTS_INIT;
    tt_saver *s = NULL;
    if (ctx == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_schedule: ctx is NULL");
    TT_TRY(tt_ctx_check(ctx));
    if (opts == NULL)
        opts = &defaults;
    tutti_status status = check_opts(dir, opts);
    if (status == TUTTI_OK)
        status = tt_saver_get(ctx, &s);
    status = tt_agree(&ctx->world, "tutti_ckpt_schedule", status);
    if (status == TUTTI_OK)
        status = tt_ranks_alike(ctx, "tutti_ckpt_schedule", dir, opts->every_steps, 0);
    if (status == TUTTI_OK)
        status = tt_agree(&ctx->world, "tutti_ckpt_schedule", set(s, dir, opts));
    return status;
}

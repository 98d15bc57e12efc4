/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The only file that ends the process.
 *
 * tutti_abort: the reason is printed, the other ranks are told, MPI_Abort ends the job. Each of
 * these may hang (a full pipe, a dead peer, MPI's own locks), so an alarm thread ends the process
 * after a few seconds whatever happens. Of several threads that abort, the first one does it.
 *
 * exit() while a context over MPI lives would leave the other ranks waiting until a time-out, so a
 * hook turns it into an abort with the same exit code. A forked child that exits is not the rank
 * and is let go. Thread ranks need no hook: exit() ends them all.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "boot/internal.h"
#include "core/clock.h"
#include "core/log.h"

#define ALARM_S 5.0
#define TELL_S 0.5

struct tt_guard {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool called_off;
    double seconds;
    int exit_code, rank, size;
    char why[256];
};

static void *guard_main(void *arg)
{
    tt_guard *g = arg;
    struct timespec until;
    int rc = 0;
    tt_log_identity(g->rank, g->size);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)g->seconds;
    until.tv_nsec += (long)((g->seconds - (double)(time_t)g->seconds) * 1e9);
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_mutex_lock(&g->lock);
    while (!g->called_off && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&g->changed, &g->lock, &until);
    bool called_off = g->called_off;
    pthread_mutex_unlock(&g->lock);
    if (called_off)
        return NULL;
    tt_log_error(TT_BOOT, "%s", g->why);
    _exit(g->exit_code);
}

tt_guard *tt_guard_begin(double seconds, int exit_code, const char *why)
{
    tt_guard *g = NULL;
    pthread_condattr_t attr;
    if (!(seconds > 0) || seconds > 1e8 || tt_calloc(1, sizeof *g, &g) != TUTTI_OK)
        return NULL;
    g->seconds = seconds;
    g->exit_code = exit_code;
    snprintf(g->why, sizeof g->why, "%s", why);
    tt_log_identity_get(&g->rank, &g->size);
    pthread_mutex_init(&g->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&g->changed, &attr);
    pthread_condattr_destroy(&attr);
    if (tt_thread_start(&g->thread, "tutti-guard", guard_main, g) != TUTTI_OK)
        goto free_guard;
    return g;
free_guard:
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
    free(g);
    return NULL;
}

void tt_guard_end(tt_guard *guard)
{
    if (guard == NULL)
        return;
    pthread_mutex_lock(&guard->lock);
    guard->called_off = true;
    pthread_cond_signal(&guard->changed);
    pthread_mutex_unlock(&guard->lock);
    pthread_join(guard->thread, NULL);
    pthread_cond_destroy(&guard->changed);
    pthread_mutex_destroy(&guard->lock);
    free(guard);
}

static void end_job(tutti_ctx *ctx, int exit_code)
{
    if (ctx == NULL || ctx->boot == NULL)
        return;
    tt_ctx_fail(ctx, tt_fail(TUTTI_ERR_REMOTE, "aborted: %s", tutti_last_error()));
    tt_progress_flush(ctx, TELL_S);
    ctx->boot->ops->abort(ctx->boot, exit_code);
}

void tutti_abort(tutti_ctx *ctx, int exit_code, const char *why)
{
    static _Atomic bool ending;
    char last[TT_ERROR_TEXT_MAX];
    if (exit_code == 0)
        exit_code = 1;
    if (why == NULL)
        why = "no reason given";
    if (atomic_exchange(&ending, true)) {
        tt_sleep_ns((int64_t)(2 * ALARM_S * 1e9)); /* the first one ends us */
        _exit(exit_code);
    }
    tt_guard_begin(ALARM_S, exit_code, "the job could not be ended properly; this process exits");
    snprintf(last, sizeof last, "%s", tutti_last_error());
    if (last[0] != '\0' && strcmp(last, why) != 0)
        tt_log_error(TT_BOOT, "aborting the job: %s: %s", why, last);
    else
        tt_log_error(TT_BOOT, "aborting the job: %s", why);
    fflush(NULL);
    tt_fail(TUTTI_ERR_REMOTE, "%s%s%s", why, last[0] != '\0' ? ": " : "", last);
    end_job(ctx, exit_code);
    _exit(exit_code);
}

enum { WATCHED_MAX = 64 };
static struct {
    pthread_mutex_t lock;
    tutti_ctx *ctx[WATCHED_MAX];
    pid_t pid;
    bool hooked;
} watched = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void at_exit(int exit_code, void *arg)
{
    tutti_ctx *ctx = NULL;
    (void)arg;
    if (watched.pid != getpid() || pthread_mutex_trylock(&watched.lock) != 0)
        return;
    for (int i = 0; i < WATCHED_MAX && ctx == NULL; i++)
        ctx = watched.ctx[i];
    pthread_mutex_unlock(&watched.lock);
    if (ctx != NULL)
        tutti_abort(ctx, exit_code, "exit() before tutti_finalize");
}

tutti_status tt_exit_watch(tutti_ctx *ctx)
{
    tutti_status status = TUTTI_OK;
    if (ctx->boot->one_process)
        return TUTTI_OK;
    pthread_mutex_lock(&watched.lock);
    if (!watched.hooked && on_exit(at_exit, NULL) != 0)
        status = tt_fail(TUTTI_ERR_NO_MEMORY, "cannot register an exit handler");
    else
        watched.hooked = true;
    watched.pid = getpid();
    for (int i = 0; i < WATCHED_MAX && status == TUTTI_OK; i++)
        if (watched.ctx[i] == NULL) {
            watched.ctx[i] = ctx;
            break;
        }
    pthread_mutex_unlock(&watched.lock);
    return status;
}

void tt_exit_unwatch(tutti_ctx *ctx)
{
    pthread_mutex_lock(&watched.lock);
    for (int i = 0; i < WATCHED_MAX; i++)
        if (watched.ctx[i] == ctx)
            watched.ctx[i] = NULL;
    pthread_mutex_unlock(&watched.lock);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tutti_step: what all ranks do after a step is agreed on while the next one runs. The call for
 * step k ends the exchange that the call for step k - 1 began, so a rank waits only for ranks that
 * are more than a step behind.
 *
 * A request to stop (a signal, tutti_request_stop) is a flag that this rank's next exchange
 * carries; every rank then sees it in the same call. It stays set.
 *
 * Signals belong to the process and contexts do not: handlers are installed with the first context
 * that wants them and taken back with the last, calling what was there before. They count; each
 * context compares with the count it began with. A handler that the program has put over ours is
 * left alone, and with it ours, which it may call: the next context finds both and adds nothing.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "boot/internal.h"
#include "core/log.h"

static const int stop_signals[] = {SIGTERM, SIGUSR1, SIGUSR2};
enum { STOP_SIGNALS = sizeof stop_signals / sizeof stop_signals[0] };

static struct {
    pthread_mutex_t lock;
    int users;
    struct sigaction before[STOP_SIGNALS];
    struct sigaction above[STOP_SIGNALS]; /* handlers that were left over ours */
} handlers = {.lock = PTHREAD_MUTEX_INITIALIZER};
static _Atomic uint32_t signals_seen;

static bool is_program_handler(const struct sigaction *action)
{
    return (action->sa_flags & SA_SIGINFO) != 0 ||
           (action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN);
}

static void on_signal(int signal, siginfo_t *info, void *context)
{
    atomic_fetch_add(&signals_seen, 1);
    for (int i = 0; i < STOP_SIGNALS; i++) {
        const struct sigaction *before = &handlers.before[i];
        if (stop_signals[i] != signal)
            continue;
        if ((before->sa_flags & SA_SIGINFO) != 0)
            before->sa_sigaction(signal, info, context);
        else if (is_program_handler(before))
            before->sa_handler(signal);
    }
}

static bool is_ours(const struct sigaction *action)
{
    return (action->sa_flags & SA_SIGINFO) != 0 && action->sa_sigaction == on_signal;
}

/* Still there from an earlier context: being called from itself would never end. */
static bool is_in_place(int i, const struct sigaction *now)
{
    return is_ours(now) ||
           (is_program_handler(now) && now->sa_handler == handlers.above[i].sa_handler);
}

static void install_handlers(void)
{
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigemptyset(&action.sa_mask);
    pthread_mutex_lock(&handlers.lock);
    for (int i = 0; handlers.users == 0 && i < STOP_SIGNALS; i++) {
        struct sigaction now;
        sigaction(stop_signals[i], NULL, &now);
        if (is_in_place(i, &now))
            continue;
        handlers.before[i] = now;
        sigaction(stop_signals[i], &action, NULL);
    }
    handlers.users++;
    pthread_mutex_unlock(&handlers.lock);
}

static void remove_handlers(void)
{
    pthread_mutex_lock(&handlers.lock);
    handlers.users--;
    for (int i = 0; handlers.users == 0 && i < STOP_SIGNALS; i++) {
        struct sigaction now;
        sigaction(stop_signals[i], NULL, &now);
        handlers.above[i] = is_ours(&now) ? (struct sigaction){0} : now;
        if (is_ours(&now))
            sigaction(stop_signals[i], &handlers.before[i], NULL);
    }
    pthread_mutex_unlock(&handlers.lock);
}

void tt_step_create(tutti_ctx *ctx, tt_step *step)
{
    step->group = ctx->world;
    step->has_signals = (ctx->flags & TUTTI_INIT_NO_SIGNALS) == 0;
    if (step->has_signals)
        install_handlers();
    step->signals_before = atomic_load(&signals_seen);
}

void tt_step_destroy(tt_step *step)
{
    tt_xchg_cancel(step->xchg);
    if (step->has_signals)
        remove_handlers();
}

typedef struct vote {
    int64_t step;
    uint32_t stop, save;
} vote;

static tutti_status count_votes(tutti_ctx *ctx, const tt_blobs *blobs, uint32_t *todo_out)
{
    vote first = {0};
    uint32_t todo = 0;
    for (int i = 0; i < blobs->n; i++) {
        vote v = {0};
        char a[TT_HOST_MAX + 64], b[TT_HOST_MAX + 64];
        if (tt_blob_bytes(blobs, i) == sizeof v)
            memcpy(&v, tt_blob(blobs, i), sizeof v);
        if (i == 0)
            first = v;
        if (v.step != first.step)
            return tt_fail(TUTTI_ERR_MISMATCH, "tutti_step: %s is at step %lld, %s at step %lld",
                           tt_ctx_rank_name(ctx, 0, a, sizeof a), (long long)first.step,
                           tt_ctx_rank_name(ctx, i, b, sizeof b), (long long)v.step);
        if (v.stop != 0)
            todo |= TUTTI_DO_SAVE | TUTTI_DO_STOP;
        if (v.save != 0)
            todo |= TUTTI_DO_SAVE;
    }
    *todo_out = todo;
    return TUTTI_OK;
}

void tt_step_advance(tutti_ctx *ctx, tt_step *step)
{
    bool done = false;
    tt_blobs blobs = {0};
    if (step->xchg == NULL)
        return;
    tutti_status status = tt_xchg_test(step->xchg, &done);
    if (status == TUTTI_OK && !done)
        return;
    if (status != TUTTI_OK) {
        tt_xchg_cancel(step->xchg);
        tt_ctx_fail(ctx, status);
    } else {
        status = tt_xchg_finish(step->xchg, &blobs);
        if (status == TUTTI_OK)
            status = count_votes(ctx, &blobs, &step->todo);
        if (status == TUTTI_ERR_MISMATCH) /* all ranks find it in the same data */
            tt_ctx_mark_failed(ctx, status);
        else
            tt_ctx_fail(ctx, status);
        tt_blobs_free(&blobs);
    }
    step->xchg = NULL;
    atomic_store_explicit(&step->running, 0, memory_order_release);
    tt_futex_wake_all(&step->running);
}

/* The exchange has its own time limit and names who is late. */
static tutti_status await_last(tutti_ctx *ctx, tt_step *step)
{
    const tt_spot spot =
        tt_spot_exchange(&step->group, TT_CH_STEP, step->group.round[TT_CH_STEP] - 1);
    tt_stay stay = {
        .what = "tutti_step", .world = step->group.world, .n = step->group.size, .spot = &spot};
    tt_wait wait;
    if (atomic_load_explicit(&step->running, memory_order_acquire) == 0)
        return tt_ctx_check(ctx);
    tt_stay_begin(ctx, &stay);
    tt_wait_begin(&wait, &ctx->caller_patience);
    while (atomic_load_explicit(&step->running, memory_order_acquire) != 0 &&
           tt_ctx_check(ctx) == TUTTI_OK) {
        tt_ctx_poll(ctx);
        tt_wait_once(&wait, &step->running, 1);
    }
    tt_stay_end(ctx, &stay);
    return tt_ctx_check(ctx);
}

static bool is_asked_to_stop(const tt_step *step)
{
    return atomic_load(&step->stop) ||
           (step->has_signals && atomic_load(&signals_seen) != step->signals_before);
}

static tutti_status begin_next(tutti_ctx *ctx, tt_step *step, int64_t number)
{
    vote mine = {number, is_asked_to_stop(step), atomic_exchange(&step->save, false)};
    pthread_mutex_lock(&ctx->progress->lock);
    tutti_status status = tt_xchg_start(&step->group, TT_CH_STEP, "tutti_step", &mine, sizeof mine,
                                        ctx->timeout_s, &step->xchg);
    if (status == TUTTI_OK)
        atomic_store(&step->running, 1);
    pthread_mutex_unlock(&ctx->progress->lock);
    if (status == TUTTI_OK)
        tt_progress_kick(ctx);
    return tt_ctx_fail(ctx, status);
}

tutti_status tutti_step(tutti_ctx *ctx, int64_t step, uint32_t *todo_out)
{
    if (ctx == NULL || todo_out == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_step: %s is NULL", ctx == NULL ? "ctx" : "todo_out");
    if (step < 0)
        return tt_fail(TUTTI_ERR_ARG, "tutti_step: step %lld is below 0", (long long)step);
    tt_step *mine = &ctx->progress->step;
    TT_TRY(tt_ctx_check_thread(ctx, "tutti_step"));
    tt_ctx_is_in(ctx, "tutti_step");
    tutti_status status = await_last(ctx, mine);
    tt_ctx_is_in(ctx, NULL);
    if (status != TUTTI_OK)
        return status;
    uint32_t todo = mine->begun ? mine->todo : 0;
    atomic_store(&ctx->last_step, step);
    TT_TRY(tt_ctx_hooks_run(ctx, step));
    TT_TRY(begin_next(ctx, mine, step));
    mine->begun = true;
    *todo_out = todo;
    return TUTTI_OK;
}

void tt_step_want_save(tutti_ctx *ctx)
{
    atomic_store(&ctx->progress->step.save, true);
}

void tutti_request_stop(tutti_ctx *ctx)
{
    if (ctx != NULL)
        atomic_store(&ctx->progress->step.stop, true);
}

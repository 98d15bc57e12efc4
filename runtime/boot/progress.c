/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What moves without the caller: the watch channel, over which ranks tell each other of failures
 * and quiet times and ask where a late one was last seen, and the step agreement (step.c).
 *
 * A pass looks at each of them once and never blocks. The progress thread makes passes where the
 * bootstrap may be called from any thread; elsewhere the thread that made the context does, from
 * within its waits (tt_ctx_poll). Between passes the thread sleeps on the bootstrap's bell, or
 * without one 50 to 500 us while an agreement is under way and 20 ms otherwise: a thread that spins
 * here takes its core from the computation.
 *
 * Failures are told once, by the rank that has it first-hand, to all ranks: a relay over a tree
 * would end at the rank that failed. A told failure has the status REMOTE, save
 * those whose status says already that the communicator is lost on all its ranks.
 *
 * tt_progress_failed and tt_progress_kick take no lock: they are called from within a pass too.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "boot/internal.h"
#include "core/clock.h"
#include "core/log.h"

#define MAGIC 0x747477617463680au
#define IDLE_NS 20000000
#define BELL_NS 200000000
#define TELL_S 1.0
#define ANSWER_S 1.0

enum {
    WATCH_TAG = 0,
    FAILURE = 1,
    QUIET = 2,
    ASK = 3,
    ANSWER = 4,
    CIRCLE = 5,
    LATE_SHOWN = 4,
    SLEEP_MIN_NS = 50000,
    SLEEP_MAX_NS = 500000
};

typedef struct message {
    uint64_t magic;
    uint32_t kind;
    int32_t status;
    int64_t quiet_ns;
    tt_probe probe;
    char text[TT_ERROR_TEXT_MAX];
} message;

/* One message on its way to all other ranks, or from any. */
struct tt_notice {
    tt_notice *next;
    message message;
    int n;
    tt_req req[];
};

static void take_quiet(tutti_ctx *ctx, int64_t quiet_ns)
{
    int64_t until = tt_now_ns() + quiet_ns, now = atomic_load(&ctx->quiet_until_ns);
    while (until > now && !atomic_compare_exchange_weak(&ctx->quiet_until_ns, &now, until))
        ;
}

static tutti_status told_status(int32_t status)
{
    bool of_all =
        status == TUTTI_ERR_TIMEOUT || status == TUTTI_ERR_MISMATCH || status == TUTTI_ERR_MISSING;
    return of_all ? (tutti_status)status : TUTTI_ERR_REMOTE;
}

static void take_failure(tutti_ctx *ctx, const message *m, int source)
{
    char name[TT_HOST_MAX + 64];
    tutti_status status = told_status(m->status);
    tt_fail(status, "%s: %s", tt_ctx_rank_name(ctx, source, name, sizeof name), m->text);
    if (tt_ctx_mark_failed(ctx, status))
        tt_log_info(TT_BOOT, "%s", tutti_last_error());
}

static void take_answer(tt_progress *p, const message *m, int source)
{
    if (p->answers == NULL || p->answers[source].got)
        return;
    p->answers[source].got = true;
    snprintf(p->answers[source].text, sizeof p->answers[source].text, "%s", m->text);
    atomic_fetch_add(&p->answered, 1);
}

static void answer(tutti_ctx *ctx, tt_progress *p, int to);

static void take(tutti_ctx *ctx, tt_progress *p, size_t bytes, int source)
{
    message *m = &p->in->message;
    if (bytes <= offsetof(message, text) || m->magic != MAGIC)
        return;
    m->text[bytes - offsetof(message, text) - 1] = '\0';
    if (m->kind == FAILURE)
        take_failure(ctx, m, source);
    else if (m->kind == QUIET)
        take_quiet(ctx, m->quiet_ns);
    else if (m->kind == ASK)
        answer(ctx, p, source);
    else if (m->kind == ANSWER)
        take_answer(p, m, source);
    else if (m->kind == CIRCLE)
        tt_circle_take(ctx, &m->probe, m->text);
}

static tutti_status receive(tutti_ctx *ctx, tt_progress *p)
{
    tt_boot *boot = ctx->boot;
    for (;;) {
        bool done = false;
        size_t bytes = 0;
        int source = 0;
        TT_TRY(boot->ops->test(boot, &p->in_req, &done, &bytes, &source));
        if (!done)
            return TUTTI_OK;
        take(ctx, p, bytes, source);
        TT_TRY(boot->ops->irecv(boot, TT_CH_WATCH, TT_ANY, WATCH_TAG, &p->in->message,
                                sizeof p->in->message, &p->in_req));
    }
}

static tutti_status make_notice(int n, tt_notice **out)
{
    tt_notice *notice = NULL;
    TT_TRY(tt_calloc(1, sizeof *notice + (size_t)n * sizeof notice->req[0], &notice));
    notice->n = n;
    notice->message.magic = MAGIC;
    *out = notice;
    return TUTTI_OK;
}

/* To all other ranks, or to one. */
static void send_notice(tutti_ctx *ctx, tt_progress *p, tt_notice *notice, int only)
{
    tt_boot *boot = ctx->boot;
    size_t bytes = offsetof(message, text) + strlen(notice->message.text) + 1;
    notice->next = p->out;
    p->out = notice;
    for (int i = 0; i < notice->n; i++) { /* one that cannot be sent must not keep the others */
        int to = only >= 0 ? only : i;
        if (to != boot->rank && boot->ops->isend(boot, TT_CH_WATCH, to, WATCH_TAG, &notice->message,
                                                 bytes, &notice->req[i]) != TUTTI_OK)
            tt_log_warn(TT_BOOT, "cannot tell rank %d: %s", to, tutti_last_error());
    }
}

void tt_ctx_is_in(tutti_ctx *ctx, const char *what)
{
    atomic_store(&ctx->exchange_since_ns, tt_now_ns());
    atomic_store(&ctx->exchange, what);
}

/* A collective that has not ended, the exchange that the caller is in, the last collective. */
static void where_seen(tutti_ctx *ctx, const tt_progress *p, char *buf, size_t cap)
{
    static const char none[] = "in no collective yet", now[] = "in ";
    const char *what = atomic_load(&ctx->exchange);
    snprintf(buf, cap, "%s", none);
    if (p->last_seen != NULL)
        p->last_seen(ctx, buf, cap);
    if (what != NULL && (strncmp(buf, now, strlen(now)) != 0 || strcmp(buf, none) == 0))
        snprintf(buf, cap, "in %s for %.1f s", what,
                 (double)(tt_now_ns() - atomic_load(&ctx->exchange_since_ns)) / 1e9);
}

static void answer(tutti_ctx *ctx, tt_progress *p, int to)
{
    tt_notice *notice = NULL;
    if (make_notice(1, &notice) != TUTTI_OK)
        return;
    notice->message.kind = ANSWER;
    where_seen(ctx, p, notice->message.text, sizeof p->answers->text);
    send_notice(ctx, p, notice, to);
}

void tt_progress_probe(tutti_ctx *ctx, int to, const tt_probe *probe, const char *text)
{
    tt_notice *notice = NULL;
    if (make_notice(1, &notice) != TUTTI_OK)
        return;
    notice->message.kind = CIRCLE;
    notice->message.probe = *probe;
    snprintf(notice->message.text, sizeof notice->message.text, "%s", text);
    send_notice(ctx, ctx->progress, notice, to);
}

static void ask_all(tutti_ctx *ctx, tt_progress *p)
{
    tt_notice *notice = NULL;
    if (!atomic_exchange(&p->asking, false) || make_notice(ctx->world.size, &notice) != TUTTI_OK)
        return;
    notice->message.kind = ASK;
    send_notice(ctx, p, notice, TT_ANY);
}

static void tell_failure(tutti_ctx *ctx, tt_progress *p)
{
    tt_notice *notice = NULL;
    if (!atomic_load(&p->untold) || make_notice(ctx->world.size, &notice) != TUTTI_OK)
        return;
    notice->message.kind = FAILURE;
    notice->message.status = atomic_load_explicit(&ctx->failed, memory_order_acquire);
    snprintf(notice->message.text, sizeof notice->message.text, "%s", ctx->fail_text);
    send_notice(ctx, p, notice, TT_ANY);
    atomic_store(&p->sending, true);
    atomic_store(&p->untold, false);
}

static void tell_quiet(tutti_ctx *ctx, tt_progress *p)
{
    tt_notice *notice = NULL;
    int64_t quiet_ns = atomic_exchange(&p->quiet_ns, 0);
    if (quiet_ns == 0 || make_notice(ctx->world.size, &notice) != TUTTI_OK)
        return;
    notice->message.kind = QUIET;
    notice->message.quiet_ns = quiet_ns;
    send_notice(ctx, p, notice, TT_ANY);
}

static bool is_sent(tt_boot *boot, tt_notice *notice)
{
    bool all = true;
    for (int i = 0; i < notice->n; i++) {
        bool done = true;
        if (boot->ops->test(boot, &notice->req[i], &done, NULL, NULL) != TUTTI_OK)
            boot->ops->cancel(boot, &notice->req[i]);
        all = all && done;
    }
    return all;
}

static void reap(tutti_ctx *ctx, tt_progress *p)
{
    for (tt_notice **at = &p->out; *at != NULL;) {
        tt_notice *notice = *at;
        if (is_sent(ctx->boot, notice)) {
            *at = notice->next;
            free(notice);
        } else {
            at = &notice->next;
        }
    }
    atomic_store(&p->sending, p->out != NULL);
}

static void pass(tutti_ctx *ctx, tt_progress *p)
{
    pthread_mutex_lock(&p->lock);
    if (ctx->world.size > 1) {
        tutti_status status = receive(ctx, p);
        if (status != TUTTI_OK)
            tt_ctx_fail(ctx, tt_fail_more(status, "watch channel"));
        tell_failure(ctx, p);
        tell_quiet(ctx, p);
        ask_all(ctx, p);
        tt_circles_pass(ctx);
        reap(ctx, p);
    }
    tt_step_advance(ctx, &p->step);
    if (p->watch != NULL)
        p->watch(ctx);
    pthread_mutex_unlock(&p->lock);
}

static void *progress_main(void *arg)
{
    tutti_ctx *ctx = arg;
    tt_progress *p = ctx->progress;
    _Atomic uint32_t *word = ctx->boot->watch_bell != NULL ? ctx->boot->watch_bell : &p->kick;
    bool polls = word == &p->kick;
    int64_t sleep_ns = SLEEP_MIN_NS;
    tt_log_identity(ctx->world.rank, ctx->world.size);
    while (!atomic_load(&p->quit)) {
        uint32_t seen = atomic_load(word);
        pass(ctx, p);
        bool busy = atomic_load(&p->step.running) != 0 || atomic_load(&p->sending);
        if (!polls) {
            tt_futex_wait(word, seen, BELL_NS);
            continue;
        }
        tt_futex_wait(word, seen, busy ? sleep_ns : IDLE_NS);
        sleep_ns = busy && sleep_ns < SLEEP_MAX_NS ? 2 * sleep_ns : sleep_ns;
        if (!busy || sleep_ns > SLEEP_MAX_NS)
            sleep_ns = busy ? SLEEP_MAX_NS : SLEEP_MIN_NS;
    }
    return NULL;
}

tutti_status tt_progress_create(tutti_ctx *ctx)
{
    tt_progress *p = NULL;
    tt_notice *in = NULL;
    TT_TRY(make_notice(0, &in));
    tutti_status status = tt_calloc(1, sizeof *p, &p);
    if (status != TUTTI_OK)
        goto free_in;
    pthread_mutex_init(&p->lock, NULL);
    p->owner = pthread_self();
    p->in = in;
    tt_step_create(ctx, &p->step);
    ctx->progress = p;
    if (ctx->boot->any_thread) {
        TT_TRY(tt_thread_start(&p->thread, "tutti-progress", progress_main, ctx));
        p->threaded = true;
    } else if (ctx->world.rank == 0) {
        tt_log_warn(
            TT_BOOT,
            "MPI was initialised with %s: there is no progress thread, and tutti_step costs "
            "a barrier; ask for MPI_THREAD_MULTIPLE",
            ctx->boot->thread_level);
    }
    return TUTTI_OK;
free_in:
    free(in);
    return status;
}

tutti_status tt_ctx_check_thread(const tutti_ctx *ctx, const char *what)
{
    const tt_progress *p = ctx->progress;
    if (p == NULL || ctx->boot->any_thread || pthread_equal(p->owner, pthread_self()))
        return TUTTI_OK;
    return tt_fail(TUTTI_ERR_UNSUPPORTED,
                   "%s: MPI was initialised with %s, so only the thread that called tutti_init may "
                   "make calls that send messages; ask for MPI_THREAD_MULTIPLE",
                   what, ctx->boot->thread_level);
}

void tt_ctx_poll(tutti_ctx *ctx)
{
    tt_progress *p = ctx->progress;
    if (p != NULL && !p->threaded && pthread_equal(p->owner, pthread_self()))
        pass(ctx, p);
}

void tt_progress_kick(tutti_ctx *ctx)
{
    _Atomic uint32_t *bell = ctx->boot->watch_bell;
    if (bell == NULL)
        bell = &ctx->progress->kick;
    atomic_fetch_add(bell, 1);
    tt_futex_wake_all(bell);
}

void tt_progress_failed(tutti_ctx *ctx)
{
    if (ctx->progress == NULL)
        return;
    atomic_store(&ctx->progress->untold, true);
    tt_progress_kick(ctx);
}

void tt_progress_flush(tutti_ctx *ctx, double seconds)
{
    tt_progress *p = ctx->progress;
    int64_t until = tt_deadline(seconds);
    while (p != NULL && (atomic_load(&p->untold) || atomic_load(&p->sending)) &&
           tt_now_ns() < until) {
        tt_ctx_poll(ctx);
        tt_sleep_ns(SLEEP_MIN_NS);
    }
}

/* All ranks have begun the last agreement, so it ends soon. */
static void end_agreement(tutti_ctx *ctx, tt_progress *p)
{
    while (atomic_load(&p->step.running) != 0 && tt_ctx_check(ctx) == TUTTI_OK) {
        tt_ctx_poll(ctx);
        tt_sleep_ns(SLEEP_MIN_NS);
    }
}

void tt_progress_destroy(tutti_ctx *ctx)
{
    tt_progress *p = ctx->progress;
    if (p == NULL)
        return;
    end_agreement(ctx, p);
    tt_progress_flush(ctx, TELL_S);
    if (p->threaded) {
        atomic_store(&p->quit, true);
        tt_progress_kick(ctx);
        pthread_join(p->thread, NULL);
    }
    ctx->progress = NULL;
    ctx->boot->ops->cancel(ctx->boot, &p->in_req);
    free(p->in);
    while (p->out != NULL) {
        tt_notice *notice = p->out;
        p->out = notice->next;
        for (int i = 0; i < notice->n; i++)
            ctx->boot->ops->cancel(ctx->boot, &notice->req[i]);
        free(notice);
    }
    free(p->answers);
    tt_step_destroy(&p->step);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

void tt_ctx_set_last_seen(tutti_ctx *ctx, tt_last_seen_fn last_seen)
{
    pthread_mutex_lock(&ctx->progress->lock);
    ctx->progress->last_seen = last_seen;
    pthread_mutex_unlock(&ctx->progress->lock);
}

void tt_ctx_set_watch(tutti_ctx *ctx, tt_watch_fn watch)
{
    pthread_mutex_lock(&ctx->progress->lock);
    ctx->progress->watch = watch;
    pthread_mutex_unlock(&ctx->progress->lock);
}

/* Both are in, or were last in, the same operation: what follows is the time. */
static bool same_place(const char *a, const char *b)
{
    const char *ends[] = {" for ", ", which "};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        const char *end = strstr(a, ends[i]);
        if (end != NULL)
            return strncmp(a, b, (size_t)(end - a) + strlen(ends[i])) == 0;
    }
    return strcmp(a, b) == 0;
}

static void describe_late(tutti_ctx *ctx, tt_progress *p, char *buf, size_t cap)
{
    char mine[sizeof p->answers->text], name[TT_HOST_MAX + 64];
    size_t used = 0;
    int shown = 0;
    where_seen(ctx, p, mine, sizeof mine);
    for (int i = 0; i < ctx->world.size && used < cap && shown < LATE_SHOWN; i++) {
        const tt_answer *a = &p->answers[i];
        if (i == ctx->world.rank || (a->got && same_place(mine, a->text)))
            continue;
        tt_ctx_rank_name(ctx, i, name, sizeof name);
        shown++;
        used += (size_t)snprintf(buf + used, cap - used, a->got ? "; %s was %s" : "; %s %s", name,
                                 a->got ? a->text : "does not answer");
    }
}

bool tt_ctx_ask(tutti_ctx *ctx, char *buf, size_t cap)
{
    tt_progress *p = ctx->progress;
    buf[0] = '\0';
    if (ctx->world.size == 1)
        return true;
    if (p->answers == NULL) {
        if (tt_calloc((size_t)ctx->world.size, sizeof *p->answers, &p->answers) != TUTTI_OK)
            return true;
        p->answers_until_ns = tt_deadline(ANSWER_S);
        atomic_store(&p->asking, true);
        return false;
    }
    if (atomic_load(&p->answered) < ctx->world.size - 1 && tt_now_ns() < p->answers_until_ns)
        return false;
    describe_late(ctx, p, buf, cap);
    return true;
}

void tt_progress_ask(tutti_ctx *ctx, char *buf, size_t cap)
{
    tt_progress *p = ctx->progress;
    int64_t until = tt_deadline(ANSWER_S);
    buf[0] = '\0';
    if (p == NULL || ctx->world.size == 1 ||
        (!p->threaded && !pthread_equal(p->owner, pthread_self())))
        return;
    pthread_mutex_lock(&p->lock);
    bool first = p->answers == NULL;
    tutti_status status =
        first ? tt_calloc((size_t)ctx->world.size, sizeof *p->answers, &p->answers) : TUTTI_OK;
    pthread_mutex_unlock(&p->lock);
    if (status != TUTTI_OK)
        return;
    if (first)
        atomic_store(&p->asking, true);
    tt_progress_kick(ctx);
    while (atomic_load(&p->answered) < ctx->world.size - 1 && tt_now_ns() < until) {
        tt_ctx_poll(ctx);
        tt_sleep_ns(SLEEP_MAX_NS);
    }
    pthread_mutex_lock(&p->lock);
    describe_late(ctx, p, buf, cap);
    pthread_mutex_unlock(&p->lock);
}

void tutti_expect_quiet(tutti_ctx *ctx, double seconds)
{
    const double most = 86400;
    if (ctx == NULL || !(seconds > 0) || tt_ctx_check(ctx) != TUTTI_OK)
        return;
    int64_t quiet_ns = (int64_t)((seconds < most ? seconds : most) * 1e9);
    take_quiet(ctx, quiet_ns);
    int64_t untold = atomic_load(&ctx->progress->quiet_ns);
    while (untold < quiet_ns &&
           !atomic_compare_exchange_weak(&ctx->progress->quiet_ns, &untold, quiet_ns))
        ;
    tt_progress_kick(ctx);
    tt_ctx_poll(ctx);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread that aborts, one per context, made with it: when something has failed is no time to
 * make a thread.
 *
 * A context that has failed, for whatever reason, has its NCCL communicators aborted, on every
 * rank, because each hears of it; that ends kernels that spin for a peer that has gone, and with
 * them the streams. An abort may hang itself; who must end waits for it only so long.
 *
 * NCCL allows an abort only when no other thread is inside. So the thread takes `lock`, closes the
 * context, takes the communicators over, and aborts them without the lock: nobody waits for an
 * abort that hangs.
 *
 * A call that does not come back from NCCL keeps the lock. The thread looks at what its holder says
 * (tt_inside): a turn that stands still for TUTTI_TIMEOUT fails the context, by the call's name,
 * and the communicators are aborted all the same, which is what makes NCCL's own waits return. If
 * the call comes back, it returns the failure. If it does not, nobody can take the caller's thread
 * out of it: then the job is ended, as tutti_abort does, because a rank that neither returns nor
 * dies would keep the others' launcher for ever. A guard stands behind this, for the abort may hang
 * too.
 *
 * It sleeps in poll, not on a lock: it does nothing that another thread waits for.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/thread.h"
#include "nccl/backend.h"

enum { LOOK_MS = 500, LOCK_S = 5, RESCUE_S = 10 };

/* Outlives the context if an abort hangs: two hold it, the last frees it. */
struct tt_abort {
    _Atomic int refs;
    _Atomic uint32_t asked, served;
    _Atomic bool first, quit, ended;
    int bell; /* eventfd */
    tt_nccl_ctx *nc; /* used until `ended` */
    uint64_t turn; /* last seen, since when, and whether that was told */
    int64_t since_ns;
    bool warned, given_up;
};

/* A communicator taken over. */
typedef struct victim {
    ncclComm_t comm;
    char name[64];
} victim;

static void drop(tt_abort *a)
{
    if (atomic_fetch_sub(&a->refs, 1) != 1)
        return;
    close(a->bell);
    free(a);
}

static void ring(tt_abort *a)
{
    const uint64_t one = 1;
    ssize_t ignored = write(a->bell, &one, sizeof one);
    (void)ignored;
}

/* What the holder of `lock` says. */

static void say(tt_nccl_ctx *nc, const tt_doing *what)
{
    uint64_t name[TT_NAME_WORDS] = {0};
    memcpy(name, what->comm, strnlen(what->comm, sizeof name - 1));
    for (int i = 0; i < TT_NAME_WORDS; i++)
        atomic_store_explicit(&nc->inside.name[i], name[i], memory_order_relaxed);
    atomic_store_explicit(&nc->inside.doing, what->doing, memory_order_relaxed);
    atomic_store_explicit(&nc->inside.seq, what->seq, memory_order_relaxed);
    atomic_store_explicit(&nc->inside.limit_s, what->limit_s, memory_order_relaxed);
    tt_nccl_at(nc, "CUDA");
}

void tt_nccl_enter(tt_nccl_ctx *nc, const tt_doing *what)
{
    pthread_mutex_lock(&nc->lock);
    say(nc, what);
}

bool tt_nccl_try_enter(tt_nccl_ctx *nc, const tt_doing *what)
{
    if (pthread_mutex_trylock(&nc->lock) != 0)
        return false;
    say(nc, what);
    return true;
}

void tt_nccl_leave(tt_nccl_ctx *nc)
{
    tt_nccl_at(nc, NULL);
    pthread_mutex_unlock(&nc->lock);
}

/* "all_reduce 3 on comm dp, world rank 1: ncclAllReduce"; false: nobody is inside. */
static bool describe(tt_nccl_ctx *nc, char *buf, size_t cap)
{
    uint64_t name[TT_NAME_WORDS];
    char number[24] = "";
    const char *call = atomic_load(&nc->inside.call), *doing = atomic_load(&nc->inside.doing);
    uint64_t seq = atomic_load(&nc->inside.seq);
    if (call == NULL)
        return false;
    for (int i = 0; i < TT_NAME_WORDS; i++)
        name[i] = atomic_load(&nc->inside.name[i]);
    if (seq != UINT64_MAX)
        snprintf(number, sizeof number, " %llu", (unsigned long long)seq);
    snprintf(buf, cap, "%s%s on comm %.*s, world rank %d: %.*s", doing, number, (int)sizeof name,
             (const char *)name, nc->ctx->world.rank, (int)strcspn(call, "("), call);
    return true;
}

/* Whoever is inside: warned of, then given up. */
static void look(tt_abort *a)
{
    tt_nccl_ctx *nc = a->nc;
    tutti_ctx *ctx = nc->ctx;
    char what[256];
    uint64_t turn = atomic_load_explicit(&nc->inside.turn, memory_order_acquire);
    int64_t now = tt_now_ns(), quiet = atomic_load(&ctx->quiet_until_ns);
    double limit = atomic_load(&nc->inside.limit_s);
    bool any = describe(nc, what, sizeof what);
    if (!any || turn != a->turn || atomic_load(&nc->inside.turn) != turn) {
        a->turn = turn;
        a->since_ns = now;
        a->warned = false;
        return;
    }
    double waited = (double)(now - (quiet > a->since_ns ? quiet : a->since_ns)) * 1e-9;
    if (!a->warned && ctx->warn_after_s > 0 && waited >= ctx->warn_after_s) {
        a->warned = true;
        tt_log_warn(TT_COLL, "%s has not returned after %.0f s", what, waited);
    }
    if (!(limit > 0) || waited < limit)
        return;
    tt_ctx_fail(ctx, tt_fail(TUTTI_ERR_TIMEOUT, "%s has not returned after %.1f s", what, waited));
    a->given_up = true;
    tt_nccl_abort_all(nc);
}

/* Aborting. */

static bool lock_for(pthread_mutex_t *lock, int seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += seconds;
    return pthread_mutex_timedlock(lock, &until) == 0;
}

static bool take_from(tt_share *list, bool locked, victim *out)
{
    for (tt_share *s = list; s != NULL; s = s->next) {
        if (s->comm == NULL || s->aborted)
            continue;
        out->comm = s->comm;
        memcpy(out->name, s->name, sizeof out->name);
        s->aborted = true;
        if (locked) /* else whoever is inside is still looking at it */
            s->comm = NULL;
        return true;
    }
    return false;
}

/* The next one to abort; nothing is issued from the first on. *locked_inout: whether `lock` could
 * be had; it is given back. */
static bool take(tt_nccl_ctx *nc, bool *locked_inout, victim *out)
{
    bool locked = lock_for(&nc->lock, *locked_inout ? LOCK_S : 0);
    atomic_store(&nc->closed, true);
    bool any = take_from(nc->shares, locked, out) || take_from(nc->retired, locked, out);
    if (locked)
        pthread_mutex_unlock(&nc->lock);
    *locked_inout = locked;
    return any;
}

static void abort_all(tt_nccl_ctx *nc, bool *locked_inout)
{
    victim v;
    while (take(nc, locked_inout, &v)) {
        ncclResult_t result = ncclCommAbort(v.comm);
        if (result != ncclSuccess && result != ncclInProgress)
            tt_log_warn(TT_COLL, "comm %s: ncclCommAbort: %s", v.name, ncclGetErrorString(result));
    }
}

/* A thread is inside and may not come back. */
static void rescue(tt_nccl_ctx *nc)
{
    bool locked = false;
    char what[256], why[320];
    if (!describe(nc, what, sizeof what))
        snprintf(what, sizeof what, "a call of CUDA or NCCL");
    tt_log_warn(TT_COLL, "%s has not returned: aborting all the same", what);
    snprintf(why, sizeof why, "%s does not return, and ncclCommAbort does not free it", what);
    tt_guard *guard = tt_guard_begin(RESCUE_S, 1, why);
    abort_all(nc, &locked);
    bool back = lock_for(&nc->lock, LOCK_S);
    if (back)
        pthread_mutex_unlock(&nc->lock);
    tt_guard_end(guard);
    if (!back)
        tutti_abort(nc->ctx, 1, why);
}

static void serve(tt_abort *a)
{
    tt_nccl_ctx *nc = a->nc;
    (void)cudaSetDevice(tt_cuda_of(nc->ctx->dev)->ordinal);
    bool locked = lock_for(&nc->lock, a->given_up ? 0 : LOCK_S);
    if (locked) {
        pthread_mutex_unlock(&nc->lock);
        abort_all(nc, &locked);
    }
    if (!locked)
        rescue(nc);
}

static void *abort_main(void *arg)
{
    tt_abort *a = arg;
    struct pollfd fd = {.fd = a->bell, .events = POLLIN};
    uint64_t rung;
    tt_log_identity(a->nc->ctx->world.rank, a->nc->ctx->world.size);
    while (!atomic_load(&a->quit)) {
        if (poll(&fd, 1, LOOK_MS) > 0)
            (void)!read(a->bell, &rung, sizeof rung);
        uint32_t asked = atomic_load(&a->asked);
        if (asked == atomic_load(&a->served)) {
            look(a);
            continue;
        }
        serve(a);
        atomic_store(&a->served, asked);
    }
    atomic_store(&a->ended, true);
    drop(a);
    return NULL;
}

tutti_status tt_nccl_abort_start(tt_nccl_ctx *nc)
{
    tt_abort *a = NULL;
    pthread_t thread;
    TT_TRY(tt_calloc(1, sizeof *a, &a));
    a->refs = 2;
    a->nc = nc;
    a->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    tutti_status status = TUTTI_OK;
    if (a->bell < 0)
        status = tt_fail(TUTTI_ERR_IO, "tutti_init: eventfd: %s", strerror(errno));
    if (status == TUTTI_OK)
        status = tt_thread_start(&thread, "tutti-abort", abort_main, a);
    if (status != TUTTI_OK) {
        if (a->bell >= 0)
            close(a->bell);
        free(a);
        return status;
    }
    pthread_detach(thread);
    nc->abort = a;
    return TUTTI_OK;
}

void tt_nccl_abort_more(tt_nccl_ctx *nc)
{
    if (nc->abort == NULL)
        return;
    atomic_fetch_add(&nc->abort->asked, 1);
    ring(nc->abort);
}

void tt_nccl_abort_all(tt_nccl_ctx *nc)
{
    if (nc->abort != NULL && !atomic_exchange(&nc->abort->first, true))
        tt_nccl_abort_more(nc);
}

static bool is_served(const tt_abort *a)
{
    return atomic_load(&a->served) == atomic_load(&a->asked);
}

static bool has_ended(const tt_abort *a)
{
    return atomic_load(&a->ended);
}

static bool await(const tt_abort *a, bool (*reached)(const tt_abort *), double seconds)
{
    int64_t deadline = tt_deadline(seconds);
    while (!reached(a)) {
        if (tt_now_ns() > deadline)
            return false;
        tt_sleep_ns(1000000);
    }
    return true;
}

bool tt_nccl_abort_wait(tt_nccl_ctx *nc, double seconds)
{
    return nc->abort == NULL || await(nc->abort, is_served, seconds);
}

bool tt_nccl_abort_end(tt_nccl_ctx *nc)
{
    tt_abort *a = nc->abort;
    if (a == NULL)
        return true;
    atomic_store(&a->quit, true);
    ring(a);
    bool ended = is_served(a) && await(a, has_ended, LOCK_S);
    if (ended)
        nc->abort = NULL;
    drop(a);
    return ended;
}

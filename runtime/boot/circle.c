/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who waits for whom, over all communicators (TUTTI_CHECK=1).
 *
 * Two communicators called in different orders on two ranks hang: each rank waits in the call that
 * the other one has yet to come to. Comparing calls cannot find that, since none of the calls has
 * all its ranks. So a rank remembers how far it has come with everything that it does together with
 * others (a spot: the exchanges of a group, sends to a peer), by which thread, and in which waits
 * its threads are (stays). A stay that lasts sends a probe to those that it waits for. A rank that
 * gets one and has come to the spot drops it; so does one whose thread for that spot is not waiting
 * itself. Else it passes the probe on, to those that it waits for. A probe that comes back to the
 * very stay that sent it has gone round a circle, of which no member can ever go on. (Chandy,
 * Misra, Haas, "Distributed deadlock detection", 1983, for processes that wait for all of several.)
 * Of a circle's members the lowest rank reports, so that a circle is told once.
 *
 * The thread that will come to a spot is taken to be the one that came there last; where none has,
 * the rank's only thread, if a single one has made all its calls. So a communicator may have a
 * thread of its own, and threads that wait in different communicators make no circle.
 *
 * Probes travel over the watch channel and are handled in the passes of the progress part, which
 * goes on whatever the callers wait for. Rejected: a table in shared memory, which ends at the
 * node; asking all ranks for their stays, which need not have been stays at the same time.
 */
#include "boot/circle.h"

#include <stdio.h>
#include <stdlib.h>

#include "boot/internal.h"
#include "core/clock.h"

#define LOOK_NS 250000000 /* a stay is looked at when it is that old, then ever more rarely */
#define LOOK_MOST_NS 4000000000

/* How far this rank has come. */
typedef struct place {
    tt_spot spot; /* number: of the next one */
    bool known; /* the thread that comes here */
    pthread_t thread;
} place;

/* The last probe of a rank that was passed on, and from which stay. */
typedef struct seen {
    uint64_t look, serial;
} seen;

struct tt_circles {
    pthread_mutex_t lock;
    place *places;
    size_t n, cap;
    bool blind; /* a place could not be remembered: nothing is known any more */
    tt_stay *stays;
    uint64_t serial, looks;
    bool one_thread, several_threads; /* that have made calls */
    pthread_t only;
    seen *seen; /* by world rank */
};

static _Thread_local const char *stay_name;

const char *tt_stay_name(const char *what)
{
    const char *before = stay_name;
    stay_name = what;
    return before;
}

const char *tt_stay_named(const char *otherwise)
{
    return stay_name != NULL ? stay_name : otherwise;
}

tutti_status tt_circles_create(tutti_ctx *ctx)
{
    tt_circles *c = NULL;
    if (!ctx->check || ctx->world.size == 1)
        return TUTTI_OK;
    TT_TRY(tt_calloc(1, sizeof *c, &c));
    tutti_status status = tt_calloc((size_t)ctx->world.size, sizeof *c->seen, &c->seen);
    if (status != TUTTI_OK) {
        free(c);
        return status;
    }
    pthread_mutex_init(&c->lock, NULL);
    ctx->circles = c;
    return TUTTI_OK;
}

void tt_circles_destroy(tutti_ctx *ctx)
{
    tt_circles *c = ctx->circles;
    if (c == NULL)
        return;
    ctx->circles = NULL;
    pthread_mutex_destroy(&c->lock);
    free(c->places);
    free(c->seen);
    free(c);
}

static place *find(tt_circles *c, const tt_spot *spot)
{
    for (size_t i = 0; i < c->n; i++) {
        const tt_spot *at = &c->places[i].spot;
        if (at->group == spot->group && at->kind == spot->kind && at->peer == spot->peer)
            return &c->places[i];
    }
    return NULL;
}

/* With the lock. NULL: there is no memory for it. */
static place *come(tt_circles *c, const tt_spot *spot)
{
    place *at = find(c, spot);
    if (at == NULL) {
        if (tt_grow(&c->places, &c->cap, c->n + 1, sizeof *c->places) != TUTTI_OK) {
            c->blind = true;
            return NULL;
        }
        at = &c->places[c->n++];
        *at = (place){.spot = *spot};
    }
    at->known = true;
    at->thread = pthread_self();
    c->several_threads =
        c->several_threads || (c->one_thread && pthread_equal(c->only, pthread_self()) == 0);
    c->one_thread = true;
    c->only = pthread_self();
    return at;
}

void tt_circle_come(tutti_ctx *ctx, const tt_spot *spot)
{
    tt_circles *c = ctx->circles;
    if (c == NULL)
        return;
    pthread_mutex_lock(&c->lock);
    place *at = come(c, spot);
    if (at != NULL)
        at->spot.number = spot->number + 1;
    pthread_mutex_unlock(&c->lock);
}

uint32_t tt_circle_come_next(tutti_ctx *ctx, uint32_t kind, const tt_group *group, int peer)
{
    tt_circles *c = ctx->circles;
    const tt_spot spot = {kind, group->id, 0, peer};
    if (c == NULL)
        return 0;
    pthread_mutex_lock(&c->lock);
    place *at = come(c, &spot);
    const uint32_t number = at != NULL ? at->spot.number++ : 0;
    pthread_mutex_unlock(&c->lock);
    return number;
}

void tt_circle_made(tutti_ctx *ctx, const tt_group *group)
{
    tt_circles *c = ctx->circles;
    if (c == NULL)
        return;
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < c->n; i++)
        if (c->places[i].spot.group == group->id)
            c->places[i].known = false;
    pthread_mutex_unlock(&c->lock);
}

void tt_stay_begin(tutti_ctx *ctx, tt_stay *stay)
{
    tt_circles *c = ctx->circles;
    if (c == NULL)
        return;
    stay->thread = pthread_self();
    stay->pause_ns = LOOK_NS;
    stay->look_ns = tt_now_ns() + LOOK_NS;
    pthread_mutex_lock(&c->lock);
    stay->serial = ++c->serial;
    stay->next = c->stays;
    c->stays = stay;
    pthread_mutex_unlock(&c->lock);
}

void tt_stay_end(tutti_ctx *ctx, tt_stay *stay)
{
    tt_circles *c = ctx->circles;
    if (c == NULL)
        return;
    pthread_mutex_lock(&c->lock);
    for (tt_stay **at = &c->stays; *at != NULL; at = &(*at)->next) {
        if (*at == stay) {
            *at = stay->next;
            break;
        }
    }
    pthread_mutex_unlock(&c->lock);
}

/* To all that the stay waits for. */
static void send_on(tutti_ctx *ctx, const tt_stay *stay, tt_probe probe, const char *text)
{
    for (int i = 0; i < stay->n; i++) {
        probe.spot = stay->spot[stay->each_its_own ? i : 0];
        if (stay->world[i] != ctx->world.rank)
            tt_progress_probe(ctx, stay->world[i], &probe, text);
    }
}

void tt_circles_pass(tutti_ctx *ctx)
{
    tt_circles *c = ctx->circles;
    const int me = ctx->world.rank;
    if (c == NULL || tt_ctx_check(ctx) != TUTTI_OK)
        return;
    pthread_mutex_lock(&c->lock);
    int64_t now = c->stays != NULL ? tt_now_ns() : 0;
    for (tt_stay *stay = c->stays; stay != NULL; stay = stay->next) {
        char name[TT_HOST_MAX + 64], text[TT_ERROR_TEXT_MAX];
        if (now < stay->look_ns)
            continue;
        if (stay->pause_ns < LOOK_MOST_NS)
            stay->pause_ns *= 2;
        stay->look_ns = now + stay->pause_ns;
        snprintf(text, sizeof text, "calls in different orders: %s is in %s",
                 tt_ctx_rank_name(ctx, me, name, sizeof name), stay->what);
        send_on(ctx, stay,
                (tt_probe){.from = me, .lowest = me, .serial = stay->serial, .look = ++c->looks},
                text);
    }
    pthread_mutex_unlock(&c->lock);
}

/* The stay that keeps this rank from coming to the spot; NULL if it has come, or may. */
static const tt_stay *held_up(tt_circles *c, const tt_spot *spot)
{
    const place *at = find(c, spot);
    pthread_t thread = c->only;
    if (c->blind || (at != NULL && (int32_t)(at->spot.number - spot->number) > 0))
        return NULL;
    if (at != NULL && at->known)
        thread = at->thread;
    else if (!c->one_thread || c->several_threads)
        return NULL;
    for (const tt_stay *stay = c->stays; stay != NULL; stay = stay->next)
        if (pthread_equal(stay->thread, thread) != 0)
            return stay;
    return NULL;
}

static void pass_on(tutti_ctx *ctx, const tt_stay *stay, const tt_probe *probe, const char *so_far)
{
    tt_circles *c = ctx->circles;
    seen *last = &c->seen[probe->from];
    char name[TT_HOST_MAX + 64], text[TT_ERROR_TEXT_MAX];
    tt_probe next = *probe;
    if ((last->look == probe->look && last->serial == stay->serial) ||
        probe->hops >= (uint32_t)ctx->world.size)
        return;
    *last = (seen){probe->look, stay->serial};
    next.hops++;
    if (ctx->world.rank < next.lowest)
        next.lowest = ctx->world.rank;
    int used = snprintf(text, sizeof text, "%s and waits for %s, which is in %s", so_far,
                        tt_ctx_rank_name(ctx, ctx->world.rank, name, sizeof name), stay->what);
    send_on(ctx, stay, next, used < (int)sizeof text ? text : so_far);
}

void tt_circle_take(tutti_ctx *ctx, const tt_probe *probe, const char *text)
{
    tt_circles *c = ctx->circles;
    const int me = ctx->world.rank;
    bool closed = false;
    if (c == NULL || probe->from < 0 || probe->from >= ctx->world.size ||
        tt_ctx_check(ctx) != TUTTI_OK)
        return;
    pthread_mutex_lock(&c->lock);
    const tt_stay *stay = held_up(c, &probe->spot);
    if (stay != NULL) {
        closed = probe->from == me && probe->serial == stay->serial;
        if (!closed)
            pass_on(ctx, stay, probe, text);
    }
    pthread_mutex_unlock(&c->lock);
    if (closed && probe->lowest == me)
        tt_ctx_fail(ctx, tt_fail(TUTTI_ERR_MISMATCH, "%s and waits for rank %d", text, me));
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The non-blocking exchange: one blob of each member to every member.
 *
 * A binomial tree rooted at the group's rank 0. The subtree of a child is a contiguous range of
 * ranks, so a member's data is its own record followed by its children's in order, and the root's
 * is sorted by rank without sorting. Up: children to parent; down: the whole to everybody. Every
 * record carries the name of the exchange, and all members compare all names: ranks that are in
 * different calls find out here, with both names, and not by reading each other's bytes.
 *
 * Who is missing cannot be seen in a tree: a rank below an absent one came, but nobody above can
 * know. So after a while of waiting every member also listens for calls, and one that has waited
 * for the warning time or the whole limit calls its name to all (a roll call). Who gave up makes
 * the others give up too; for GRACE_NS all collect names; the missing are those never heard of,
 * the same on every member. This costs n * n small messages, once, in a job that is about to fail.
 * Rejected: staggered limits per level, which name only the absent rank nearest to the root.
 *
 * Invariants: data is complete before a message of it is sent and unchanged until all sends are
 * done; nothing is received after the roll call gave up.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "boot/circle.h"
#include "boot/context.h"
#include "core/clock.h"
#include "core/hash.h"
#include "core/log.h"

#define MAGIC 0x7474786368673031u
#define LISTEN_NS 1000000000 /* an exchange that waits longer listens for roll calls */
#define GRACE_NS 2000000000
#define LATE_NS 500000000 /* who came that short before the limit may be why it was passed */

enum { FIRST_BYTES = 1024, CHILDREN_MAX = 31, NAMES_MAX = 8 };

/* In front of a message; its first FIRST_BYTES go alone, the rest follows if there is any. */
typedef struct head {
    uint64_t magic, bytes;
    uint32_t round, spare;
} head;
enum { FIRST_ROOM = FIRST_BYTES - sizeof(head) };

typedef struct inbox {
    int from; /* group rank */
    tt_req req;
    unsigned char first[FIRST_BYTES];
    unsigned char *data;
    size_t bytes;
    bool begun, done;
} inbox;

typedef struct outbox {
    tt_req req[2 * CHILDREN_MAX];
    int n;
    unsigned char first[FIRST_BYTES];
} outbox;

typedef struct call {
    uint64_t magic, what; /* hash of the exchange's name */
    int64_t waited_ns; /* since the caller came */
    uint32_t round;
    uint32_t gave_up;
} call;

typedef struct roll {
    bool listening, called, warned, gave_up, told; /* told: by another that it gave up */
    int64_t called_ns;
    call in, out[2];
    tt_req listen;
    tt_req *sent[2]; /* group size entries */
    bool *heard;
    int last; /* of those heard of, the member that came last, and when; -1 */
    int64_t last_ns;
} roll;

typedef enum stage { GATHER, DOWN, SPREAD, DONE, FAILED } stage;

struct tt_xchg {
    tt_group *group;
    tt_channel ch;
    const char *what;
    uint32_t round;
    double timeout_s;
    int64_t started_ns;
    stage stage;
    int parent, n_children;
    tt_buf data;
    inbox down;
    outbox up, spread;
    roll roll;
    inbox child[CHILDREN_MAX];
};

static tt_boot *boot_of(const tt_xchg *x)
{
    return x->group->ctx->boot;
}

static uint32_t tag_of(const tt_xchg *x, bool for_call)
{
    return x->group->id * TT_TAGS_PER_GROUP + (for_call ? 1 : 0);
}

static tutti_status send_to(tt_xchg *x, int member, uint32_t tag, const void *buf, size_t bytes,
                            tt_req *req)
{
    tt_boot *boot = boot_of(x);
    return boot->ops->isend(boot, x->ch, x->group->world[member], tag, buf, bytes, req);
}

static tutti_status receive_from(tt_xchg *x, int member, void *buf, size_t cap, tt_req *req)
{
    tt_boot *boot = boot_of(x);
    return boot->ops->irecv(boot, x->ch, x->group->world[member], tag_of(x, false), buf, cap, req);
}

static tutti_status test(const tt_xchg *x, tt_req *req, bool *done, size_t *bytes)
{
    tt_boot *boot = boot_of(x);
    return boot->ops->test(boot, req, done, bytes, NULL);
}

static void outbox_fill(const tt_xchg *x, outbox *out)
{
    head h = {MAGIC, x->data.size, x->round, 0};
    memcpy(out->first, &h, sizeof h);
    memcpy(out->first + sizeof h, x->data.data, tt_min_size(x->data.size, FIRST_ROOM));
}

static tutti_status outbox_send(tt_xchg *x, outbox *out, int member)
{
    size_t bytes = x->data.size;
    TT_TRY(send_to(x, member, tag_of(x, false), out->first,
                   sizeof(head) + tt_min_size(bytes, FIRST_ROOM), &out->req[out->n]));
    out->n++;
    if (bytes <= FIRST_ROOM)
        return TUTTI_OK;
    TT_TRY(send_to(x, member, tag_of(x, false), x->data.data + FIRST_ROOM, bytes - FIRST_ROOM,
                   &out->req[out->n]));
    out->n++;
    return TUTTI_OK;
}

static tutti_status outbox_test(tt_xchg *x, outbox *out, bool *done_out)
{
    bool all = true;
    for (int i = 0; i < out->n; i++) {
        bool done;
        TT_TRY(test(x, &out->req[i], &done, NULL));
        all = all && done;
    }
    *done_out = all;
    return TUTTI_OK;
}

static tutti_status inbox_post(tt_xchg *x, inbox *in, int from)
{
    in->from = from;
    return receive_from(x, from, in->first, sizeof in->first, &in->req);
}

/* Two members and the names of the exchanges they are in. */
static tutti_status different_calls(const tt_xchg *x, int member, const char *first, int other,
                                    const char *second)
{
    tt_group *g = x->group;
    char a[TT_HOST_MAX + 64], b[TT_HOST_MAX + 64];
    return tt_fail(TUTTI_ERR_MISMATCH, "ranks are in different calls: %s in %s, %s in %s",
                   tt_ctx_rank_name(g->ctx, g->world[member], a, sizeof a), first,
                   tt_ctx_rank_name(g->ctx, g->world[other], b, sizeof b), second);
}

/* A message of another round, which begins with a record of it. */
static tutti_status other_round(const tt_xchg *x, const inbox *in, const head *h)
{
    tt_buf view = tt_buf_view(in->first + sizeof *h, tt_min_size(h->bytes, FIRST_ROOM));
    tt_buf_get_u64(&view);
    const char *what = tt_buf_get_str(&view);
    if (!view.failed && strcmp(what, x->what) != 0)
        return different_calls(x, in->from, what, x->group->rank, x->what);
    return tt_fail(TUTTI_ERR_MISMATCH,
                   "%s: rank %d is in exchange %u of the group, this rank in %u", x->what,
                   x->group->world[in->from], h->round, x->round);
}

static tutti_status inbox_begin(tt_xchg *x, inbox *in, size_t got)
{
    head h;
    int from = x->group->world[in->from];
    if (got >= sizeof h)
        memcpy(&h, in->first, sizeof h);
    if (got < sizeof h || h.magic != MAGIC)
        return tt_fail(TUTTI_ERR_INTERNAL, "%s: %zu bytes from rank %d are no exchange", x->what,
                       got, from);
    if (h.round != x->round)
        return other_round(x, in, &h);
    in->begun = true;
    in->bytes = h.bytes;
    TT_TRY(tt_calloc(h.bytes, 1, &in->data));
    memcpy(in->data, in->first + sizeof h, tt_min_size(h.bytes, FIRST_ROOM));
    if (h.bytes <= FIRST_ROOM)
        in->done = true;
    else
        TT_TRY(receive_from(x, in->from, in->data + FIRST_ROOM, h.bytes - FIRST_ROOM, &in->req));
    return TUTTI_OK;
}

static tutti_status inbox_test(tt_xchg *x, inbox *in)
{
    while (!in->done) {
        bool done;
        size_t got = 0;
        TT_TRY(test(x, &in->req, &done, &got));
        if (!done)
            break;
        if (in->begun)
            in->done = true;
        else
            TT_TRY(inbox_begin(x, in, got));
    }
    return TUTTI_OK;
}

/* One past the last rank of a child's subtree: child = rank + 2^k, 2^k below the lowest bit of
 * rank (rank 0 has them all). */
static int subtree_end(const tt_xchg *x, int child)
{
    int end = child + (child & -child);
    return end < x->group->size ? end : x->group->size;
}

static tutti_status begin_spread(tt_xchg *x)
{
    x->stage = SPREAD;
    outbox_fill(x, &x->spread);
    for (int i = x->n_children - 1; i >= 0; i--) /* the largest subtree first */
        TT_TRY(outbox_send(x, &x->spread, x->child[i].from));
    return TUTTI_OK;
}

static tutti_status gather(tt_xchg *x)
{
    bool all = true;
    for (int i = 0; i < x->n_children; i++) {
        TT_TRY(inbox_test(x, &x->child[i]));
        all = all && x->child[i].done;
    }
    if (!all)
        return TUTTI_OK;
    for (int i = 0; i < x->n_children; i++)
        tt_buf_put(&x->data, x->child[i].data, x->child[i].bytes);
    if (x->data.failed)
        return tt_fail(TUTTI_ERR_NO_MEMORY, "%s: out of memory", x->what);
    if (x->parent < 0)
        return begin_spread(x);
    x->stage = DOWN;
    outbox_fill(x, &x->up);
    TT_TRY(inbox_post(x, &x->down, x->parent));
    return outbox_send(x, &x->up, x->parent);
}

static tutti_status take_down(tt_xchg *x)
{
    bool sent;
    TT_TRY(outbox_test(x, &x->up, &sent));
    TT_TRY(inbox_test(x, &x->down));
    if (!x->down.done || !sent)
        return TUTTI_OK;
    tt_buf_free(&x->data);
    x->data = (tt_buf){x->down.data, x->down.bytes, x->down.bytes, 0, false};
    x->down.data = NULL;
    return begin_spread(x);
}

static tutti_status advance(tt_xchg *x)
{
    bool sent;
    if (x->stage == GATHER)
        TT_TRY(gather(x));
    if (x->stage == DOWN)
        TT_TRY(take_down(x));
    if (x->stage == SPREAD) {
        TT_TRY(outbox_test(x, &x->spread, &sent));
        if (sent)
            x->stage = DONE;
    }
    return TUTTI_OK;
}

static uint64_t hash_of(const char *what)
{
    return tt_hash64(what, strlen(what), 0);
}

static tutti_status call_all(tt_xchg *x, bool gave_up)
{
    roll *r = &x->roll;
    int n = x->group->size, which = gave_up ? 1 : 0;
    if (r->sent[which] != NULL)
        return TUTTI_OK;
    TT_TRY(tt_calloc((size_t)n, sizeof *r->sent[which], &r->sent[which]));
    r->called_ns = tt_now_ns();
    r->out[which] =
        (call){MAGIC, hash_of(x->what), r->called_ns - x->started_ns, x->round, gave_up};
    for (int i = 0; i < n; i++)
        if (i != x->group->rank)
            TT_TRY(send_to(x, i, tag_of(x, true), &r->out[which], sizeof r->out[which],
                           &r->sent[which][i]));
    return TUTTI_OK;
}

static int member_of(const tt_group *group, int world_rank)
{
    for (int i = 0; i < group->size; i++)
        if (group->world[i] == world_rank)
            return i;
    return -1;
}

static void hear(tt_xchg *x, int member)
{
    roll *r = &x->roll;
    int64_t came_ns = tt_now_ns() - r->in.waited_ns;
    r->heard[member] = true;
    r->told = r->told || r->in.gave_up != 0;
    if (r->last < 0 || came_ns > r->last_ns) {
        r->last = member;
        r->last_ns = came_ns;
    }
}

static tutti_status listen(tt_xchg *x)
{
    roll *r = &x->roll;
    tt_boot *boot = boot_of(x);
    for (;;) {
        bool done = false;
        int source = 0;
        if (r->listening)
            TT_TRY(boot->ops->test(boot, &r->listen, &done, NULL, &source));
        if (r->listening && !done)
            return TUTTI_OK;
        int member = done ? member_of(x->group, source) : -1;
        if (member >= 0 && r->in.magic == MAGIC && r->in.what == hash_of(x->what) &&
            r->in.round == x->round)
            hear(x, member);
        TT_TRY(boot->ops->irecv(boot, x->ch, TT_ANY, tag_of(x, true), &r->in, sizeof r->in,
                                &r->listen));
        r->listening = true;
    }
}

/* Of whom this member knows that it came: by the tree or by its call. */
static bool has_come(const tt_xchg *x, int member)
{
    if (member == x->group->rank || x->roll.heard[member])
        return true;
    for (int i = 0; i < x->n_children; i++)
        if (x->child[i].done && member >= x->child[i].from &&
            member < subtree_end(x, x->child[i].from))
            return true;
    return false;
}

/* "rank 3 (node-b, local rank 1) has not arrived"; false when everybody has. */
static bool missing_text(const tt_xchg *x, char *buf, size_t cap)
{
    int missing = 0;
    size_t used = 0;
    buf[0] = '\0';
    for (int i = 0; i < x->group->size; i++) {
        char name[TT_HOST_MAX + 64];
        if (has_come(x, i))
            continue;
        tt_ctx_rank_name(x->group->ctx, x->group->world[i], name, sizeof name);
        if (missing++ < NAMES_MAX && used < cap)
            used += (size_t)snprintf(buf + used, cap - used, "%s%s", missing > 1 ? ", " : "", name);
    }
    if (missing > NAMES_MAX && used < cap)
        used += (size_t)snprintf(buf + used, cap - used, " and %d more", missing - NAMES_MAX);
    if (used < cap)
        snprintf(buf + used, cap - used, missing == 1 ? " has not arrived" : " have not arrived");
    return missing > 0;
}

static tutti_status time_out(const tt_xchg *x, double waited_s)
{
    char text[1024];
    if (missing_text(x, text, sizeof text))
        return tt_fail(TUTTI_ERR_TIMEOUT, "%s: %s after %.1f s", x->what, text, waited_s);
    if (x->roll.told && x->timeout_s > 0 && waited_s < x->timeout_s)
        return tt_fail(TUTTI_ERR_TIMEOUT,
                       "%s: this rank came too late, the others have given up waiting", x->what);
    if (x->roll.last >= 0 && x->roll.last_ns > x->roll.called_ns - LATE_NS)
        return tt_fail(
            TUTTI_ERR_TIMEOUT, "%s: %s has arrived too late, %.1f s after this rank", x->what,
            tt_ctx_rank_name(x->group->ctx, x->group->world[x->roll.last], text, sizeof text),
            (double)(x->roll.last_ns - x->started_ns) / 1e9);
    return tt_fail(TUTTI_ERR_TIMEOUT,
                   "%s: all ranks have arrived, but it has not ended after %.1f s", x->what,
                   waited_s);
}

/* One member speaks for all: the first one that has come. */
static void warn(tt_xchg *x, double waited_s)
{
    char text[1024];
    x->roll.warned = true;
    for (int i = 0; i < x->group->rank; i++)
        if (has_come(x, i))
            return;
    if (missing_text(x, text, sizeof text))
        tt_log_warn(TT_BOOT, "%s: %s after %.0f s", x->what, text, waited_s);
}

static tutti_status look_at_clock(tt_xchg *x)
{
    roll *r = &x->roll;
    tutti_ctx *ctx = x->group->ctx;
    int64_t now = tt_now_ns(), quiet = atomic_load(&ctx->quiet_until_ns);
    int64_t waited = now - (quiet > x->started_ns ? quiet : x->started_ns);
    double waited_s = (double)waited / 1e9;
    bool late = x->timeout_s > 0 && waited_s >= x->timeout_s;

    if (waited < LISTEN_NS && !late)
        return TUTTI_OK;
    TT_TRY(listen(x));
    if (late || r->told) {
        if (!r->gave_up) {
            r->gave_up = true;
            TT_TRY(call_all(x, true));
        }
        if (now - r->called_ns < GRACE_NS)
            return TUTTI_OK;
        return time_out(x, waited_s - (double)(now - r->called_ns) / 1e9);
    }
    if (ctx->warn_after_s > 0 && waited_s >= ctx->warn_after_s && !r->called) {
        r->called = true;
        TT_TRY(call_all(x, false));
    }
    if (r->called && !r->warned && now - r->called_ns >= GRACE_NS)
        warn(x, waited_s);
    return TUTTI_OK;
}

static void put_record(tt_xchg *x, const void *mine, size_t bytes)
{
    tt_buf_put_u64(&x->data, bytes);
    tt_buf_put_str(&x->data, x->what);
    tt_buf_put(&x->data, mine, bytes);
}

static tutti_status post_children(tt_xchg *x)
{
    int rank = x->group->rank, n = x->group->size;
    for (int step = 1; rank + step < n && (rank == 0 || step < (rank & -rank)); step *= 2) {
        TT_TRY(inbox_post(x, &x->child[x->n_children], rank + step));
        x->n_children++;
    }
    x->parent = rank == 0 ? -1 : rank & (rank - 1);
    return TUTTI_OK;
}

tutti_status tt_xchg_start(tt_group *group, tt_channel ch, const char *what, const void *mine,
                           size_t bytes, double timeout_s, tt_xchg **x_out)
{
    tt_xchg *x = NULL;
    tutti_status status;
    TT_TRY(tt_calloc(1, sizeof *x, &x));
    x->group = group;
    x->ch = ch;
    x->what = what;
    x->timeout_s = timeout_s;
    x->round = group->round[ch]++;
    tt_spot spot = tt_spot_exchange(group, ch, x->round);
    tt_circle_come(group->ctx, &spot);
    x->started_ns = tt_now_ns();
    put_record(x, mine, bytes);
    x->roll.last = -1;
    status = tt_calloc((size_t)group->size, sizeof(bool), &x->roll.heard);
    if (status == TUTTI_OK && x->data.failed)
        status = tt_fail(TUTTI_ERR_NO_MEMORY, "%s: out of memory for %zu bytes", what, bytes);
    if (status == TUTTI_OK)
        status = post_children(x);
    if (status != TUTTI_OK)
        goto cancel_x;
    *x_out = x;
    return TUTTI_OK;
cancel_x:
    tt_xchg_cancel(x);
    return status;
}

tutti_status tt_xchg_test(tt_xchg *x, bool *done_out)
{
    tutti_status status = TUTTI_OK;
    TT_ASSERT(x->stage != FAILED, "%s tested after a failure", x->what);
    if (!x->roll.gave_up)
        status = advance(x);
    if (status == TUTTI_OK && x->stage != DONE)
        status = look_at_clock(x);
    if (status != TUTTI_OK) {
        x->stage = FAILED;
        return status;
    }
    *done_out = x->stage == DONE;
    return TUTTI_OK;
}

static tutti_status take_records(tt_xchg *x, tt_blobs *out)
{
    tt_buf view = tt_buf_view(x->data.data, x->data.size);
    const char *first = "";
    size_t used = 0;
    for (int i = 0; i < x->group->size; i++) {
        uint64_t bytes = tt_buf_get_u64(&view);
        const char *what = tt_buf_get_str(&view);
        if (view.failed || bytes > view.size - view.at)
            return tt_fail(TUTTI_ERR_INTERNAL, "%s: the record of rank %d is cut off", x->what, i);
        if (i == 0)
            first = what;
        if (strcmp(first, what) != 0)
            return different_calls(x, 0, first, i, what);
        out->offset[i] = used;
        if (bytes > 0)
            memcpy(out->data + used, view.data + view.at, bytes);
        used += bytes;
        view.at += bytes;
    }
    out->offset[x->group->size] = used;
    out->n = x->group->size;
    return TUTTI_OK;
}

tutti_status tt_xchg_finish(tt_xchg *x, tt_blobs *out)
{
    tt_blobs blobs = {0};
    tutti_status status;
    TT_ASSERT(x->stage == DONE, "%s finished early", x->what);
    status = tt_calloc((size_t)x->group->size + 1, sizeof blobs.offset[0], &blobs.offset);
    if (status == TUTTI_OK)
        status = tt_calloc(x->data.size, 1, &blobs.data);
    if (status == TUTTI_OK)
        status = take_records(x, &blobs);
    if (status == TUTTI_OK && out != NULL) {
        *out = blobs;
        blobs = (tt_blobs){0};
    }
    tt_blobs_free(&blobs);
    tt_xchg_cancel(x);
    return status;
}

static void cancel_outbox(tt_boot *boot, outbox *out)
{
    for (int i = 0; i < out->n; i++)
        boot->ops->cancel(boot, &out->req[i]);
}

void tt_xchg_cancel(tt_xchg *x)
{
    if (x == NULL)
        return;
    tt_boot *boot = boot_of(x);
    for (int i = 0; i < x->n_children; i++) {
        boot->ops->cancel(boot, &x->child[i].req);
        free(x->child[i].data);
    }
    boot->ops->cancel(boot, &x->down.req);
    free(x->down.data);
    cancel_outbox(boot, &x->up);
    cancel_outbox(boot, &x->spread);
    boot->ops->cancel(boot, &x->roll.listen);
    for (int which = 0; which < 2; which++) {
        for (int i = 0; x->roll.sent[which] != NULL && i < x->group->size; i++)
            boot->ops->cancel(boot, &x->roll.sent[which][i]);
        free(x->roll.sent[which]);
    }
    free(x->roll.heard);
    tt_buf_free(&x->data);
    free(x);
}

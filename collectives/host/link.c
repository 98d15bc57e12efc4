/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of collectives between nodes. Both ends know from the call alone which messages come in
 * which order between them, so one tag per communicator is enough; a message of another size than
 * expected means that the calls differ.
 *
 * A long message comes in pieces, at the pace of the link. A stream's worker that asked for each as
 * often as it could would take from computation on the same core what asking costs: some
 * microseconds a time, ten times a piece on a slow link. So it learns how far pieces are apart and
 * sleeps for the time of two, a millisecond at most: what lies in socket buffers keeps the link
 * busy meanwhile. For the last piece it sleeps half of the time of one.
 */
#include "host/host.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/clock.h"

enum { TESTS = 50 }; /* before a wait is taken to be a long one */
static const int64_t blame_ns = 1500000000;

const char *tt_run_what(tt_run *run)
{
    if (run->what[0] == '\0')
        tt_call_text(run->call, run->what, sizeof run->what);
    return run->what;
}

tutti_status tt_links_reserve(tt_run *run, size_t n, size_t work_bytes)
{
    tt_host *host = run->host;
    TT_TRY(tt_grow(&host->links, &host->links_cap, n, sizeof *host->links));
    TT_TRY(tt_grow(&host->work, &host->work_cap, work_bytes, 1));
    for (size_t i = 0; i < n; i++)
        host->links[i].req = (tt_req){0};
    run->links = n;
    return TUTTI_OK;
}

tutti_status tt_link_send(tt_run *run, tt_link *link, int rank, const void *buf, size_t bytes)
{
    const tt_group *group = &run->host->comm->group;
    tt_boot *boot = group->ctx->boot;
    *link = (tt_link){.bytes = bytes, .rank = rank, .receive = false};
    return boot->ops->isend(boot, TT_CH_DATA, group->world[rank], group->id, buf, bytes,
                            &link->req);
}

tutti_status tt_link_recv(tt_run *run, tt_link *link, int rank, void *buf, size_t bytes)
{
    const tt_group *group = &run->host->comm->group;
    tt_boot *boot = group->ctx->boot;
    *link = (tt_link){.bytes = bytes, .rank = rank, .receive = true};
    return boot->ops->irecv(boot, TT_CH_DATA, group->world[rank], group->id, buf, bytes,
                            &link->req);
}

void tt_blame_begin(tt_blame *blame, tutti_ctx *ctx)
{
    *blame = (tt_blame){ctx, tt_now_ns(), 0};
}

bool tt_blame_later(tt_blame *blame)
{
    int64_t now = tt_now_ns();
    double limit = blame->ctx->timeout_s;
    if (limit <= 0 || (double)(now - blame->began_ns) / 1e9 < limit)
        return false; /* asked for a warning */
    if (blame->asked_ns == 0)
        blame->asked_ns = now;
    return now - blame->asked_ns < blame_ns;
}

typedef struct long_wait {
    tt_blame blame;
    tt_late_fn late;
    void *arg;
} long_wait;

static bool late_after_others(void *arg, char *buf, size_t cap)
{
    long_wait *w = arg;
    return !tt_blame_later(&w->blame) && w->late(w->arg, buf, cap);
}

/* How long to sleep for the next piece of a long message. */
static int64_t pace(tt_run *run)
{
    int64_t *piece_ns = &run->host->piece_ns, now = tt_now_ns(), sleep_ns;
    const tt_patience *patience = run->patience;

    if (run->slept_ns != 0 && run->came > 0) {
        int64_t lately = (now - run->slept_ns) / run->came;
        *piece_ns = *piece_ns == 0 ? lately : (3 * *piece_ns + lately) / 4;
        if (*piece_ns > patience->sleep_max_ns) /* somebody was late */
            *piece_ns = patience->sleep_max_ns;
    }
    run->slept_ns = now;
    run->came = 0;
    sleep_ns = run->left > 1 ? 2 * *piece_ns : *piece_ns / 2;
    return sleep_ns > patience->sleep_min_ns ? sleep_ns : patience->sleep_min_ns;
}

tutti_status tt_link_wait_for(tt_run *run, tt_done_fn done, tt_late_fn late, void *arg)
{
    tutti_ctx *ctx = run->host->comm->ctx;
    _Atomic uint32_t *bell = ctx->boot->bell;
    long_wait blame = {.late = late, .arg = arg};
    tt_op_wait wait;
    bool ready = false;

    for (int i = 0; i < TESTS && run->patience->spin_ns > 0; i++) {
        TT_TRY(done(arg, &ready));
        if (ready)
            return TUTTI_OK;
        tt_cpu_relax();
    }
    tt_blame_begin(&blame.blame, ctx);
    tt_op_wait_begin(&wait, ctx, run->patience, tt_run_what(run), late_after_others, &blame);
    for (bool first = true;; first = false) {
        uint32_t seen = bell != NULL ? atomic_load(bell) : 0;
        TT_TRY(done(arg, &ready));
        if (ready)
            return TUTTI_OK;
        if (first && run->left > 0)
            tt_wait_begin_asleep(&wait.wait, run->patience, pace(run));
        TT_TRY(tt_op_wait_once(&wait, bell, seen));
    }
}

typedef struct link_wait {
    const tt_run *run;
    tt_link *link;
} link_wait;

static tutti_status link_done(void *arg, bool *done_out)
{
    const link_wait *w = arg;
    const tutti_comm *comm = w->run->host->comm;
    tt_boot *boot = comm->ctx->boot;
    size_t bytes = w->link->bytes;
    tutti_status status =
        boot->ops->test(boot, &w->link->req, done_out, w->link->receive ? &bytes : NULL, NULL);
    const bool longer = status == TUTTI_ERR_MISMATCH; /* the bootstrap knows no more of it */
    if (longer || (status == TUTTI_OK && *done_out && bytes != w->link->bytes))
        return tt_fail(TUTTI_ERR_MISMATCH,
                       "%s on comm %s: rank %d sent %s than the %zu bytes that this rank expects: "
                       "the calls differ between nodes (TUTTI_CHECK=1 shows how)",
                       tt_kind_name(w->run->call->kind), comm->name,
                       comm->group.world[w->link->rank], longer ? "more" : "less", w->link->bytes);
    return status;
}

static bool late_peer(void *arg, char *buf, size_t cap)
{
    const link_wait *w = arg;
    const tutti_comm *comm = w->run->host->comm;
    char name[TT_HOST_MAX + 64];
    tt_ctx_rank_name(comm->ctx, comm->group.world[w->link->rank], name, sizeof name);
    snprintf(buf, cap, w->link->receive ? "%s has not sent its part" : "%s has not taken its part",
             name);
    return true;
}

tutti_status tt_link_wait(tt_run *run, tt_link *link)
{
    link_wait w = {run, link};
    if (link->req.ptr == NULL)
        return TUTTI_OK;
    TT_TRY(tt_link_wait_for(run, link_done, late_peer, &w));
    run->came += link->receive;
    return TUTTI_OK;
}

tutti_status tt_links_wait_all(tt_run *run)
{
    for (size_t i = 0; i < run->links; i++)
        TT_TRY(tt_link_wait(run, &run->host->links[i]));
    return TUTTI_OK;
}

void tt_links_cancel(tt_run *run)
{
    tt_boot *boot = run->host->comm->ctx->boot;
    for (size_t i = 0; i < run->links; i++)
        if (run->host->links[i].req.ptr != NULL)
            boot->ops->cancel(boot, &run->host->links[i].req);
    run->links = 0;
}

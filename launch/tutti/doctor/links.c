/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures every pair of ranks by the library's own send and receive, so over the very path that
 * training takes: shared memory or GPU to GPU in a host, the network between hosts.
 *
 * Pairs are measured in rounds in which every rank has at most one partner (the circle method), so
 * that n ranks need n-1 rounds. In a round links that are shared show as shared; that is what a
 * collective meets too. A pair that is far below others of its kind, or below what the topology
 * promises, is told.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "doctor.h"
#include "topo/read.h"
#include "tutti/tutti.h"

enum { BIG = 8 << 20, SMALL = 8 };

typedef struct measured {
    int32_t peer;
    double gbps, us; /* one way; of a message of SMALL bytes */
    double promise; /* GB/s between the two GPUs; 0: not known */
} measured;

typedef struct bench {
    tutti_ctx *ctx;
    tutti_comm *comm;
    void *buf;
    tutti_stream stream;
    double seconds; /* for a round */
} bench;

/* The partner of a rank in a round, -1: none. n even or odd. */
static int partner_of(int rank, int round, int n)
{
    int m = n + n % 2, peer;
    if (rank == m - 1)
        peer = round;
    else if (rank == round)
        peer = m - 1;
    else
        peer = (2 * round - rank + 2 * (m - 1)) % (m - 1);
    return peer >= n ? -1 : peer;
}

static tutti_status exchange(bench *b, int peer, size_t bytes)
{
    unsigned char *in = b->buf, *out = in + BIG;
    TT_TRY(tutti_group_begin());
    tutti_status sent = tutti_send(b->comm, in, bytes, TUTTI_UINT8, peer, b->stream);
    tutti_status got = tutti_recv(b->comm, out, bytes, TUTTI_UINT8, peer, b->stream);
    tutti_status end = tutti_group_end();
    if (sent != TUTTI_OK)
        return sent;
    if (got != TUTTI_OK)
        return got;
    TT_TRY(end);
    return b->stream.kind == TUTTI_STREAM_INLINE ? TUTTI_OK : tutti_stream_sync(b->ctx, b->stream);
}

/* Both sides count the same repetitions: they are fixed by a first guess of the lower rank. */
static tutti_status repeat(bench *b, int peer, size_t bytes, double seconds, double *each_out)
{
    double guess[2] = {0, 0};
    for (int i = 0; i < 3; i++) {
        int64_t start = tt_now_ns();
        TT_TRY(exchange(b, peer, bytes));
        guess[0] = (double)(tt_now_ns() - start) * 1e-9;
    }
    int me = b->ctx->world.rank, count = (int)(seconds / fmax(guess[0], 1e-7));
    count = count < 1 ? 1 : count > 20000 ? 20000 : count;
    tt_req send = {0}, recv = {0};
    int32_t mine = count, other = 0;
    tt_boot *boot = b->ctx->boot;
    uint32_t tag = b->ctx->world.id * TT_TAGS_PER_GROUP + 3;
    TT_TRY(boot->ops->irecv(boot, TT_CH_CONTROL, peer, tag, &other, sizeof other, &recv));
    TT_TRY(boot->ops->isend(boot, TT_CH_CONTROL, peer, tag, &mine, sizeof mine, &send));
    TT_TRY(tt_req_wait(b->ctx, &recv, &b->ctx->caller_patience, "doctor, repetitions", NULL));
    TT_TRY(tt_req_wait(b->ctx, &send, &b->ctx->caller_patience, "doctor, repetitions", NULL));
    count = me < peer ? count : other;
    int64_t start = tt_now_ns();
    for (int i = 0; i < count; i++)
        TT_TRY(exchange(b, peer, bytes));
    *each_out = (double)(tt_now_ns() - start) * 1e-9 / count;
    return TUTTI_OK;
}

static tutti_status measure(bench *b, int peer, measured *m)
{
    double big, small;
    TT_TRY(repeat(b, peer, BIG, 0.7 * b->seconds, &big));
    TT_TRY(repeat(b, peer, SMALL, 0.3 * b->seconds, &small));
    m->gbps = BIG / big * 1e-9;
    m->us = small * 1e6;
    return TUTTI_OK;
}

static tutti_status measure_all(bench *b, const double *promise, measured *mine)
{
    int n = b->ctx->world.size, me = b->ctx->world.rank, rounds = n + n % 2 - 1;
    tutti_status status = TUTTI_OK;
    for (int round = 0; round < rounds && status == TUTTI_OK; round++) {
        int peer = partner_of(me, round, n);
        mine[round] = (measured){.peer = peer};
        if (peer >= 0) {
            mine[round].promise = promise[peer];
            status = measure(b, peer, &mine[round]);
        }
        status = tt_agree(&b->ctx->world, "doctor, links", status);
    }
    return status;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* What the topology promises between hosts, GB/s: the fastest NIC; 0: not known. */
static double network_promise(void)
{
    tutti_topo *topo;
    float most = 0;
    if (tt_topo_read_live(&topo) != TUTTI_OK)
        return 0;
    for (int h = 0; h < topo->n_hosts; h++) {
        const tt_machine *m = tt_topo_machine_of(topo, h);
        for (int k = 0; k < m->n_nics; k++)
            if (m->nics[k].mbps > 0 && m->nics[k].gbps > most)
                most = m->nics[k].gbps;
    }
    tutti_topo_close(topo);
    return (double)most;
}

/* One class of pairs: in a host, or between hosts. */
static void judge(report *r, const tutti_ctx *ctx, const measured *all, int rounds, bool inside,
                  double promise)
{
    int n = ctx->world.size, count = 0;
    double *gbps, worst_us = 0, sum_us = 0;
    if (tt_calloc((size_t)(n * rounds), sizeof *gbps, &gbps) != TUTTI_OK)
        return;
    for (int i = 0; i < n * rounds; i++) {
        int a = i / rounds, b = all[i].peer;
        if (b < a || (ctx->place[a].node == ctx->place[b].node) != inside)
            continue;
        gbps[count++] = all[i].gbps;
        sum_us += all[i].us;
        worst_us = fmax(worst_us, all[i].us);
    }
    if (count > 0) {
        qsort(gbps, (size_t)count, sizeof *gbps, by_value);
        say(r, SAID_OK, "links", "",
            "%d pair%s %s: %.2f GB/s each way at the median (%.2f to %.2f), 8 bytes %.1f us (up to "
            "%.1f)",
            count, count == 1 ? "" : "s", inside ? "in a host" : "between hosts", gbps[count / 2],
            gbps[0], gbps[count - 1], sum_us / count, worst_us);
        if (promise > 0 && gbps[count / 2] < 0.5 * promise)
            say(r, SAID_WARNING, "links",
                "Which interface is used? See NCCL_SOCKET_IFNAME, UCX_NET_DEVICES.",
                "between hosts the median is %.2f GB/s, the topology promises %.2f",
                gbps[count / 2], promise);
    }
    for (int i = 0; i < n * rounds && count > 2; i++) {
        int a = i / rounds, b = all[i].peer;
        char one[128], two[128];
        if (b < a || (ctx->place[a].node == ctx->place[b].node) != inside ||
            all[i].gbps >= 0.5 * gbps[count / 2])
            continue;
        say(r, SAID_WARNING, "links", "Look at this pair's host, cable or NUMA placement.",
            "%s to %s: %.2f GB/s, less than half of the median of %.2f",
            tt_ctx_rank_name(ctx, a, one, sizeof one), tt_ctx_rank_name(ctx, b, two, sizeof two),
            all[i].gbps, gbps[count / 2]);
    }
    free(gbps);
}

/* Pairs of GPUs in a host. A single send of BIG bytes need not fill NVLink; a path that is not the
 * promised one is slower by far more than LEAST. */
static void judge_gpus(report *r, const tutti_ctx *ctx, const measured *all, int entries,
                       int rounds)
{
    const double LEAST = 0.25;
    int count = 0, below = 0, worst = 0;
    double least = INFINITY;
    for (int i = 0; i < entries; i++) {
        if (all[i].peer < i / rounds || all[i].promise <= 0)
            continue;
        double share = all[i].gbps / all[i].promise;
        count++;
        below += share < LEAST;
        worst = share < least ? i : worst;
        least = fmin(share, least);
    }
    char one[128], two[128];
    if (below > 0)
        say(r, SAID_WARNING, "links",
            "Is peer access off (IOMMU, ACS, NCCL_P2P_DISABLE, a container)? See tutti topo.",
            "%d of %d pairs of GPUs reach less than a quarter of what the topology promises; "
            "%s to %s: %.2f of %.2f GB/s",
            below, count, tt_ctx_rank_name(ctx, worst / rounds, one, sizeof one),
            tt_ctx_rank_name(ctx, all[worst].peer, two, sizeof two), all[worst].gbps,
            all[worst].promise);
    else if (count > 0)
        say(r, SAID_OK, "links", "", "GPUs reach %.0f %% of what the topology promises, or more",
            100 * least);
}

tutti_status check_links(report *r, tutti_ctx *ctx, double seconds)
{
    int n = ctx->world.size, rounds = n + n % 2 - 1;
    bench b = {.ctx = ctx, .comm = tutti_world(ctx)};
    measured *mine = NULL, *all = NULL;
    double *promise = NULL;
    if (n < 2) {
        say(r, SAID_NOTE, "links", "", "one rank: start it with mpirun to measure between ranks");
        return TUTTI_OK;
    }
    b.seconds = seconds / rounds;
    TT_TRY(tutti_alloc(b.comm, 2 * (size_t)BIG, &b.buf));
    tutti_status status = TUTTI_OK;
    if (tutti_device(ctx) >= 0)
        status = tutti_stream_create(ctx, "doctor", 0, &b.stream);
    if (status == TUTTI_OK)
        status = tt_calloc((size_t)rounds, sizeof *mine, &mine);
    if (status == TUTTI_OK)
        status = tt_calloc((size_t)(n * rounds), sizeof *all, &all);
    if (status == TUTTI_OK)
        status = tt_calloc((size_t)n, sizeof *promise, &promise);
    status = tt_agree(&ctx->world, "doctor, links", status);
    if (status == TUTTI_OK)
        status = promised_gbps(ctx, promise);
    if (status == TUTTI_OK)
        status = measure_all(&b, promise, mine);
    if (status == TUTTI_OK)
        status = tt_all_gather_fixed(&ctx->world, "doctor, links", mine,
                                     (size_t)rounds * sizeof *mine, all);
    if (status == TUTTI_OK && ctx->world.rank == 0) {
        judge(r, ctx, all, rounds, true, 0);
        judge_gpus(r, ctx, all, n * rounds, rounds);
        judge(r, ctx, all, rounds, false, ctx->node_count > 1 ? network_promise() : 0);
    }
    free(promise);
    free(all);
    free(mine);
    if (b.stream.kind != TUTTI_STREAM_INLINE)
        tutti_stream_destroy(ctx, b.stream);
    tutti_status freed = tutti_free(b.comm, b.buf);
    return status != TUTTI_OK ? status : freed;
}

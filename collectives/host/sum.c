/* SPDX-License-Identifier: Apache-2.0 */
/*
 * all_reduce, reduce_scatter and reduce among the ranks of one node, which differ only in who gets
 * which part of the result. Every rank sums a part of its own and puts the result where it belongs.
 *
 * Registered buffers are read and written in place: one pass over memory, one barrier behind it.
 * A part is summed block by block, so that what goes to several places is in the first-level cache
 * when it is copied. Results that would not stay in the cache and whose lines nobody has read are
 * written around it.
 *
 * Plain memory that the system lets ranks reach (reach.c) is worked on in the same way, piece by
 * piece: others' input is read into this rank's slots, and results are written from where they were
 * made. Every line goes from one core to another twice, not four times as by slots.
 *
 * Else, if a buffer that peers must reach is plain, the node works in rounds of one piece per part:
 * ranks with plain input copy what others sum into a slot, one barrier per round, ranks with plain
 * output copy others' results from their slots. Input slots are free again two barriers later,
 * output slots one iteration later. In place is safe in every mixture: a piece is overwritten by
 * the rank that sums it, after it was read, or by its own rank, when it was summed.
 */
#include "host/host.h"

#include <string.h>

enum { ALIGN = 64, BLOCK = 4096 };

typedef struct plan {
    tt_run *run;
    const tt_call *call;
    tt_host *host;
    size_t element, total;
    size_t piece, rounds; /* elements; number */
    bool staged;
    bool reached; /* some plain buffers, by way of the kernel */
    bool past_cache; /* what is not in place is written around the cache */
} plan;

/* The part that a rank sums, in elements. */
static void part_of(const plan *p, int local, size_t *begin_out, size_t *n_out)
{
    if (p->call->kind == TT_REDUCE_SCATTER) {
        *begin_out = p->host->offset[local];
        *n_out = p->host->offset[local + 1] - *begin_out;
        return;
    }
    tt_part(p->total, (size_t)p->host->locals, (size_t)local, ALIGN / p->element, begin_out, n_out);
}

/* Round k's piece of a part; false if there is none. */
static bool piece_of(const plan *p, int local, size_t k, size_t *begin_out, size_t *n_out)
{
    size_t begin, n;
    part_of(p, local, &begin, &n);
    if (k >= p->rounds || k * p->piece >= n)
        return false;
    *begin_out = begin + k * p->piece;
    *n_out = tt_min_size(p->piece, n - k * p->piece);
    return true;
}

/* Whether a rank gets the results of others' parts. */
static bool wants(const plan *p, int local)
{
    return p->call->kind == TT_ALL_REDUCE || (p->call->kind == TT_REDUCE && p->call->root == local);
}

static bool plain_in(const plan *p, int local)
{
    return p->host->peer[local].notice.in.id == 0;
}

static bool plain_out(const plan *p, int local)
{
    return wants(p, local) && p->host->peer[local].notice.out.id == 0;
}

static char *in_slot(const plan *p, int local, size_t k, int part)
{
    return tt_control_slot(p->host, local, (int)(k % TT_IN_SLOTS)) +
           (size_t)part * p->piece * p->element;
}

static char *out_slot(const plan *p, int local, size_t k)
{
    return tt_control_slot(p->host, local, TT_IN_SLOTS + (int)(k % TT_OUT_SLOTS));
}

/* Room for a piece of a peer's input, or for one of results, that is reached. */
static char *scratch(const plan *p, int index)
{
    return tt_control_slot(p->host, p->host->local, 0) + (size_t)index * p->piece * p->element;
}

static tutti_status view_inputs(const plan *p, size_t k, size_t begin, size_t n)
{
    const tt_host *host = p->host;
    for (int i = 0; i < host->locals; i++) {
        const tt_peer *peer = &host->peer[i];
        const char *in = peer->in;
        if (in != NULL) {
            in += begin * p->element;
        } else if (p->reached) {
            in = scratch(p, i);
            TT_TRY(tt_reach_read(p->run, i, peer->notice.in.offset + begin * p->element,
                                 scratch(p, i), n * p->element));
        } else {
            in = in_slot(p, i, k, host->local);
        }
        host->operand[i] = (tt_operand){in, false};
    }
    return TUTTI_OK;
}

/* Where this rank keeps results that others wait for. */
static char *result_of(const plan *p, size_t k, size_t begin)
{
    const tt_host *host = p->host;
    if (!p->reached)
        return out_slot(p, host->local, k);
    return wants(p, host->local) ? (char *)p->call->out + begin * p->element
                                 : scratch(p, host->locals);
}

/* Writes a piece's results, which are here, to the plain memory of those that want them. */
static tutti_status deliver(const plan *p, size_t k, size_t begin, size_t n)
{
    const tt_host *host = p->host;
    for (int i = 0; i < host->locals && p->call->kind != TT_REDUCE_SCATTER; i++)
        if (wants(p, i) && host->peer[i].out == NULL)
            TT_TRY(tt_reach_write(p->run, i, host->peer[i].notice.out.offset + begin * p->element,
                                  result_of(p, k, begin), n * p->element));
    return TUTTI_OK;
}

/* Whether results that nobody can write to their place are kept here for those that want them. */
static bool keeps_results(const plan *p)
{
    const tt_host *host = p->host;
    if (p->reached && wants(p, host->local))
        return false; /* they are in its own output */
    for (int i = 0; i < host->locals; i++)
        if (wants(p, i) && host->peer[i].out == NULL)
            return true;
    return false;
}

/* Where the result of this rank's piece goes; returns the number of places in host->target. Those
 * to be written around the cache come last, from *past_out on. */
static int find_targets(const plan *p, size_t k, size_t begin, int *past_out)
{
    tt_host *host = p->host;
    int n = 0;
    if (p->call->kind == TT_REDUCE_SCATTER) {
        size_t first = host->offset[host->local];
        host->target[0] = (char *)p->call->out + (begin - first) * p->element;
        *past_out =
            p->past_cache && p->call->out != (const char *)p->call->in + first * p->element ? 0 : 1;
        return 1;
    }
    if (keeps_results(p))
        host->target[n++] = result_of(p, k, begin);
    for (int past = 0; past < 2; past++) {
        for (int i = 0; i < host->locals; i++) {
            const tt_peer *peer = &host->peer[i];
            bool around = p->past_cache && peer->in != peer->out;
            if (wants(p, i) && peer->out != NULL && around == (past == 1))
                host->target[n++] = peer->out + begin * p->element;
        }
        if (past == 0)
            *past_out = n;
    }
    return n;
}

/* All results go past the cache, to two places at most. */
static bool sum_past_cache(const tt_host *host, tt_reduce_job *job, int targets)
{
    job->out = host->target[0];
    job->out2 = targets == 2 ? host->target[1] : NULL;
    if (targets > 2 || !tt_reduce_past_cache(job))
        return false;
    tt_copy_past_cache_end();
    return true;
}

/* One block, which stays in the first-level cache while it is copied. */
static void sum_block(const tt_host *host, tt_reduce_job *job, int targets, int past)
{
    unsigned char block[BLOCK] __attribute__((aligned(ALIGN)));
    const size_t bytes = job->n * tutti_dtype_size(job->dtype);
    job->out = past > 0 ? (void *)host->target[0] : block;
    job->out2 = past > 1 ? host->target[1] : NULL;
    tt_reduce(job);
    for (int i = 2; i < past; i++)
        memcpy(host->target[i], job->out, bytes);
    for (int i = past; i < targets; i++)
        tt_copy_past_cache(host->target[i], job->out, bytes);
    for (int i = 0; i < host->locals; i++)
        host->operand[i].data = (const char *)host->operand[i].data + bytes;
    for (int i = 0; i < targets; i++)
        host->target[i] += bytes;
}

/* Sums n elements of host->operand to `targets` places. */
static void sum_to_targets(const plan *p, int targets, int past, size_t n)
{
    const tt_host *host = p->host;
    tt_reduce_job job = {.tree = &host->order.fragment[0],
                         .in = host->operand,
                         .n = n,
                         .dtype = p->call->dtype,
                         .op = p->call->op,
                         .divisor = p->call->op == TUTTI_AVG ? host->locals : 1};
    if (targets == 0 || (past == 0 && sum_past_cache(host, &job, targets)))
        return;
    const size_t most = past == 1 && targets == 1 ? n : BLOCK / p->element;
    for (size_t left = n; left > 0; left -= job.n) {
        job.n = tt_min_size(left, most);
        sum_block(host, &job, targets, past);
    }
    if (past < targets)
        tt_copy_past_cache_end();
}

static tutti_status sum_piece(const plan *p, size_t k)
{
    size_t begin, n;
    int past;
    if (!piece_of(p, p->host->local, k, &begin, &n))
        return TUTTI_OK;
    TT_TRY(view_inputs(p, k, begin, n));
    int targets = find_targets(p, k, begin, &past);
    sum_to_targets(p, targets, past, n);
    return p->reached ? deliver(p, k, begin, n) : TUTTI_OK;
}

static void copy_in(const plan *p, size_t k)
{
    const int local = p->host->local;
    size_t begin, n;
    if (!plain_in(p, local))
        return;
    for (int i = 0; i < p->host->locals; i++)
        if (i != local && piece_of(p, i, k, &begin, &n))
            memcpy(in_slot(p, local, k, i), (const char *)p->call->in + begin * p->element,
                   n * p->element);
}

static void copy_out(const plan *p, size_t k)
{
    const tt_host *host = p->host;
    size_t begin, n;
    if (!plain_out(p, host->local))
        return;
    for (int i = 0; i < host->locals; i++) {
        if (i == host->local || !piece_of(p, i, k, &begin, &n))
            continue;
        char *to = (char *)p->call->out + begin * p->element;
        if (p->past_cache && p->call->in != p->call->out)
            tt_copy_past_cache(to, out_slot(p, i, k), n * p->element);
        else
            memcpy(to, out_slot(p, i, k), n * p->element);
    }
    if (p->past_cache)
        tt_copy_past_cache_end();
}

/* The bytes of a piece that has to fit into slots: with others' pieces into one of them, or with
 * the peers' inputs and a result into all of this rank's. */
static size_t most_bytes(const plan *p)
{
    const size_t slot = p->host->tune.slot_bytes, locals = (size_t)p->host->locals;
    return p->reached ? tt_min_size(slot, TT_SLOTS * slot / (locals + 1)) : slot / locals;
}

static void make_plan(tt_run *run, plan *p)
{
    tt_host *host = run->host;
    const tt_call *call = run->call;
    size_t longest = 0, begin, n;
    *p = (plan){.run = run,
                .call = call,
                .host = host,
                .element = tutti_dtype_size(call->dtype),
                .total = call->n};
    if (call->kind == TT_REDUCE_SCATTER) {
        tt_offsets(call->counts, call->n, host->locals, host->offset);
        p->total = host->offset[host->locals];
    }
    for (int i = 0; i < host->locals; i++) {
        part_of(p, i, &begin, &n);
        longest = n > longest ? n : longest;
        p->staged = p->staged || (host->locals > 1 && (plain_in(p, i) || plain_out(p, i)));
    }
    p->reached = p->staged && host->reaches;
    p->staged = p->staged && !p->reached;
    p->piece = longest;
    if (p->staged || p->reached)
        p->piece = tt_min_size(longest, most_bytes(p) / ALIGN * ALIGN / p->element);
    p->rounds = longest == 0 ? 0 : (longest + p->piece - 1) / p->piece;
    /* what is reached is read again at once */
    p->past_cache = p->total * p->element >= host->tune.nt_bytes && !p->reached;
}

tutti_status tt_host_sum(tt_run *run)
{
    plan p;
    make_plan(run, &p);
    if (p.rounds == 0)
        return TUTTI_OK;
    if (!p.staged) {
        for (size_t k = 0; k < p.rounds; k++)
            TT_TRY(sum_piece(&p, k));
        return tt_meet_barrier(run); /* peers read and wrote this rank's buffers */
    }
    for (size_t k = 0; k <= p.rounds; k++) {
        copy_in(&p, k);
        TT_TRY(tt_meet_barrier(run));
        TT_TRY(sum_piece(&p, k));
        if (k > 0)
            copy_out(&p, k - 1);
    }
    return TUTTI_OK;
}

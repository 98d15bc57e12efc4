/* SPDX-License-Identifier: Apache-2.0 */
/*
 * all_reduce, reduce_scatter and reduce over several nodes (one node: sum.c), which differ only in
 * who gets which part of the result.
 *
 * The elements are cut into `slices` x `nodes` ranges. In every node the ranks of slice s drive it
 * (local rank s, counted around in nodes with fewer ranks): the driver sums its node's fragments
 * (order.c) of range (s, m) and sends them to the driver in node m, the owner, which adds the
 * fragments of all nodes and sends the result to the nodes that want it, whose drivers hand it to
 * their local ranks. A rank's range of a reduce_scatter is one that it owns itself.
 *
 * Ranges are worked through in rounds of one piece each, as a pipeline:
 *     contribute(k): sum fragments, send them      combine(k): LAG iterations later
 *     collect(k): as many later again              copy out(k): after the barrier behind that
 * so that messages travel while the next rounds are summed, and memory is bounded whatever the
 * size.
 *
 * Registered buffers are read and written by the drivers in place. If a buffer that peers must
 * reach is plain, the node works in staged rounds: ranks with plain input copy a round's pieces
 * into a slot, one barrier per round, ranks with plain output copy results from the drivers' slots.
 * Input slots are free again two barriers later, output slots LAG + 2 iterations after they were
 * first written. All nodes have the same LAG, which orders the messages between two ranks.
 * In place is safe in every mixture: a piece is overwritten only by its driver, after it was read.
 *
 * A node's only rank sends from its input, and a result with a single place is made or received
 * there: between such nodes nothing is copied.
 */
#include "host/host.h"

#include <string.h>

enum { ALIGN = 64 };
enum {
    LAG = TT_OUT_SLOTS - 2, /* iterations between a round's steps, in which messages arrive */
    PIPE = 2 * LAG, /* rounds whose messages are under way */
    DEPTH = PIPE + 1 /* iterations from a round's contribution to its copy-out */
};
enum { FRAGMENT_OUT, FRAGMENT_IN, RESULT_OUT, RESULT_IN, WAYS };

typedef struct plan {
    tt_run *run;
    const tt_call *call;
    tt_host *host;
    const tt_layout *layout;
    size_t element, total;
    int nodes, slices, mine; /* mine: slices that this rank drives */
    size_t piece, rounds; /* elements; number */
    bool staged;
    bool whole; /* this rank's input is its node's fragment: sent from where it lies */
    size_t own_bytes, all_bytes; /* of one element in this node's, in all nodes' fragments */
} plan;

static int slice_of(const plan *p, int index)
{
    return p->host->local + index * p->host->locals;
}

static int driver(const plan *p, int slice, int node)
{
    return tt_rank_at(p->layout, node, slice);
}

/* Range (s, m), in elements. */
static void range_of(const plan *p, int slice, int node, size_t *begin_out, size_t *n_out)
{
    if (p->call->kind == TT_REDUCE_SCATTER) {
        *begin_out = *n_out = 0;
        if (slice < p->layout->node_size[node]) {
            int rank = driver(p, slice, node);
            *begin_out = p->host->offset[rank];
            *n_out = p->host->offset[rank + 1] - *begin_out;
        }
        return;
    }
    size_t parts = (size_t)p->slices * (size_t)p->nodes;
    size_t part = (size_t)slice * (size_t)p->nodes + (size_t)node;
    tt_part(p->total, parts, part, ALIGN / p->element, begin_out, n_out);
}

/* Round k's piece of a range; false if there is none. */
static bool piece_of(const plan *p, int slice, int node, size_t k, size_t *begin_out, size_t *n_out)
{
    size_t begin, n;
    range_of(p, slice, node, &begin, &n);
    if (k >= p->rounds || k * p->piece >= n)
        return false;
    *begin_out = begin + k * p->piece;
    *n_out = tt_min_size(p->piece, n - k * p->piece);
    return true;
}

/* Whether a local rank, or any rank of a node, gets the results of other owners. */
static bool rank_wants(const plan *p, int rank)
{
    return p->call->kind == TT_ALL_REDUCE || (p->call->kind == TT_REDUCE && p->call->root == rank);
}

static bool node_wants(const plan *p, int node)
{
    return p->call->kind == TT_ALL_REDUCE ||
           (p->call->kind == TT_REDUCE && p->layout->node[p->call->root] == node);
}

static bool plain_in(const plan *p, int local)
{
    return p->host->peer[local].notice.in.id == 0;
}

static bool plain_out(const plan *p, int local)
{
    return rank_wants(p, p->host->ranks[local]) && p->host->peer[local].notice.out.id == 0;
}

static char *in_slot(const plan *p, int local, size_t k, int slice, int node)
{
    size_t part = (size_t)slice * (size_t)p->nodes + (size_t)node;
    return tt_control_slot(p->host, local, (int)(k % TT_IN_SLOTS)) + part * p->piece * p->element;
}

static char *out_slot(const plan *p, int local, size_t k, int slice, int node)
{
    size_t part = (size_t)slice * (size_t)p->nodes + (size_t)node;
    return tt_control_slot(p->host, local, TT_IN_SLOTS + (int)(k % TT_OUT_SLOTS)) +
           part * p->piece * p->element;
}

/* Every local rank's input of a piece, as operands. */
static void view_inputs(const plan *p, size_t k, int slice, int node, size_t begin)
{
    for (int i = 0; i < p->host->locals; i++) {
        const char *in = p->host->peer[i].in;
        p->host->operand[i] = (tt_operand){
            in != NULL ? in + begin * p->element : in_slot(p, i, k, slice, node), false};
    }
}

/* Where a piece's result goes in this node; returns the number of places in host->target. */
static int find_targets(const plan *p, size_t k, int slice, int node, size_t begin)
{
    tt_host *host = p->host;
    bool slot = false;
    int n = 0;
    if (p->call->kind == TT_REDUCE_SCATTER) {
        if (node != host->node)
            return 0;
        size_t first = p->host->offset[driver(p, slice, node)];
        host->target[0] = (char *)p->call->out + (begin - first) * p->element;
        return 1;
    }
    for (int i = 0; i < host->locals; i++) {
        char *out = host->peer[i].out;
        if (!rank_wants(p, host->ranks[i]))
            continue;
        if (out != NULL)
            host->target[n++] = out + begin * p->element;
        else
            slot = true;
    }
    if (slot)
        host->target[n++] = out_slot(p, host->local, k, slice, node);
    return n;
}

static void copy_to_targets(const plan *p, int targets, const void *from, size_t bytes)
{
    for (int i = 0; i < targets; i++)
        memcpy(p->host->target[i], from, bytes);
}

static int divisor(const plan *p)
{
    return p->call->op == TUTTI_AVG ? p->layout->size : 1;
}

/* Memory and links of one driven slice in one of the pipeline's rounds. */
static size_t slice_work(const plan *p)
{
    size_t fragments = p->own_bytes * (size_t)p->nodes + p->all_bytes;
    return tt_round_up(p->piece * (fragments + p->element * ((size_t)p->nodes + 1)), ALIGN);
}

static char *work_of(const plan *p, int index, size_t k)
{
    return p->host->work + (PIPE * (size_t)index + k % PIPE) * slice_work(p);
}

static char *fragments_out(const plan *p, int index, size_t k, int node)
{
    return work_of(p, index, k) + (size_t)node * p->piece * p->own_bytes;
}

static char *fragments_in(const plan *p, int index, size_t k, int node)
{
    size_t before = 0;
    for (int i = 0; i < node; i++)
        before += tt_order_node_bytes(&p->host->order, i, p->call->dtype);
    return fragments_out(p, index, k, p->nodes) + before * p->piece;
}

static char *result_of(const plan *p, int index, size_t k, int node)
{
    size_t offset = p->own_bytes * (size_t)p->nodes + p->all_bytes;
    return work_of(p, index, k) + p->piece * (offset + p->element * (size_t)node);
}

static tt_link *link_of(const plan *p, int index, size_t k, int way, int node)
{
    size_t row = (PIPE * (size_t)index + k % PIPE) * WAYS + (size_t)way;
    return &p->host->links[row * (size_t)p->nodes + (size_t)node];
}

/* This node's fragments of a piece, once they are summed. */
static const char *own_fragments(const plan *p, int index, size_t k, int node, size_t begin)
{
    if (p->whole)
        return p->host->peer[p->host->local].in + begin * p->element;
    return fragments_out(p, index, k, node);
}

/* Awaits the fragments of a piece that this rank owns. */
static tutti_status post_fragments(const plan *p, int index, size_t k)
{
    size_t begin, n;
    int slice = slice_of(p, index);
    if (!piece_of(p, slice, p->host->node, k, &begin, &n))
        return TUTTI_OK;
    for (int node = 0; node < p->nodes; node++)
        if (node != p->host->node)
            TT_TRY(tt_link_recv(p->run, link_of(p, index, k, FRAGMENT_IN, node),
                                driver(p, slice, node), fragments_in(p, index, k, node),
                                n * tt_order_node_bytes(&p->host->order, node, p->call->dtype)));
    return TUTTI_OK;
}

static void sum_fragments(const plan *p, size_t n, char *out)
{
    const tt_order *order = &p->host->order;
    for (int i = 0; i < order->own; i++) {
        bool partial = order->partial[order->first[p->host->node] + i];
        tt_reduce(&(tt_reduce_job){.tree = &order->fragment[i],
                                   .in = p->host->operand,
                                   .n = n,
                                   .dtype = p->call->dtype,
                                   .op = p->call->op,
                                   .out = out,
                                   .out_partial = partial,
                                   .divisor = 1});
        out += n * tt_operand_size(p->call->dtype, partial);
    }
}

static tutti_status send_fragments(const plan *p, int index, size_t k)
{
    int slice = slice_of(p, index);
    for (int node = 0; node < p->nodes; node++) {
        tt_link *link = link_of(p, index, k, FRAGMENT_OUT, node);
        size_t begin, n;
        if (!piece_of(p, slice, node, k, &begin, &n))
            continue;
        TT_TRY(tt_link_wait(p->run, link)); /* of the round before last */
        if (!p->whole) {
            view_inputs(p, k, slice, node, begin);
            sum_fragments(p, n, fragments_out(p, index, k, node));
        }
        if (node != p->host->node)
            TT_TRY(tt_link_send(p->run, link, driver(p, slice, node),
                                own_fragments(p, index, k, node, begin), n * p->own_bytes));
    }
    return TUTTI_OK;
}

static tutti_status contribute(const plan *p, size_t k)
{
    if (k >= p->rounds)
        return TUTTI_OK;
    for (int index = 0; index < p->mine; index++) {
        TT_TRY(post_fragments(p, index, k));
        TT_TRY(send_fragments(p, index, k));
    }
    return TUTTI_OK;
}

/* Where a piece's result is made or received: in its only place, or in this rank's memory, to be
 * copied to *targets_out places (host->target). */
static char *result_place(const plan *p, int index, size_t k, int node, int *targets_out)
{
    size_t begin, n;
    int slice = slice_of(p, index);
    *targets_out = 0;
    if (!piece_of(p, slice, node, k, &begin, &n))
        return NULL;
    *targets_out = find_targets(p, k, slice, node, begin);
    if (*targets_out != 1 || p->staged)
        return result_of(p, index, k, node);
    *targets_out = 0;
    return p->host->target[0];
}

/* Adds the fragments of all nodes. */
static void sum_nodes(const plan *p, int index, size_t k, char *out)
{
    const tt_order *order = &p->host->order;
    size_t begin, n;
    if (!piece_of(p, slice_of(p, index), p->host->node, k, &begin, &n))
        return;
    for (int node = 0; node < p->nodes; node++) {
        const char *at = node == p->host->node ? own_fragments(p, index, k, node, begin)
                                               : fragments_in(p, index, k, node);
        for (int i = order->first[node]; i < order->first[node + 1]; i++) {
            p->host->operand[i] = (tt_operand){at, order->partial[i]};
            at += n * tt_operand_size(p->call->dtype, order->partial[i]);
        }
    }
    tt_reduce(&(tt_reduce_job){.tree = &order->top,
                               .in = p->host->operand,
                               .n = n,
                               .dtype = p->call->dtype,
                               .op = p->call->op,
                               .out = out,
                               .divisor = divisor(p)});
}

/* The result of a piece that this rank owns. */
static tutti_status finish_owned(const plan *p, int index, size_t k)
{
    const int slice = slice_of(p, index), here = p->host->node;
    size_t begin, n;
    int targets;
    char *result;
    if (!piece_of(p, slice, here, k, &begin, &n))
        return TUTTI_OK;
    for (int node = 0; node < p->nodes; node++) {
        TT_TRY(tt_link_wait(p->run, link_of(p, index, k, FRAGMENT_IN, node)));
        TT_TRY(tt_link_wait(p->run, link_of(p, index, k, RESULT_OUT, node)));
    }
    result = result_place(p, index, k, here, &targets);
    sum_nodes(p, index, k, result);
    for (int node = 0; node < p->nodes; node++)
        if (node != here && node_wants(p, node))
            TT_TRY(tt_link_send(p->run, link_of(p, index, k, RESULT_OUT, node),
                                driver(p, slice, node), result, n * p->element));
    copy_to_targets(p, targets, result, n * p->element);
    return TUTTI_OK;
}

static tutti_status post_results(const plan *p, int index, size_t k)
{
    const int slice = slice_of(p, index);
    size_t begin, n;
    int targets;
    for (int node = 0; node < p->nodes && node_wants(p, p->host->node); node++) {
        if (node == p->host->node || !piece_of(p, slice, node, k, &begin, &n))
            continue;
        /* In place, the result may land on the fragment. */
        TT_TRY(tt_link_wait(p->run, link_of(p, index, k, FRAGMENT_OUT, node)));
        TT_TRY(tt_link_recv(p->run, link_of(p, index, k, RESULT_IN, node), driver(p, slice, node),
                            result_place(p, index, k, node, &targets), n * p->element));
    }
    return TUTTI_OK;
}

static tutti_status combine(const plan *p, size_t k)
{
    for (int index = 0; index < p->mine; index++) {
        TT_TRY(post_results(p, index, k));
        TT_TRY(finish_owned(p, index, k));
    }
    return TUTTI_OK;
}

static tutti_status collect(const plan *p, size_t k)
{
    size_t begin, n;
    int targets;
    const char *result;
    for (int index = 0; index < p->mine && node_wants(p, p->host->node); index++) {
        const int slice = slice_of(p, index);
        for (int node = 0; node < p->nodes; node++) {
            if (node == p->host->node || !piece_of(p, slice, node, k, &begin, &n))
                continue;
            TT_TRY(tt_link_wait(p->run, link_of(p, index, k, RESULT_IN, node)));
            result = result_place(p, index, k, node, &targets);
            copy_to_targets(p, targets, result, n * p->element);
        }
    }
    return TUTTI_OK;
}

static void copy_in(const plan *p, size_t k)
{
    const int local = p->host->local;
    size_t begin, n;
    if (!p->staged || !plain_in(p, local))
        return;
    for (int slice = 0; slice < p->slices; slice++)
        for (int node = 0; node < p->nodes; node++)
            if (slice % p->host->locals != local && piece_of(p, slice, node, k, &begin, &n))
                memcpy(in_slot(p, local, k, slice, node),
                       (const char *)p->call->in + begin * p->element, n * p->element);
}

/* What this rank drives it has written to its output itself. */
static void copy_out(const plan *p, size_t k)
{
    const tt_host *host = p->host;
    size_t begin, n;
    if (!p->staged || !plain_out(p, host->local))
        return;
    for (int slice = 0; slice < p->slices; slice++)
        for (int node = 0; node < p->nodes; node++)
            if (slice % host->locals != host->local && piece_of(p, slice, node, k, &begin, &n))
                memcpy((char *)p->call->out + begin * p->element,
                       out_slot(p, slice % host->locals, k, slice, node), n * p->element);
}

static size_t longest_range(const plan *p)
{
    size_t longest = 0, begin, n;
    for (int slice = 0; slice < p->slices; slice++) {
        for (int node = 0; node < p->nodes; node++) {
            range_of(p, slice, node, &begin, &n);
            longest = n > longest ? n : longest;
        }
    }
    return longest;
}

static tutti_status make_plan(tt_run *run, plan *p)
{
    tt_host *host = run->host;
    *p = (plan){.run = run,
                .call = run->call,
                .host = host,
                .layout = &host->comm->layout,
                .element = tutti_dtype_size(run->call->dtype),
                .nodes = host->nodes,
                .slices = host->most_locals};
    tt_offsets(run->call->counts, run->call->n, p->layout->size, host->offset);
    p->total = run->call->kind == TT_REDUCE_SCATTER ? host->offset[p->layout->size] : run->call->n;
    p->mine = (p->slices - host->local + host->locals - 1) / host->locals;
    for (int i = 0; i < host->locals && host->locals > 1; i++)
        p->staged = p->staged || plain_in(p, i) || plain_out(p, i);
    p->whole = host->locals == 1;
    size_t longest = longest_range(p), parts = (size_t)p->slices * (size_t)p->nodes;
    p->piece = host->tune.slot_bytes / parts / ALIGN * ALIGN / p->element;
    p->rounds = longest == 0 ? 0 : (longest + p->piece - 1) / p->piece;
    p->piece = tt_min_size(p->piece, longest);
    p->own_bytes = tt_order_node_bytes(&host->order, host->node, p->call->dtype);
    for (int node = 0; node < p->nodes; node++)
        p->all_bytes += tt_order_node_bytes(&host->order, node, p->call->dtype);
    size_t sets = PIPE * (size_t)p->mine;
    return tt_links_reserve(run, sets * WAYS * (size_t)p->nodes, sets * slice_work(p));
}

tutti_status tt_host_reduce(tt_run *run)
{
    plan p;
    TT_TRY(make_plan(run, &p));
    if (p.rounds == 0)
        return TUTTI_OK;
    for (size_t i = 0; i < p.rounds + DEPTH; i++) {
        copy_in(&p, i);
        if (p.staged)
            TT_TRY(tt_meet_barrier(run));
        TT_TRY(contribute(&p, i));
        if (i >= LAG)
            TT_TRY(combine(&p, i - LAG));
        if (i >= PIPE)
            TT_TRY(collect(&p, i - PIPE));
        if (i >= DEPTH)
            copy_out(&p, i - DEPTH);
    }
    if (!p.staged)
        TT_TRY(tt_meet_barrier(run)); /* peers read and wrote this rank's buffers */
    return tt_links_wait_all(run);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * all_gather and broadcast: data that every rank gets, as blocks that each have one origin. An
 * all_gather has a block per rank; a broadcast cuts the root's data into as many blocks as a node
 * has ranks, so that all of them share the work of moving it between nodes, twice as many where two
 * trees share it as well, and a single one where messages cost more than bytes.
 *
 * In every node one rank provides a block to the others: its origin, or in other nodes a driver
 * that receives it once. Between nodes a block takes a tree (fan.h): flat for all_gather, where
 * every node sends to every other anyway (small ones: lead.c). Senders send straight from their
 * buffers, drivers receive into registered output if they have it, and pass on what they received.
 *
 * All of a node then read the block where it lies: in the origin's registered input, in the
 * driver's registered output, else in the provider's slot, in rounds of one piece per block with
 * one barrier each. A slot is filled again `ring` rounds later; receives for the round that takes
 * the place of k - 1 are posted when everybody has read that. One node without plain input, or
 * where it can be reached by way of the kernel (reach.c), needs no rounds at all.
 *
 * A node takes what it does not pass on after what it sends, and `lag` rounds later: else no node
 * sent a piece of its own block, or passed on one of a tree, before those of other blocks had come
 * all their way, and a round would take as long as all of these one after the other.
 */
#include "host/fan.h"
#include "host/host.h"

#include <string.h>

enum { ALIGN = 64, LAG = 2 };

typedef struct plan {
    tt_run *run;
    const tt_call *call;
    tt_host *host;
    const tt_layout *layout;
    int blocks;
    size_t element;
    size_t piece, rounds; /* bytes; number */
    size_t ring, lag; /* rounds under way; those by which what is not passed on comes later */
    bool in_rounds; /* pieces are handed over at a barrier per round */
    bool reads; /* ranks read each other's buffers in place */
    int mine; /* blocks that this rank provides */
    bool past_cache; /* the output is large, and not read soon */
} plan;

static bool gathers(const plan *p)
{
    return p->call->kind == TT_ALL_GATHER;
}

static int origin(const plan *p, int block)
{
    return gathers(p) ? block : p->call->root;
}

static int provider(const plan *p, int block, int node)
{
    int from = origin(p, block);
    if (p->layout->node[from] == node)
        return from;
    return tt_rank_at(p->layout, node, gathers(p) ? p->layout->local[from] : block);
}

/* Where a block lies in `out`, and its size; in bytes. In `in` a broadcast's lies there too. */
static void block_range(const plan *p, int block, size_t *begin_out, size_t *bytes_out)
{
    size_t begin, n;
    if (gathers(p)) {
        begin = p->host->offset[block];
        n = p->host->offset[block + 1] - begin;
    } else {
        tt_part(p->call->n, (size_t)p->blocks, (size_t)block, ALIGN / p->element, &begin, &n);
    }
    *begin_out = begin * p->element;
    *bytes_out = n * p->element;
}

static bool piece_of(const plan *p, int block, size_t k, size_t *begin_out, size_t *bytes_out)
{
    size_t begin, bytes;
    block_range(p, block, &begin, &bytes);
    if (k >= p->rounds || k * p->piece >= bytes)
        return false;
    *begin_out = begin + k * p->piece;
    *bytes_out = tt_min_size(p->piece, bytes - k * p->piece);
    return true;
}

/* The piece in the origin's `in`, which lies at `begin` of `out`. */
static size_t in_offset(const plan *p, int block, size_t begin)
{
    return begin - (gathers(p) ? p->host->offset[block] * p->element : 0);
}

static bool from_here(const plan *p, int block)
{
    return p->layout->node[origin(p, block)] == p->host->node;
}

/* Whether the provider must put the block into its slot for the others. */
static bool slotted(const plan *p, int block)
{
    const tt_notice *notice = &p->host->peer[p->host->seat[block].local].notice;
    if (p->host->locals == 1 || (p->host->reaches && p->host->nodes == 1))
        return false;
    return from_here(p, block) ? notice->in.id == 0 : notice->out.id == 0;
}

static char *slot_of(const plan *p, int block, size_t k)
{
    const tt_seat *seat = &p->host->seat[block];
    const size_t split = p->ring / TT_SLOTS, at = k % p->ring;
    return tt_control_slot(p->host, seat->local, (int)(at / split)) +
           at % split * (p->host->tune.slot_bytes / split / ALIGN * ALIGN) +
           (size_t)seat->index * p->piece;
}

/* Where this rank finds a piece. Its own input it need not look for in its slot. */
static const char *find(const plan *p, int block, size_t k, size_t begin)
{
    const tt_seat *seat = &p->host->seat[block];
    const tt_peer *peer = &p->host->peer[seat->local];
    bool own_input = from_here(p, block) && seat->local == p->host->local;
    if (slotted(p, block) && !own_input)
        return slot_of(p, block, k);
    return from_here(p, block) ? peer->in + in_offset(p, block, begin) : peer->out + begin;
}

static tt_fan fan_of(const plan *p, int block)
{
    if (gathers(p))
        return TT_FAN_FLAT;
    if (p->blocks <= p->host->most_locals)
        return TT_FAN_BINOMIAL;
    return block < p->host->most_locals ? TT_FAN_EVEN : TT_FAN_ODD;
}

/* The next node on a block's tree below this one: *child counts from 0. -1: no more. */
static int next_child(const plan *p, int block, int *child)
{
    const int home = p->layout->node[origin(p, block)], nodes = p->host->nodes;
    const int next =
        tt_fan_child(fan_of(p, block), nodes, (p->host->node - home + nodes) % nodes, child);
    return next < 0 ? -1 : (home + next) % nodes;
}

static int parent(const plan *p, int block)
{
    const int home = p->layout->node[origin(p, block)], nodes = p->host->nodes;
    const int at = (p->host->node - home + nodes) % nodes;
    return (home + tt_fan_parent(fan_of(p, block), nodes, at)) % nodes;
}

/* Link 0 of a block's row is its receive, the others its sends. */
static tt_link *links_of(const plan *p, int index, size_t k)
{
    size_t row = (k % p->ring) * (size_t)p->mine + (size_t)index;
    return &p->host->links[row * (size_t)p->host->nodes];
}

/* Calls fn for every piece of a round that this rank provides, with its index among them. */
typedef tutti_status (*piece_fn)(const plan *p, int block, int index, size_t k);
static tutti_status for_mine(const plan *p, size_t k, piece_fn fn)
{
    size_t begin, bytes;
    for (int block = 0, index = 0; block < p->blocks; block++) {
        if (p->host->seat[block].local != p->host->local)
            continue;
        if (piece_of(p, block, k, &begin, &bytes))
            TT_TRY(fn(p, block, index, k));
        index++;
    }
    return TUTTI_OK;
}

static tutti_status post_receive(const plan *p, int block, int index, size_t k)
{
    tt_link *links = links_of(p, index, k);
    size_t begin = 0, bytes = 0;
    if (from_here(p, block))
        return TUTTI_OK;
    for (int i = 0; i < p->host->nodes; i++) /* the slot may still be on its way to others */
        TT_TRY(tt_link_wait(p->run, &links[i]));
    piece_of(p, block, k, &begin, &bytes);
    char *to = slotted(p, block) ? slot_of(p, block, k) : (char *)p->call->out + begin;
    int from = provider(p, block, parent(p, block));
    return tt_link_recv(p->run, &links[0], from, to, bytes);
}

/* Whether nobody waits for this node's pieces: they come `lag` rounds later. */
static bool comes_later(const plan *p, int block)
{
    int child = 0;
    return p->host->nodes > 1 && next_child(p, block, &child) < 0;
}

/* Has the piece ready for the node and on its way to other nodes. */
static tutti_status provide(const plan *p, int block, int index, size_t k)
{
    size_t begin = 0, bytes = 0;
    int child = 0, node;
    piece_of(p, block, k, &begin, &bytes);
    const char *from = find(p, block, k, begin);
    if (from_here(p, block) && slotted(p, block))
        memcpy(slot_of(p, block, k), from, bytes);
    if (p->host->nodes == 1)
        return TUTTI_OK;
    tt_link *links = links_of(p, index, k);
    TT_TRY(tt_link_wait(p->run, &links[0]));
    for (int i = 1; (node = next_child(p, block, &child)) >= 0; i++) {
        TT_TRY(tt_link_wait(p->run, &links[i]));
        TT_TRY(tt_link_send(p->run, &links[i], provider(p, block, node), from, bytes));
    }
    return TUTTI_OK;
}

static tutti_status provide_first(const plan *p, int block, int index, size_t k)
{
    return comes_later(p, block) ? TUTTI_OK : provide(p, block, index, k);
}

static tutti_status provide_later(const plan *p, int block, int index, size_t k)
{
    return comes_later(p, block) ? provide(p, block, index, k) : TUTTI_OK;
}

/* Whether a block of this one node lies in a peer's plain memory, which is read from there. */
static bool reached(const plan *p, int block)
{
    return p->host->reaches && p->host->nodes == 1 &&
           p->host->peer[p->host->seat[block].local].in == NULL;
}

static tutti_status read_round(const plan *p, size_t k)
{
    size_t begin, bytes;
    char *out = p->call->out;
    for (int block = 0; block < p->blocks && out != NULL; block++) {
        if (!piece_of(p, block, k, &begin, &bytes))
            continue;
        if (reached(p, block)) {
            const int local = p->host->seat[block].local;
            TT_TRY(tt_reach_read(p->run, local,
                                 p->host->peer[local].notice.in.offset + in_offset(p, block, begin),
                                 out + begin, bytes));
            continue;
        }
        const char *from = find(p, block, k, begin);
        if (from == out + begin)
            continue;
        if (p->past_cache)
            tt_copy_past_cache(out + begin, from, bytes);
        else
            memcpy(out + begin, from, bytes);
    }
    if (p->past_cache)
        tt_copy_past_cache_end();
    return TUTTI_OK;
}

/* Gives every block its place in its provider's slot. */
static void seat_blocks(plan *p)
{
    tt_host *host = p->host;
    int *used = host->count;
    memset(used, 0, (size_t)host->locals * sizeof *used);
    for (int block = 0; block < p->blocks; block++) {
        int local = p->layout->local[provider(p, block, host->node)];
        host->seat[block] = (tt_seat){local, used[local]++};
    }
    p->mine = used[host->local];
}

static int count_blocks(const plan *p)
{
    const tt_host *host = p->host;
    if (gathers(p))
        return p->layout->size;
    if (host->nodes > 1 && p->call->n * p->element <= host->tune.leader_bytes)
        return 1;
    return host->nodes > 2 ? 2 * host->most_locals : host->most_locals;
}

static tutti_status make_plan(tt_run *run, plan *p)
{
    tt_host *host = run->host;
    size_t longest = 0, begin, bytes;
    *p = (plan){.run = run,
                .call = run->call,
                .host = host,
                .layout = &host->comm->layout,
                .element = tutti_dtype_size(run->call->dtype)};
    p->blocks = count_blocks(p);
    if (gathers(p))
        tt_offsets(run->call->counts, run->call->n, p->layout->size, host->offset);
    seat_blocks(p);
    p->in_rounds = host->nodes > 1;
    for (int block = 0; block < p->blocks; block++) {
        block_range(p, block, &begin, &bytes);
        if (bytes == 0)
            continue;
        longest = bytes > longest ? bytes : longest;
        p->in_rounds = p->in_rounds || slotted(p, block);
        p->reads = p->reads || !slotted(p, block);
    }
    p->past_cache = longest * (size_t)p->blocks >= host->tune.nt_bytes;
    const bool two = !gathers(p) && p->blocks > host->most_locals;
    p->ring = two ? TT_SLOT_SPLIT * TT_SLOTS : TT_SLOTS;
    p->lag = two ? p->ring / 2 : host->nodes > 1 ? LAG : 0;
    size_t share = gathers(p) ? (size_t)host->spread_share : (size_t)p->blocks;
    p->piece =
        p->in_rounds ? host->tune.slot_bytes * TT_SLOTS / p->ring / share / ALIGN * ALIGN : longest;
    p->rounds = longest == 0 ? 0 : (longest + p->piece - 1) / p->piece;
    return host->nodes == 1
               ? TUTTI_OK
               : tt_links_reserve(run, p->ring * (size_t)p->mine * (size_t)host->nodes, 0);
}

tutti_status tt_host_spread(tt_run *run)
{
    plan p;
    TT_TRY(make_plan(run, &p));
    if (p.rounds == 0)
        return TUTTI_OK;
    const bool passes = run->host->nodes > 1;
    for (size_t k = 0; k < p.ring - 1 && passes; k++)
        TT_TRY(for_mine(&p, k, post_receive));
    for (size_t k = 0; k < p.rounds + p.lag; k++) {
        TT_TRY(for_mine(&p, k, provide_first));
        if (k < p.lag)
            continue;
        const size_t done = k - p.lag; /* what the node has all of */
        TT_TRY(for_mine(&p, done, provide_later));
        if (p.in_rounds)
            TT_TRY(tt_meet_barrier(run));
        if (passes)
            TT_TRY(for_mine(&p, done + p.ring - 1, post_receive));
        TT_TRY(read_round(&p, done));
    }
    if (p.reads)
        TT_TRY(tt_meet_barrier(run)); /* peers read this rank's buffers */
    return tt_links_wait_all(run);
}

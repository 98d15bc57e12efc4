/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gather, scatter and all_to_all: every block goes from one rank to one other. Between nodes it is
 * one message, from the sender's buffer to the receiver's. Inside a node the receiver reads it: at
 * once where the sender's buffer is registered or can be reached by way of the kernel (reach.c; a
 * gather's or scatter's root gets help), else in rounds through the sender's slot, which has a
 * part for each local rank; two slots take turns, with one barrier per round.
 */
#include "host/host.h"

#include <string.h>

enum { ALIGN = 64, RING = 2 };

typedef struct plan {
    tt_run *run;
    const tt_call *call;
    tt_host *host;
    const tt_layout *layout;
    size_t element;
    size_t *send_offset, *recv_offset; /* all_to_all: elements before each rank */
    bool pairwise; /* counts differ between ranks: empty messages are sent too */
    size_t piece, rounds; /* bytes; number */
    bool reads; /* some sender's buffer is read in place */
    bool shares; /* the root's partners do most of its copying: all can reach what they must */
} plan;

/* Bytes of the block from one rank to another, of which one is this rank or both are local. */
static size_t block_bytes(const plan *p, int from, int to)
{
    const tt_call *call = p->call;
    const tt_layout *at = p->layout;
    if ((call->kind == TT_GATHER && to != call->root) ||
        (call->kind == TT_SCATTER && from != call->root))
        return 0;
    if (!p->pairwise)
        return call->n * p->element;
    if (from == p->host->comm->group.rank)
        return call->counts[to] * p->element;
    if (to == p->host->comm->group.rank)
        return call->recv_counts[from] * p->element;
    return tt_meet_sent(p->host, at->local[from], at->local[to]) * p->element;
}

/* Where the block for `to` lies in this rank's `in`, as an offset in bytes. */
static size_t in_offset(const plan *p, int to)
{
    if (p->call->kind == TT_GATHER)
        return 0;
    return (p->call->kind == TT_SCATTER ? (size_t)to * p->call->n : p->send_offset[to]) *
           p->element;
}

static char *out_of(const plan *p, int from)
{
    size_t offset = 0;
    if (p->call->kind == TT_GATHER)
        offset = (size_t)from * p->call->n;
    else if (p->call->kind == TT_ALL_TO_ALL)
        offset = p->recv_offset[from];
    return (char *)p->call->out + offset * p->element;
}

/* Whether a message goes from one rank to another in another node. */
static bool messages(const plan *p, int from, int to)
{
    return p->layout->node[from] != p->layout->node[to] &&
           (p->pairwise || block_bytes(p, from, to) > 0);
}

/* Everybody begins with the rank behind it, so that not all send to the same one. */
static tutti_status exchange(const plan *p)
{
    const int size = p->layout->size, me = p->host->comm->group.rank;
    tt_link *links = p->host->links;
    for (int i = 1; i < size; i++) {
        int from = (me - i + size) % size;
        if (messages(p, from, me))
            TT_TRY(tt_link_recv(p->run, &links[from], from, out_of(p, from),
                                block_bytes(p, from, me)));
    }
    for (int i = 1; i < size; i++) {
        int to = (me + i) % size;
        if (messages(p, me, to))
            TT_TRY(tt_link_send(p->run, &links[size + to], to,
                                (const char *)p->call->in + in_offset(p, to),
                                block_bytes(p, me, to)));
    }
    return TUTTI_OK;
}

static bool plain(const plan *p, int local)
{
    return !p->host->reaches && p->host->peer[local].notice.in.id == 0;
}

static char *slot_of(const plan *p, int local, size_t k, int to_local)
{
    return tt_control_slot(p->host, local, (int)(k % RING)) + (size_t)to_local * p->piece;
}

static size_t piece_bytes(const plan *p, int from_local, int to_local, size_t k)
{
    size_t bytes = block_bytes(p, p->host->ranks[from_local], p->host->ranks[to_local]);
    return bytes <= k * p->piece ? 0 : tt_min_size(p->piece, bytes - k * p->piece);
}

/* Large blocks go past the cache: they are not read soon. */
static void copy(const plan *p, char *to, const char *from, size_t bytes)
{
    if (bytes >= p->host->tune.nt_bytes / 2) {
        tt_copy_past_cache(to, from, bytes);
        tt_copy_past_cache_end();
    } else if (bytes > 0) {
        memcpy(to, from, bytes);
    }
}

/* This rank's own block. */
static void keep(const plan *p)
{
    int me = p->host->comm->group.rank;
    size_t bytes = block_bytes(p, me, me);
    if (bytes == 0)
        return;
    const char *from = (const char *)p->call->in + in_offset(p, me);
    char *to = out_of(p, me);
    if (from != to)
        copy(p, to, from, bytes);
}

/* Copies a part of the block between the root and another rank, of which this is one. */
static tutti_status copy_part(const plan *p, int other, size_t begin, size_t bytes)
{
    const tt_host *host = p->host;
    const int root = p->layout->local[p->call->root];
    const bool gathers = p->call->kind == TT_GATHER;
    const size_t at = (size_t)host->ranks[other] * p->call->n * p->element;
    const int from = gathers ? other : root, to = gathers ? root : other;
    const size_t from_at = begin + (gathers ? 0 : at), to_at = begin + (gathers ? at : 0);
    const tt_peer *in = &host->peer[from], *out = &host->peer[to];
    if (in->in != NULL && out->out != NULL)
        copy(p, out->out + to_at, in->in + from_at, bytes);
    else if (in->in != NULL)
        return tt_reach_write(p->run, to, out->notice.out.offset + to_at, in->in + from_at, bytes);
    else
        return tt_reach_read(p->run, from, in->notice.in.offset + from_at, out->out + to_at, bytes);
    return TUTTI_OK;
}

/*
 * A gather's or scatter's block between the root and another rank is copied by the other rank; in
 * place, when the root has no block of its own to copy, the root takes a part of each. So all have
 * the same to do.
 */
static tutti_status share_block(const plan *p, int other)
{
    const tt_host *host = p->host;
    const int root = p->layout->local[p->call->root], me = host->local;
    const bool gathers = p->call->kind == TT_GATHER;
    const size_t bytes = p->call->n * p->element, own = (size_t)p->call->root * bytes;
    const tt_notice *keeper = &host->peer[root].notice;
    const tt_mem_place whole = gathers ? keeper->out : keeper->in;
    const tt_mem_place part = gathers ? keeper->in : keeper->out;
    const bool in_place = part.id == whole.id && part.offset == whole.offset + own;
    const size_t roots = in_place ? bytes / (size_t)host->locals / ALIGN * ALIGN : 0;
    if (me == root)
        return copy_part(p, other, 0, roots);
    return copy_part(p, other, roots, bytes - roots);
}

static tutti_status share_all(const plan *p)
{
    const int root = p->layout->local[p->call->root];
    for (int i = 0; i < p->host->locals; i++)
        if (i != root && (p->host->local == i || p->host->local == root))
            TT_TRY(share_block(p, i));
    return TUTTI_OK;
}

static tutti_status read_blocks(const plan *p)
{
    const tt_host *host = p->host;
    int me = host->ranks[host->local];
    for (int i = 0; i < host->locals; i++) {
        size_t bytes = block_bytes(p, host->ranks[i], me);
        if (i == host->local || plain(p, i) || bytes == 0)
            continue;
        size_t offset = p->call->kind == TT_GATHER ? 0 : (size_t)me * bytes;
        if (p->pairwise)
            offset = tt_meet_sent_offset(host, i, host->local) * p->element;
        char *to = out_of(p, host->ranks[i]);
        const tt_peer *peer = &host->peer[i];
        if (peer->in != NULL)
            copy(p, to, peer->in + offset, bytes);
        else
            TT_TRY(tt_reach_read(p->run, i, peer->notice.in.offset + offset, to, bytes));
    }
    return TUTTI_OK;
}

static void copy_in(const plan *p, size_t k)
{
    const tt_host *host = p->host;
    for (int to = 0; to < host->locals && plain(p, host->local); to++) {
        size_t bytes = piece_bytes(p, host->local, to, k);
        if (to != host->local && bytes > 0)
            memcpy(slot_of(p, host->local, k, to),
                   (const char *)p->call->in + in_offset(p, host->ranks[to]) + k * p->piece, bytes);
    }
}

static void copy_out(const plan *p, size_t k)
{
    const tt_host *host = p->host;
    for (int from = 0; from < host->locals; from++) {
        size_t bytes = piece_bytes(p, from, host->local, k);
        if (from != host->local && plain(p, from) && bytes > 0)
            memcpy(out_of(p, host->ranks[from]) + k * p->piece, slot_of(p, from, k, host->local),
                   bytes);
    }
}

/* Rounds that the node's plain blocks need; every local rank finds the same. */
static void count_rounds(plan *p)
{
    const tt_host *host = p->host;
    size_t longest = 0;
    for (int from = 0; from < host->locals; from++) {
        for (int to = 0; to < host->locals; to++) {
            size_t bytes = block_bytes(p, host->ranks[from], host->ranks[to]);
            if (from == to || bytes == 0)
                continue;
            if (!plain(p, from))
                p->reads = true;
            else
                longest = bytes > longest ? bytes : longest;
        }
    }
    p->piece = host->tune.slot_bytes / (size_t)host->locals / ALIGN * ALIGN;
    p->rounds = (longest + p->piece - 1) / p->piece;
}

/* One node, where the root and all others can reach what they use. */
static void find_sharing(plan *p)
{
    const tt_host *host = p->host;
    const bool rooted = p->call->kind == TT_GATHER || p->call->kind == TT_SCATTER;
    p->shares = rooted && host->nodes == 1 && host->locals > 1 && p->call->n > 0;
    for (int i = 0; i < host->locals && p->shares && !host->reaches; i++) {
        const tt_notice *notice = &host->peer[i].notice;
        const bool gathers = p->call->kind == TT_GATHER, root = host->ranks[i] == p->call->root;
        if (gathers || root)
            p->shares = notice->in.id != 0;
        if (p->shares && (!gathers || root))
            p->shares = notice->out.id != 0;
    }
}

static tutti_status make_plan(tt_run *run, plan *p)
{
    tt_host *host = run->host;
    const size_t size = (size_t)host->comm->layout.size;
    *p = (plan){.run = run,
                .call = run->call,
                .host = host,
                .layout = &host->comm->layout,
                .element = tutti_dtype_size(run->call->dtype),
                .send_offset = host->offset,
                .recv_offset = host->offset + size + 1,
                .pairwise = run->call->recv_counts != NULL};
    if (run->call->kind == TT_ALL_TO_ALL) {
        tt_offsets(run->call->counts, run->call->n, (int)size, p->send_offset);
        tt_offsets(run->call->recv_counts, run->call->n, (int)size, p->recv_offset);
    }
    count_rounds(p);
    find_sharing(p);
    return host->nodes == 1 ? TUTTI_OK : tt_links_reserve(run, 2 * size, 0);
}

tutti_status tt_host_pairs(tt_run *run)
{
    plan p;
    TT_TRY(make_plan(run, &p));
    if (run->host->nodes > 1)
        TT_TRY(exchange(&p));
    keep(&p);
    TT_TRY(p.shares ? share_all(&p) : read_blocks(&p));
    for (size_t k = 0; k < p.rounds; k++) {
        copy_in(&p, k);
        TT_TRY(tt_meet_barrier(run));
        copy_out(&p, k);
    }
    if (p.reads)
        TT_TRY(tt_meet_barrier(run)); /* peers read this rank's buffers */
    return tt_links_wait_all(run);
}

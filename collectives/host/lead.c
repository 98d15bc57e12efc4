/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small all_gathers over several nodes, where messages cost more than bytes: one rank of each node
 * speaks for all. Every rank puts its block into the leader's slot; the leaders exchange what they
 * have in log2(nodes) steps, rounded up (Bruck et al., IEEE TPDS 8, 1997: in step s a node sends
 * what it has so far to the one 2^s before it, whatever the number of nodes); then every rank
 * copies the slot to its output. Blocks may differ in size: all know all of them.
 *
 * The slot holds the nodes' blocks in turn, this node's first, so what is sent and received always
 * lies together. It is free again when the node meets for the next call. A rank alone on its node
 * has no slots and takes memory for messages.
 *
 * A small broadcast needs no way of its own: it goes as a single block (spread.c).
 */
#include "host/host.h"

#include <string.h>

/* Bytes of a node's blocks. */
static size_t node_bytes(const tt_host *host, int node)
{
    const tt_layout *at = &host->comm->layout;
    size_t bytes = 0;
    for (int i = 0; i < at->node_size[node]; i++) {
        const int rank = tt_rank_at(at, node, i);
        bytes += host->offset[rank + 1] - host->offset[rank];
    }
    return bytes;
}

bool tt_lead_fits(tt_run *run)
{
    tt_host *host = run->host;
    const tt_call *call = run->call;
    const size_t element = tutti_dtype_size(call->dtype);
    size_t most = 0;
    if (call->kind != TT_ALL_GATHER || host->nodes == 1)
        return false;
    tt_offsets(call->counts, call->n, host->comm->layout.size, host->offset);
    for (int i = 0; i <= host->comm->layout.size; i++)
        host->offset[i] *= element;
    for (int node = 0; node < host->nodes; node++) {
        const size_t bytes = node_bytes(host, node);
        most = bytes > most ? bytes : most;
    }
    return most <= host->tune.leader_bytes &&
           host->offset[host->comm->layout.size] <= host->tune.slot_bytes;
}

/* host->at: where the slot has the blocks of the i-th node from this one on. */
static void find_nodes(const tt_host *host)
{
    host->at[0] = 0;
    for (int i = 0; i < host->nodes; i++)
        host->at[i + 1] = host->at[i] + node_bytes(host, (host->node + i) % host->nodes);
}

static tutti_status exchange(tt_run *run, char *slot)
{
    const tt_host *host = run->host;
    const tt_layout *layout = &host->comm->layout;
    const size_t *at = host->at;
    const int nodes = host->nodes;
    tt_link *link = host->links;
    for (int have = 1; have < nodes; have *= 2, link += 2) {
        const int n = have < nodes - have ? have : nodes - have;
        const int to = tt_rank_at(layout, (host->node - have + nodes) % nodes, 0);
        const int from = tt_rank_at(layout, (host->node + have) % nodes, 0);
        const size_t comes = at[have + n] - at[have];
        if (comes > 0)
            TT_TRY(tt_link_recv(run, &link[1], from, slot + at[have], comes));
        if (at[n] > 0)
            TT_TRY(tt_link_send(run, &link[0], to, slot, at[n]));
        TT_TRY(tt_link_wait(run, &link[1]));
    }
    return tt_links_wait_all(run);
}

static void copy_out(const tt_run *run, const char *slot)
{
    const tt_host *host = run->host;
    const tt_layout *layout = &host->comm->layout;
    for (int i = 0; i < host->nodes; i++) {
        const int node = (host->node + i) % host->nodes;
        for (int k = 0; k < layout->node_size[node]; k++) {
            const int rank = tt_rank_at(layout, node, k);
            const size_t bytes = host->offset[rank + 1] - host->offset[rank];
            if (bytes > 0)
                memcpy((char *)run->call->out + host->offset[rank], slot, bytes);
            slot += bytes;
        }
    }
}

tutti_status tt_host_lead(tt_run *run)
{
    tt_host *host = run->host;
    const int me = host->ranks[host->local];
    const size_t bytes = host->offset[me + 1] - host->offset[me];
    size_t before = 0;
    int steps = 0;
    while (1 << steps < host->nodes)
        steps++;
    find_nodes(host);
    for (int i = 0; i < host->local; i++)
        before += host->offset[host->ranks[i] + 1] - host->offset[host->ranks[i]];
    if (host->at[host->nodes] == 0)
        return TUTTI_OK;
    if (host->local == 0)
        TT_TRY(tt_links_reserve(run, 2 * (size_t)steps,
                                host->locals == 1 ? host->at[host->nodes] : 0));
    char *slot = host->locals == 1 ? host->work : tt_control_slot(host, 0, 0);
    if (bytes > 0)
        memcpy(slot + before, run->call->in, bytes);
    TT_TRY(tt_meet_barrier(run));
    if (host->local == 0)
        TT_TRY(exchange(run, slot));
    TT_TRY(tt_meet_barrier(run));
    copy_out(run, slot);
    return TUTTI_OK;
}

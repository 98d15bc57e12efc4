/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the host backend.
 *
 *   host.c     the table; communicators and queued calls
 *   control.c  the memory that ranks of a node share
 *   meet.c     how they meet: who has arrived, with which call
 *   link.c     messages between nodes
 *   small.c    small calls on one node
 *   quick.c    tiny ones, on a short way
 *   reach.c    plain memory of other processes
 *   ahead.c    several of them at once, in a group
 *   tune.c     the sizes at which they change their way
 *   order.c    the order of summation: which ranks a node may sum before the rest
 *   sum.c      all_reduce, reduce_scatter, reduce on one node
 *   reduce.c   the same over several nodes
 *   reduce_plan.c  ... its plan
 *   route.c    ... who sends what to whom
 *   spread.c   all_gather, broadcast: data that all ranks get
 *   fan.c      ... the trees that blocks take between nodes
 *   lead.c     small all_gathers over several nodes
 *   pairs.c    gather, scatter, all_to_all: data from one rank for another
 *   p2p.c      send, recv
 */
#ifndef TT_HOST_HOST_H
#define TT_HOST_HOST_H

#include "comm/comm.h"
#include "comm/key.h"
#include "core/mem.h"
#include "device/shm.h"
#include "host/kernels.h"
#include "host/memory.h"
#include "host/tune.h"

/* Ranks whose sum a node may form before others join: a subtree of the order of summation that
 * lies within the node. */
typedef struct tt_order {
    int nodes, own; /* own: fragments of this node */
    int *first; /* of each node: its fragments are first[node] ... first[node + 1] - 1 */
    bool *partial; /* of each fragment: 16-bit types stay fp32 between nodes */
    tt_tree *fragment; /* this node's, over its local ranks */
    tt_tree top; /* over all fragments */
    bool pairs; /* top is the balanced tree, and every node has one fragment */
} tt_order;

tutti_status tt_order_create(const tt_layout *layout, int node, bool reproducible,
                             tt_order *order_out);
void tt_order_free(tt_order *order); /* takes one that is all zero */
/* Bytes of one element in all of a node's fragments. */
size_t tt_order_node_bytes(const tt_order *order, int node, tutti_dtype dtype);

/* How a call's input reaches the others: in the line that says what is called, in memory beside it,
 * or by way of the buffers. All ranks find the same form, save that a large call becomes a carried
 * one (beside the line, too) if every rank says that its memory is plain. */
typedef enum tt_form { TT_LARGE, TT_SMALL, TT_TINY, TT_CARRIED } tt_form;
enum { TT_TINY_WORDS = 7, TT_TINY_BYTES = 8 * TT_TINY_WORDS };

/* What a rank publishes of its call. */
typedef struct tt_notice {
    tt_form form;
    tt_key key;
    tt_mem_place in, out; /* id 0: plain memory, whose address is the offset, or not used */
    uint64_t in_bytes; /* that peers may reach for */
} tt_notice;

/* A local rank's part of the current call, as this rank sees it. */
typedef struct tt_peer {
    tt_notice notice;
    const char *in; /* its registered buffers here; NULL: plain memory, or not used. This rank's own
                       are here in any case */
    char *out;
} tt_peer;

enum { TT_IN_SLOTS = 2, TT_OUT_SLOTS = 4, TT_SLOTS = TT_IN_SLOTS + TT_OUT_SLOTS };

enum { TT_SLOT_SPLIT = 4 }; /* rounds that share a slot when a broadcast takes two trees */

typedef struct tt_control tt_control; /* control.c: the segment */

typedef struct tt_host {
    tutti_comm *comm;
    const int *ranks; /* the communicator's ranks of this node */
    int node, nodes, local, locals;
    int most_locals; /* of any node */
    int spread_share; /* blocks of an all_gather that one rank provides at most */
    tt_order order;
    tt_tree pair; /* over two operands */
    tt_route route[TT_WAYS][TT_FATES]; /* made when first used */

    tt_control *control;
    tt_shm shm; /* control's memory, where ranks share it */
    bool reaches; /* plain memory of the others on this node, by way of the kernel */
    bool slots_pass; /* some node's ranks hand plain memory over through slots */
    pid_t *pid; /* of each local rank; 0: this process */
    uint64_t proof; /* read by the others to find out */
    bool counted; /* ranks count arrivals instead of looking at each other's words */
    tt_tune tune;
    uint32_t phase; /* barriers this rank has entered */
    uint32_t calls; /* that this rank has published */
    uint32_t compared; /* of them, from the first on: all ranks have published the same */

    tt_peer *peer; /* of each local rank */
    tt_mem_hint in_hint, out_hint; /* where the last call's buffers were found */
    const char **payload; /* each local rank's input of a small call */
    tt_operand *operand; /* room for all ranks' */
    char **target; /* room for all local ranks', and one */
    size_t *offset; /* room for 2 * (ranks + 1) */
    size_t *at; /* room for nodes + 1 */
    struct tt_seat *seat; /* room for all blocks of spread.c */
    int *count; /* room for one of each local rank */
    char *work; /* messages being sent and received, grown on demand */
    size_t work_cap;
    struct tt_link *links; /* likewise */
    size_t links_cap;
    int64_t piece_ns; /* between pieces of long messages, lately; 0: not known */
} tt_host;

/* A message between nodes, or slot for one. */
typedef struct tt_link {
    tt_req req;
    size_t bytes;
    int rank; /* of the communicator */
    bool receive;
} tt_link;

/* Who provides a block to a node's ranks, and in which part of its slots (spread.c). */
typedef struct tt_seat {
    int local, index;
} tt_seat;

/* One call being carried out. */
typedef struct tt_run {
    tt_host *host;
    const tt_call *call;
    const tt_patience *patience;
    tt_form form;
    uint32_t number; /* of the call: tt_host.calls when it was published */
    bool may_carry; /* a large call that fits beside the line */
    size_t links; /* of host->links in use */
    size_t left; /* rounds of pieces still to come, of a long message; 0: waits are not paced */
    int64_t slept_ns; /* when it last began to sleep for one */
    int64_t came; /* pieces since then */
    char what[160]; /* made when a wait is long enough to be talked about */
} tt_run;

const char *tt_run_what(tt_run *run);

/* host.c: waits until it is the call's turn (done_seq or posted_p2p of its communicator); makes it
 * the next one's. */
tutti_status tt_turn_await(tt_run *run, _Atomic uint32_t *turn);
void tt_turn_pass(const tt_run *run, _Atomic uint32_t *turn);

/*
 * Who is to blame at the deadline. A rank that waits for one that is itself waiting knows less than
 * the one that waits for a rank which has not come at all: at the deadline that one gets a moment
 * to say so first.
 */
typedef struct tt_blame {
    tutti_ctx *ctx;
    int64_t began_ns, asked_ns;
} tt_blame;
void tt_blame_begin(tt_blame *blame, tutti_ctx *ctx);
bool tt_blame_later(tt_blame *blame); /* not yet */

/* control.c */
tutti_status tt_control_create(tt_host *host); /* collective over the communicator, agreed */
void tt_control_destroy(tt_host *host);
char *tt_control_slot(const tt_host *host, int local, int slot);

/* reach.c */
enum { TT_REACH_MOST = 32 /* local ranks: more have pieces too small for a system call each */ };
typedef struct tt_reach_offered {
    uint64_t pid, address, proof;
    uint64_t wanted;
} tt_reach_offered;
tutti_status tt_reach_offer(tt_host *host, tt_reach_offered *out);
bool tt_reach_try(tt_host *host, int local, const tt_reach_offered *offered);
tutti_status tt_reach_read(const tt_run *run, int local, uint64_t address, void *to, size_t bytes);
tutti_status tt_reach_write(const tt_run *run, int local, uint64_t address, const void *from,
                            size_t bytes);
/* This rank's call fails: from now on nobody is in its plain memory. */
void tt_reach_withdraw(const tt_host *host);

/* meet.c */
bool tt_meet_is_tiny(const tt_call *call,
                     size_t bytes); /* fits the line; bytes: the most of any rank */
/* Publishes this rank's call, waits for the others of the node, compares and fills host->peer (of a
 * large call). */
tutti_status tt_meet(tt_run *run);
tutti_status tt_meet_barrier(tt_run *run); /* of the node's ranks */
/* Elements of an all_to_allv that local rank `from` sends to local rank `to`. */
uint64_t tt_meet_sent(const tt_host *host, int from, int to);
/* Elements before them in the `in` of `from`. */
uint64_t tt_meet_sent_offset(const tt_host *host, int from, int to);

/* link.c */
enum { TT_LINK_PACED = 8 /* pieces of a message that is long enough to be paced */ };
tutti_status tt_links_reserve(tt_run *run, size_t n, size_t work_bytes);
tutti_status tt_link_send(tt_run *run, tt_link *link, int rank, const void *buf, size_t bytes);
tutti_status tt_link_recv(tt_run *run, tt_link *link, int rank, void *buf, size_t bytes);
tutti_status tt_link_wait(tt_run *run, tt_link *link); /* one that is not in use is done */
tutti_status tt_links_wait_all(tt_run *run);
void tt_links_cancel(tt_run *run);
/* Waits for something that `done` sees; it may be told by messages. */
typedef tutti_status (*tt_done_fn)(void *arg, bool *done_out);
tutti_status tt_link_wait_for(tt_run *run, tt_done_fn done, tt_late_fn late, void *arg);

/* The collectives. The ranks of the node have met. */
tutti_status tt_host_sum(tt_run *run);
tutti_status tt_host_reduce(tt_run *run);
tutti_status tt_host_spread(tt_run *run);
tutti_status tt_host_pairs(tt_run *run);

/* lead.c: whether a call is one for the leaders alone (then host->offset is in bytes, and stays so
 * for it); carries it out. */
bool tt_lead_fits(tt_run *run);
tutti_status tt_host_lead(tt_run *run);

bool tt_host_quick(tt_call *call, tutti_status *status_out); /* quick.c: tt_coll_ops.quick */

/* small.c: the same for small calls, in place of them. */
void tt_small_choose(tt_run *run); /* its form */
size_t tt_small_bytes(const tt_call *call); /* of this rank's input */
size_t tt_small_most(const tt_call *call); /* of the largest input of any rank */
void tt_small_finish(const tt_run *run);

/* ahead.c: how many of a launch's calls, from the first on, are small ones that follow each other
 * on one communicator; and those carried out, if there is more than one. */
size_t tt_ahead_count(const tt_call *calls, size_t n);
tutti_status tt_ahead_run(const tt_call *calls, size_t n, const tt_patience *patience);

/* p2p.c: all sends and receives among the calls, in two steps. */
typedef struct tt_p2p tt_p2p;
tutti_status tt_p2p_post(const tt_call *calls, size_t n, const tt_patience *patience,
                         tt_p2p **p2p_out); /* NULL if there are none */
tutti_status tt_p2p_finish(tt_p2p *p2p); /* takes NULL; frees it */
void tt_p2p_cancel(tt_p2p *p2p); /* takes NULL; frees it */

/* offset_out[i] = elements before rank i, size + 1 of them; counts NULL: n each. */
static inline void tt_offsets(const size_t *counts, size_t n, int size, size_t *offset_out)
{
    offset_out[0] = 0;
    for (int i = 0; i < size; i++)
        offset_out[i + 1] = offset_out[i] + (counts != NULL ? counts[i] : n);
}

/* The range [*begin_out, + *n_out) of part `i` of `parts` equal parts of n, aligned to `align`. */
static inline void tt_part(size_t n, size_t parts, size_t i, size_t align, size_t *begin_out,
                           size_t *n_out)
{
    size_t each = tt_round_up((n + parts - 1) / parts, align);
    size_t begin = tt_min_size(each * i, n);
    *begin_out = begin;
    *n_out = tt_min_size(each, n - begin);
}

/* Rank of local index `index`, counted around, in a node. */
static inline int tt_rank_at(const tt_layout *layout, int node, int index)
{
    return layout->node_rank[layout->node_first[node] + index % layout->node_size[node]];
}

#endif

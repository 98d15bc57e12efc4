/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of calls, and the comparison of what must be equal on all ranks.
 *
 * A key is what a rank publishes or sends of its call; two equal keys are calls that may meet. The
 * counts of v-variants go in as a hash, save those of all_to_allv, which differ between ranks by
 * design and are compared pair by pair. Every rank compares in the same order, with the first one,
 * so that all of them find the same first difference and say the same about it.
 */
#include "comm/key.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "boot/circle.h"
#include "core/hash.h"
#include "core/mem.h"
#include "core/spare.h"

static const char *const kind_names[TT_KIND_COUNT] = {
    [TT_ALL_REDUCE] = "all_reduce",
    [TT_REDUCE_SCATTER] = "reduce_scatter",
    [TT_ALL_GATHER] = "all_gather",
    [TT_BROADCAST] = "broadcast",
    [TT_REDUCE] = "reduce",
    [TT_GATHER] = "gather",
    [TT_SCATTER] = "scatter",
    [TT_ALL_TO_ALL] = "all_to_all",
    [TT_SEND] = "send",
    [TT_RECV] = "recv",
};
static const char *const op_names[] = {"",
                                       [TUTTI_SUM] = "sum",
                                       [TUTTI_AVG] = "avg",
                                       [TUTTI_MAX] = "max",
                                       [TUTTI_MIN] = "min",
                                       [TUTTI_PROD] = "prod"};

const char *tt_kind_name(tt_kind kind)
{
    return (unsigned)kind < TT_KIND_COUNT ? kind_names[kind] : "the program's own call";
}

void tt_call_free(tt_call *call)
{
    tt_spare_give(call->counts);
    tt_spare_give(call->recv_counts);
    call->counts = call->recv_counts = NULL;
}

static void size_text(size_t bytes, char *buf, size_t cap)
{
    static const char *const unit[] = {"KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes / 1024;
    int u = 0;
    if (bytes < 1024) {
        snprintf(buf, cap, "%zu bytes", bytes);
        return;
    }
    for (; value >= 1024 && u < 3; u++)
        value /= 1024;
    snprintf(buf, cap, "%.1f %s", value, unit[u]);
}

void tt_call_text(const tt_call *call, char *buf, size_t cap)
{
    char size[32];
    size_text(call->n * tutti_dtype_size(call->dtype), size, sizeof size);
    int used = snprintf(buf, cap, "%s%s of %s %s", tt_kind_name(call->kind),
                        call->counts != NULL ? "v" : "", size, tutti_dtype_name(call->dtype));
    if (used < 0 || (size_t)used >= cap)
        return;
    if (tt_is_p2p(call->kind))
        snprintf(buf + used, cap - (size_t)used, " %s rank %d on comm %s",
                 call->kind == TT_SEND ? "to" : "from", call->comm->group.world[call->root],
                 call->comm->name);
    else
        snprintf(buf + used, cap - (size_t)used, " on comm %s", call->comm->name);
}

tt_key tt_key_of(const tt_call *call)
{
    bool pairwise = call->recv_counts != NULL; /* counts differ between ranks by design */
    tt_key key = {.kind = (uint64_t)call->kind,
                  .dtype = (uint64_t)call->dtype,
                  .op = tt_is_reduction(call->kind) ? (uint64_t)call->op : 0,
                  .root = (uint64_t)call->root,
                  .n = pairwise ? 0 : call->n};
    if (pairwise)
        key.counts = 1;
    else if (call->counts != NULL)
        key.counts =
            tt_hash64(call->counts, sizeof(size_t) * (size_t)call->comm->group.size, 0) | 1;
    return key;
}

bool tt_key_equal(const tt_key *a, const tt_key *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

void tt_key_text(const tt_key *key, char *buf, size_t cap)
{
    const char *dtype = tutti_dtype_name((tutti_dtype)key->dtype);
    if (key->kind == TT_ALL_TO_ALL && key->counts != 0)
        snprintf(buf, cap, "all_to_allv of %s", dtype);
    else
        snprintf(buf, cap, "%s%s of %" PRIu64 " %s", tt_kind_name((tt_kind)key->kind),
                 key->counts != 0 ? "v" : "", key->n, dtype);
}

/* The call, with op and root only where they are what differs. */
static void text_of(const tt_key *key, const tt_key *other, char *buf, size_t cap)
{
    char call[96];
    tt_key_text(key, call, sizeof call);
    if (key->kind != other->kind || key->dtype != other->dtype || key->n != other->n)
        snprintf(buf, cap, "%s", call);
    else if (key->op != other->op)
        snprintf(buf, cap, "%s with op %s", call, key->op <= TUTTI_PROD ? op_names[key->op] : "?");
    else if (key->root != other->root)
        snprintf(buf, cap, "%s with root %" PRIu64, call, key->root);
    else
        snprintf(buf, cap, "%s with other counts", call);
}

tutti_status tt_key_mismatch(const tutti_comm *comm, int rank_a, const tt_key *a, int rank_b,
                             const tt_key *b)
{
    char text_a[160], text_b[160];
    text_of(a, b, text_a, sizeof text_a);
    text_of(b, a, text_b, sizeof text_b);
    return tt_fail(TUTTI_ERR_MISMATCH, "comm %s: rank %d called %s, rank %d called %s", comm->name,
                   comm->group.world[rank_a], text_a, comm->group.world[rank_b], text_b);
}

tutti_status tt_counts_mismatch(const tutti_comm *comm, int from, uint64_t sent, int to,
                                uint64_t expected)
{
    return tt_fail(TUTTI_ERR_MISMATCH,
                   "comm %s: all_to_allv: rank %d sends %" PRIu64
                   " elements to rank %d, which expects %" PRIu64,
                   comm->name, comm->group.world[from], sent, comm->group.world[to], expected);
}

static tutti_status compare_pairs(const tutti_comm *comm, const tt_blobs *all)
{
    size_t n = (size_t)comm->group.size;
    for (size_t from = 0; from < n; from++) {
        for (size_t to = 0; to < n; to++) {
            size_t sent, expected;
            const char *a = tt_blob(all, (int)from), *b = tt_blob(all, (int)to);
            memcpy(&sent, a + sizeof(tt_key) + to * sizeof sent, sizeof sent);
            memcpy(&expected, b + sizeof(tt_key) + (n + from) * sizeof sent, sizeof sent);
            if (sent != expected)
                return tt_counts_mismatch(comm, (int)from, sent, (int)to, expected);
        }
    }
    return TUTTI_OK;
}

tutti_status tt_key_compare(const tt_call *call)
{
    tutti_comm *comm = call->comm;
    tt_key key = tt_key_of(call), first, other;
    char text[160];
    tt_buf mine = {0};
    tt_blobs all = {0};
    tutti_status status;

    tt_call_text(call, text, sizeof text);
    const char *name_before = tt_stay_name(text);
    tt_buf_put(&mine, &key, sizeof key);
    if (call->recv_counts != NULL) {
        tt_buf_put(&mine, call->counts, sizeof(size_t) * (size_t)comm->group.size);
        tt_buf_put(&mine, call->recv_counts, sizeof(size_t) * (size_t)comm->group.size);
    }
    status = mine.failed ? tt_fail(TUTTI_ERR_NO_MEMORY, "%s: out of memory comparing the call",
                                   tt_kind_name(call->kind))
                         : tt_all_gather_blobs(&comm->group, "comparing calls (TUTTI_CHECK)",
                                               mine.data, mine.size, &all);
    (void)tt_stay_name(name_before);
    if (status != TUTTI_OK)
        goto free_mine;
    memcpy(&first, tt_blob(&all, 0), sizeof first);
    for (int rank = 1; rank < all.n && status == TUTTI_OK; rank++) {
        memcpy(&other, tt_blob(&all, rank), sizeof other);
        if (!tt_key_equal(&first, &other))
            status = tt_key_mismatch(comm, rank, &other, 0, &first);
    }
    if (status == TUTTI_OK && call->recv_counts != NULL)
        status = compare_pairs(comm, &all);
    tt_blobs_free(&all);

free_mine:
    tt_buf_free(&mine);
    return status;
}

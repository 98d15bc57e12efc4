/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collective exchanges of small values over a group of ranks: a binomial tree up to the group's
 * rank 0 and down again. A rank that failed still takes part, with its status; a rank that does not
 * come before the deadline is named, on every rank that did come. After a time-out the group is
 * unusable (its context is failed).
 */
#ifndef TT_BOOT_EXCHANGE_H
#define TT_BOOT_EXCHANGE_H

#include "boot/boot.h"
#include "core/mem.h"

struct tutti_ctx;

/* An ordered set of world ranks; the tag space of its exchanges is its id, unique among groups that
 * share a rank. */
typedef struct tt_group {
    struct tutti_ctx *ctx;
    uint32_t id;
    int rank, size;
    int *world; /* world rank of each member, owned by the group */
    uint32_t round[TT_CH_COUNT]; /* exchanges begun so far; starts at 0 */
} tt_group;

/* One blob of each member. */
typedef struct tt_blobs {
    int n;
    size_t *offset; /* n + 1 entries into data */
    unsigned char *data;
} tt_blobs;
void tt_blobs_free(tt_blobs *blobs);
static inline const void *tt_blob(const tt_blobs *blobs, int i)
{
    return blobs->data + blobs->offset[i];
}
static inline size_t tt_blob_bytes(const tt_blobs *blobs, int i)
{
    return blobs->offset[i + 1] - blobs->offset[i];
}

/*
 * The non-blocking form: start, then test until done. `what` (static text) names the exchange in
 * messages. `mine` is copied. One exchange per group and channel at a time. timeout_s <= 0: no
 * limit.
 */
typedef struct tt_xchg tt_xchg;
tutti_status tt_xchg_start(tt_group *group, tt_channel ch, const char *what, const void *mine,
                           size_t bytes, double timeout_s, tt_xchg **x_out);
tutti_status tt_xchg_test(tt_xchg *x, bool *done_out); /* a failure is final */
tutti_status tt_xchg_finish(tt_xchg *x, tt_blobs *out); /* after done; frees x; out may be NULL */
void tt_xchg_cancel(tt_xchg *x); /* takes NULL */

/* The blocking forms, over TT_CH_CONTROL with the context's time limit (TUTTI_TIMEOUT, or
 * TUTTI_INIT_TIMEOUT while it is made). */
tutti_status tt_all_gather_blobs(tt_group *group, const char *what, const void *mine, size_t bytes,
                                 tt_blobs *out);
tutti_status tt_all_gather_fixed(tt_group *group, const char *what, const void *mine, size_t bytes,
                                 void *all_out); /* bytes equal on all, else MISMATCH */
tutti_status tt_bcast_blob(tt_group *group, const char *what, int root, const void *mine,
                           size_t bytes, tt_buf *out); /* any size; out is owned by the caller */
tutti_status tt_barrier(tt_group *group, const char *what);

/* The group's tags on a channel are id * TT_TAGS_PER_GROUP + 0 ... TT_TAGS_PER_GROUP - 1; exchanges
 * use the first two. */
enum { TT_TAGS_PER_GROUP = 4 };

/*
 * The distributed rule: local step, tt_agree, collective step. Returns OK when every rank came with
 * OK; else the worst status (the lowest number) on every rank, with the text of the rank that had
 * it: "rank 3 (node-b): text". `mine` != OK takes this thread's last error as its text.
 */
tutti_status tt_agree(tt_group *group, const char *what, tutti_status mine);
#ifdef __clang_analyzer__
/* What the analyzer cannot see: an agreement is never better than what this rank came with. */
#define tt_agree(group, what, mine)                                                                \
    ((mine) != TUTTI_OK ? ((void)tt_agree(group, what, mine), (mine)) : tt_agree(group, what, mine))
#endif

/* An id for a new group whose members are among `group`'s; collective over it. `n` ids in a row. */
tutti_status tt_group_new_ids(tt_group *group, uint32_t n, uint32_t *first_out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Splitting a communicator. Every rank learns every colour and key, so each works out the same
 * parts and their order by itself; ids of the new groups are taken over the parent, one per part,
 * so that parts made at the same time never share one. A backend that can split what it has (NCCL)
 * is asked first, on all ranks of the parent, also on those that join no part. What fails on one
 * rank or in one part is agreed on over the parent at the end.
 */
#include <stdlib.h>

#include "comm/issue.h"
#include "core/mem.h"

/* What every rank says. */
typedef struct bid {
    int32_t color, key;
    uint32_t flags;
} bid;

/* One rank that joins, for sorting. */
typedef struct member {
    int color, key, rank;
} member;

static int by_color_key_rank(const void *a, const void *b)
{
    const member *x = a, *y = b;
    if (x->color != y->color)
        return x->color < y->color ? -1 : 1;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->rank - y->rank;
}

static tutti_status check_opts(int color, const tutti_comm_opts *opts)
{
    TT_TRY(tt_group_forbid("comm_split"));
    if (color < 0 && color != TUTTI_COLOR_NONE)
        return tt_fail(TUTTI_ERR_ARG, "comm_split: colour %d; it is 0 or more or TUTTI_COLOR_NONE",
                       color);
    if (opts != NULL && opts->size != sizeof *opts)
        return tt_fail(TUTTI_ERR_ARG,
                       "comm_split: opts->size is %zu, not %zu; begin with TUTTI_COMM_OPTS_INIT",
                       opts->size, sizeof *opts);
    if (opts != NULL && (opts->flags & ~(uint32_t)TUTTI_COMM_REPRODUCIBLE) != 0)
        return tt_fail(TUTTI_ERR_ARG, "comm_split: unknown flags 0x%x", (unsigned)opts->flags);
    return TUTTI_OK;
}

/* Every rank finds the same first difference. */
static tutti_status same_flags(const tutti_comm *comm, const bid *bids, const member *members,
                               int n)
{
    for (int i = 1; i < n; i++)
        if (members[i].color == members[i - 1].color &&
            bids[members[i].rank].flags != bids[members[i - 1].rank].flags)
            return tt_fail(TUTTI_ERR_MISMATCH,
                           "comm_split of comm %s: rank %d gave flags 0x%x, rank %d 0x%x, for "
                           "colour %d",
                           comm->name, comm->group.world[members[i - 1].rank],
                           (unsigned)bids[members[i - 1].rank].flags,
                           comm->group.world[members[i].rank],
                           (unsigned)bids[members[i].rank].flags, members[i].color);
    return TUTTI_OK;
}

/* The part of sorted `members` that this rank's colour has; *index_out is the colour's number. */
static int own_part(const member *members, int n, int color, int *first_out, int *index_out,
                    int *colors_out)
{
    int size = 0, colors = 0;
    for (int i = 0; i < n; i++) {
        if (i == 0 || members[i].color != members[i - 1].color)
            colors++;
        if (members[i].color != color)
            continue;
        if (size++ == 0) {
            *first_out = i;
            *index_out = colors - 1;
        }
    }
    *colors_out = colors;
    return size;
}

/* Who joins this rank's new communicator; nobody where it joins none. */
static tutti_status list_part(const tutti_comm *comm, const member *members, int first,
                              tt_group *group)
{
    if (group->size == 0)
        return TUTTI_OK;
    TT_TRY(tt_calloc((size_t)group->size, sizeof(int), &group->world));
    for (int i = 0; i < group->size; i++) {
        group->world[i] = comm->group.world[members[first + i].rank];
        if (members[first + i].rank == comm->group.rank)
            group->rank = i;
    }
    return TUTTI_OK;
}

/* Makes this rank's new communicator, if it joins one. */
static tutti_status make_part(tutti_comm *comm, const member *members, int n, int color,
                              const tutti_comm_opts *opts, tutti_comm **comm_out)
{
    int first = 0, index = 0, colors;
    uint32_t first_id = 0;
    tt_group group = {.ctx = comm->ctx};
    group.size = own_part(members, n, color, &first, &index, &colors);
    if (colors == 0)
        return TUTTI_OK;
    TT_TRY(tt_group_new_ids(&comm->group, (uint32_t)colors, &first_id));
    group.id = first_id + (uint32_t)index;
    tutti_status status = list_part(comm, members, first, &group);
    if (status != TUTTI_OK)
        return tt_ctx_fail(comm->ctx, status); /* the others go on to make theirs */
    if (comm->ops->split != NULL)
        status = comm->ops->split(comm, &group, index);
    if (status == TUTTI_OK && group.size > 0)
        status = tt_comm_create(comm->ctx, &group, opts, comm_out);
    free(group.world);
    return status;
}

static tutti_status split(tutti_comm *comm, const bid *mine, const tutti_comm_opts *opts, bid *bids,
                          member *members, tutti_comm **comm_out)
{
    int n = 0;
    TT_TRY(tt_all_gather_fixed(&comm->group, "comm_split", mine, sizeof *mine, bids));
    for (int rank = 0; rank < comm->group.size; rank++)
        if (bids[rank].color != TUTTI_COLOR_NONE)
            members[n++] = (member){bids[rank].color, bids[rank].key, rank};
    qsort(members, (size_t)n, sizeof *members, by_color_key_rank);
    TT_TRY(same_flags(comm, bids, members, n));
    return make_part(comm, members, n, mine->color, opts, comm_out);
}

tutti_status tutti_comm_split(tutti_comm *comm, int color, int key, const tutti_comm_opts *opts,
                              tutti_comm **comm_out)
{
    bid mine = {color, key, opts != NULL ? opts->flags : 0};
    bid *bids = NULL;
    member *members = NULL;
    tutti_comm *made = NULL;
    if (comm == NULL || comm_out == NULL)
        return tt_fail(TUTTI_ERR_ARG, "comm_split: %s is NULL", comm == NULL ? "comm" : "comm_out");
    TT_TRY(tt_ctx_check(comm->ctx));
    size_t size = (size_t)comm->group.size;
    tutti_status status = check_opts(color, opts);
    if (status == TUTTI_OK)
        status = tt_calloc(size, sizeof *bids, &bids);
    if (status == TUTTI_OK)
        status = tt_calloc(size, sizeof *members, &members);
    status = tt_agree(&comm->group, "comm_split", status);
    if (status == TUTTI_OK) {
        status = split(comm, &mine, opts, bids, members, &made);
        status =
            tt_agree(&comm->group, "comm_split", status); /* parts may have fared differently */
    }
    free(members);
    free(bids);
    if (status != TUTTI_OK) {
        tutti_comm_destroy(made);
        return status;
    }
    *comm_out = made;
    return TUTTI_OK;
}

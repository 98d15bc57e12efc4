/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host scalars and the barrier: over the bootstrap, beside all streams.
 *
 * Every rank gets the values of all and sums them itself, in the communicator's order: n is small,
 * and results are the same everywhere without another message. A rank that is refused takes part
 * with its error instead of its values, so that all return it and nobody waits; the communicator
 * stays usable.
 */
#include <stdlib.h>
#include <string.h>

#include "comm/issue.h"
#include "core/mem.h"
#include "host/kernels.h"

enum { MAX_VALUES = 4096 };

typedef struct head {
    int64_t status, n, op;
} head;

/* The communicator's order of summation over operands that are sorted by node (normal) or by rank
 * (reproducible). */
static tutti_status tree_of(const tutti_comm *comm, tt_tree *tree_out)
{
    const tt_layout *at = &comm->layout;
    tt_tree *part;
    tutti_status status;
    int made = 0;
    if ((comm->flags & TUTTI_COMM_REPRODUCIBLE) != 0)
        return tt_tree_balanced(0, at->size, tree_out);
    TT_TRY(tt_calloc((size_t)at->nodes, sizeof *part, &part));
    do {
        status = tt_tree_balanced(at->node_first[made], at->node_size[made], &part[made]);
    } while (status == TUTTI_OK && ++made < at->nodes);
    if (status == TUTTI_OK)
        status = tt_tree_over(part, at->nodes, tree_out);
    for (int i = 0; i < made; i++)
        tt_tree_free(&part[i]);
    free(part);
    return status;
}

static tutti_status fold(const tutti_comm *comm, const tt_blobs *all, const head *call,
                         double *values)
{
    const int size = comm->group.size;
    const bool by_rank = (comm->flags & TUTTI_COMM_REPRODUCIBLE) != 0;
    const size_t n = (size_t)call->n;
    tt_tree tree = {0};
    tt_operand *in;
    double *copy;
    TT_TRY(tt_calloc((size_t)size, sizeof *in, &in));
    tutti_status status = tt_calloc((size_t)size * n, sizeof *copy, &copy);
    if (status != TUTTI_OK)
        goto free_in;
    status = tree_of(comm, &tree);
    if (status != TUTTI_OK)
        goto free_copy;
    for (int i = 0; i < size; i++) {
        const char *blob = tt_blob(all, by_rank ? i : comm->layout.node_rank[i]);
        memcpy(copy + (size_t)i * n, blob + sizeof(head), n * sizeof *copy);
        in[i].data = copy + (size_t)i * n;
    }
    tt_fold_host_doubles(&tree, in, n, (tutti_op)call->op, call->op == TUTTI_AVG ? size : 1,
                         values);
    tt_tree_free(&tree);

free_copy:
    free(copy);
free_in:
    free(in);
    return status;
}

static tutti_status check_heads(const tutti_comm *comm, const tt_blobs *all)
{
    head first, other;
    memcpy(&first, tt_blob(all, 0), sizeof first);
    for (int rank = 1; rank < all->n; rank++) {
        memcpy(&other, tt_blob(all, rank), sizeof other);
        if (other.n != first.n || other.op != first.op)
            return tt_fail(TUTTI_ERR_MISMATCH,
                           "comm %s: rank %d called all_reduce_host of %lld values with op %lld, "
                           "rank %d of %lld with op %lld",
                           comm->name, comm->group.world[rank], (long long)other.n,
                           (long long)other.op, comm->group.world[0], (long long)first.n,
                           (long long)first.op);
    }
    return TUTTI_OK;
}

static tutti_status check_args(const double *values, size_t n, tutti_op op)
{
    TT_TRY(tt_group_forbid("all_reduce_host"));
    if (n > MAX_VALUES)
        return tt_fail(TUTTI_ERR_ARG, "all_reduce_host: %zu values; at most %d", n, MAX_VALUES);
    if (values == NULL && n > 0)
        return tt_fail(TUTTI_ERR_ARG, "all_reduce_host: values is NULL");
    if (op < TUTTI_SUM || op > TUTTI_PROD)
        return tt_fail(TUTTI_ERR_ARG, "all_reduce_host: %d is no reduction operator", (int)op);
    return TUTTI_OK;
}

/* The first rank that was refused, as every rank's error: own text on that rank. */
static tutti_status check_refusals(const tutti_comm *comm, const tt_blobs *all)
{
    char name[TT_HOST_MAX + 64];
    head h;
    for (int rank = 0; rank < all->n; rank++) {
        memcpy(&h, tt_blob(all, rank), sizeof h);
        if (h.status == TUTTI_OK)
            continue;
        return tt_fail((tutti_status)h.status, "%s: %.*s",
                       tt_ctx_rank_name(comm->ctx, comm->group.world[rank], name, sizeof name),
                       (int)(tt_blob_bytes(all, rank) - sizeof h),
                       (const char *)tt_blob(all, rank) + sizeof h);
    }
    return check_heads(comm, all);
}

tutti_status tutti_all_reduce_host(tutti_comm *comm, double *values, size_t n, tutti_op op)
{
    tt_buf mine = {0};
    tt_blobs all = {0};
    if (comm == NULL)
        return tt_fail(TUTTI_ERR_ARG, "all_reduce_host: the communicator is NULL");
    TT_TRY(tt_ctx_check(comm->ctx));
    head h = {check_args(values, n, op), (int64_t)n, (int64_t)op};
    tt_buf_put(&mine, &h, sizeof h);
    if (h.status != TUTTI_OK)
        tt_buf_put(&mine, tutti_last_error(), strlen(tutti_last_error()));
    else if (n > 0)
        tt_buf_put(&mine, values, n * sizeof *values);
    tutti_status status = TUTTI_OK;
    if (mine.failed)
        status = tt_ctx_fail(comm->ctx, tt_fail(TUTTI_ERR_NO_MEMORY, "all_reduce_host: no memory"));
    if (status == TUTTI_OK)
        status = tt_all_gather_blobs(&comm->group, "all_reduce_host", mine.data, mine.size, &all);
    if (status != TUTTI_OK)
        goto free_mine;
    status = check_refusals(comm, &all);
    if (status == TUTTI_ERR_MISMATCH)
        status = tt_ctx_fail(comm->ctx, status);
    if (status == TUTTI_OK && n > 0)
        status = tt_ctx_fail(comm->ctx, fold(comm, &all, &h, values)); /* the others have theirs */
    tt_blobs_free(&all);

free_mine:
    tt_buf_free(&mine);
    return status;
}

tutti_status tutti_barrier(tutti_comm *comm)
{
    if (comm == NULL)
        return tt_fail(TUTTI_ERR_ARG, "barrier: the communicator is NULL");
    TT_TRY(tt_ctx_check(comm->ctx));
    tutti_status status = tt_group_forbid("barrier");
    if (status != TUTTI_OK)
        return tt_agree(&comm->group, "barrier", status);
    return tt_barrier(&comm->group, "barrier");
}

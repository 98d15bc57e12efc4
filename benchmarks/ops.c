/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The collectives as they are benched: how many elements a row's bytes are, how much of them
 * travels, and the call. The bus bandwidth factors are those of nccl-tests (doc/PERFORMANCE.md
 * there): the bytes that cross a rank's link, per byte of the row, in the best algorithm.
 *
 * reads and writes are the bytes of memory a rank must touch per byte of the row when the ranks
 * of one node share their memory and split the work evenly: an all-reduce reads its slice of all
 * p buffers and writes it to all p. They give the bound of a row.
 */
#include <string.h>

#include "bench.h"

static double one(int p)
{
    (void)p;
    return 1.0;
}

static double others(int p)
{
    return (p - 1) / (double)p;
}

static double twice_others(int p)
{
    return 2.0 * (p - 1) / p;
}

static double share(int p)
{
    return 1.0 / p;
}

static size_t n_each(const bench_case *c)
{
    return c->n;
}

static size_t n_all(const bench_case *c)
{
    return c->n * (size_t)c->size;
}

static size_t n_at_root(const bench_case *c)
{
    return c->rank == c->root ? c->n : 0;
}

static size_t all_at_root(const bench_case *c)
{
    return c->rank == c->root ? c->n * (size_t)c->size : 0;
}

static ptrdiff_t no_shift(const bench_case *c)
{
    (void)c;
    return 0;
}

static ptrdiff_t out_at_rank(const bench_case *c)
{
    return (ptrdiff_t)c->n * c->rank;
}

static ptrdiff_t in_at_rank(const bench_case *c)
{
    return -(ptrdiff_t)c->n * c->rank;
}

static ptrdiff_t in_at_root(const bench_case *c)
{
    return c->rank == c->root ? -(ptrdiff_t)c->n * c->root : 0;
}

static ptrdiff_t out_at_root(const bench_case *c)
{
    return c->rank == c->root ? (ptrdiff_t)c->n * c->root : 0;
}

static tutti_status all_reduce(tutti_comm *comm, const bench_case *c, const void *in, void *out,
                               tutti_stream stream)
{
    return tutti_all_reduce(comm, in, out, c->n, c->dtype, c->redop, stream);
}

static tutti_status reduce_scatter(tutti_comm *comm, const bench_case *c, const void *in, void *out,
                                   tutti_stream stream)
{
    return tutti_reduce_scatter(comm, in, out, c->n, c->dtype, c->redop, stream);
}

static tutti_status all_gather(tutti_comm *comm, const bench_case *c, const void *in, void *out,
                               tutti_stream stream)
{
    return tutti_all_gather(comm, in, out, c->n, c->dtype, stream);
}

static tutti_status broadcast(tutti_comm *comm, const bench_case *c, const void *in, void *out,
                              tutti_stream stream)
{
    return tutti_broadcast(comm, in, out, c->n, c->dtype, c->root, stream);
}

static tutti_status reduce(tutti_comm *comm, const bench_case *c, const void *in, void *out,
                           tutti_stream stream)
{
    tutti_reduction reduction = {c->dtype, c->redop};

    return tutti_reduce(comm, in, out, c->n, reduction, c->root, stream);
}

static tutti_status gather(tutti_comm *comm, const bench_case *c, const void *in, void *out,
                           tutti_stream stream)
{
    return tutti_gather(comm, in, out, c->n, c->dtype, c->root, stream);
}

static tutti_status scatter(tutti_comm *comm, const bench_case *c, const void *in, void *out,
                            tutti_stream stream)
{
    return tutti_scatter(comm, in, out, c->n, c->dtype, c->root, stream);
}

static tutti_status all_to_all(tutti_comm *comm, const bench_case *c, const void *in, void *out,
                               tutti_stream stream)
{
    return tutti_all_to_all(comm, in, out, c->n, c->dtype, stream);
}

/* To the next rank, from the one before. */
static tutti_status send_recv(tutti_comm *comm, const bench_case *c, const void *in, void *out,
                              tutti_stream stream)
{
    int next = (c->rank + 1) % c->size, before = (c->rank + c->size - 1) % c->size;
    tutti_status status, ended;

    TT_TRY(tutti_group_begin());
    status = tutti_send(comm, in, c->n, c->dtype, next, stream);
    if (status == TUTTI_OK)
        status = tutti_recv(comm, out, c->n, c->dtype, before, stream);
    ended = tutti_group_end();
    return status != TUTTI_OK ? status : ended;
}

#define ALWAYS true
#define NEVER false

static const bench_op ops[] = {
    {"all_gather", NEVER, NEVER, ALWAYS, ALWAYS, others, one, one, n_each, n_all, in_at_rank,
     all_gather},
    {"all_reduce", ALWAYS, NEVER, ALWAYS, NEVER, twice_others, one, one, n_each, n_each, no_shift,
     all_reduce},
    {"all_to_all", NEVER, NEVER, NEVER, ALWAYS, others, one, one, n_all, n_all, no_shift,
     all_to_all},
    {"broadcast", NEVER, ALWAYS, ALWAYS, NEVER, one, one, one, n_at_root, n_each, no_shift,
     broadcast},
    {"gather", NEVER, ALWAYS, ALWAYS, ALWAYS, others, share, share, n_each, all_at_root, in_at_root,
     gather},
    {"reduce", ALWAYS, ALWAYS, ALWAYS, NEVER, one, one, share, n_each, n_at_root, no_shift, reduce},
    {"reduce_scatter", ALWAYS, NEVER, ALWAYS, ALWAYS, others, one, share, n_all, n_each,
     out_at_rank, reduce_scatter},
    {"scatter", NEVER, ALWAYS, ALWAYS, ALWAYS, others, share, share, all_at_root, n_each,
     out_at_root, scatter},
    {"send_recv", NEVER, NEVER, NEVER, NEVER, one, one, one, n_each, n_each, no_shift, send_recv},
};

const bench_op *bench_op_at(size_t index)
{
    return index < sizeof ops / sizeof ops[0] ? &ops[index] : NULL;
}

const bench_op *bench_op_find(const char *name)
{
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        if (strcmp(ops[i].name, name) == 0)
            return &ops[i];
    return NULL;
}

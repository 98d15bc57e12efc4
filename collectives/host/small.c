/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small calls on one node: the input travels with the call. When the ranks have met, everybody
 * has everything and makes its own output from it, without another barrier: a sum of a few
 * kilobytes costs less than waiting for somebody else to have made it. Payloads take turns as the
 * lines do (meet.c). The tree is the same as ever, so are the bits.
 */
#include "host/host.h"

#include <string.h>

size_t tt_small_most(const tt_call *call)
{
    const size_t element = tutti_dtype_size(call->dtype), size = (size_t)call->comm->group.size;
    size_t most = 0;
    switch (call->kind) {
    case TT_REDUCE_SCATTER:
        return (call->counts != NULL ? call->n : call->n * size) * element;
    case TT_ALL_GATHER:
        for (size_t i = 0; i < size && call->counts != NULL; i++)
            most = call->counts[i] > most ? call->counts[i] : most;
        return (call->counts != NULL ? most : call->n) * element;
    case TT_SCATTER:
    case TT_ALL_TO_ALL:
        return call->n * size * element;
    default:
        return call->n * element;
    }
}

size_t tt_small_bytes(const tt_call *call)
{
    const int rank = call->comm->group.rank;
    if ((call->kind == TT_BROADCAST || call->kind == TT_SCATTER) && call->root != rank)
        return 0;
    if (call->kind == TT_ALL_GATHER && call->counts != NULL)
        return call->counts[rank] * tutti_dtype_size(call->dtype);
    return tt_small_most(call);
}

void tt_small_choose(tt_run *run)
{
    const tt_host *host = run->host;
    const tt_call *call = run->call;
    run->form = TT_LARGE;
    run->may_carry = false;
    if (host->nodes > 1 || host->locals == 1 || call->recv_counts != NULL)
        return;
    size_t most = tt_small_most(call);
    if (tt_meet_is_tiny(call, most))
        run->form = TT_TINY;
    else if (most <= host->tune.small_bytes)
        run->form = TT_SMALL;
    else
        run->may_carry =
            most <= (host->reaches ? host->tune.reached_bytes : host->tune.carry_bytes);
}

/* n elements of the result, from element `begin`. */
static void reduce(const tt_run *run, size_t begin, size_t n)
{
    tt_host *host = run->host;
    const tt_call *call = run->call;
    if (n == 0)
        return;
    for (int i = 0; i < host->locals; i++)
        host->operand[i] =
            (tt_operand){host->payload[i] + begin * tutti_dtype_size(call->dtype), false};
    tt_reduce(&(tt_reduce_job){.tree = &host->order.fragment[0],
                               .in = host->operand,
                               .n = n,
                               .dtype = call->dtype,
                               .op = call->op,
                               .out = call->out,
                               .divisor = call->op == TUTTI_AVG ? host->locals : 1});
}

/* Copies the elements [begin, begin + n) of a rank's input to element `at` of the output. */
static void take(const tt_run *run, int rank, size_t begin, size_t n, size_t at)
{
    const size_t element = tutti_dtype_size(run->call->dtype);
    if (n == 0)
        return;
    const char *from = run->host->payload[rank] + begin * element;
    char *to = (char *)run->call->out + at * element;
    if (from != to)
        memcpy(to, from, n * element);
}

/* The one node has all ranks: a local index is the rank. */
void tt_small_finish(const tt_run *run)
{
    const tt_call *call = run->call;
    const int rank = run->host->local, size = run->host->locals;
    const size_t n = call->n, *before = run->host->offset;
    if (call->kind == TT_ALL_REDUCE || (call->kind == TT_REDUCE && rank == call->root))
        reduce(run, 0, n);
    if (call->kind == TT_ALL_REDUCE || call->kind == TT_REDUCE)
        return;
    tt_offsets(call->counts, n, size, run->host->offset);
    switch (call->kind) {
    case TT_REDUCE_SCATTER:
        reduce(run, before[rank], before[rank + 1] - before[rank]);
        return;
    case TT_BROADCAST:
        take(run, call->root, 0, call->out != NULL && call->out != call->in ? n : 0, 0);
        return;
    case TT_SCATTER:
        take(run, call->root, before[rank], n, 0);
        return;
    default:
        break;
    }
    for (int i = 0; i < size; i++) {
        if (call->kind == TT_ALL_TO_ALL)
            take(run, i, before[rank], n, before[i]);
        else if (call->kind == TT_ALL_GATHER || rank == call->root)
            take(run, i, 0, before[i + 1] - before[i], before[i]);
    }
}

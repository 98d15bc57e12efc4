/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The short way of a tiny all_reduce on the inline stream: its arguments are looked at, its line is
 * published, the others' are awaited and read, and the sum is made, in one function and without
 * building what a queued or a long call needs. What is not as usual takes the ordinary way: before
 * anything was done if the arguments or the communicator are in an unusual state, after publishing
 * if a peer is late or called something else.
 *
 * A communicator that this may be used on says so (quick_n): one node, a core for each rank, no
 * checked mode.
 */
#include <string.h>

#include "host/control.h"
#include "trace/recorder.h"

/* The key's word if the arguments are sound and everything is as usual, else 0. */
static uint32_t quick_key(const tutti_comm *comm, const void *in, const void *out, size_t n,
                          tutti_dtype dtype, tutti_op op)
{
    const size_t bytes = n * tutti_dtype_size(dtype);
    const uintptr_t a = (uintptr_t)in, b = (uintptr_t)out;
    if (bytes - 1 >= TT_TINY_BYTES || op < TUTTI_SUM || op > TUTTI_PROD || a == 0 || b == 0 ||
        (a != b && a < b + bytes && b < a + bytes))
        return 0;
    if (atomic_load_explicit(&comm->ctx->failed, memory_order_acquire) != TUTTI_OK ||
        atomic_load_explicit(&comm->done_seq, memory_order_acquire) != (uint32_t)comm->next_seq)
        return 0;
    return (uint32_t)TT_ALL_REDUCE | (uint32_t)dtype << TT_KEY_DTYPE_AT |
           (uint32_t)op << TT_KEY_OP_AT | (uint32_t)TT_TINY << TT_KEY_FORM_AT |
           (uint32_t)n << TT_KEY_N_AT;
}

static void quick_publish(tt_host *host, const void *in, size_t bytes, uint32_t key)
{
    tt_block *block = &host->control->block[host->local];
    uint32_t number = ++host->calls;
    tt_line *line = &block->line[number % 2];
    uint64_t word = 0;
    size_t at = 0;
    for (int i = 0; at < bytes; i++, at += sizeof word) {
        memcpy(&word, (const char *)in + at, tt_min_size(bytes - at, sizeof word));
        tt_line_put(line, i, word);
    }
    atomic_store_explicit(&line->key, key, memory_order_relaxed);
    atomic_store_explicit(&line->number, number, memory_order_release);
    tt_wake(&line->number, &block->sleepers);
}

/*
 * Reads a peer's line into `word`, when it has come with the same call. All of the line is asked
 * for at once, whether it has come or not: a load that is made after the number was seen costs a
 * second transfer of the line on some machines.
 */
static bool quick_take(const tt_line *line, uint32_t number, uint32_t key, size_t words,
                       uint64_t *word)
{
    for (int spins = 0; spins < TT_SPINS; spins++) {
        uint32_t seen = atomic_load_explicit(&line->number, memory_order_acquire);
        uint32_t other = atomic_load_explicit(&line->key, memory_order_relaxed);
        for (size_t i = 0; i < words; i++)
            word[i] = tt_line_word(line, (int)i);
        if (seen == number)
            return other == key;
        tt_cpu_relax();
    }
    return false;
}

/* Whether all are there, with the same call; without patience. */
static bool quick_meet(const tt_host *host, const void *in, size_t bytes, uint32_t key,
                       uint64_t (*word)[TT_TINY_WORDS])
{
    const tt_block *block = host->control->block;
    const size_t words = (bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t);
    for (int i = 0; i < host->locals; i++) {
        host->operand[i] = (tt_operand){word[i], false};
        if (i == host->local)
            host->operand[i].data = in;
        else if (!quick_take(&block[i].line[host->calls % 2], host->calls, key, words, word[i]))
            return false;
    }
    return true;
}

static void quick_reduce(tt_host *host, const tt_call *call)
{
    tt_reduce(&(tt_reduce_job){.tree = &host->order.fragment[0],
                               .in = host->operand,
                               .n = call->n,
                               .dtype = call->dtype,
                               .op = call->op,
                               .out = call->out,
                               .divisor = call->op == TUTTI_AVG ? host->locals : 1});
}

/* The long way for the rest of the call. */
static tutti_status quick_failed(const tt_call *call, uint32_t key)
{
    tt_run run = {.host = call->comm->backend,
                  .call = call,
                  .patience = &call->comm->ctx->caller_patience,
                  .form = TT_TINY};
    tutti_status status = tt_meet_published(&run, key);
    if (status != TUTTI_OK)
        return tt_ctx_fail(call->comm->ctx, status);
    tt_small_finish(&run);
    return TUTTI_OK;
}

bool tt_host_quick(tutti_comm *comm, const void *in, void *out, size_t n, tutti_reduction reduction,
                   tutti_status *status_out)
{
    uint64_t word[TT_FLAGS_MOST][TT_TINY_WORDS];
    tt_host *host = comm->backend;
    const size_t bytes = n * tutti_dtype_size(reduction.dtype);
    const uint32_t key = quick_key(comm, in, out, n, reduction.dtype, reduction.op);
    if (key == 0)
        return false;
    quick_publish(host, in, bytes, key);
    tt_call call = {.kind = TT_ALL_REDUCE,
                    .comm = comm,
                    .in = in,
                    .out = out,
                    .n = n,
                    .dtype = reduction.dtype,
                    .op = reduction.op,
                    .seq = comm->next_seq++};
    tt_lane_begin(comm->lane, "all_reduce", call.seq, n);
    *status_out = TUTTI_OK;
    if (quick_meet(host, in, bytes, key, word))
        quick_reduce(host, &call);
    else
        *status_out = quick_failed(&call, key);
    if (*status_out == TUTTI_OK) {
        tt_lane_end(comm->lane);
        atomic_store_explicit(&comm->done_seq, (uint32_t)call.seq + 1, memory_order_release);
    }
    return true;
}

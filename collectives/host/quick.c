/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The short way of a small call on the inline stream: its line is published, the others' are
 * awaited and read, and the output is made, in one function and without what a queued or a long
 * call needs. What is not as usual takes the ordinary way: before anything was done if earlier
 * calls are still on streams, after publishing if a peer is late or called something else.
 *
 * A communicator that this may be used on says so (quick_n): one node, a core for each rank, no
 * checked mode.
 */
#include "host/control.h"
#include "trace/recorder.h"

/* What a peer's line must say, and how much of it is read. */
typedef struct expected {
    uint32_t number, key;
    size_t words;
    const uint64_t *words_equal; /* of the first three; NULL: the key says it all */
} expected;

/*
 * Reads a peer's line into `word`, when it has come with the same call. All of the line is asked
 * for at once, whether it has come or not: a load that is made after the number was seen costs a
 * second transfer of the line on some machines.
 */
static bool take(const tt_line *line, const expected *e, uint64_t *word)
{
    for (int spins = 0; spins < TT_SPINS; spins++) {
        uint32_t seen = atomic_load_explicit(&line->number, memory_order_acquire);
        uint32_t key = atomic_load_explicit(&line->key, memory_order_relaxed);
        for (size_t i = 0; i < e->words; i++)
            word[i] = tt_line_word(line, (int)i);
        if (seen == e->number)
            return key == e->key &&
                   (e->words_equal == NULL || (word[TT_W_N] == e->words_equal[TT_W_N] &&
                                               word[TT_W_ROOT] == e->words_equal[TT_W_ROOT] &&
                                               word[TT_W_COUNTS] == e->words_equal[TT_W_COUNTS]));
        tt_cpu_relax();
    }
    return false;
}

/* Whether all are there, with the same call; without patience. */
static bool meet(const tt_run *run, uint32_t key, uint64_t (*word)[TT_TINY_WORDS])
{
    tt_host *host = run->host;
    const tt_block *block = host->control->block;
    const bool tiny = run->form == TT_TINY;
    const size_t most = tt_small_most(run->call);
    uint64_t words[3];
    expected e = {.number = run->number, .key = key, .words = 3, .words_equal = words};
    if (tiny) {
        e.words = (most + sizeof(uint64_t) - 1) / sizeof(uint64_t);
        e.words_equal = NULL;
    } else {
        const tt_key mine = tt_key_of(run->call);
        words[TT_W_N] = mine.n;
        words[TT_W_ROOT] = mine.root;
        words[TT_W_COUNTS] = mine.counts;
    }
    for (int i = 0; i < host->locals; i++) {
        host->payload[i] =
            tiny ? (const char *)word[i] : tt_control_payload_of(host, i, run->number, most);
        if (i == host->local)
            host->payload[i] = run->call->in;
        else if (!take(&block[i].line[run->number % TT_LINES], &e, word[i]))
            return false;
    }
    return true;
}

bool tt_host_quick(tt_call *call, tutti_status *status_out)
{
    uint64_t word[TT_FLAGS_MOST][TT_TINY_WORDS];
    tutti_comm *comm = call->comm;
    tt_run run;
    uint32_t key;
    if (atomic_load_explicit(&comm->done_seq, memory_order_acquire) != (uint32_t)comm->next_seq)
        return false;
    run.host = comm->backend;
    run.call = call;
    run.patience = &comm->ctx->caller_patience;
    run.links = 0;
    run.what[0] = '\0';
    tt_small_choose(&run);
    if (run.form != TT_TINY && run.form != TT_SMALL)
        return false;
    call->seq = comm->next_seq++;
    key = tt_meet_publish(&run);
    tt_lane_begin(comm->lane, tt_kind_name(call->kind), call->seq, call->n);
    *status_out = TUTTI_OK;
    if (!meet(&run, key, word))
        *status_out = tt_meet_published(&run, key);
    if (*status_out == TUTTI_OK) {
        tt_small_finish(&run);
        tt_lane_end(comm->lane);
        atomic_store_explicit(&comm->done_seq, (uint32_t)call->seq + 1, memory_order_release);
    } else {
        *status_out = tt_ctx_fail(comm->ctx, *status_out);
    }
    tt_call_free(call);
    return true;
}

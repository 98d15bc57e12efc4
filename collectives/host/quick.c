/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The short way of a small call on the inline stream: its line is published, the others' are
 * awaited and read, and the output is made, in one function and without what a queued or a long
 * call needs. What is not as usual takes the ordinary way: before anything was done if earlier
 * calls are still on streams, after publishing if a peer is late or called something else.
 *
 * A rank waits for those only whose input it needs: the root of a broadcast or scatter for nobody,
 * all but the root of a reduce or gather likewise. So such calls follow each other without waiting
 * for the way there and back; what was not compared yet is compared later (meet.c).
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

/* The ranks [*begin_out, *end_out) whose input this one needs. */
static void needed(const tt_run *run, int *begin_out, int *end_out)
{
    const tt_host *host = run->host;
    const tt_call *call = run->call;
    const bool down = call->kind == TT_BROADCAST || call->kind == TT_SCATTER;
    const bool up = call->kind == TT_REDUCE || call->kind == TT_GATHER;
    const bool root = call->root == host->local; /* the one node has all ranks */
    *begin_out = 0;
    *end_out = host->locals;
    if ((!up && !down) || (up && root) ||
        (run->form == TT_SMALL && tt_small_most(call) > tt_control_ring_bytes(host)))
        return;
    if (down && !root)
        *begin_out = call->root;
    *end_out = *begin_out + (down && !root ? 1 : 0);
}

/* A rank that is needed may be some calls ahead: asks for what it has published of the next one, in
 * case that is alike. What has not been written since it was last read here is asked of nobody. */
static void look_ahead(const tt_run *run, int local, size_t most)
{
    const tt_host *host = run->host;
    const uint32_t next = run->number + 1;
    __builtin_prefetch(&host->control->block[local].line[next % TT_LINES]);
    if (run->form == TT_TINY)
        return;
    const char *input = tt_control_payload_of(host, local, next, most);
    for (size_t at = 0; at < most; at += TT_LINE)
        __builtin_prefetch(input + at);
}

/* Whether those needed are there, with the same call; without patience. A call that needs everybody
 * is also the place to compare those before it. */
static bool meet(const tt_run *run, uint32_t key, uint64_t (*word)[TT_TINY_WORDS])
{
    tt_host *host = run->host;
    const tt_block *block = host->control->block;
    const bool tiny = run->form == TT_TINY;
    const size_t most = tt_small_most(run->call);
    uint64_t words[3];
    expected e = {.number = run->number, .key = key, .words = 3, .words_equal = words};
    const bool rooted = run->call->kind == TT_BROADCAST || run->call->kind == TT_SCATTER ||
                        run->call->kind == TT_REDUCE || run->call->kind == TT_GATHER;
    int begin, end;
    needed(run, &begin, &end);
    if (begin == 0 && end == host->locals && host->compared + 1 != run->number)
        return false;
    if (tiny) {
        e.words = (most + sizeof(uint64_t) - 1) / sizeof(uint64_t);
        e.words_equal = NULL;
    } else {
        const tt_key mine = tt_key_of(run->call);
        words[TT_W_N] = mine.n;
        words[TT_W_ROOT] = mine.root;
        words[TT_W_COUNTS] = mine.counts;
    }
    host->payload[host->local] = run->call->in;
    for (int i = begin; i < end; i++) {
        if (i == host->local)
            continue;
        host->payload[i] =
            tiny ? (const char *)word[i] : tt_control_payload_of(host, i, run->number, most);
        if (!take(&block[i].line[run->number % TT_LINES], &e, word[i]))
            return false;
        if (rooted)
            look_ahead(run, i, most);
    }
    if (begin == 0 && end == host->locals)
        host->compared = run->number;
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
    *status_out = TUTTI_OK;
    if (!tt_meet_has_room(&run)) {
        tt_lane_begin(comm->lane, tt_kind_name(call->kind), call->seq, call->n);
        *status_out = tt_meet_room(&run);
    }
    if (*status_out == TUTTI_OK) {
        key = tt_meet_publish(&run);
        tt_lane_begin(comm->lane, tt_kind_name(call->kind), call->seq, call->n);
        if (!meet(&run, key, word))
            *status_out = tt_meet_published(&run, key);
    }
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

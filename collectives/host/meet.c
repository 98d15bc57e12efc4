/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the ranks of a node meet: at the beginning of every call, and at the barriers within.
 *
 * Every call begins with a meeting: each rank publishes what it calls and where its buffers are,
 * all wait for all, and every rank compares every line with the first one. So a difference is found
 * by all of them at once, with the same text, before anything is touched. Calls take turns with
 * their lines: a rank that has left the meeting may publish its next call while a slow one still
 * reads; it cannot publish the one after that, save for small calls of a group (ahead.c). So do the
 * inputs of small calls (small.c).
 *
 * A rank that needs nothing from some of the others in a small call leaves it before they have come
 * (quick.c). It compares their lines later: before it gets TT_AHEAD calls beyond them, and in its
 * next call that needs everybody. So lines are not used again before all ranks have compared them.
 *
 * A line holds everything: the call's number and key in one word, and the input itself when it has
 * at most 56 bytes. A tiny call is thus one cache line handed over, without a lock, a clock or an
 * allocation. Deadlines begin when the spinning has been in vain.
 *
 * Where every rank has a core, a rank waits for the others' words one by one. Where ranks share
 * cores that would wake a sleeping one once per peer, which is what a collective's time goes into
 * there; they use one counter and one word that tells the number of barriers passed.
 *
 * Whoever publishes looks for sleepers without a fence in between, so that a sleeper which comes in
 * that very moment may be missed. It sleeps for a bounded time only, and looks again.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "host/control.h"

_Static_assert(TT_KIND_COUNT <= 1 << TT_KEY_KIND_BITS && TUTTI_PROD < 1 << TT_KEY_OP_BITS &&
                   TT_TINY_BYTES < 1 << TT_KEY_N_BITS,
               "the fields of a key's word");

static uint32_t field(uint32_t key, int at, int bits)
{
    return key >> at & ((1u << bits) - 1);
}

static uint32_t key_word(const tt_run *run)
{
    const tt_call *call = run->call;
    uint32_t key = (uint32_t)call->kind | (uint32_t)call->dtype << TT_KEY_DTYPE_AT |
                   (uint32_t)run->form << TT_KEY_FORM_AT;
    if (tt_is_reduction(call->kind))
        key |= (uint32_t)call->op << TT_KEY_OP_AT;
    if (run->form == TT_TINY)
        key |= (uint32_t)call->n << TT_KEY_N_AT | (uint32_t)call->root << TT_KEY_ROOT_AT;
    return key;
}

bool tt_meet_is_tiny(const tt_call *call, size_t bytes)
{
    return bytes <= TT_TINY_BYTES && call->counts == NULL && call->n < 1u << TT_KEY_N_BITS &&
           call->root < TT_KEY_ROOT_LIMIT;
}

static const tt_line *line_of(const tt_host *host, int local, uint32_t number)
{
    return &host->control->block[local].line[number % TT_LINES];
}

static void read_line(const tt_line *line, tt_notice *out)
{
    uint32_t key = atomic_load_explicit(&line->key, memory_order_relaxed);
    *out = (tt_notice){.form = (tt_form)field(key, TT_KEY_FORM_AT, TT_KEY_FORM_BITS)};
    out->key.kind = field(key, 0, TT_KEY_KIND_BITS);
    out->key.dtype = field(key, TT_KEY_DTYPE_AT, TT_KEY_DTYPE_BITS);
    out->key.op = field(key, TT_KEY_OP_AT, TT_KEY_OP_BITS);
    if (out->form == TT_TINY) {
        out->key.n = field(key, TT_KEY_N_AT, TT_KEY_N_BITS);
        out->key.root = key >> TT_KEY_ROOT_AT;
        return;
    }
    uint64_t ids = tt_line_word(line, TT_W_IDS);
    out->key.n = tt_line_word(line, TT_W_N);
    out->key.root = tt_line_word(line, TT_W_ROOT);
    out->key.counts = tt_line_word(line, TT_W_COUNTS);
    out->in = (tt_mem_place){ids & UINT32_MAX, tt_line_word(line, TT_W_IN_OFFSET)};
    out->out = (tt_mem_place){ids >> 32, tt_line_word(line, TT_W_OUT_OFFSET)};
    out->in_bytes = tt_line_word(line, TT_W_IN_BYTES);
}

static void find_payloads(const tt_run *run)
{
    const tt_host *host = run->host;
    const size_t most = tt_small_most(run->call);
    for (int i = 0; i < host->locals; i++)
        host->payload[i] = run->form == TT_TINY ? (const char *)line_of(host, i, run->number)->word
                                                : tt_control_payload_of(host, i, run->number, most);
    host->payload[host->local] = run->call->in;
}

static uint64_t count_at(const tt_host *host, int local, int row, int peer)
{
    return atomic_load_explicit(&tt_control_counts(host, local, host->calls, row)[peer],
                                memory_order_relaxed);
}

uint64_t tt_meet_sent(const tt_host *host, int from, int to)
{
    return count_at(host, from, TT_SENDS, to);
}

uint64_t tt_meet_sent_offset(const tt_host *host, int from, int to)
{
    return count_at(host, from, TT_SENDS_FROM, to);
}

/* Waiting. */

static bool has_come(const tt_run *run, int local)
{
    const tt_line *line = line_of(run->host, local, run->number);
    return tt_reached(atomic_load_explicit(&line->number, memory_order_relaxed), run->number);
}

/* The last call that a rank has published; its number is 0 if there is none. */
static const tt_line *last_line(const tt_host *host, int local)
{
    const tt_line *last = line_of(host, local, 0);
    for (uint32_t i = 1; i < TT_LINES; i++) {
        const tt_line *line = line_of(host, local, i);
        if (!tt_reached(atomic_load_explicit(&last->number, memory_order_acquire),
                        atomic_load_explicit(&line->number, memory_order_acquire)))
            last = line;
    }
    return last;
}

static size_t append_late(const tt_run *run, int local, char *buf, size_t cap)
{
    char name[TT_HOST_MAX + 64], call[96];
    const tt_host *host = run->host;
    const tutti_comm *comm = host->comm;
    bool came = has_come(run, local);
    const tt_line *line = came ? line_of(host, local, run->number) : last_line(host, local);
    tt_notice last;
    int used;

    tt_ctx_rank_name(comm->ctx, comm->group.world[host->ranks[local]], name, sizeof name);
    if (atomic_load_explicit(&line->number, memory_order_acquire) == 0) {
        used = snprintf(buf, cap, "%s has not arrived (no call here yet)", name);
    } else {
        read_line(line, &last);
        tt_key_text(&last.key, call, sizeof call);
        used = snprintf(buf, cap,
                        came ? "%s has not come through (it is in %s)"
                             : "%s has not arrived (its last call here: %s)",
                        name, call);
    }
    return used < 0 ? 0 : tt_min_size((size_t)used, cap - 1);
}

typedef struct local_wait {
    tt_run *run;
    tt_blame blame;
    tt_op_wait wait;
} local_wait;

static bool late_locals(void *arg, char *buf, size_t cap)
{
    local_wait *w = arg;
    const tt_host *host = w->run->host;
    bool missing = false;
    size_t used = 0;
    for (int i = 0; i < host->locals; i++)
        missing = missing || !has_come(w->run, i);
    if (!missing && tt_blame_later(&w->blame))
        return false;
    for (int i = 0; i < host->locals; i++) {
        uint32_t phase = atomic_load_explicit(&host->control->block[i].phase, memory_order_relaxed);
        if ((has_come(w->run, i) && tt_reached(phase, host->phase)) || cap - used < 4)
            continue;
        if (used > 0)
            used += (size_t)snprintf(buf + used, cap - used, "; ");
        used += append_late(w->run, i, buf + used, cap - used);
    }
    return used > 0;
}

/* The long part of waiting: with deadlines and sleeps. */
static tutti_status wait_long(tt_run *run, _Atomic uint32_t *word, uint32_t target,
                              _Atomic uint32_t *sleepers)
{
    local_wait w = {.run = run};
    tutti_ctx *ctx = run->host->comm->ctx;
    tutti_status status = TUTTI_OK;
    bool asleep = false;

    tt_blame_begin(&w.blame, ctx);
    tt_op_wait_begin(&w.wait, ctx, run->patience, tt_run_what(run), late_locals, &w);
    while (status == TUTTI_OK) {
        uint32_t seen = atomic_load(word);
        if (tt_reached(seen, target))
            break;
        if (w.wait.wait.spun && !asleep) { /* then looks again */
            atomic_fetch_add(sleepers, 1);
            asleep = true;
            continue;
        }
        status = tt_op_wait_once(&w.wait, word, seen);
    }
    if (asleep)
        atomic_fetch_sub(sleepers, 1);
    return status;
}

static tutti_status wait_for(tt_run *run, _Atomic uint32_t *word, uint32_t target,
                             _Atomic uint32_t *sleepers)
{
    const int spins = run->patience->spin_ns > 0 ? TT_SPINS : 1;
    for (int i = 0; i < spins; i++) {
        if (tt_reached(atomic_load_explicit(word, memory_order_acquire), target))
            return TUTTI_OK;
        tt_cpu_relax();
    }
    return wait_long(run, word, target, sleepers);
}

static tutti_status count_in(tt_run *run, uint32_t target)
{
    tt_control *control = run->host->control;
    uint32_t all = target * (uint32_t)run->host->locals;
    if (atomic_fetch_add_explicit(&control->count, 1, memory_order_acq_rel) + 1 != all)
        return wait_for(run, &control->passed, target, &control->sleepers);
    atomic_store(&control->passed, target); /* ordered before the look at the sleepers */
    if (atomic_load(&control->sleepers) > 0)
        tt_futex_wake_all(&control->passed);
    return TUTTI_OK;
}

tutti_status tt_meet_barrier(tt_run *run)
{
    tt_host *host = run->host;
    if (host->locals == 1)
        return TUTTI_OK;
    tt_block *block = host->control->block, *mine = &block[host->local];
    uint32_t target = ++host->phase;
    atomic_store_explicit(&mine->phase, target, memory_order_release);
    if (host->counted)
        return count_in(run, target);
    tt_wake(&mine->phase, &mine->sleepers);
    for (int i = 0; i < host->locals; i++)
        if (i != host->local)
            TT_TRY(wait_for(run, &block[i].phase, target, &block[i].sleepers));
    return TUTTI_OK;
}

/* Publishing. */

static tt_mem_place place_of(tt_run *run, const void *ptr, size_t bytes, tt_mem_hint *hint)
{
    tutti_comm *comm = run->host->comm;
    const tt_mem_reg *reg = ptr == NULL || bytes == 0
                                ? NULL
                                : tt_mem_find_again(comm->ctx->upper, comm, ptr, bytes, hint);
    return reg == NULL ? (tt_mem_place){0, (uintptr_t)ptr} : tt_mem_describe(reg, ptr);
}

/* Bytes of a rank's `in` and `out` that peers may reach for; those of an all_to_allv are known to
 * the rank itself only. */
static void reach_of(const tt_run *run, int rank, uint64_t *in_out, uint64_t *out_out)
{
    const tt_call *call = run->call;
    const size_t element = tutti_dtype_size(call->dtype);
    const size_t ranks = (size_t)run->host->comm->group.size;
    const size_t n = call->n * element;
    const bool root = call->root == rank;
    const size_t mine = call->counts != NULL ? call->counts[rank] * element : n;
    const size_t all = call->counts != NULL ? n : n * ranks; /* n is the sum of counts */
    *in_out = *out_out = 0;
    switch (call->kind) {
    case TT_ALL_REDUCE:
        *in_out = *out_out = n;
        break;
    case TT_REDUCE:
        *in_out = n;
        *out_out = root ? n : 0;
        break;
    case TT_ALL_GATHER:
        *in_out = mine;
        *out_out = all;
        break;
    case TT_BROADCAST:
        *in_out = root ? n : 0;
        *out_out = n;
        break;
    case TT_GATHER:
        *in_out = n;
        *out_out = root ? all : 0;
        break;
    case TT_SCATTER:
        *in_out = root ? all : 0;
        *out_out = n;
        break;
    default: /* reduce_scatter, all_to_all */
        *in_out = all;
    }
}

static void publish_counts(const tt_host *host, const tt_call *call)
{
    size_t offset = 0;
    for (int rank = 0, local = 0; local < host->locals; rank++) {
        if (rank == host->ranks[local]) {
            const uint64_t value[TT_COUNTS_ROWS] = {call->counts[rank], offset,
                                                    call->recv_counts[rank]};
            for (int row = 0; row < TT_COUNTS_ROWS; row++)
                atomic_store_explicit(
                    &tt_control_counts(host, host->local, host->calls, row)[local], value[row],
                    memory_order_relaxed);
            local++;
        }
        offset += call->counts[rank];
    }
}

static void publish_input(const tt_run *run, tt_line *line)
{
    uint64_t word[TT_TINY_BYTES / sizeof(uint64_t)];
    size_t bytes = tt_small_bytes(run->call), words = (bytes + sizeof *word - 1) / sizeof *word;
    if (bytes > 0)
        memcpy(word, run->call->in, bytes);
    for (size_t i = 0; i < words; i++)
        tt_line_put(line, (int)i, word[i]);
}

/* Bytes [*begin_out, + *n_out) of the input that no other rank reads; the rest is carried. */
static void kept_back(const tt_call *call, size_t *begin_out, size_t *n_out)
{
    const size_t element = tutti_dtype_size(call->dtype), rank = (size_t)call->comm->group.rank;
    const bool by_rank =
        call->kind == TT_REDUCE_SCATTER || call->kind == TT_SCATTER || call->kind == TT_ALL_TO_ALL;
    size_t before = rank * call->n, n = by_rank ? call->n : 0;
    if (by_rank && call->counts != NULL) {
        before = 0;
        for (size_t i = 0; i < rank; i++)
            before += call->counts[i];
        n = call->counts[rank];
    }
    *begin_out = n > 0 ? before * element : 0;
    *n_out = n * element;
}

static void carry_input(const tt_run *run)
{
    tt_host *host = run->host;
    const char *in = run->call->in;
    size_t bytes = tt_small_bytes(run->call), begin, kept;
    if (bytes == 0)
        return;
    char *to = tt_control_payload_of(host, host->local, run->number, tt_small_most(run->call));
    kept_back(run->call, &begin, &kept);
    memcpy(to, in, begin);
    memcpy(to + begin + kept, in + begin + kept, bytes - begin - kept);
}

static void publish_notice(tt_run *run, tt_line *line)
{
    tt_host *host = run->host;
    const tt_call *call = run->call;
    const tt_key key = tt_key_of(call);
    tt_mem_place in = {0, 0}, out = {0, 0};
    uint64_t in_bytes = 0, out_bytes = 0;
    if (run->form == TT_LARGE) {
        reach_of(run, host->comm->group.rank, &in_bytes, &out_bytes);
        in = place_of(run, call->in, in_bytes, &host->in_hint);
        out = place_of(run, call->out, out_bytes, &host->out_hint);
        bool plain = (in_bytes > 0 && in.id == 0) || (out_bytes > 0 && out.id == 0);
        if (run->may_carry && plain)
            run->form = TT_CARRIED;
    }
    if (run->form != TT_LARGE)
        carry_input(run);
    tt_line_put(line, TT_W_N, key.n);
    tt_line_put(line, TT_W_ROOT, key.root);
    tt_line_put(line, TT_W_COUNTS, key.counts);
    tt_line_put(line, TT_W_IDS, in.id | out.id << 32);
    tt_line_put(line, TT_W_IN_OFFSET, in.offset);
    tt_line_put(line, TT_W_OUT_OFFSET, out.offset);
    tt_line_put(line, TT_W_IN_BYTES, in_bytes);
    if (call->recv_counts != NULL)
        publish_counts(host, call);
}

/*
 * The next call writes the next line, and if it is like this one as much beside it. All have read
 * what is there, save one that is far behind, which then fetches it again; taking the lines from
 * their caches now, while this rank waits for them, keeps that out of the way of the next call.
 */
static void own_next(const tt_run *run)
{
    const tt_host *host = run->host;
    const uint32_t next = run->number + 1;
    const size_t bytes = run->form == TT_SMALL ? tt_small_bytes(run->call) : 0;
    tt_line_own(&host->control->block[host->local].line[next % TT_LINES]);
    if (bytes == 0 || bytes > tt_control_ring_bytes(host))
        return;
    const char *input = tt_control_payload_of(host, host->local, next, tt_small_most(run->call));
    for (size_t at = 0; at < bytes; at += TT_LINE)
        tt_line_own(input + at);
}

uint32_t tt_meet_publish(tt_run *run)
{
    tt_host *host = run->host;
    tt_block *block = &host->control->block[host->local];
    uint32_t number = ++host->calls, key;
    tt_line *line = &block->line[number % TT_LINES];
    run->number = number;
    if (run->form == TT_TINY)
        publish_input(run, line);
    else
        publish_notice(run, line);
    key = key_word(run);
    atomic_store_explicit(&line->key, key, memory_order_relaxed);
    atomic_store_explicit(&line->number, number, memory_order_release);
    if (!host->counted)
        tt_wake(&line->number, &block->sleepers);
    own_next(run);
    return key;
}

/* Comparing. */

/* All ranks of the node look at all pairs, so that all find the same first difference. */
static tutti_status compare_counts(const tt_host *host)
{
    for (int from = 0; from < host->locals; from++) {
        for (int to = 0; to < host->locals; to++) {
            uint64_t sent = tt_meet_sent(host, from, to);
            uint64_t expected = count_at(host, to, TT_EXPECTS, from);
            if (sent != expected)
                return tt_counts_mismatch(host->comm, host->ranks[from], sent, host->ranks[to],
                                          expected);
        }
    }
    return TUTTI_OK;
}

static tutti_status compare_keys(const tt_run *run)
{
    const tt_host *host = run->host;
    const tt_key *first = &host->peer[0].notice.key;
    for (int i = 0; i < host->locals; i++)
        read_line(line_of(host, i, run->number), &host->peer[i].notice);
    for (int i = 1; i < host->locals; i++) {
        const tt_key *other = &host->peer[i].notice.key;
        if (!tt_key_equal(first, other))
            return tt_key_mismatch(host->comm, host->ranks[i], other, host->ranks[0], first);
    }
    return TUTTI_OK;
}

static tutti_status compare(const tt_run *run)
{
    TT_TRY(compare_keys(run));
    return run->call->recv_counts != NULL ? compare_counts(run->host) : TUTTI_OK;
}

static bool same_small_call(const tt_line *a, const tt_line *b)
{
    const uint32_t key = atomic_load_explicit(&a->key, memory_order_relaxed);
    if (key != atomic_load_explicit(&b->key, memory_order_relaxed))
        return false;
    return field(key, TT_KEY_FORM_AT, TT_KEY_FORM_BITS) == TT_TINY ||
           (tt_line_word(a, TT_W_N) == tt_line_word(b, TT_W_N) &&
            tt_line_word(a, TT_W_ROOT) == tt_line_word(b, TT_W_ROOT) &&
            tt_line_word(a, TT_W_COUNTS) == tt_line_word(b, TT_W_COUNTS));
}

/* Waits for and compares the calls up to number `last` that this rank has left before. */
static tutti_status settle(tt_run *run, uint32_t last)
{
    tt_host *host = run->host;
    tt_block *block = host->control->block;
    while (!tt_reached(host->compared, last)) {
        tt_run at = *run;
        bool same = true;
        at.number = host->compared + 1;
        for (int i = 0; i < host->locals; i++) {
            tt_line *line = &block[i].line[at.number % TT_LINES];
            if (i != host->local)
                TT_TRY(wait_for(&at, &line->number, at.number, &block[i].sleepers));
            same = same && same_small_call(line, line_of(host, host->local, at.number));
        }
        if (!same)
            TT_TRY(compare_keys(&at));
        host->compared = at.number;
    }
    return TUTTI_OK;
}

tutti_status tt_meet_room(tt_run *run)
{
    if (tt_meet_has_room(run))
        return TUTTI_OK;
    return settle(run, run->host->calls - (tt_meet_by_twos(run) ? 0 : TT_AHEAD / 2));
}

/* Where a peer's registered buffer is here. */
static tutti_status reach(const tt_host *host, int local, tt_mem_place place, size_t bytes,
                          const tt_mem_hint *hint, void *ptr_out)
{
    tutti_comm *comm = host->comm;
    int world = comm->group.world[host->ranks[local]];
    void *ptr = NULL;
    if (place.id != 0) {
        ptr = tt_mem_resolve_again(comm->ctx->upper, place, world, bytes, hint);
        if (ptr == NULL)
            return tt_fail(TUTTI_ERR_INTERNAL,
                           "comm %s: rank %d names registered memory %" PRIu64
                           " that is not known here",
                           comm->name, world, place.id);
    }
    memcpy(ptr_out, &ptr, sizeof ptr);
    return TUTTI_OK;
}

static tutti_status reach_peers(const tt_run *run)
{
    const tt_host *host = run->host;
    for (int i = 0; i < host->locals; i++) {
        tt_peer *peer = &host->peer[i];
        const tt_notice *notice = &peer->notice;
        uint64_t in_bytes, out_bytes;
        if (i == host->local) {
            peer->in = run->call->in;
            peer->out = run->call->out;
            continue;
        }
        reach_of(run, host->ranks[i], &in_bytes, &out_bytes);
        if (run->call->recv_counts != NULL)
            in_bytes = notice->in_bytes;
        TT_TRY(reach(host, i, notice->in, in_bytes, &host->in_hint, &peer->in));
        TT_TRY(reach(host, i, notice->out, out_bytes, &host->out_hint, &peer->out));
    }
    return TUTTI_OK;
}

static bool all_carried(const tt_host *host)
{
    for (int i = 0; i < host->locals; i++)
        if (host->peer[i].notice.form != TT_CARRIED)
            return false;
    return true;
}

tutti_status tt_meet_published(tt_run *run, uint32_t key)
{
    tt_host *host = run->host;
    tt_block *block = host->control->block;
    bool same = run->form == TT_TINY;

    TT_TRY(settle(run, run->number - 1));
    if (host->counted)
        TT_TRY(tt_meet_barrier(run));
    for (int i = 0; i < host->locals; i++) {
        tt_line *line = &block[i].line[run->number % TT_LINES];
        if (!host->counted && i != host->local)
            TT_TRY(wait_for(run, &line->number, run->number, &block[i].sleepers));
        same = same && atomic_load_explicit(&line->key, memory_order_relaxed) == key;
    }
    if (!same) /* else the key says it all */
        TT_TRY(compare(run));
    if (!tt_reached(host->compared, run->number))
        host->compared = run->number;
    if (run->form == TT_CARRIED || run->form == TT_LARGE)
        run->form = all_carried(host) ? TT_CARRIED : TT_LARGE;
    if (run->form == TT_LARGE)
        return reach_peers(run);
    find_payloads(run);
    return TUTTI_OK;
}

tutti_status tt_meet(tt_run *run)
{
    TT_TRY(tt_meet_room(run));
    uint32_t key = tt_meet_publish(run);
    return tt_meet_published(run, key);
}

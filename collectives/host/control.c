/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control segment of a communicator on a node: shared memory that its ranks there map.
 *
 * Every call begins with a meeting: each rank publishes what it calls and where its buffers are,
 * all wait for all, and every rank compares every notice with the first one. So a difference is
 * found by all of them at once, with the same text, before anything is touched. Notices are doubly
 * buffered: a rank that has left the meeting may publish its next call while a slow one still
 * reads; it cannot publish the one after that. So are the inputs of small calls (small.c).
 *
 * The barrier is one counter and one word that tells the number of barriers passed. A flag per
 * rank, waited for one by one, would save the shared counter but wakes a sleeping rank once per
 * peer; with more ranks than cores that is what a collective's time goes into. Ranks keep their own
 * count of barriers in their block, only so that a late one can be named.
 *
 * The slots behind the blocks stage plain memory and messages; who may write one when is a matter
 * of the collectives.
 */
#include "host/host.h"

#include <inttypes.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"

enum { LINE = 64, PAGE = 4096, SPINS = 200, NOTICE_WORDS = sizeof(tt_notice) / 8 };

/* A rank's block. */
typedef struct block {
    alignas(LINE) _Atomic uint32_t phase; /* barriers it has entered */
    _Atomic uint64_t calls; /* notices it has published */
    alignas(LINE) _Atomic uint64_t notice[2][NOTICE_WORDS];
} block;

struct tt_control {
    alignas(LINE) _Atomic uint32_t count; /* entries into barriers, of all ranks */
    alignas(LINE) _Atomic uint32_t passed; /* barriers that all have entered */
    _Atomic uint32_t sleepers; /* on passed */
    alignas(LINE) block block[]; /* then counts, payloads, slots */
};

static size_t counts_offset(int locals)
{
    return sizeof(tt_control) + (size_t)locals * sizeof(block);
}

/* Rows of the counts of an all_to_allv that a rank publishes, one word per local rank each. */
enum { SENDS, SENDS_FROM /* offset in its `in` */, EXPECTS, ROWS };

static size_t counts_words(int locals)
{
    return ROWS * (size_t)locals;
}

/* Per rank and parity: the input of a small call. */
static size_t payloads_offset(int locals)
{
    size_t counts = (size_t)locals * 2 * counts_words(locals) * sizeof(uint64_t);
    return tt_round_up(counts_offset(locals) + counts, LINE);
}

static size_t slots_offset(const tt_host *host)
{
    size_t payloads = (size_t)host->locals * 2 * host->small_bytes;
    return tt_round_up(payloads_offset(host->locals) + payloads, PAGE);
}

static char *payload_of(const tt_host *host, int local, uint64_t call)
{
    size_t index = 2 * (size_t)local + call % 2;
    return (char *)host->control + payloads_offset(host->locals) + index * host->small_bytes;
}

const char *tt_control_payload(const tt_host *host, int local)
{
    return payload_of(host, local, host->calls - 1);
}

static _Atomic uint64_t *counts_of(const tt_host *host, int local, uint64_t call, int row)
{
    _Atomic uint64_t *all =
        (_Atomic uint64_t *)(void *)((char *)host->control + counts_offset(host->locals));
    return all + (2 * (size_t)local + call % 2) * counts_words(host->locals) +
           (size_t)row * (size_t)host->locals;
}

char *tt_control_slot(const tt_host *host, int local, int slot)
{
    size_t index = (size_t)local * TT_SLOTS + (size_t)slot;
    return (char *)host->control + slots_offset(host) + index * host->slot_bytes;
}

static uint64_t count_at(const tt_host *host, int local, int row, int peer)
{
    return atomic_load_explicit(&counts_of(host, local, host->calls - 1, row)[peer],
                                memory_order_relaxed);
}

uint64_t tt_control_sent(const tt_host *host, int from, int to)
{
    return count_at(host, from, SENDS, to);
}

uint64_t tt_control_sent_offset(const tt_host *host, int from, int to)
{
    return count_at(host, from, SENDS_FROM, to);
}

static size_t segment_bytes(const tt_host *host)
{
    return slots_offset(host) + (size_t)host->locals * TT_SLOTS * host->slot_bytes;
}

/* A rank alone on its node shares with nobody. */
static tutti_status make_private(tt_host *host)
{
    void *memory = NULL;
    if (posix_memalign(&memory, PAGE, segment_bytes(host)) != 0)
        return tt_fail(TUTTI_ERR_NO_MEMORY, "comm %s: no memory for %zu bytes of staging",
                       host->comm->name, segment_bytes(host));
    memset(memory, 0, segment_bytes(host));
    host->control = memory;
    return TUTTI_OK;
}

static tutti_status attach(tt_host *host, const tt_shm_handle *handles)
{
    if (host->locals > 1 && host->local > 0)
        TT_TRY(tt_shm_attach(&handles[host->ranks[0]], &host->shm));
    if (host->locals > 1)
        host->control = host->shm.base;
    return TUTTI_OK;
}

tutti_status tt_control_create(tt_host *host)
{
    tt_group *group = &host->comm->group;
    tt_shm_handle mine = {0}, *all = NULL;
    tutti_status status = TUTTI_OK;

    if (host->locals == 1)
        status = make_private(host);
    else if (host->local == 0)
        status = tt_shm_create(segment_bytes(host), NULL, &host->shm, &mine);
    if (status == TUTTI_OK)
        status = tt_calloc((size_t)group->size, sizeof *all, &all);
    status = tt_agree(group, "making a communicator", status);
    if (status == TUTTI_OK)
        status = tt_all_gather_fixed(group, "making a communicator", &mine, sizeof mine, all);
    if (status == TUTTI_OK)
        status = tt_agree(group, "making a communicator", attach(host, all));
    tt_shm_seal(&host->shm);
    free(all);
    return status;
}

void tt_control_destroy(tt_host *host)
{
    if (host->locals == 1)
        free(host->control);
    else
        tt_shm_close(&host->shm);
    host->control = NULL;
}

static void read_notice(const tt_host *host, int local, uint64_t call, tt_notice *notice)
{
    uint64_t word[NOTICE_WORDS];
    const block *b = &host->control->block[local];
    for (int i = 0; i < NOTICE_WORDS; i++)
        word[i] = atomic_load_explicit(&b->notice[call % 2][i], memory_order_relaxed);
    memcpy(notice, word, sizeof word);
}

static size_t append_late(const tt_host *host, int local, char *buf, size_t cap)
{
    char name[TT_HOST_MAX + 64], call[96];
    const tutti_comm *comm = host->comm;
    uint64_t calls = atomic_load_explicit(&host->control->block[local].calls, memory_order_relaxed);
    tt_notice last;
    int used;

    tt_ctx_rank_name(comm->ctx, comm->group.world[host->ranks[local]], name, sizeof name);
    if (calls == 0) {
        used = snprintf(buf, cap, "%s has not arrived (no call here yet)", name);
    } else {
        read_notice(host, local, calls - 1, &last);
        tt_key_text(&last.key, call, sizeof call);
        used = snprintf(buf, cap,
                        calls < host->calls ? "%s has not arrived (its last call here: %s)"
                                            : "%s has not come through (it is in %s)",
                        name, call);
    }
    return used < 0 ? 0 : tt_min_size((size_t)used, cap - 1);
}

typedef struct barrier_wait {
    const tt_host *host;
    tt_blame blame;
} barrier_wait;

static bool has_come(const tt_host *host, int local)
{
    return atomic_load_explicit(&host->control->block[local].calls, memory_order_relaxed) >=
           host->calls;
}

static bool late_locals(void *arg, char *buf, size_t cap)
{
    barrier_wait *w = arg;
    const tt_host *host = w->host;
    bool missing = false;
    size_t used = 0;
    for (int i = 0; i < host->locals; i++)
        missing = missing || !has_come(host, i);
    if (!missing && tt_blame_later(&w->blame))
        return false;
    for (int i = 0; i < host->locals; i++) {
        uint32_t phase = atomic_load_explicit(&host->control->block[i].phase, memory_order_relaxed);
        if (phase == host->phase || cap - used < 4)
            continue;
        if (used > 0)
            used += (size_t)snprintf(buf + used, cap - used, "; ");
        used += append_late(host, i, buf + used, cap - used);
    }
    return used > 0;
}

static tutti_status wait_for_phase(tt_run *run, uint32_t target)
{
    tt_control *control = run->host->control;
    tutti_status status = TUTTI_OK;
    barrier_wait who = {.host = run->host};
    tt_op_wait wait;
    bool asleep = false;

    for (int i = 0; i < SPINS && run->patience->spin_ns > 0; i++) {
        if (atomic_load_explicit(&control->passed, memory_order_acquire) == target)
            return TUTTI_OK;
        tt_cpu_relax();
    }
    tt_blame_begin(&who.blame, run->host->comm->ctx);
    tt_op_wait_begin(&wait, run->host->comm->ctx, run->patience, tt_run_what(run), late_locals,
                     &who);
    for (;;) {
        uint32_t seen = atomic_load(&control->passed);
        if (seen == target)
            break;
        if (wait.wait.spun && !asleep) { /* then looks again, see tt_control_barrier */
            atomic_fetch_add(&control->sleepers, 1);
            asleep = true;
            continue;
        }
        status = tt_op_wait_once(&wait, &control->passed, seen);
        if (status != TUTTI_OK)
            break;
    }
    if (asleep)
        atomic_fetch_sub(&control->sleepers, 1);
    return status;
}

tutti_status tt_control_barrier(tt_run *run)
{
    tt_host *host = run->host;
    tt_control *control = host->control;
    if (host->locals == 1)
        return TUTTI_OK;
    uint32_t target = ++host->phase;
    atomic_store_explicit(&control->block[host->local].phase, target, memory_order_relaxed);
    uint32_t entered = atomic_fetch_add_explicit(&control->count, 1, memory_order_acq_rel) + 1;
    if (entered != target * (uint32_t)host->locals)
        return wait_for_phase(run, target);
    atomic_store(&control->passed, target); /* ordered before the look at the sleepers */
    if (atomic_load(&control->sleepers) > 0)
        tt_futex_wake_all(&control->passed);
    return TUTTI_OK;
}

static tt_mem_place place_of(tt_run *run, const void *ptr, size_t bytes)
{
    tutti_comm *comm = run->host->comm;
    const tt_mem_reg *reg =
        ptr == NULL || bytes == 0 ? NULL : tt_mem_find(comm->ctx->upper, comm, ptr, bytes);
    return reg == NULL ? (tt_mem_place){0, 0} : tt_mem_describe(reg, ptr);
}

/* Bytes of this rank's `in` and `out` that peers may reach for. */
static void reach_of(const tt_run *run, uint64_t *in_out, uint64_t *out_out)
{
    const tt_call *call = run->call;
    const size_t element = tutti_dtype_size(call->dtype);
    const size_t ranks = (size_t)run->host->comm->group.size;
    const int rank = run->host->comm->group.rank;
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
        break;
    case TT_SCATTER:
        *in_out = root ? all : 0;
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
            const uint64_t value[ROWS] = {call->counts[rank], offset, call->recv_counts[rank]};
            for (int row = 0; row < ROWS; row++)
                atomic_store_explicit(&counts_of(host, host->local, host->calls, row)[local],
                                      value[row], memory_order_relaxed);
            local++;
        }
        offset += call->counts[rank];
    }
}

static void publish(tt_run *run)
{
    tt_host *host = run->host;
    const tt_call *call = run->call;
    block *b = &host->control->block[host->local];
    uint64_t word[NOTICE_WORDS];
    tt_notice notice = {.seq = call->seq, .key = tt_key_of(call)};
    if (run->small) {
        tt_small_publish(run, payload_of(host, host->local, host->calls));
    } else {
        reach_of(run, &notice.in_bytes, &notice.out_bytes);
        notice.in = place_of(run, call->in, notice.in_bytes);
        notice.out = place_of(run, call->out, notice.out_bytes);
    }
    memcpy(word, &notice, sizeof word);
    for (int i = 0; i < NOTICE_WORDS; i++)
        atomic_store_explicit(&b->notice[host->calls % 2][i], word[i], memory_order_relaxed);
    if (call->recv_counts != NULL)
        publish_counts(host, call);
    atomic_store_explicit(&b->calls, ++host->calls, memory_order_relaxed);
}

/* All ranks of the node look at all pairs, so that all find the same first difference. */
static tutti_status compare_counts(const tt_host *host)
{
    for (int from = 0; from < host->locals; from++) {
        for (int to = 0; to < host->locals; to++) {
            uint64_t sent = tt_control_sent(host, from, to);
            uint64_t expected = count_at(host, to, EXPECTS, from);
            if (sent != expected)
                return tt_counts_mismatch(host->comm, host->ranks[from], sent, host->ranks[to],
                                          expected);
        }
    }
    return TUTTI_OK;
}

static tutti_status compare(const tt_run *run)
{
    const tt_host *host = run->host;
    const tt_key *first = &host->peer[0].notice.key;
    for (int i = 1; i < host->locals; i++) {
        const tt_key *other = &host->peer[i].notice.key;
        if (!tt_key_equal(first, other))
            return tt_key_mismatch(host->comm, host->ranks[i], other, host->ranks[0], first);
    }
    return run->call->recv_counts != NULL ? compare_counts(host) : TUTTI_OK;
}

/* Where a peer's registered buffer is here. */
static tutti_status reach(const tt_host *host, int local, tt_mem_place place, size_t bytes,
                          void *ptr_out)
{
    tutti_comm *comm = host->comm;
    int world = comm->group.world[host->ranks[local]];
    void *ptr = NULL;
    if (place.id != 0) {
        ptr = tt_mem_resolve(comm->ctx->upper, place, world, bytes);
        if (ptr == NULL)
            return tt_fail(TUTTI_ERR_INTERNAL,
                           "comm %s: rank %d names registered memory %" PRIu64
                           " that is not known here",
                           comm->name, world, place.id);
    }
    memcpy(ptr_out, &ptr, sizeof ptr);
    return TUTTI_OK;
}

tutti_status tt_control_meet(tt_run *run)
{
    tt_host *host = run->host;
    publish(run);
    TT_TRY(tt_control_barrier(run));
    for (int i = 0; i < host->locals; i++)
        read_notice(host, i, host->calls - 1, &host->peer[i].notice);
    TT_TRY(compare(run));
    for (int i = 0; i < host->locals && !run->small; i++) {
        tt_peer *peer = &host->peer[i];
        const tt_notice *notice = &peer->notice;
        if (i == host->local) {
            peer->in = run->call->in;
            peer->out = run->call->out;
            continue;
        }
        TT_TRY(reach(host, i, notice->in, notice->in_bytes, &peer->in));
        TT_TRY(reach(host, i, notice->out, notice->out_bytes, &peer->out));
    }
    return TUTTI_OK;
}

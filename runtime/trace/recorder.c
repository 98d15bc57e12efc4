/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ring of slots. A writer takes the next ticket; the slot is the ticket's remainder. Each slot
 * has a version: odd while it is written, 2 * ticket + 2 when its content is ticket's. A reader
 * that finds the version changed after reading skips the slot: it is being reused, and whatever
 * replaces it is newer.
 *
 * All fields are atomics, the name as words, so that a reader may race with a writer without
 * undefined behaviour; release and acquire on each field keep them between the two versions.
 * Rejected: a lock, because a writer that is preempted with it would hold up the collectives of a
 * rank.
 */
#include "trace/recorder.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/mem.h"

enum { SLOTS = 256, NAME_WORDS = 4, NAME_BYTES = NAME_WORDS * 8 };

typedef struct slot {
    _Atomic uint64_t version;
    _Atomic(const char *) kind;
    _Atomic uint64_t name[NAME_WORDS];
    _Atomic uint64_t seq, count;
    _Atomic int64_t begun_ns, ended_ns; /* ended 0: not yet */
} slot;

struct tt_recorder {
    _Atomic uint64_t next;
    slot slot[SLOTS];
};

typedef struct entry {
    const char *kind;
    char name[NAME_BYTES];
    uint64_t seq, count;
    int64_t begun_ns, ended_ns;
} entry;

tutti_status tt_recorder_create(tt_recorder **recorder_out)
{
    return tt_calloc(1, sizeof **recorder_out, recorder_out);
}

void tt_recorder_destroy(tt_recorder *recorder)
{
    free(recorder);
}

uint64_t tt_recorder_begin(tt_recorder *recorder, const char *kind, const char *comm, uint64_t seq,
                           uint64_t count)
{
    uint64_t words[NAME_WORDS] = {0};
    if (recorder == NULL)
        return 0;
    uint64_t ticket = atomic_fetch_add(&recorder->next, 1);
    slot *s = &recorder->slot[ticket % SLOTS];
    memcpy(words, comm, strnlen(comm, NAME_BYTES - 1));
    atomic_store_explicit(&s->version, 2 * ticket + 1, memory_order_relaxed);
    atomic_store_explicit(&s->kind, kind, memory_order_release);
    for (int i = 0; i < NAME_WORDS; i++)
        atomic_store_explicit(&s->name[i], words[i], memory_order_release);
    atomic_store_explicit(&s->seq, seq, memory_order_release);
    atomic_store_explicit(&s->count, count, memory_order_release);
    atomic_store_explicit(&s->begun_ns, tt_now_ns(), memory_order_release);
    atomic_store_explicit(&s->ended_ns, 0, memory_order_release);
    atomic_store_explicit(&s->version, 2 * ticket + 2, memory_order_release);
    return ticket;
}

void tt_recorder_end(tt_recorder *recorder, uint64_t ticket)
{
    if (recorder == NULL)
        return;
    slot *s = &recorder->slot[ticket % SLOTS];
    if (atomic_load_explicit(&s->version, memory_order_acquire) == 2 * ticket + 2)
        atomic_store_explicit(&s->ended_ns, tt_now_ns(), memory_order_relaxed);
}

static bool read_slot(tt_recorder *recorder, uint64_t ticket, entry *out)
{
    slot *s = &recorder->slot[ticket % SLOTS];
    uint64_t words[NAME_WORDS];
    if (atomic_load_explicit(&s->version, memory_order_acquire) != 2 * ticket + 2)
        return false;
    out->kind = atomic_load_explicit(&s->kind, memory_order_acquire);
    for (int i = 0; i < NAME_WORDS; i++)
        words[i] = atomic_load_explicit(&s->name[i], memory_order_acquire);
    out->seq = atomic_load_explicit(&s->seq, memory_order_acquire);
    out->count = atomic_load_explicit(&s->count, memory_order_acquire);
    out->begun_ns = atomic_load_explicit(&s->begun_ns, memory_order_acquire);
    out->ended_ns = atomic_load_explicit(&s->ended_ns, memory_order_acquire);
    memcpy(out->name, words, sizeof out->name);
    out->name[NAME_BYTES - 1] = '\0';
    return atomic_load_explicit(&s->version, memory_order_relaxed) == 2 * ticket + 2;
}

/* The latest that has not ended, else the latest. */
static bool latest(tt_recorder *recorder, entry *out)
{
    uint64_t next = atomic_load(&recorder->next);
    bool found = false;
    for (uint64_t back = 1; back <= SLOTS && back <= next; back++) {
        entry e;
        if (!read_slot(recorder, next - back, &e))
            continue;
        if (!found || (e.ended_ns == 0 && out->ended_ns != 0))
            *out = e;
        found = true;
        if (out->ended_ns == 0)
            break;
    }
    return found;
}

void tt_recorder_last(tt_recorder *recorder, char *buf, size_t cap)
{
    entry e;
    if (recorder == NULL || !latest(recorder, &e)) {
        snprintf(buf, cap, "in no collective yet");
        return;
    }
    int64_t at = e.ended_ns == 0 ? e.begun_ns : e.ended_ns;
    double ago = (double)(tt_now_ns() - at) / 1e9;
    if (e.ended_ns == 0)
        snprintf(buf, cap, "in %s %llu (%llu elements) on comm %s for %.1f s", e.kind,
                 (unsigned long long)e.seq, (unsigned long long)e.count, e.name, ago);
    else
        snprintf(buf, cap, "last in %s %llu (%llu elements) on comm %s, which ended %.1f s ago",
                 e.kind, (unsigned long long)e.seq, (unsigned long long)e.count, e.name, ago);
}

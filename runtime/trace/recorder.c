/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane has one writer at a time, so it needs no ticket and no locked instruction: recording an
 * operation is a handful of plain stores. Its version is odd while an entry is written; a reader
 * that finds it odd or changed looks again, a few times, and then takes the lane's entry as it was
 * announced, since whatever replaces it is newer. All fields are atomics so that a reader may race
 * with the writer without undefined behaviour.
 *
 * Times are stamps of the cycle counter (core/clock.h): reading the clock twice would cost a small
 * collective a tenth of its time. They become seconds when somebody reads them.
 *
 * Only the last operation of each lane is kept. A longer history was rejected: nobody was shown it,
 * and the operations of a communicator are in order, so that the last number tells the others.
 */
#include "trace/recorder.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/mem.h"

enum { NAME_BYTES = 32, LOOKS = 100 };

struct tt_lane {
    tt_recorder *recorder;
    tt_lane *next;
    char name[NAME_BYTES];
    _Atomic uint64_t version; /* 0: nothing was recorded */
    _Atomic(const char *) kind;
    _Atomic uint64_t seq, count, begun, ended; /* ticks; ended 0: not yet */
};

struct tt_recorder {
    pthread_mutex_t lock; /* of the list */
    tt_lane *lanes;
    uint64_t ticks; /* at creation, and the time then: what a tick is */
    int64_t ns;
};

typedef struct entry {
    const char *kind;
    char name[NAME_BYTES];
    uint64_t seq, count, begun, ended;
} entry;

tutti_status tt_recorder_create(tt_recorder **recorder_out)
{
    tt_recorder *recorder;
    TT_TRY(tt_calloc(1, sizeof *recorder, &recorder));
    pthread_mutex_init(&recorder->lock, NULL);
    recorder->ticks = tt_ticks();
    recorder->ns = tt_now_ns();
    *recorder_out = recorder;
    return TUTTI_OK;
}

void tt_recorder_destroy(tt_recorder *recorder)
{
    if (recorder == NULL)
        return;
    pthread_mutex_destroy(&recorder->lock);
    free(recorder);
}

tutti_status tt_lane_open(tt_recorder *recorder, const char *name, tt_lane **lane_out)
{
    tt_lane *lane;
    TT_TRY(tt_calloc(1, sizeof *lane, &lane));
    lane->recorder = recorder;
    memcpy(lane->name, name, strnlen(name, NAME_BYTES - 1));
    pthread_mutex_lock(&recorder->lock);
    lane->next = recorder->lanes;
    recorder->lanes = lane;
    pthread_mutex_unlock(&recorder->lock);
    *lane_out = lane;
    return TUTTI_OK;
}

void tt_lane_close(tt_lane *lane)
{
    if (lane == NULL)
        return;
    pthread_mutex_lock(&lane->recorder->lock);
    for (tt_lane **at = &lane->recorder->lanes; *at != NULL; at = &(*at)->next) {
        if (*at == lane) {
            *at = lane->next;
            break;
        }
    }
    pthread_mutex_unlock(&lane->recorder->lock);
    free(lane);
}

void tt_lane_begin(tt_lane *lane, const char *kind, uint64_t seq, uint64_t count)
{
    if (lane == NULL)
        return;
    uint64_t version = atomic_load_explicit(&lane->version, memory_order_relaxed);
    atomic_store_explicit(&lane->version, version + 1, memory_order_relaxed);
    atomic_store_explicit(&lane->kind, kind, memory_order_release);
    atomic_store_explicit(&lane->seq, seq, memory_order_release);
    atomic_store_explicit(&lane->count, count, memory_order_release);
    atomic_store_explicit(&lane->begun, tt_ticks(), memory_order_release);
    atomic_store_explicit(&lane->ended, 0, memory_order_release);
    atomic_store_explicit(&lane->version, version + 2, memory_order_release);
}

void tt_lane_end(tt_lane *lane)
{
    if (lane != NULL)
        atomic_store_explicit(&lane->ended, tt_ticks(), memory_order_relaxed);
}

static bool read_lane(tt_lane *lane, entry *out)
{
    for (int i = 0; i < LOOKS; i++) {
        uint64_t version = atomic_load_explicit(&lane->version, memory_order_acquire);
        if (version == 0)
            return false;
        out->kind = atomic_load_explicit(&lane->kind, memory_order_acquire);
        out->seq = atomic_load_explicit(&lane->seq, memory_order_acquire);
        out->count = atomic_load_explicit(&lane->count, memory_order_acquire);
        out->begun = atomic_load_explicit(&lane->begun, memory_order_acquire);
        out->ended = atomic_load_explicit(&lane->ended, memory_order_acquire);
        if (version % 2 == 0 &&
            atomic_load_explicit(&lane->version, memory_order_relaxed) == version) {
            memcpy(out->name, lane->name, sizeof out->name);
            return true;
        }
    }
    return false;
}

/* Under way before ended, then the later one. */
static bool later(const entry *a, const entry *b)
{
    if ((a->ended == 0) != (b->ended == 0))
        return a->ended == 0;
    return (int64_t)(a->begun - b->begun) > 0;
}

static bool latest(tt_recorder *recorder, entry *out)
{
    bool found = false;
    pthread_mutex_lock(&recorder->lock);
    for (tt_lane *lane = recorder->lanes; lane != NULL; lane = lane->next) {
        entry e;
        if (!read_lane(lane, &e))
            continue;
        if (!found || later(&e, out))
            *out = e;
        found = true;
    }
    pthread_mutex_unlock(&recorder->lock);
    return found;
}

static double seconds_since(const tt_recorder *recorder, uint64_t ticks)
{
    uint64_t now = tt_ticks();
    int64_t ns = tt_now_ns() - recorder->ns;
    double all = (double)(int64_t)(now - recorder->ticks);
    double ago = (double)(int64_t)(now - ticks);
    return all <= 0 || ago <= 0 ? 0 : ago / all * (double)ns / 1e9;
}

void tt_recorder_last(tt_recorder *recorder, char *buf, size_t cap)
{
    entry e;
    if (recorder == NULL || !latest(recorder, &e)) {
        snprintf(buf, cap, "in no collective yet");
        return;
    }
    double ago = seconds_since(recorder, e.ended == 0 ? e.begun : e.ended);
    if (e.ended == 0)
        snprintf(buf, cap, "in %s %llu (%llu elements) on comm %s for %.1f s", e.kind,
                 (unsigned long long)e.seq, (unsigned long long)e.count, e.name, ago);
    else
        snprintf(buf, cap, "last in %s %llu (%llu elements) on comm %s, which ended %.1f s ago",
                 e.kind, (unsigned long long)e.seq, (unsigned long long)e.count, e.name, ago);
}

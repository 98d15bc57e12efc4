/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vector clocks. One slot per stream; epoch k of a slot is the k-th operation that the stream
 * started. Host threads have no slots: what the host has seen complete is one clock for all of them
 * (engine.h says why).
 *
 * A slot is used again only when the host has seen everything of its last user, so that no access
 * of the old stream can look ordered before the new one's that was not. Epochs go on counting.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

static uint32_t host[SG_SLOTS];
static sg_clock *host_copy; /* of `host`, until it changes */
static uint32_t last_epoch[SG_SLOTS];
static bool used[SG_SLOTS];
static unsigned n_slots;

unsigned sg_slot_take(void)
{
    for (unsigned i = 0; i < n_slots; i++) {
        if (!used[i] && host[i] >= last_epoch[i]) {
            used[i] = true;
            return i;
        }
    }
    if (n_slots == SG_SLOTS) {
        sg_fatal("limit", "more than %d streams", SG_SLOTS);
    }
    used[n_slots] = true;
    return n_slots++;
}

void sg_slot_give(unsigned slot)
{
    used[slot] = false;
}

unsigned sg_slots(void)
{
    return n_slots;
}

uint32_t sg_slot_next(unsigned slot)
{
    return ++last_epoch[slot];
}

sg_clock *sg_clock_copy(const uint32_t *at)
{
    sg_clock *clock = sg_must(malloc(sizeof(*clock) + n_slots * sizeof(uint32_t)));
    clock->refs = 1;
    clock->n = n_slots;
    memcpy(clock->at, at, n_slots * sizeof(uint32_t));
    return clock;
}

sg_clock *sg_clock_keep(sg_clock *clock)
{
    clock->refs++;
    return clock;
}

void sg_clock_drop(sg_clock *clock)
{
    if (clock != NULL && --clock->refs == 0) {
        free(clock);
    }
}

void sg_clock_join(uint32_t *into, const sg_clock *from)
{
    for (unsigned i = 0; from != NULL && i < from->n; i++) {
        if (from->at[i] > into[i]) {
            into[i] = from->at[i];
        }
    }
}

sg_clock *sg_host_clock(void)
{
    if (host_copy == NULL) {
        host_copy = sg_clock_copy(host);
    }
    return sg_clock_keep(host_copy);
}

static void host_changed(void)
{
    sg_clock_drop(host_copy);
    host_copy = NULL;
    sg_pinned_refresh();
}

void sg_host_sees(const sg_clock *clock)
{
    bool more = false;
    for (unsigned i = 0; clock != NULL && i < clock->n; i++) {
        if (clock->at[i] > host[i]) {
            host[i] = clock->at[i];
            more = true;
        }
    }
    if (more) {
        host_changed();
    }
}

void sg_host_sees_raw(const uint32_t *at)
{
    bool more = false;
    for (unsigned i = 0; i < n_slots; i++) {
        if (at[i] > host[i]) {
            host[i] = at[i];
            more = true;
        }
    }
    if (more) {
        host_changed();
    }
}

bool sg_host_saw(unsigned slot, uint32_t epoch)
{
    return host[slot] >= epoch;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that wait for each other in a circle, each in another communicator's call: found and named
 * with TUTTI_CHECK=1. Without it nothing here does anything.
 */
#ifndef TT_BOOT_CIRCLE_H
#define TT_BOOT_CIRCLE_H

#include <pthread.h>

#include "boot/exchange.h"

/* What a rank comes to, the number-th of its kind: exchanges of a group (TT_SPOT_EXCHANGE + the
 * channel), or sends to and receives from a peer (a world rank). */
enum { TT_SPOT_SEND, TT_SPOT_RECV, TT_SPOT_EXCHANGE };
typedef struct tt_spot {
    uint32_t kind, group, number;
    int32_t peer; /* -1: none */
} tt_spot;
static inline tt_spot tt_spot_exchange(const tt_group *group, tt_channel ch, uint32_t round)
{
    return (tt_spot){(uint32_t)TT_SPOT_EXCHANGE + (uint32_t)ch, group->id, round, -1};
}

/* A wait of the calling thread until the ranks world[0 ... n-1] have come, each to spot[0], or to
 * spot[i] (each_its_own). All that it points to outlives it; this rank among them is skipped. */
typedef struct tt_stay {
    const char *what;
    const int *world;
    const tt_spot *spot;
    int n;
    bool each_its_own;
    /* circle.c's own */
    struct tt_stay *next;
    pthread_t thread;
    uint64_t serial;
    int64_t look_ns, pause_ns;
} tt_stay;
void tt_stay_begin(struct tutti_ctx *ctx, tt_stay *stay);
void tt_stay_end(struct tutti_ctx *ctx, tt_stay *stay);

/* This rank, by this thread, has come to the spot. */
void tt_circle_come(struct tutti_ctx *ctx, const tt_spot *spot);
/* The same for sends and receives, which it numbers. */
uint32_t tt_circle_come_next(struct tutti_ctx *ctx, uint32_t kind, const tt_group *group, int peer);
/* What made a group says nothing about the thread that will use it. */
void tt_circle_made(struct tutti_ctx *ctx, const tt_group *group);

/* "all_reduce of 8 bytes f32 on comm dp": what this thread's exchanges are for; NULL: their names
 * say it. Returns what it was. */
const char *tt_stay_name(const char *what);
const char *tt_stay_named(const char *otherwise);

#endif

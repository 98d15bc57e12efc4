/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects of the layers above that live no longer than their context: reducers, meshes, pipelines,
 * groups of tensor parallelism. What a program leaves is destroyed at tutti_finalize, newest first:
 * the reverse of an order in which all ranks could make them, so none waits for another one.
 */
#ifndef TT_BOOT_LIVE_H
#define TT_BOOT_LIVE_H

#include "boot/context.h"

typedef struct tt_live_ops {
    /* Communicators are still there; it may be collective. */
    void (*destroy)(void *object);
    /* Of a failed context: communicators and their memory are gone, what is left is to be freed. */
    void (*drop)(void *object);
} tt_live_ops;

/* Embedded in the object; all zero: not listed. */
struct tt_live {
    tt_live *newer, *older;
    tutti_ctx *ctx;
    const tt_live_ops *ops;
    void *object;
};

void tt_live_add(tt_live *live, tutti_ctx *ctx, const tt_live_ops *ops, void *object);
void tt_live_remove(tt_live *live); /* nothing if it is not listed */

/* tutti_finalize: all are destroyed while communicators are there, those of a failed context are
 * dropped by tt_context_destroy. An object is off the list when its function runs. */
void tt_live_destroy_all(tutti_ctx *ctx);
void tt_live_drop_all(tutti_ctx *ctx);

#endif

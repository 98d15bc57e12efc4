/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pinned memory and the host. Work on a stream may read or write pinned memory while the host does
 * the same; the hardware does not mind, the program gets old or torn data. Pages of pinned memory
 * that queued work uses are closed until the host has seen that work complete: closed altogether if
 * the work writes them, against writing if it reads them. A host access then faults and is reported
 * with both sides named.
 *
 * Pages are the grain, bytes are the rule: on a fault the byte is looked up, and if no unseen work
 * uses it, the page is opened and the host goes on (that page is not watched until the next
 * operation). A host function on a stream runs while work behind it waits already; so in one, only
 * work that has been done counts. Only pages that lie wholly within a range are closed, and all of
 * a small allocation: a system call that is given a closed page does not fault but fails, so no
 * bystander may be hit.
 */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE = 4096 };

typedef struct watch {
    uintptr_t lo, hi; /* bytes */
    bool write;
    sg_stream *stream;
    sg_mark *mark; /* of the operation */
    sg_text *label;
    struct watch *next;
} watch;

static watch *watches;

static void pages_of(const watch *w, uintptr_t *lo, uintptr_t *hi)
{
    const sg_alloc *a = sg_alloc_at((void *)w->lo);
    if (a != NULL && a->span <= PAGE) {
        *lo = (uintptr_t)a->base;
        *hi = *lo + a->span;
        return;
    }
    *lo = (w->lo + PAGE - 1) / PAGE * PAGE;
    *hi = w->hi / PAGE * PAGE;
}

static void close_pages(const watch *w)
{
    uintptr_t lo, hi;
    pages_of(w, &lo, &hi);
    if (hi > lo) {
        mprotect((void *)lo, hi - lo, w->write ? PROT_NONE : PROT_READ);
    }
}

static void open_pages(const watch *w)
{
    uintptr_t lo, hi;
    pages_of(w, &lo, &hi);
    const sg_alloc *a = sg_alloc_at((void *)w->lo);
    if (hi > lo && a != NULL && !a->freed) {
        mprotect((void *)lo, hi - lo, PROT_READ | PROT_WRITE);
    }
}

void sg_pinned_watch(sg_op *op)
{
    if ((op->flags & SG_OP_UNLOCKED) != 0) {
        return;
    }
    for (size_t i = 0; i < op->n_ranges; i++) {
        bool pinned;
        const sg_range *r = &op->ranges[i];
        if (r->bytes == 0 || !sg_memory_window(r->ptr, &pinned) || !pinned) {
            continue;
        }
        watch *w = sg_must(calloc(1, sizeof(*w)));
        w->lo = (uintptr_t)r->ptr;
        w->hi = w->lo + r->bytes;
        w->write = r->write;
        w->stream = op->stream;
        w->mark = sg_op_mark(op);
        w->label = sg_text_keep(op->label);
        w->next = watches;
        watches = w;
        close_pages(w);
    }
}

static bool seen(const watch *w)
{
    if (!w->mark->done) {
        return false;
    }
    const sg_clock *c = w->mark->clock;
    unsigned slot = w->stream->slot;
    return c == NULL || c->n <= slot || sg_host_saw(slot, c->at[slot]);
}

/* Closes what is watched. Writers last: their pages stay closed altogether. */
void sg_pinned_apply(void)
{
    for (int write = 0; write < 2; write++) {
        for (const watch *w = watches; w != NULL; w = w->next) {
            if (w->write == (write != 0)) {
                close_pages(w);
            }
        }
    }
}

void sg_pinned_refresh(void)
{
    bool opened = false;
    for (watch **at = &watches; *at != NULL;) {
        watch *w = *at;
        if (!seen(w)) {
            at = &w->next;
            continue;
        }
        open_pages(w);
        opened = true;
        *at = w->next;
        sg_mark_release(w->mark);
        sg_text_drop(w->label);
        free(w);
    }
    if (opened) {
        sg_pinned_apply();
    }
}

bool sg_pinned_fault(void *address, bool write, char *why, size_t cap)
{
    uintptr_t at = (uintptr_t)address;
    const sg_alloc *a = sg_alloc_peek(address);
    if (a == NULL || a->freed || at >= (uintptr_t)a->base + a->span) {
        snprintf(why, cap, "the host %s pinned memory at %p: %s%s", write ? "writes" : "reads",
                 address, a != NULL ? "freed " : "no allocation", a != NULL ? a->origin : "");
        return true;
    }
    for (const watch *w = watches; w != NULL; w = w->next) {
        if (sg_in_host_function() && !w->mark->done) {
            continue; /* queued behind the function, or to be found by its own access */
        }
        if (at >= w->lo && at < w->hi && (write || w->write)) {
            snprintf(why, cap,
                     "the host %s byte %zu of %s, which %s on %s %s, and the host has not waited "
                     "for that",
                     write ? "writes" : "reads", (size_t)(at - (uintptr_t)a->base), a->origin,
                     w->label->s, w->stream->name, w->write ? "writes" : "reads");
            return true;
        }
    }
    mprotect((void *)(at / PAGE * PAGE), PAGE, PROT_READ | PROT_WRITE);
    return false;
}

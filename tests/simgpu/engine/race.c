/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Races. Each allocation keeps who touched which of its bytes: range, stream slot, epoch, read or
 * write, label. When an operation starts, each of its ranges is held against those entries: an
 * overlap in which one side writes, and whose epoch the operation's clock does not cover, is a
 * race, whatever order the two ran in.
 *
 * Entries do not pile up: a write removes what it covers and is ordered after; a read removes its
 * own stream's earlier reads. An entry is not dropped because the host has seen it: an operation
 * that was enqueued before the host looked is still unordered with it.
 *
 * Memory that the engine did not hand out (pageable) is not followed: such copies are synchronous.
 */
#include "internal.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool ordered(const sg_op *op, const sg_access *a)
{
    return op->stream->clock[a->slot] >= a->epoch;
}

/* " (from libtutti.so: tt_f+0x12)" */
static const char *describe_site(const void *site, char *buf, size_t cap)
{
    Dl_info info;
    buf[0] = '\0';
    if (site == NULL || dladdr(site, &info) == 0 || info.dli_fname == NULL) {
        return buf;
    }
    const char *slash = strrchr(info.dli_fname, '/');
    bool named = info.dli_sname != NULL;
    const char *base = named ? info.dli_saddr : info.dli_fbase;
    snprintf(buf, cap, " (from %s: %s+0x%zx)", slash != NULL ? slash + 1 : info.dli_fname,
             named ? info.dli_sname : "", (size_t)((const char *)site - base));
    return buf;
}

static void report(const sg_op *op, const sg_alloc *alloc, const sg_access *a, bool write)
{
    char here[256], there[256];
    sg_finding("race", "%s on %s%s %s bytes of %s that %s%s %s, and nothing orders the two",
               op->label->s, op->stream->name, describe_site(op->site, here, sizeof(here)),
               write ? "writes" : "reads", alloc->origin, a->label->s,
               describe_site(a->site, there, sizeof(there)), a->write ? "writes" : "reads");
}

static sg_access *grow(sg_alloc *alloc)
{
    if (alloc->n_accesses == alloc->cap_accesses) {
        alloc->cap_accesses = alloc->cap_accesses == 0 ? 8 : 2 * alloc->cap_accesses;
        alloc->accesses =
            sg_must(realloc(alloc->accesses, alloc->cap_accesses * sizeof(alloc->accesses[0])));
    }
    return &alloc->accesses[alloc->n_accesses++];
}

/* Cuts [lo, hi) out of entry i. True: the entry is gone, and another has taken its place. */
static bool cut(sg_alloc *alloc, size_t i, size_t lo, size_t hi)
{
    sg_access *a = &alloc->accesses[i];
    if (a->lo < lo && a->hi > hi) {
        sg_access right = *a;
        right.lo = hi;
        sg_text_keep(right.label);
        a->hi = lo;
        *grow(alloc) = right;
        return false;
    }
    if (a->lo < lo) {
        a->hi = lo;
        return false;
    }
    if (a->hi > hi) {
        a->lo = hi;
        return false;
    }
    sg_text_drop(a->label);
    *a = alloc->accesses[--alloc->n_accesses];
    return true;
}

static void touch(sg_op *op, sg_alloc *alloc, size_t lo, size_t hi, bool write)
{
    bool told = false;
    for (size_t i = 0; i < alloc->n_accesses;) {
        const sg_access *a = &alloc->accesses[i];
        bool before = ordered(op, a);
        if (a->hi <= lo || a->lo >= hi) {
            i++;
            continue;
        }
        if ((write || a->write) && !before && !told) {
            report(op, alloc, a, write);
            told = true;
        }
        bool covered = write ? before : (!a->write && a->slot == op->stream->slot);
        if (!covered || !cut(alloc, i, lo, hi)) {
            i++;
        }
    }
    *grow(alloc) =
        (sg_access){lo, hi, op->stream->slot, op->epoch, write, sg_text_keep(op->label), op->site};
}

static bool usable(const sg_op *op, const sg_alloc *alloc, const sg_range *range)
{
    size_t offset = (size_t)((const char *)range->ptr - alloc->base);
    if (alloc->freed) {
        sg_finding("use-after-free", "%s on %s uses %s, which %s freed", op->label->s,
                   op->stream->name, alloc->origin, alloc->freed_by);
        return false;
    }
    if (offset + range->bytes > alloc->bytes) {
        sg_finding("bounds", "%s on %s uses %zu bytes at offset %zu of %s, which has %zu",
                   op->label->s, op->stream->name, range->bytes, offset, alloc->origin,
                   alloc->bytes);
        return false;
    }
    int device = op->stream->device;
    if ((op->flags & SG_OP_KERNEL) != 0 && alloc->kind == SG_MEM_DEVICE &&
        !sg_peer_enabled(device, alloc->device)) {
        sg_finding("wrong-device", "%s on %s uses %s of device %d without peer access",
                   op->label->s, op->stream->name, alloc->origin, alloc->device);
        return false;
    }
    return true;
}

/* A kernel or copy that is given memory the device cannot reach leaves the context broken. */
static void broken(const sg_op *op)
{
    sg_device_set_error(op->stream->device, SG_ERR_ILLEGAL_ADDRESS, op->label->s);
}

void sg_race_check(sg_op *op)
{
    bool bad = false;
    for (size_t i = 0; i < op->n_ranges; i++) {
        const sg_range *range = &op->ranges[i];
        bool pinned;
        if (range->bytes == 0) {
            continue;
        }
        sg_alloc *alloc = sg_alloc_at(range->ptr);
        if (alloc != NULL && usable(op, alloc, range)) {
            size_t lo = (size_t)((const char *)range->ptr - alloc->base);
            touch(op, alloc, lo, lo + range->bytes, range->write);
        } else if (alloc != NULL) {
            bad = true;
        } else if (sg_memory_window(range->ptr, &pinned)) {
            sg_finding("bounds", "%s on %s uses %p, which lies between allocations", op->label->s,
                       op->stream->name, range->ptr);
            bad = true;
        } else if ((op->flags & SG_OP_KERNEL) != 0) {
            sg_finding("not-device", "%s on %s uses %p, which is pageable host memory",
                       op->label->s, op->stream->name, range->ptr);
            bad = true;
        }
    }
    if (bad) {
        op->run = NULL;
        broken(op);
    }
}

static bool queue_uses(const sg_stream *s, const sg_alloc *alloc, char *who, size_t cap)
{
    for (const sg_op *op = s->head; op != NULL; op = op->next) {
        for (size_t i = 0; i < op->n_ranges; i++) {
            if (sg_alloc_at(op->ranges[i].ptr) == alloc && op->ranges[i].bytes > 0) {
                snprintf(who, cap, "%s on %s", op->label->s, s->name);
                return true;
            }
        }
    }
    return false;
}

bool sg_alloc_unseen(const sg_alloc *alloc, char *who, size_t cap)
{
    for (size_t i = 0; i < alloc->n_accesses; i++) {
        const sg_access *a = &alloc->accesses[i];
        if (!sg_host_saw(a->slot, a->epoch)) {
            snprintf(who, cap, "%s", a->label->s);
            return true;
        }
    }
    for (const sg_stream *s = sg_streams; s != NULL; s = s->next) {
        if (queue_uses(s, alloc, who, cap)) {
            return true;
        }
    }
    return false;
}

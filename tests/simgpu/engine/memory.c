/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory. Each device, and pinned host memory, has one sparse file in memory mapped twice: at the
 * published addresses, which for devices nobody may touch, and at the engine's own. So
 * sg_view is an addition, and a host that touches device memory faults at an address that names
 * the allocation (guard.c). The published mapping is opened, range by range, only while a kernel
 * runs.
 *
 * Addresses are handed out once and never again, with an untouched page between two allocations:
 * use after free and running over the end are found by address, for as long as the process lives.
 * The file gives the pages back (a hole is punched). What is left of an allocation's last page is
 * filled with a pattern that is checked when it is freed. Fresh device memory is 0xff: floats are
 * NaN.
 */
#include "internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, GAP = 0xa5, FRESH = 0xff };
static const size_t WINDOW = (size_t)256 << 30; /* of addresses, per device */

typedef struct window {
    char *published, *own;
    int fd;
    size_t next; /* first byte never given out */
    size_t used;
} window;

static window windows[SG_MAX_DEVICES + 1]; /* the last: pinned host memory */
static sg_alloc **allocs; /* sorted by address within a window; registered ones in between */
static size_t n_allocs, cap_allocs;
static uint64_t next_id;

static size_t pages(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

void sg_memory_start(void)
{
    for (size_t i = 0; i <= SG_MAX_DEVICES; i++) {
        windows[i].fd = -1;
    }
}

static bool window_open(window *w)
{
    if (w->fd >= 0) {
        return true;
    }
    w->fd = memfd_create("simgpu", MFD_CLOEXEC);
    if (w->fd < 0 || ftruncate(w->fd, (off_t)WINDOW) != 0) {
        return false;
    }
    int flags = MAP_SHARED | MAP_NORESERVE;
    void *own = mmap(NULL, WINDOW, PROT_READ | PROT_WRITE, flags, w->fd, 0);
    void *published = mmap(NULL, WINDOW, PROT_NONE, flags, w->fd, 0);
    if (own == MAP_FAILED || published == MAP_FAILED) {
        return false;
    }
    madvise(own, WINDOW, MADV_DONTDUMP);
    madvise(published, WINDOW, MADV_DONTDUMP);
    w->own = own;
    w->published = published;
    w->next = PAGE;
    return true;
}

static window *window_of(const void *ptr)
{
    for (size_t i = 0; i <= SG_MAX_DEVICES; i++) {
        window *w = &windows[i];
        if (w->fd >= 0 && (const char *)ptr >= w->published &&
            (const char *)ptr < w->published + WINDOW) {
            return w;
        }
    }
    return NULL;
}

bool sg_memory_window(const void *ptr, bool *pinned_out)
{
    const window *w = window_of(ptr);
    *pinned_out = w == &windows[SG_MAX_DEVICES];
    return w != NULL;
}

/* The last allocation that begins at or before ptr. */
static size_t position(const void *ptr)
{
    size_t lo = 0, hi = n_allocs;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (allocs[mid]->base <= (const char *)ptr) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

static void insert(sg_alloc *a)
{
    if (n_allocs == cap_allocs) {
        cap_allocs = cap_allocs == 0 ? 64 : 2 * cap_allocs;
        allocs = sg_must(realloc(allocs, cap_allocs * sizeof(allocs[0])));
    }
    size_t at = position(a->base);
    memmove(allocs + at + 1, allocs + at, (n_allocs - at) * sizeof(allocs[0]));
    allocs[at] = a;
    n_allocs++;
}

const sg_alloc *sg_alloc_peek(const void *ptr)
{
    size_t at = position(ptr);
    if (at == 0) {
        return NULL;
    }
    sg_alloc *a = allocs[at - 1];
    return (const char *)ptr < a->base + a->span ? a : NULL;
}

sg_alloc *sg_alloc_at(const void *ptr)
{
    size_t at = position(ptr);
    /* Registered memory may be unregistered and registered again: the live one counts. */
    for (size_t i = at; i > 0 && i + 4 > at; i--) {
        sg_alloc *a = allocs[i - 1];
        if ((const char *)ptr < a->base + a->span && !(a->kind == SG_MEM_REGISTERED && a->freed)) {
            return a;
        }
    }
    return NULL;
}

static sg_alloc *describe(void *base, size_t bytes, sg_memory_kind kind, const char *call)
{
    sg_alloc *a = sg_must(calloc(1, sizeof(*a)));
    a->base = base;
    a->bytes = bytes;
    a->span = bytes;
    a->kind = kind;
    a->device = sg_current_device();
    a->id = ++next_id;
    snprintf(a->origin, sizeof(a->origin), "%s #%llu", call, (unsigned long long)a->id);
    insert(a);
    return a;
}

static sg_alloc *carve(window *w, size_t bytes, sg_memory_kind kind, const char *call)
{
    size_t span = pages(bytes > 0 ? bytes : 1);
    sg_guard_start();
    if (span > WINDOW - w->next - PAGE) {
        return NULL;
    }
    sg_alloc *a = describe(w->published + w->next, bytes, kind, call);
    a->span = span;
    memset(w->own + w->next, kind == SG_MEM_DEVICE ? FRESH : 0, bytes);
    memset(w->own + w->next + bytes, GAP, span - bytes);
    if (kind == SG_MEM_PINNED) {
        mprotect(a->base, span, PROT_READ | PROT_WRITE);
    }
    w->next += span + PAGE;
    w->used += bytes;
    return a;
}

void *sg_alloc_device(int ordinal, size_t bytes, const char *call, bool windowable)
{
    const sg_gpu *gpu = sg_device(ordinal);
    sg_alloc *a = NULL;
    sg_lock();
    window *w = &windows[ordinal];
    if (gpu != NULL && bytes <= gpu->memory - w->used && window_open(w)) {
        a = carve(w, bytes, SG_MEM_DEVICE, call);
    }
    if (a != NULL) {
        a->device = ordinal;
        a->windowable = windowable;
    }
    sg_unlock();
    return a != NULL ? a->base : NULL;
}

void *sg_alloc_pinned(size_t bytes, const char *call)
{
    sg_alloc *a = NULL;
    sg_lock();
    if (window_open(&windows[SG_MAX_DEVICES])) {
        a = carve(&windows[SG_MAX_DEVICES], bytes, SG_MEM_PINNED, call);
    }
    sg_unlock();
    return a != NULL ? a->base : NULL;
}

size_t sg_device_used(int ordinal)
{
    return sg_device(ordinal) != NULL ? windows[ordinal].used : 0;
}

static void check_gap(const sg_alloc *a, const window *w)
{
    const unsigned char *own = (unsigned char *)w->own + (a->base - w->published);
    for (size_t i = a->bytes; i < a->span; i++) {
        if (own[i] != GAP) {
            sg_finding("overrun", "%s (%zu bytes) was written %zu bytes past its end", a->origin,
                       a->bytes, i - a->bytes + 1);
            return;
        }
    }
}

static void forget_accesses(sg_alloc *a)
{
    for (size_t i = 0; i < a->n_accesses; i++) {
        sg_text_drop(a->accesses[i].label);
    }
    free(a->accesses);
    a->accesses = NULL;
    a->n_accesses = a->cap_accesses = 0;
}

static void give_back(sg_alloc *a, const char *call)
{
    window *w = window_of(a->base);
    check_gap(a, w);
    forget_accesses(a);
    a->freed = true;
    snprintf(a->freed_by, sizeof(a->freed_by), "%s", call);
    w->used -= a->bytes;
    mprotect(a->base, a->span, PROT_NONE);
    fallocate(w->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, a->base - w->published,
              (off_t)a->span);
}

static sg_alloc *must_own(void *ptr, const char *call)
{
    sg_alloc *a = sg_alloc_at(ptr);
    if (a == NULL || a->base != ptr || a->kind == SG_MEM_REGISTERED) {
        sg_finding("bad-free", "%s(%p): the pointer was never allocated", call, ptr);
        return NULL;
    }
    if (a->freed) {
        sg_finding("double-free", "%s(%p): %s was already freed by %s", call, ptr, a->origin,
                   a->freed_by);
        return NULL;
    }
    return a;
}

int sg_free(void *ptr, const char *call)
{
    char who[256];
    int error = SG_OK;
    sg_lock();
    sg_alloc *a = must_own(ptr, call);
    if (a == NULL) {
        error = SG_ERR_INVALID_VALUE;
    } else {
        if (sg_alloc_unseen(a, who, sizeof(who))) {
            sg_finding("free-pending", "%s frees %s while %s may still use it", call, a->origin,
                       who);
        }
        give_back(a, call);
    }
    sg_unlock();
    return error;
}

static sg_step free_now(void *arg, sg_op *op)
{
    (void)op;
    sg_alloc *a = arg;
    if (!a->freed) {
        give_back(a, "cudaFreeAsync");
    }
    return SG_DONE;
}

int sg_free_async(sg_stream *stream, void *ptr, const char *call)
{
    sg_lock();
    sg_alloc *a = must_own(ptr, call);
    int error = SG_ERR_INVALID_VALUE;
    if (a != NULL) {
        char label[96];
        snprintf(label, sizeof(label), "%s of %s", call, a->origin);
        sg_range all = {a->base, a->bytes, true};
        sg_op_desc desc = {
            .label = label, .ranges = &all, .n_ranges = 1, .run = free_now, .arg = a};
        error = sg_enqueue(stream, &desc);
    }
    sg_unlock();
    return error;
}

int sg_register(void *ptr, size_t bytes, const char *call)
{
    int error = SG_OK;
    sg_lock();
    const sg_alloc *a = sg_alloc_at(ptr);
    if (ptr == NULL || bytes == 0) {
        error = SG_ERR_INVALID_VALUE;
    } else if (a != NULL) {
        error = 712;
    } else {
        describe(ptr, bytes, SG_MEM_REGISTERED, call);
    }
    sg_unlock();
    return error;
}

int sg_unregister(void *ptr, const char *call)
{
    char who[256];
    int error = SG_OK;
    sg_lock();
    sg_alloc *a = sg_alloc_at(ptr);
    if (a == NULL || a->base != ptr || a->kind != SG_MEM_REGISTERED) {
        error = 713;
    } else {
        if (sg_alloc_unseen(a, who, sizeof(who))) {
            sg_finding("free-pending", "%s of %s while %s may still use it", call, a->origin, who);
        }
        forget_accesses(a);
        a->freed = true;
    }
    sg_unlock();
    return error;
}

bool sg_memory_find(const void *ptr, sg_memory *out)
{
    memset(out, 0, sizeof(*out));
    sg_lock();
    const sg_alloc *a = sg_alloc_at(ptr);
    bool known = a != NULL && (const char *)ptr < a->base + (a->bytes > 0 ? a->bytes : 1);
    if (known) {
        *out = (sg_memory){a->kind, a->device, a->base,  a->bytes,
                           a->id,   a->origin, a->freed, a->windowable};
    }
    sg_unlock();
    return known;
}

void *sg_view(const void *ptr)
{
    const window *w = window_of(ptr);
    if (w == NULL) {
        return (void *)(uintptr_t)ptr;
    }
    return w->own + ((const char *)ptr - w->published);
}

const char *sg_name_pointer(const void *ptr, char *buf, size_t cap)
{
    sg_memory m;
    if (sg_memory_find(ptr, &m)) {
        snprintf(buf, cap, "%s+%zu%s", m.origin, (size_t)((const char *)ptr - (char *)m.base),
                 m.freed ? " (freed)" : "");
    } else {
        snprintf(buf, cap, "%s", ptr != NULL ? "host" : "NULL");
    }
    return buf;
}

bool sg_check_device_range(const void *ptr, size_t bytes, int ordinal, const char *who)
{
    sg_memory m;
    if (!sg_memory_find(ptr, &m) || (m.kind != SG_MEM_DEVICE && m.kind != SG_MEM_PINNED)) {
        sg_finding("not-device", "%s: %p is no memory that device %d can reach", who, ptr, ordinal);
    } else if (m.freed) {
        sg_finding("use-after-free", "%s uses %s, which was freed", who, m.origin);
    } else if ((size_t)((const char *)ptr - (char *)m.base) + bytes > m.bytes) {
        sg_finding("bounds", "%s uses %zu bytes at offset %zu of %s, which has %zu", who, bytes,
                   (size_t)((const char *)ptr - (char *)m.base), m.origin, m.bytes);
    } else {
        return true;
    }
    return false;
}

static void protect(const sg_range *range, int protection)
{
    if (range->bytes == 0 || window_of(range->ptr) == NULL) {
        return;
    }
    uintptr_t lo = (uintptr_t)range->ptr / PAGE * PAGE;
    uintptr_t hi = ((uintptr_t)range->ptr + range->bytes + PAGE - 1) / PAGE * PAGE;
    mprotect((void *)lo, hi - lo, protection);
}

void sg_memory_open(const sg_range *ranges, size_t n)
{
    for (int write = 0; write < 2; write++) {
        for (size_t i = 0; i < n; i++) {
            if (ranges[i].write == (write != 0)) {
                protect(&ranges[i], write ? PROT_READ | PROT_WRITE : PROT_READ);
            }
        }
    }
}

void sg_memory_close(const sg_range *ranges, size_t n)
{
    bool pinned, any_pinned = false;
    for (size_t i = 0; i < n; i++) {
        if (sg_memory_window(ranges[i].ptr, &pinned)) {
            protect(&ranges[i], pinned ? PROT_READ | PROT_WRITE : PROT_NONE);
            any_pinned = any_pinned || pinned;
        }
    }
    if (any_pinned) {
        sg_pinned_apply();
    }
}

void sg_memory_leaks(void)
{
    for (size_t i = 0; i < n_allocs; i++) {
        const sg_alloc *a = allocs[i];
        if (a->freed) {
            continue;
        }
        if (a->kind == SG_MEM_REGISTERED) {
            sg_finding("leak", "%s: %zu bytes are still registered at the end", a->origin,
                       a->bytes);
        } else {
            sg_finding("leak", "%s: %zu bytes of %s memory are never freed", a->origin, a->bytes,
                       a->kind == SG_MEM_DEVICE ? "device" : "pinned");
            check_gap(a, window_of(a->base));
        }
    }
}

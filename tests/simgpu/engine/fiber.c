/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The threads of a block as fibers, for kernels whose threads meet. Round by round every live fiber
 * runs until it meets or ends. A meeting of the whole block (__syncthreads) or of a warp's lanes
 * (shuffle, ballot, __syncwarp) lets its members go on once all of them are there. A thread that
 * has ended never comes, though some GPUs let the others pass: that is the finding
 * `divergent-sync`.
 *
 * Stacks are kept from block to block. Contexts are switched by ucontext once to start a fiber and
 * by _setjmp/_longjmp afterwards, which spares two system calls per switch.
 */
#undef _FORTIFY_SOURCE /* its longjmp refuses to change stacks */
#include "../device_code.h"
#include "internal.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { STACK = 64 << 10, MAX_THREADS = 1024, WARP = 32 };

typedef enum where { READY, AT_BLOCK, AT_WARP, ENDED } where;

typedef struct fiber {
    where state;
    bool begun;
    jmp_buf at;
    ucontext_t first;
    unsigned mask, lane; /* of the meeting it is in */
    uint64_t give, take;
    bool vote;
} fiber;

static fiber *fibers;
static char *stacks;
static unsigned n, now;
static jmp_buf scheduler;
static ucontext_t scheduler_context;
static void (*body_of)(void *const *args);
static void *const *args_of;
static sg_thread_state state_of[MAX_THREADS];
static bool inside;

static void prepare(void)
{
    if (fibers != NULL) {
        return;
    }
    fibers = sg_must(calloc(MAX_THREADS, sizeof(*fibers)));
    stacks = mmap(NULL, (size_t)STACK * MAX_THREADS, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) {
        sg_fatal("limit", "no memory for the stacks of a block");
    }
}

static void back(void)
{
    if (_setjmp(fibers[now].at) == 0) {
        _longjmp(scheduler, 1);
    }
}

static void begin(void)
{
    body_of(args_of);
    fibers[now].state = ENDED;
    _longjmp(scheduler, 1);
}

static void resume(unsigned i)
{
    fiber *f = &fibers[i];
    now = i;
    sg_thread = state_of[i];
    if (_setjmp(scheduler) != 0) {
        return;
    }
    if (f->begun) {
        _longjmp(f->at, 1);
    }
    f->begun = true;
    getcontext(&f->first);
    f->first.uc_stack.ss_sp = stacks + (size_t)i * STACK;
    f->first.uc_stack.ss_size = STACK;
    f->first.uc_link = NULL;
    makecontext(&f->first, begin, 0);
    swapcontext(&scheduler_context, &f->first);
}

static bool release_block(void)
{
    for (unsigned i = 0; i < n; i++) {
        if (fibers[i].state != AT_BLOCK) {
            return false;
        }
    }
    for (unsigned i = 0; i < n; i++) {
        fibers[i].state = READY;
    }
    return true;
}

/* The lanes named by a fiber's mask are all there: exchange, and let them go on. */
static bool release_warp(unsigned i)
{
    unsigned base = i / WARP * WARP, mask = fibers[i].mask, ballot = 0;
    for (unsigned k = 0; k < WARP; k++) {
        unsigned other = base + k;
        if ((mask & (1u << k)) == 0 || other >= n) {
            continue;
        }
        if (fibers[other].state != AT_WARP || fibers[other].mask != mask) {
            return false;
        }
        ballot |= fibers[other].vote ? 1u << k : 0;
    }
    for (unsigned k = 0; k < WARP && base + k < n; k++) {
        fiber *f = &fibers[base + k];
        if ((mask & (1u << k)) != 0 && f->state == AT_WARP) {
            unsigned from = base + f->lane;
            f->take = f->lane == WARP ? ballot : from < n ? fibers[from].give : 0;
        }
    }
    for (unsigned k = 0; k < WARP && base + k < n; k++) {
        if ((mask & (1u << k)) != 0 && fibers[base + k].state == AT_WARP) {
            fibers[base + k].state = READY;
        }
    }
    return true;
}

static bool release_some(void)
{
    bool moved = release_block();
    for (unsigned i = 0; i < n; i++) {
        moved = (fibers[i].state == AT_WARP && release_warp(i)) || moved;
    }
    return moved;
}

static unsigned still_live(void)
{
    unsigned live = 0;
    for (unsigned i = 0; i < n; i++) {
        live += fibers[i].state != ENDED;
    }
    return live;
}

static void divergent(const char *name)
{
    unsigned at_block = 0, at_warp = 0;
    for (unsigned i = 0; i < n; i++) {
        at_block += fibers[i].state == AT_BLOCK;
        at_warp += fibers[i].state == AT_WARP;
    }
    sg_fatal("divergent-sync",
             "kernel %s: %u threads of block (%u,%u,%u) wait in __syncthreads, %u in a call of "
             "their warp, and the others never come",
             name, at_block, sg_thread.block.x, sg_thread.block.y, sg_thread.block.z, at_warp);
}

void sg_fiber_block(void (*body)(void *const *args), void *const *args, unsigned threads,
                    void (*enter)(unsigned index), const char *name)
{
    prepare();
    if (threads > MAX_THREADS) {
        sg_fatal("limit", "kernel %s: %u threads in a block", name, threads);
    }
    n = threads;
    body_of = body;
    args_of = args;
    for (unsigned i = 0; i < n; i++) {
        enter(i);
        state_of[i] = sg_thread;
        fibers[i].state = READY;
        fibers[i].begun = false;
    }
    inside = true;
    while (still_live() > 0) {
        for (unsigned i = 0; i < n; i++) {
            if (fibers[i].state == READY) {
                resume(i);
            }
        }
        if (still_live() > 0 && !release_some()) {
            divergent(name);
        }
    }
    inside = false;
}

static void must_be_inside(const char *call)
{
    if (!inside) {
        sg_fatal("divergent-sync", "%s in a kernel that is not registered with SG_KERNEL_SYNCS",
                 call);
    }
}

void sg_syncthreads(void)
{
    must_be_inside("__syncthreads");
    fibers[now].state = AT_BLOCK;
    back();
}

static uint64_t meet(unsigned mask, unsigned lane, uint64_t bits, bool vote)
{
    must_be_inside("a call of a warp");
    fiber *f = &fibers[now];
    unsigned count = n - now / WARP * WARP;
    f->mask = count < WARP ? mask & ((1u << count) - 1) : mask;
    f->lane = lane;
    f->give = bits;
    f->vote = vote;
    f->state = AT_WARP;
    back();
    return fibers[now].take;
}

void sg_syncwarp(unsigned mask)
{
    meet(mask, WARP, 0, false);
}

uint64_t sg_shuffle(unsigned mask, uint64_t bits, unsigned lane)
{
    return meet(mask, lane % WARP, bits, false);
}

unsigned sg_ballot(unsigned mask, bool predicate)
{
    return (unsigned)meet(mask, WARP, 0, predicate);
}

unsigned sg_lane(void)
{
    const sg_thread_state *t = &sg_thread;
    return (t->thread.x + t->block_dim.x * (t->thread.y + t->block_dim.y * t->thread.z)) % WARP;
}

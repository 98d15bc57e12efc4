/* SPDX-License-Identifier: Apache-2.0 */
/* The control segment as control.c, meet.c and quick.c see it. */
#ifndef TT_HOST_CONTROL_H
#define TT_HOST_CONTROL_H

#include <stdalign.h>

#include "host/host.h"

enum {
    TT_SPINS = 2000, /* looks before a wait is taken to be a long one */
    TT_LINE = 64,
    TT_APART = 128, /* lines are fetched in pairs */
    TT_FLAGS_MOST = 16, /* ranks that look at each other's lines */
    TT_AHEAD = 8, /* small calls published and not finished: ahead.c */
    TT_LINES = 2 * TT_AHEAD
};

/*
 * What a rank publishes of a call: one line, so that a small call is one hand-over of it.
 * `number` is written last. `word` is either the input itself (the key says all there is to know of
 * the call), or what TT_W_... name.
 */
typedef struct tt_line {
    alignas(TT_APART) _Atomic uint32_t number; /* of the call, from 1 */
    _Atomic uint32_t key;
    _Atomic uint64_t word[TT_TINY_WORDS];
} tt_line;

typedef struct tt_block {
    tt_line line[TT_LINES]; /* calls take turns: see meet.c */
    alignas(TT_APART) _Atomic uint32_t phase; /* barriers the rank has entered */
    alignas(TT_APART) _Atomic uint32_t sleepers; /* on one of the words above */
    /* reach.c: whose plain memory the rank is in, its local index + 1; whether others may be in its
     * own no more */
    alignas(TT_APART) _Atomic uint32_t inside, withdrawn;
} tt_block;

struct tt_control {
    alignas(
        TT_APART) _Atomic uint32_t counted; /* ranks count arrivals; written before it is shared */
    alignas(TT_APART) _Atomic uint32_t count; /* entries into barriers, of all ranks */
    alignas(TT_APART) _Atomic uint32_t passed; /* barriers that all have entered */
    _Atomic uint32_t sleepers; /* on passed */
    _Atomic uint32_t unreachable; /* ranks whose tries failed (reach.c); set while it is made */
    alignas(TT_APART) tt_block block[]; /* then counts, payloads, slots */
};

/* Rows of the counts of an all_to_allv that a rank publishes, one word per local rank each. */
enum { TT_SENDS, TT_SENDS_FROM /* offset in its `in` */, TT_EXPECTS, TT_COUNTS_ROWS };

/* The key's word: fields from the lowest bit on. A root in it is below TT_KEY_ROOT_LIMIT, n below
 * 1 << TT_KEY_N_BITS; both are 0 where the line has words for them. */
enum {
    TT_KEY_KIND_BITS = 4,
    TT_KEY_DTYPE_BITS = 4,
    TT_KEY_OP_BITS = 3,
    TT_KEY_FORM_BITS = 2,
    TT_KEY_N_BITS = 6,
    TT_KEY_ROOT_LIMIT = 1 << (32 - TT_KEY_KIND_BITS - TT_KEY_DTYPE_BITS - TT_KEY_OP_BITS -
                              TT_KEY_FORM_BITS - TT_KEY_N_BITS)
};
enum {
    TT_KEY_DTYPE_AT = TT_KEY_KIND_BITS,
    TT_KEY_OP_AT = TT_KEY_DTYPE_AT + TT_KEY_DTYPE_BITS,
    TT_KEY_FORM_AT = TT_KEY_OP_AT + TT_KEY_OP_BITS,
    TT_KEY_N_AT = TT_KEY_FORM_AT + TT_KEY_FORM_BITS,
    TT_KEY_ROOT_AT = TT_KEY_N_AT + TT_KEY_N_BITS
};

/* Where the input of a call lies whose largest one has `most` bytes. */
char *tt_control_payload_of(const tt_host *host, int local, uint32_t number, size_t most);
/* The most that calls published ahead may have. */
size_t tt_control_ring_bytes(const tt_host *host);
_Atomic uint64_t *tt_control_counts(const tt_host *host, int local, uint32_t number, int row);

/* The words of a line that does not hold the input itself. */
enum { TT_W_N, TT_W_ROOT, TT_W_COUNTS, TT_W_IDS, TT_W_IN_OFFSET, TT_W_OUT_OFFSET, TT_W_IN_BYTES };

/* Whether a call's input is put where that of the call before the last may still be read, not
 * into a ring. */
static inline bool tt_meet_by_twos(const tt_run *run)
{
    return run->may_carry || run->call->recv_counts != NULL ||
           (run->form == TT_SMALL && tt_small_most(run->call) > tt_control_ring_bytes(run->host));
}

/* Whether the others have come far enough for its line and input, of those calls that this rank has
 * left before them. */
static inline bool tt_meet_has_room(const tt_run *run)
{
    const uint32_t open = run->host->calls - run->host->compared;
    return tt_meet_by_twos(run) ? open == 0 : open < TT_AHEAD;
}

/* The parts of tt_meet. The first waits until there is room. The second returns the line's key. */
tutti_status tt_meet_room(tt_run *run);
uint32_t tt_meet_publish(tt_run *run);
tutti_status tt_meet_published(tt_run *run, uint32_t key);

static inline uint64_t tt_line_word(const tt_line *line, int word)
{
    return atomic_load_explicit(&line->word[word], memory_order_relaxed);
}

static inline void tt_line_put(tt_line *line, int word, uint64_t value)
{
    atomic_store_explicit(&line->word[word], value, memory_order_relaxed);
}

/* Whether a word that only grows, and by little, has come to `target`. */
static inline bool tt_reached(uint32_t word, uint32_t target)
{
    return (int32_t)(word - target) >= 0;
}

/* Gets a line that is to be written soon, and that others have read, for this core alone. */
static inline void tt_line_own(const void *line)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)line));
#else
    __builtin_prefetch(line, 1);
#endif
}

static inline void tt_wake(_Atomic uint32_t *word, _Atomic uint32_t *sleepers)
{
    if (__builtin_expect(atomic_load_explicit(sleepers, memory_order_relaxed) > 0, 0))
        tt_futex_wake_all(word);
}

#endif

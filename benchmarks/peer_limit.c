/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limit: what each collective costs when written by hand for one case alone: fp32 sums, one
 * node, every rank's buffers mapped by all, no checks, no deadlines, no failures told. Ranks spin
 * on flags that have cache lines of their own. Kept beside the library to show what its safety
 * costs; nobody should train with it.
 *
 *   all_reduce of up to 15 elements: a rank writes elements and sequence number into one line
 *   otherwise: flag "here", wait for all; each rank works on its slice of everybody's buffers;
 *   flag "done", wait for all
 */
#include <mpi.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "core/mem.h"

enum { LINE = 128, TINY = 15, RANKS_MAX = 64 };

typedef struct flag {
    _Alignas(LINE) atomic_uint_fast64_t seq;
} flag;

typedef struct tiny {
    _Alignas(64) atomic_uint seq;
    float data[TINY];
} tiny;

typedef struct board { /* one a rank, in shared memory */
    flag here, done;
    tiny tiny[2];
} board;

typedef struct limit_state {
    MPI_Win window;
    int rank, size;
    uint64_t seq;
    unsigned tiny_seq;
    board *board[RANKS_MAX];
    char *in[RANKS_MAX], *out[RANKS_MAX];
    bench_variant *self;
} limit_state;

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    __asm__ volatile("yield");
#endif
}

#if defined(__x86_64__)
#define WIDE __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#else
#define WIDE
#endif

WIDE static void add(float *restrict out, const float *restrict a, const float *restrict b,
                     size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = a[i] + b[i];
}

/* Both buffers become the sum. */
WIDE static void add_both(float *restrict a, float *restrict b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float sum = a[i] + b[i];

        a[i] = sum;
        b[i] = sum;
    }
}

WIDE static void add_two(float *restrict x, float *restrict y, const float *restrict a,
                         const float *restrict b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float sum = a[i] + b[i];

        x[i] = sum;
        y[i] = sum;
    }
}

WIDE static void add_to(float *restrict out, const float *restrict a, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] += a[i];
}

static void post_and_wait(limit_state *s, size_t which)
{
    int r;

    atomic_store_explicit(&(which == 0 ? &s->board[s->rank]->here : &s->board[s->rank]->done)->seq,
                          s->seq, memory_order_release);
    for (r = 0; r < s->size; r++)
        while (atomic_load_explicit(&(which == 0 ? &s->board[r]->here : &s->board[r]->done)->seq,
                                    memory_order_acquire) < s->seq)
            relax();
}

static void all_here(limit_state *s)
{
    s->seq++;
    post_and_wait(s, 0);
}

static void all_done(limit_state *s)
{
    post_and_wait(s, 1);
}

static void tiny_all_reduce(limit_state *s, const float *in, float *out, size_t n)
{
    unsigned seq = ++s->tiny_seq;
    tiny *mine = &s->board[s->rank]->tiny[seq & 1];
    float sum[TINY];
    int r;

    memcpy(mine->data, in, n * sizeof *in);
    atomic_store_explicit(&mine->seq, seq, memory_order_release);
    for (r = 0; r < s->size; r++) {
        tiny *theirs = &s->board[r]->tiny[seq & 1];

        while (atomic_load_explicit(&theirs->seq, memory_order_acquire) != seq)
            relax();
        for (size_t i = 0; i < n; i++)
            sum[i] = r == 0 ? theirs->data[i] : sum[i] + theirs->data[i];
    }
    memcpy(out, sum, n * sizeof *out);
}

/* The peer's address of what is at p in one of this rank's arenas. */
static char *theirs(const limit_state *s, int r, const void *p)
{
    const char *at = p;

    if (at >= s->in[s->rank] && at < s->in[s->rank] + s->self->bytes)
        return s->in[r] + (at - s->in[s->rank]);
    return s->out[r] + (at - s->out[s->rank]);
}

/* Elements lo ... of everybody's `in`, summed into `out` (this rank's memory or a peer's). */
static void sum_all(const limit_state *s, float *out, const void *in, size_t lo, size_t n)
{
    int r;

    if (s->size == 1) {
        memmove(out, (const float *)in + lo, n * sizeof *out);
        return;
    }
    if ((const char *)out == theirs(s, 0, in) + lo * sizeof *out) {
        for (r = 1; r < s->size; r++)
            add_to(out, (const float *)(void *)theirs(s, r, in) + lo, n);
        return;
    }
    add(out, (const float *)(void *)theirs(s, 0, in) + lo,
        (const float *)(void *)theirs(s, 1, in) + lo, n);
    for (r = 2; r < s->size; r++)
        add_to(out, (const float *)(void *)theirs(s, r, in) + lo, n);
}

/* This rank's slice of n elements, cut at cache lines. */
static void slice(const limit_state *s, size_t n, size_t *lo, size_t *count)
{
    size_t each = tt_round_up((n + (size_t)s->size - 1) / (size_t)s->size, 16);

    *lo = tt_min_size(n, each * (size_t)s->rank);
    *count = tt_min_size(each, n - *lo);
}

static void all_reduce(limit_state *s, const bench_case *c, const void *in, void *out)
{
    size_t lo, n;
    float *mine;
    int r;

    slice(s, c->n, &lo, &n);
    if (s->size == 2) {
        float *a = (float *)(void *)theirs(s, 0, in) + lo,
              *b = (float *)(void *)theirs(s, 1, in) + lo;

        if (in == out)
            add_both(a, b, n);
        else
            add_two((float *)(void *)theirs(s, 0, out) + lo,
                    (float *)(void *)theirs(s, 1, out) + lo, a, b, n);
        return;
    }
    mine = (float *)(void *)theirs(s, 0, out) + lo; /* rank 0's copy first: the order of the sum */
    sum_all(s, mine, in, lo, n);
    for (r = 1; r < s->size; r++)
        memcpy((float *)(void *)theirs(s, r, out) + lo, mine, n * sizeof *mine);
}

static void work(limit_state *s, const bench_case *c, const void *in, void *out)
{
    size_t bytes = c->n * sizeof(float), lo, n;
    const char *name = c->op->name;
    char *to = out;
    int r;

    if (strcmp(name, "all_reduce") == 0) {
        all_reduce(s, c, in, out);
    } else if (strcmp(name, "reduce_scatter") == 0) {
        sum_all(s, out, in, c->n * (size_t)s->rank, c->n);
    } else if (strcmp(name, "reduce") == 0) {
        slice(s, c->n, &lo, &n);
        sum_all(s, (float *)(void *)theirs(s, c->root, out) + lo, in, lo, n);
    } else if (strcmp(name, "all_gather") == 0) {
        for (r = 0; r < s->size; r++)
            memcpy(to + (size_t)r * bytes, theirs(s, r, in), bytes);
    } else if (strcmp(name, "all_to_all") == 0) {
        for (r = 0; r < s->size; r++)
            memcpy(to + (size_t)r * bytes, theirs(s, r, in) + (size_t)s->rank * bytes, bytes);
    } else if (strcmp(name, "broadcast") == 0) {
        memcpy(out, theirs(s, c->root, in), bytes);
    } else if (strcmp(name, "gather") == 0) {
        memcpy(theirs(s, c->root, out) + (size_t)s->rank * bytes, in, bytes);
    } else if (strcmp(name, "scatter") == 0) {
        memcpy(out, theirs(s, c->root, in) + (size_t)s->rank * bytes, bytes);
    } else {
        memcpy(out, theirs(s, (s->rank + s->size - 1) % s->size, in), bytes);
    }
}

static tutti_status limit_call(bench_variant *v, const bench_case *c, const void *in, void *out)
{
    limit_state *s = v->state;

    if (c->n <= TINY && strcmp(c->op->name, "all_reduce") == 0) {
        tiny_all_reduce(s, in, out, c->n);
        return TUTTI_OK;
    }
    all_here(s);
    work(s, c, in, out);
    all_done(s);
    return TUTTI_OK;
}

/* In place the shifts of in and out differ between the ranks, which the limit does not handle; the
 * row's out-of-place figure is the one to compare with. */
static bool limit_can(const bench_variant *v, const bench_case *c)
{
    (void)v;
    return c->dtype == TUTTI_FLOAT32 && c->redop == TUTTI_SUM && c->n > 0 &&
           (!c->in_place || strcmp(c->op->name, "all_reduce") == 0);
}

static void limit_close(bench_variant *v)
{
    limit_state *s = v->state;

    if (s == NULL)
        return;
    MPI_Win_free(&s->window);
    free(s);
    v->state = NULL;
}

tutti_status bench_limit_open(bench_job *job, size_t bytes, bench_variant *out)
{
    size_t page = 4096, head = tt_round_up(sizeof(board), page), arena = tt_round_up(bytes, page);
    char *base;
    limit_state *s;
    int r;

    if (tutti_node_count(job->ctx) > 1 || job->size > RANKS_MAX)
        return tt_fail(TUTTI_ERR_UNSUPPORTED,
                       "tutti bench --peer limit: for at most %d ranks of one node", RANKS_MAX);
    TT_TRY(tt_calloc(1, sizeof *s, &s));
    s->rank = job->rank;
    s->size = job->size;
    if (MPI_Win_allocate_shared((MPI_Aint)(head + 2 * arena + page), 1, MPI_INFO_NULL,
                                MPI_COMM_WORLD, &base, &s->window) != MPI_SUCCESS) {
        free(s);
        return tt_fail(TUTTI_ERR_NO_MEMORY, "tutti bench --peer limit: no shared memory");
    }
    for (r = 0; r < s->size; r++) {
        MPI_Aint size;
        int unit;

        MPI_Win_shared_query(s->window, r, &size, &unit, &base);
        base = (char *)tt_round_up((size_t)base, page);
        s->board[r] = (board *)(void *)base;
        s->in[r] = base + head;
        s->out[r] = base + head + arena;
    }
    memset((void *)s->board[s->rank], 0, head + 2 * arena);
    MPI_Barrier(MPI_COMM_WORLD);
    *out = (bench_variant){.name = "limit",
                           .state = s,
                           .in = s->in[s->rank],
                           .out = s->out[s->rank],
                           .bytes = arena,
                           .can = limit_can,
                           .call = limit_call,
                           .close = limit_close};
    s->self = out;
    return TUTTI_OK;
}

static const bench_peer peers[] = {{"mpi", bench_mpi_open}, {"limit", bench_limit_open}};

const bench_peer *bench_peer_at(size_t index)
{
    return index < sizeof peers / sizeof peers[0] ? &peers[index] : NULL;
}

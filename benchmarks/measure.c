/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times the variants of one case, their rounds interleaved so that a disturbance of the machine
 * meets all alike. A sample is a batch of back-to-back calls long enough for the clock (the same
 * number on all ranks, found while warming up); a rank's round is the median of its samples, the
 * round's time that of the slowest rank, and the row's the median of the rounds. A ratio to a peer
 * is formed within each round; the row prints the median of the ratios.
 *
 * Cold rows cycle through buffers that together exceed the last-level cache.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"
#include "core/clock.h"
#include "core/mem.h"

enum { PAGE = 4096, SAMPLES_MAX = 400 };
static const double sample_s = 200e-6; /* long enough for a clock that takes 50 ns to read */

typedef struct timing {
    double samples[BENCH_ROUNDS_MAX * SAMPLES_MAX];
    size_t n, batch, per_round;
    bench_time time;
} timing;

/* Bytes to cycle through for a cold row: twice the last-level cache, 64 MiB to 512 MiB. */
static size_t cold_bytes(void)
{
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    size_t bytes = cache > 0 ? 2 * (size_t)cache : 0;

    if (bytes < (size_t)64 << 20)
        return (size_t)64 << 20;
    return tt_min_size(bytes, (size_t)512 << 20);
}

size_t bench_stride(const bench_options *o, const bench_case *c)
{
    return o->cold ? tt_round_up(c->bytes, PAGE) : 0;
}

size_t bench_arena_bytes(const bench_options *o)
{
    size_t bytes = tt_round_up(o->max_bytes, PAGE);

    return o->cold && bytes < cold_bytes() ? cold_bytes() : bytes;
}

static tutti_status run(bench_variant *v, const bench_case *c, size_t calls, size_t stride,
                        size_t *at)
{
    const char *in;
    char *out;
    size_t i;

    for (i = 0; i < calls; i++) {
        bench_place_of(v, c, *at, &in, &out);
        TT_TRY(v->call(v, c, in, out));
        *at += stride;
        if (*at + c->bytes > v->bytes)
            *at = 0;
    }
    return v->finish != NULL ? v->finish(v) : TUTTI_OK;
}

static tutti_status slowest(bench_job *job, double *values, size_t n)
{
    return tutti_all_reduce_host(job->world, values, n, TUTTI_MAX);
}

/* How many calls make a sample, and samples a round; doubles while they are too short. */
static tutti_status calibrate(bench_job *job, const bench_options *o, bench_variant *v,
                              const bench_case *c, timing *t)
{
    size_t stride = bench_stride(o, c), at = 0;
    double took = 0, samples;

    for (t->batch = 1;; t->batch *= 2) {
        int64_t start;

        TT_TRY(tutti_barrier(job->world));
        start = tt_now_ns();
        TT_TRY(run(v, c, t->batch, stride, &at));
        took = (double)(tt_now_ns() - start) * 1e-9;
        TT_TRY(slowest(job, &took, 1));
        if (took >= sample_s || t->batch >= (size_t)1 << 16)
            break;
    }
    samples = o->seconds / o->rounds / took;
    t->per_round = samples < 1 ? 1 : samples > SAMPLES_MAX ? SAMPLES_MAX : (size_t)samples;
    t->n = 0;
    return TUTTI_OK;
}

static tutti_status one_round(bench_job *job, const bench_options *o, bench_variant *v,
                              const bench_case *c, timing *t, int round)
{
    size_t stride = bench_stride(o, c), at = 0, i, first = t->n;
    double sorted[SAMPLES_MAX], middle;

    TT_TRY(tutti_barrier(job->world));
    TT_TRY(run(v, c, c->bytes > (size_t)1 << 22 ? 1 : t->batch, stride, &at)); /* warm, together */
    for (i = 0; i < t->per_round; i++) {
        int64_t start = tt_now_ns();

        TT_TRY(run(v, c, t->batch, stride, &at));
        t->samples[t->n++] = (double)(tt_now_ns() - start) * 1e-9 / (double)t->batch;
    }
    memcpy(sorted, t->samples + first, t->per_round * sizeof *sorted);
    middle = bench_quantile(sorted, t->per_round, 0.5);
    TT_TRY(slowest(job, &middle, 1));
    t->time.round[round] = middle;
    return TUTTI_OK;
}

static tutti_status conclude(bench_job *job, timing *t, int rounds)
{
    double sorted[BENCH_ROUNDS_MAX], values[2];

    memcpy(sorted, t->time.round, (size_t)rounds * sizeof *sorted);
    t->time.median = bench_quantile(sorted, (size_t)rounds, 0.5);
    values[1] = bench_quantile(t->samples, t->n, 0.99);
    values[0] = t->samples[0];
    TT_TRY(slowest(job, values, 2));
    t->time.min = values[0];
    t->time.p99 = values[1];
    return TUTTI_OK;
}

/* One call on inputs whose result is known, first and last buffer. */
static tutti_status verify(bench_job *job, const bench_options *o, bench_variant *v,
                           const bench_case *c, uint64_t *wrong_out)
{
    size_t stride = bench_stride(o, c), at[2] = {0, 0}, i;
    uint64_t wrong;

    if (stride > 0)
        at[1] = (v->bytes - c->bytes) / stride * stride;
    *wrong_out = 0;
    for (i = 0; i < (at[1] > 0 ? 2 : 1); i++) {
        size_t here = at[i];

        TT_TRY(bench_fill(job, v, c, here));
        TT_TRY(tutti_barrier(job->world));
        TT_TRY(run(v, c, 1, 0, &here));
        TT_TRY(tutti_barrier(job->world));
        TT_TRY(bench_check(job, v, c, at[i], &wrong));
        *wrong_out += wrong;
    }
    return TUTTI_OK;
}

static void fill_row(bench_row *row, bench_variant *v[], timing *t, size_t count, int rounds)
{
    double ratios[BENCH_ROUNDS_MAX];
    size_t i;
    int r;

    row->us = t[0].time;
    row->us.median *= 1e6;
    row->us.min *= 1e6;
    row->us.p99 *= 1e6;
    for (i = 1; i < count; i++) {
        row->peer[i - 1].name = v[i]->name;
        if (t[i].n == 0)
            continue;
        for (r = 0; r < rounds; r++)
            ratios[r] = t[i].time.round[r] / t[0].time.round[r];
        row->peer[i - 1].us = t[i].time.median * 1e6;
        row->peer[i - 1].ratio = bench_quantile(ratios, (size_t)rounds, 0.5);
    }
    row->peers = count - 1;
}

tutti_status bench_measure(bench_job *job, const bench_options *o, bench_variant *v[], size_t count,
                           bench_row *row)
{
    const bench_case *c = &row->c;
    tutti_status status = TUTTI_OK;
    timing *t;
    size_t i;
    int round;

    TT_TRY(tt_calloc(count, sizeof *t, &t));
    for (i = 0; i < count && status == TUTTI_OK; i++) {
        if (!v[i]->can(v[i], c))
            continue;
        status = verify(job, o, v[i], c, i == 0 ? &row->wrong : &row->peer[i - 1].wrong);
        if (status == TUTTI_OK)
            status = bench_clear(job, v[i], c);
        if (status == TUTTI_OK)
            status = calibrate(job, o, v[i], c, &t[i]);
    }
    for (round = 0; round < o->rounds; round++)
        for (i = 0; i < count && status == TUTTI_OK; i++)
            if (t[i].batch > 0)
                status = one_round(job, o, v[i], c, &t[i], round);
    for (i = 0; i < count && status == TUTTI_OK; i++)
        if (t[i].batch > 0)
            status = conclude(job, &t[i], o->rounds);
    if (status == TUTTI_OK)
        fill_row(row, v, t, count, o->rounds);
    free(t);
    return status;
}

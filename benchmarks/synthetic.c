/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The made-up step and its timing.
 *
 * The work of a layer is an amount of arithmetic within the first-level cache, not an amount of
 * time: a core that communication takes away shows. Kinds of step are interleaved, so that a
 * disturbance meets all alike. Each step begins with a barrier outside of the time.
 */
#include "synthetic.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "core/mem.h"
#include "models.h"

typedef struct synth {
    tutti_ctx *ctx;
    tutti_comm *comm;
    const synth_options *o;
    tutti_reducer *red;
    synth_tensor *t;
    size_t n;
    double rounds; /* of the whole backward pass on this rank */
    double waited; /* for parameters in this step */
} synth;

static volatile float sink;

void synth_work(double rounds)
{
    static float a[1024];

    for (double r = 0; r < rounds; r += 1) {
        for (int i = 0; i < 1024; i++)
            a[i] = a[i] * 0.999F + 0.001F;
        sink = a[0];
    }
}

static double cpu_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

tutti_status synth_calibrate(tutti_comm *comm, double *rounds_out)
{
    double rounds = 1000, best = 1e9;

    for (int tries = 0; tries < 8; tries++) {
        double from = cpu_seconds(), took;

        synth_work(rounds);
        took = cpu_seconds() - from;
        if (took < 0.02)
            rounds *= 0.025 / fmax(took, 1e-6);
        else
            best = fmin(best, took / rounds);
    }
    *rounds_out = 1 / best;
    return tutti_all_reduce_host(comm, rounds_out, 1, TUTTI_MIN);
}

static double now(void)
{
    return (double)tt_now_ns() * 1e-9;
}

/* The forward pass; with --zero it waits for each tensor just before its layer. */
static tutti_status forward(synth *s, bool compute)
{
    s->waited = 0;
    for (size_t i = 0; i < s->n; i++) {
        int id = (int)i;
        double from = now();

        if (s->o->zero)
            TT_TRY(tutti_reducer_param_wait(s->red, &id, 1, (tutti_stream){0}));
        s->waited += now() - from;
        if (compute)
            synth_work(s->rounds * s->o->forward * s->t[i].cost);
    }
    return TUTTI_OK;
}

static tutti_status ready(synth *s, size_t i)
{
    int id = (int)i;

    return tutti_reducer_ready(s->red, &id, 1, (tutti_stream){0});
}

/* *first_out: when the first gradient that costs anything was ready, from `from` on. */
static tutti_status backward(synth *s, bool compute, bool overlap, double from, double *first_out)
{
    bool first = true;

    for (size_t i = s->n; i-- > 0;) {
        if (compute)
            synth_work(s->rounds * s->t[i].cost);
        if (first)
            *first_out = now() - from;
        first = false;
        if (overlap)
            TT_TRY(ready(s, i));
    }
    for (size_t i = s->n; i-- > 0 && !overlap;)
        TT_TRY(ready(s, i));
    return TUTTI_OK;
}

/* One step of what was computed only: the zeroing of begin, the passes. */
static tutti_status compute_only(synth *s, double *step_out)
{
    double from = now();

    for (size_t i = 0; i < s->n; i++)
        memset(tutti_reducer_grad(s->red, (int)i), 0, s->t[i].count * sizeof(float));
    synth_work(s->rounds * s->o->forward);
    for (size_t i = s->n; i-- > 0;)
        synth_work(s->rounds * s->t[i].cost);
    *step_out = now() - from;
    return TUTTI_OK;
}

typedef struct sample {
    double step, exposed, first, comm, last;
} sample;
enum { SAMPLE_VALUES = sizeof(sample) / sizeof(double) };

static tutti_status one_step(synth *s, synth_kind kind, sample *out)
{
    tutti_reducer_stats stats = {.size = sizeof stats};
    bool compute = kind != SYNTH_COMM;
    double from;

    memset(out, 0, sizeof *out);
    TT_TRY(tutti_barrier(s->comm));
    if (kind == SYNTH_COMPUTE)
        return compute_only(s, &out->step);
    from = now();
    TT_TRY(forward(s, compute));
    TT_TRY(tutti_reducer_begin(s->red, 0, 1, (tutti_stream){0}));
    TT_TRY(backward(s, compute, kind == SYNTH_OVERLAP, from, &out->first));
    TT_TRY(tutti_reducer_wait(s->red, (tutti_stream){0}));
    TT_TRY(tutti_reducer_gather(s->red, (tutti_stream){0}));
    if (kind != SYNTH_OVERLAP && s->o->zero) /* nothing to hide it behind */
        TT_TRY(tutti_reducer_param_wait(s->red, NULL, 0, (tutti_stream){0}));
    out->step = now() - from;
    TT_TRY(tutti_reducer_stats_get(s->red, &stats));
    out->exposed = stats.exposed_s + s->waited;
    out->comm = stats.comm_s;
    out->last = stats.last_bucket_s;
    return TUTTI_OK;
}

/* The medians of what the slowest rank took. */
static tutti_status medians(synth *s, sample *samples, sample *out)
{
    size_t n = (size_t)s->o->steps;
    double *all = (double *)samples, *values = (double *)out, column[SYNTH_STEPS_MAX];

    TT_TRY(tutti_all_reduce_host(s->comm, all, n * SAMPLE_VALUES, TUTTI_MAX));
    for (size_t v = 0; v < SAMPLE_VALUES; v++) {
        for (size_t i = 0; i < n; i++)
            column[i] = all[i * SAMPLE_VALUES + v];
        values[v] = bench_quantile(column, n, 0.5);
    }
    return TUTTI_OK;
}

static tutti_status measure(synth *s, unsigned kinds, synth_times *out)
{
    sample(*samples)[SYNTH_STEPS_MAX], middle;
    tutti_reducer_stats stats = {.size = sizeof stats};
    tutti_status status;
    int kind, i;

    TT_TRY(tt_calloc(SYNTH_KINDS, sizeof *samples, &samples));
    status = one_step(s, SYNTH_OVERLAP, &middle); /* the plan learns from the first steps */
    if (status == TUTTI_OK)
        status = one_step(s, SYNTH_OVERLAP, &middle);
    for (i = 0; i < s->o->steps; i++)
        for (kind = 0; kind < SYNTH_KINDS && status == TUTTI_OK; kind++)
            if (kinds >> kind & 1)
                status = one_step(s, (synth_kind)kind, &samples[kind][i]);
    for (kind = 0; kind < SYNTH_KINDS && status == TUTTI_OK; kind++) {
        if ((kinds >> kind & 1) == 0)
            continue;
        status = medians(s, samples[kind], &middle);
        out->step[kind] = middle.step;
        if (kind == SYNTH_OVERLAP) {
            out->exposed = middle.exposed;
            out->first = middle.first;
        }
        if (kind == SYNTH_COMM) {
            out->comm = middle.comm;
            out->last = middle.last;
        }
    }
    free(samples);
    TT_TRY(status);
    out->floor = fmax(out->step[SYNTH_COMPUTE] + out->last, out->first + out->comm);
    TT_TRY(tutti_reducer_stats_get(s->red, &stats));
    out->bytes = stats.bytes;
    out->buckets = stats.buckets;
    return TUTTI_OK;
}

static tutti_status add_tensors(synth *s, float **params_out)
{
    size_t total = 0, at = 0;

    for (size_t i = 0; i < s->n; i++)
        total += s->t[i].count;
    TT_TRY(tt_calloc(total, sizeof(float), params_out));
    for (size_t i = 0; i < s->n; i++) {
        tutti_param p = TUTTI_PARAM_INIT;
        char name[32];
        int id;

        snprintf(name, sizeof name, "tensor%zu", i);
        p.name = name;
        p.dtype = TUTTI_FLOAT32;
        p.ndim = 1;
        p.shape[0] = (int64_t)s->t[i].count;
        p.param = s->o->zero ? *params_out + at : NULL;
        at += s->t[i].count;
        TT_TRY(tutti_reducer_add(s->red, &p, &id));
    }
    return tutti_reducer_commit(s->red);
}

tutti_status synth_run(tutti_ctx *ctx, tutti_comm *comm, const synth_options *o, double rounds,
                       unsigned kinds, double share, synth_times *out)
{
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;
    synth s = {.ctx = ctx, .comm = comm, .o = o, .rounds = rounds * o->ms * 1e-3 * share};
    float *params = NULL;
    tutti_status status;

    memset(out, 0, sizeof *out);
    TT_TRY(synth_model(o, &s.t, &s.n));
    opts.name = "bench";
    opts.bucket_bytes = o->bucket_bytes;
    opts.wire = o->wire;
    opts.flags = o->zero ? TUTTI_SHARD_OPTIMIZER : 0;
    status = tutti_reducer_create(comm, &opts, &s.red);
    if (status == TUTTI_OK)
        status = add_tensors(&s, &params);
    if (status == TUTTI_OK)
        status = measure(&s, kinds, out);
    tutti_reducer_destroy(s.red);
    free(params);
    free(s.t);
    return status;
}

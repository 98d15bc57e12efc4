/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The made-up step and its timing.
 *
 * Kinds of step are interleaved, so that a disturbance meets all alike. Each step begins with a
 * barrier outside of the time. What computes is in engine.c.
 */
#include "synthetic.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    synth_engine engine;
    double seconds; /* of the whole backward pass on this rank */
    double waited; /* for parameters in this step */
} synth;

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
            synth_compute(&s->engine, s->seconds * s->o->forward * s->t[i].cost);
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
            synth_compute(&s->engine, s->seconds * s->t[i].cost);
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
    synth_compute(&s->engine, s->seconds * s->o->forward);
    for (size_t i = s->n; i-- > 0;)
        synth_compute(&s->engine, s->seconds * s->t[i].cost);
    *step_out = now() - from;
    return TUTTI_OK;
}

typedef struct sample {
    double step, exposed, first, comm;
} sample;
enum { SAMPLE_VALUES = sizeof(sample) / sizeof(double) };

static tutti_status one_step(synth *s, synth_kind kind, sample *out)
{
    tutti_reducer_stats stats = {.size = sizeof stats};
    bool compute = kind != SYNTH_COMM;
    double from;

    memset(out, 0, sizeof *out);
    TT_TRY(tutti_barrier(s->comm));
    synth_engine_rest(&s->engine);
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

static tutti_status reduce_alone(synth *s, void *data, size_t n, size_t parts, tutti_dtype type)
{
    const tutti_stream stream = {0};
    char *mine = (char *)data + (size_t)tutti_rank(s->comm) * n * tutti_dtype_size(type);

    if (s->o->zero)
        return tutti_reduce_scatter(s->comm, data, mine, n, type, TUTTI_SUM, stream);
    return tutti_all_reduce(s->comm, data, data, n * parts, type, TUTTI_SUM, stream);
}

/* What the collective of the bucket issued last takes with nothing else to do. */
static tutti_status last_bucket(synth *s, double *out)
{
    const tutti_dtype wire = s->o->wire != 0 ? s->o->wire : TUTTI_FLOAT32;
    size_t parts = (size_t)tutti_size(s->comm), n = 0;
    size_t buckets = tutti_reducer_bucket_stats(s->red, NULL, 0);
    double took[SYNTH_STEPS_MAX], from;
    tutti_bucket_stats *stats;
    void *data = NULL;
    tutti_status status = TUTTI_OK, freed;

    TT_TRY(tt_calloc(buckets + 1, sizeof *stats, &stats));
    buckets = tutti_reducer_bucket_stats(s->red, stats, buckets);
    if (buckets > 0)
        n = (stats[buckets - 1].bytes / sizeof(float) + parts - 1) / parts;
    free(stats);
    TT_TRY(tutti_alloc(s->comm, n * parts * tutti_dtype_size(wire), &data));
    for (int i = 0; i < s->o->steps && status == TUTTI_OK; i++) {
        status = tutti_barrier(s->comm);
        from = now();
        if (status == TUTTI_OK)
            status = reduce_alone(s, data, n, parts, wire);
        took[i] = now() - from;
    }
    if (status == TUTTI_OK)
        status = tutti_all_reduce_host(s->comm, took, (size_t)s->o->steps, TUTTI_MAX);
    if (status == TUTTI_OK)
        *out = bench_quantile(took, (size_t)s->o->steps, 0.5);
    freed = tutti_free(s->comm, data);
    return status != TUTTI_OK ? status : freed;
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
        if (kind == SYNTH_COMM)
            out->comm = middle.comm;
    }
    free(samples);
    TT_TRY(status);
    if ((kinds >> SYNTH_COMPUTE & 1) != 0) { /* what a floor is made of */
        TT_TRY(last_bucket(s, &out->last));
        out->floor = fmax(out->step[SYNTH_COMPUTE] + out->last, out->first + out->comm);
    }
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

tutti_status synth_run(tutti_ctx *ctx, tutti_comm *comm, const synth_options *o,
                       const synth_engine *engine, unsigned kinds, double share, synth_times *out)
{
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;
    synth s = {
        .ctx = ctx, .comm = comm, .o = o, .engine = *engine, .seconds = o->ms * 1e-3 * share};
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

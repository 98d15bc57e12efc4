/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What overlap is worth: a made-up backward pass of some layers, whose gradients are averaged over
 * the ranks while it still runs.
 *
 * Four kinds of step are timed: computing alone, communicating alone, one after the other, and both
 * at once. The work of a layer is a fixed amount of arithmetic, the same on all ranks, so that a
 * core taken away by communication shows as time. README.md says how to read the result.
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tutti/tutti.h"

enum { LAYERS_MAX = 64, STEPS_MAX = 100 };

typedef struct program {
    int layers, steps;
    double mib; /* gradient of one layer */
    double ms; /* computation of one layer */
    double limit; /* > 0: fail when the overlapped step is longer than this many floors */

    tutti_ctx *ctx;
    tutti_comm *world;
    tutti_reducer *red;
    size_t floats; /* of a layer's gradient */
    double rounds; /* of work() per layer */
    volatile double sink;
} program;

typedef enum kind { COMPUTE, COMMUNICATE, SERIAL, OVERLAP, KINDS } kind;

/* Seconds, of the slowest rank. In the end each is a median over the steps. */
typedef struct times {
    double total;
    double first; /* until the first layer's gradient is ready */
    double exposed; /* that wait blocked */
    double bucket[LAYERS_MAX]; /* all-reduce of each bucket, in the order of issue */
} times;
enum { TIMES = sizeof(times) / sizeof(double) };

static const tutti_stream on_this_thread = {0};

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double now(void)
{
    return seconds(CLOCK_MONOTONIC);
}

/* Arithmetic within the first-level cache, as a matrix product spends its time. */
static double work(double rounds)
{
    static _Thread_local float a[1024];
    float keep = 0;

    for (double r = 0; r < rounds; r += 1) {
        for (int i = 0; i < 1024; i++)
            a[i] = a[i] * 0.999f + 0.001f;
        keep += a[0];
    }
    return (double)keep;
}

/* Rounds that take this long on a core of their own, the same on all ranks. */
static double calibrate(program *p, double want)
{
    double rounds = 1000, best = 1e9;

    for (int tries = 0; tries < 8; tries++) {
        double from = seconds(CLOCK_THREAD_CPUTIME_ID), took;
        p->sink = work(rounds);
        took = seconds(CLOCK_THREAD_CPUTIME_ID) - from;
        if (took < 0.02)
            rounds *= 0.025 / fmax(took, 1e-6);
        else
            best = fmin(best, took / rounds);
    }
    rounds = want / best;
    TUTTI_MUST(p->ctx, tutti_all_reduce_host(p->world, &rounds, 1, TUTTI_MIN));
    return rounds;
}

static void layer_ready(program *p, int layer)
{
    TUTTI_MUST(p->ctx, tutti_reducer_ready(p->red, &layer, 1, on_this_thread));
}

/* Returns when, counted from `from`, the first gradient was ready. */
static double backward(program *p, bool overlap, double from)
{
    double first = 0;

    for (int layer = p->layers - 1; layer >= 0; layer--) {
        p->sink = work(p->rounds);
        *(float *)tutti_reducer_grad(p->red, layer) += (float)tutti_rank(p->world);
        if (layer == p->layers - 1)
            first = now() - from;
        if (overlap)
            layer_ready(p, layer);
    }
    return first;
}

static void check_average(program *p)
{
    const float *grad = tutti_reducer_grad(p->red, 0);
    float want = 0.5f * (float)(tutti_size(p->world) - 1);

    if (fabsf(*grad - want) > 1e-5f * want)
        tutti_abort(p->ctx, 1, "the averaged gradient is wrong");
}

static times step(program *p, kind what)
{
    times t = {0};
    tutti_reducer_stats stats = {.size = sizeof stats};
    tutti_bucket_stats bucket[LAYERS_MAX];
    double from;

    TUTTI_MUST(p->ctx, tutti_barrier(p->world));
    from = now();
    if (what == COMPUTE) { /* with the zeroing, which the others do in begin */
        for (int layer = 0; layer < p->layers; layer++)
            memset(tutti_reducer_grad(p->red, layer), 0, p->floats * sizeof(float));
        t.first = backward(p, false, from);
        t.total = now() - from;
        return t;
    }
    TUTTI_MUST(p->ctx, tutti_reducer_begin(p->red, 0, 1, on_this_thread));
    if (what != COMMUNICATE)
        t.first = backward(p, what == OVERLAP, from);
    for (int layer = p->layers - 1; layer >= 0 && what != OVERLAP; layer--)
        layer_ready(p, layer);
    TUTTI_MUST(p->ctx, tutti_reducer_wait(p->red, on_this_thread));
    t.total = now() - from;
    if (what != COMMUNICATE)
        check_average(p);
    TUTTI_MUST(p->ctx, tutti_reducer_stats_get(p->red, &stats));
    t.exposed = stats.exposed_s;
    (void)tutti_reducer_bucket_stats(p->red, bucket, LAYERS_MAX);
    for (int i = 0; i < stats.buckets; i++)
        t.bucket[i] = bucket[i].comm_s;
    return t;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* All kinds in turn, step by step, so that a disturbance meets all of them alike. */
static void measure(program *p, times result[KINDS])
{
    static double sample[KINDS][TIMES][STEPS_MAX];

    for (int i = -1; i < p->steps; i++) /* the first round warms up and teaches the reducer */
        for (kind k = COMPUTE; k < KINDS; k++) {
            times t = step(p, k);
            TUTTI_MUST(p->ctx, tutti_all_reduce_host(p->world, (double *)&t, TIMES, TUTTI_MAX));
            for (int j = 0; j < TIMES && i >= 0; j++)
                sample[k][j][i] = ((double *)&t)[j];
        }
    for (kind k = COMPUTE; k < KINDS; k++)
        for (int j = 0; j < TIMES; j++) {
            qsort(sample[k][j], (size_t)p->steps, sizeof(double), compare);
            ((double *)&result[k])[j] = sample[k][j][p->steps / 2];
        }
}

/* Prints on rank 0; false if the step is too long. */
static bool report(const program *p, const times result[KINDS])
{
    const times *compute = &result[COMPUTE], *alone = &result[COMMUNICATE],
                *overlap = &result[OVERLAP];
    double sum = 0, last = alone->bucket[p->layers - 1], floor, hidden;

    for (int i = 0; i < p->layers; i++)
        sum += alone->bucket[i];
    floor = fmax(compute->total + last, compute->first + sum);
    hidden = fmax(0, result[SERIAL].total - overlap->total);
    if (tutti_rank(p->world) == 0) {
        printf("%d ranks on %d nodes, %d layers of %g MiB, median of %d steps\n",
               tutti_size(p->world), tutti_node_count(p->ctx), p->layers, p->mib, p->steps);
        printf("  compute only         %8.2f ms\n", 1e3 * compute->total);
        printf("  communication alone  %8.2f ms\n", 1e3 * alone->total);
        printf("  without overlap      %8.2f ms\n", 1e3 * result[SERIAL].total);
        printf("  with overlap         %8.2f ms, of which %.2f ms exposed\n", 1e3 * overlap->total,
               1e3 * overlap->exposed);
        printf("  hidden               %8.0f %% of the communication\n",
               100 * fmin(1, hidden / alone->total));
        printf("floor = max(compute + last bucket, first ready + all buckets)\n"
               "      = max(%.2f + %.2f, %.2f + %.2f) = %.2f ms, buckets timed alone\n",
               1e3 * compute->total, 1e3 * last, 1e3 * compute->first, 1e3 * sum, 1e3 * floor);
        printf("with overlap / floor = %.3f\n", overlap->total / floor);
    }
    return p->limit <= 0 || overlap->total <= p->limit * floor;
}

static void describe(program *p)
{
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;

    opts.bucket_bytes = opts.first_bucket_bytes = p->floats * sizeof(float); /* a layer each */
    TUTTI_MUST(p->ctx, tutti_reducer_create(p->world, &opts, &p->red));
    for (int layer = 0; layer < p->layers; layer++) {
        tutti_param param = TUTTI_PARAM_INIT;
        char name[32];
        snprintf(name, sizeof name, "layer.%d.weight", layer);
        param.name = name;
        param.dtype = TUTTI_FLOAT32;
        param.ndim = 1;
        param.shape[0] = (int64_t)p->floats;
        TUTTI_MUST(p->ctx, tutti_reducer_add(p->red, &param, NULL));
    }
    TUTTI_MUST(p->ctx, tutti_reducer_commit(p->red));
}

/* The last one given counts; NaN if it is no number in (0, max]. */
static double number(int argc, char **argv, const char *name, double fallback, double max)
{
    double value = fallback;

    for (int i = 1; i + 1 < argc; i += 2)
        if (strcmp(argv[i], name) == 0) {
            char *end;
            value = strtod(argv[i + 1], &end);
            if (end == argv[i + 1] || *end != '\0' || !(value > 0 && value <= max))
                value = NAN;
        }
    return value;
}

static bool parse(int argc, char **argv, program *p)
{
    double layers = number(argc, argv, "--layers", 8, LAYERS_MAX);
    double steps = number(argc, argv, "--steps", 5, STEPS_MAX);
    static const char *const known[] = {"--layers", "--mib", "--ms", "--steps", "--limit"};
    bool good = argc % 2 == 1;

    for (int i = 1; i < argc && good; i += 2) {
        good = false;
        for (size_t k = 0; k < sizeof known / sizeof known[0]; k++)
            good = good || strcmp(argv[i], known[k]) == 0;
    }
    p->mib = number(argc, argv, "--mib", 4, 4096);
    p->ms = number(argc, argv, "--ms", 10, 60000);
    p->limit = number(argc, argv, "--limit", 0, 1000);
    if (!good || isnan(layers) || isnan(steps) || isnan(p->mib) || isnan(p->ms) || isnan(p->limit))
        return false;
    p->layers = (int)layers;
    p->steps = (int)steps;
    p->floats = (size_t)(p->mib * 1048576 / sizeof(float));
    return p->layers > 0 && p->steps > 0 && p->floats > 0;
}

int main(int argc, char **argv)
{
    program p = {0};
    times result[KINDS];
    bool good;

    if (!parse(argc, argv, &p)) {
        fprintf(stderr, "usage: overlap [--layers N] [--mib M] [--ms T] [--steps N] [--limit R]\n");
        return 2;
    }
    if (tutti_init(NULL, &p.ctx) != TUTTI_OK) {
        fprintf(stderr, "overlap: %s\n", tutti_last_error());
        return 1;
    }
    p.world = tutti_world(p.ctx);
    describe(&p);
    p.rounds = calibrate(&p, 1e-3 * p.ms);
    measure(&p, result);
    good = report(&p, result);
    tutti_reducer_destroy(p.red);
    if (tutti_finalize(p.ctx) != TUTTI_OK) {
        fprintf(stderr, "overlap: %s\n", tutti_last_error());
        return 1;
    }
    if (fclose(stdout) != 0) { /* a full disk */
        perror("overlap: standard output");
        return 1;
    }
    return good ? 0 : 3;
}

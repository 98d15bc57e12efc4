/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 05_mlp: a network with its own arenas and awkward sizes, over a mesh of copies (dp) and shares of
 * matrices (tp), with plain or sharded optimizer state.
 *
 *   mpirun -np 4 mlp --tp 2 --zero --sequence
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "network.h"

enum { BATCH = 48 };

typedef struct options {
    int steps, tp, chunks;
    bool zero, sequence;
} options;

typedef struct run {
    options o;
    tutti_ctx *ctx;
    tutti_mesh *mesh;
    tutti_comm *dp, *tp_comm;
    tutti_tp *tp;
    tutti_reducer *reducer;
    network net;
    float *momentum;
} run;

/* Library failures end the job in a program this small. */
#define MUST(call) TUTTI_MUST(r->ctx, call)

static bool number(const char *text, int least, int most, int *out)
{
    char *end;
    long value = strtol(text, &end, 10);

    if (end == text || *end != '\0' || value < least || value > most)
        return false;
    *out = (int)value;
    return true;
}

static const char usage[] = "usage: mlp [--steps N] [--tp N] [--sequence] [--chunks N] [--zero]\n";

/* False: wrong use, which has been told. */
static bool parse(int argc, char **argv, options *o)
{
    *o = (options){100, 1, 1, false, false};
    for (int i = 1; i < argc; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : "";

        if (strcmp(argv[i], "--zero") == 0)
            o->zero = true;
        else if (strcmp(argv[i], "--sequence") == 0)
            o->sequence = true;
        else if (strcmp(argv[i], "--steps") == 0 && number(next, 1, 1000000, &o->steps))
            i++;
        else if (strcmp(argv[i], "--tp") == 0 && number(next, 1, HIDDEN, &o->tp))
            i++;
        else if (strcmp(argv[i], "--chunks") == 0 && number(next, 1, 16, &o->chunks))
            i++;
        else {
            fputs(usage, stderr);
            return false;
        }
    }
    return true;
}

static void join(run *r)
{
    tutti_tp_opts tp = TUTTI_TP_OPTS_INIT;
    char axes[32];
    size_t first, count, rows;

    snprintf(axes, sizeof axes, "dp,tp=%d", r->o.tp);
    MUST(tutti_mesh_create(r->ctx, axes, &r->mesh));
    MUST(tutti_mesh_comm(r->mesh, "dp", &r->dp));
    MUST(tutti_mesh_comm(r->mesh, "tp", &r->tp_comm));
    MUST(tutti_tp_range(r->tp_comm, "hidden units", HIDDEN, &first, &count));
    MUST(tutti_tp_range(r->dp, "rows of a batch", BATCH, &first, &rows));
    tp.chunks = r->o.chunks;
    tp.flags = r->o.sequence ? TUTTI_TP_SEQUENCE : 0;
    MUST(tutti_tp_create(r->tp_comm, &tp, &r->tp));
    if (!network_create(&r->net, r->tp_comm, r->tp, r->o.sequence, rows))
        tutti_abort(r->ctx, 1, "out of memory");
}

/* Gradients and parameters are the program's: tutti is told where they are. */
static void make_reducer(run *r)
{
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;

    opts.name = "mlp";
    opts.flags = r->o.zero ? TUTTI_SHARD_OPTIMIZER : 0;
    opts.bucket_bytes = 4096; /* several buckets even here */
    opts.first_bucket_bytes = 1024;
    opts.norm_comm = r->o.tp > 1 ? tutti_world(r->ctx) : NULL;
    MUST(tutti_reducer_create(r->dp, &opts, &r->reducer));
    for (int i = 0; i < TENSORS; i++) {
        const tensor *t = &r->net.t[i];
        tutti_param p = TUTTI_PARAM_INIT;
        int id;

        p.name = t->name;
        p.dtype = TUTTI_FLOAT32;
        p.ndim = t->shape[1] == 0 ? 1 : 2;
        for (int d = 0; d < p.ndim; d++) {
            p.shape[d] = t->shape[d];
            p.whole[d] = t->whole[d];
            p.offset[d] = t->offset[d];
        }
        p.grad = t->grad;
        p.param = t->value;
        p.flags = t->replica && tutti_rank(r->tp_comm) > 0 ? TUTTI_PARAM_UNCOUNTED : 0;
        MUST(tutti_reducer_add(r->reducer, &p, &id));
    }
    MUST(tutti_reducer_commit(r->reducer));
    r->momentum = calloc(tutti_reducer_shard_count(r->reducer) + 1, sizeof *r->momentum);
    if (r->momentum == NULL)
        tutti_abort(r->ctx, 1, "out of memory");
}

static tutti_status ready(void *arg, int id)
{
    run *r = arg;

    return tutti_reducer_ready(r->reducer, &id, 1, (tutti_stream){0});
}

/* Momentum on the pieces that are this rank's, gradients clipped to norm 0.5. */
static void update(run *r)
{
    const tutti_piece *pieces;
    size_t n = tutti_reducer_pieces(r->reducer, &pieces);
    float norm, scale;

    MUST(tutti_reducer_grad_norm(r->reducer, (tutti_stream){0}, &norm));
    scale = norm > 0.5F ? 0.5F / norm : 1;
    for (size_t k = 0; k < n; k++) {
        const float *grad = pieces[k].grad;
        float *param = pieces[k].param, *m = r->momentum + pieces[k].state_offset;

        for (int64_t i = 0; i < pieces[k].count; i++) {
            m[i] = 0.9F * m[i] + scale * grad[i];
            param[i] -= 0.05F * m[i];
        }
    }
    MUST(tutti_reducer_gather(r->reducer, (tutti_stream){0}));
}

static void train(run *r)
{
    for (int step = 0; step < r->o.steps; step++) {
        const int64_t rows = (int64_t)r->net.rows;
        uint32_t todo;
        double loss;
        float mean;

        network_batch(&r->net, step, rows * tutti_rank(r->dp));
        MUST(tutti_reducer_param_wait(r->reducer, NULL, 0, (tutti_stream){0}));
        MUST(tutti_reducer_begin(r->reducer, 0, 1, (tutti_stream){0}));
        MUST(network_step(&r->net, &loss, ready, r));
        MUST(tutti_reducer_wait(r->reducer, (tutti_stream){0}));
        update(r);
        MUST(tutti_all_reduce_host(r->dp, &loss, 1, TUTTI_AVG));
        MUST(tutti_step(r->ctx, step, &todo));
        mean = (float)loss;
        if (tutti_rank(tutti_world(r->ctx)) == 0)
            printf("step %d loss %.6f\n", step + 1, (double)mean);
        if ((todo & TUTTI_DO_STOP) != 0)
            break;
    }
    MUST(tutti_reducer_param_wait(r->reducer, NULL, 0, (tutti_stream){0}));
}

/* Equal weights print equal numbers. */
static void report(run *r)
{
    uint32_t hash = 2166136261u;
    double sum;

    for (int i = 0; i < TENSORS; i++) {
        const tensor *t = &r->net.t[i];
        size_t bytes = sizeof(float) * (size_t)(t->shape[0] * (t->shape[1] == 0 ? 1 : t->shape[1]));

        for (size_t b = 0; b < bytes; b++)
            hash = (hash ^ ((const unsigned char *)t->value)[b]) * 16777619u;
    }
    sum = hash;
    MUST(tutti_all_reduce_host(r->tp_comm, &sum, 1, TUTTI_SUM));
    if (tutti_rank(tutti_world(r->ctx)) == 0)
        printf("weights %.0f\nstate of %zu elements on each rank\n", sum,
               tutti_reducer_shard_count(r->reducer));
}

int main(int argc, char **argv)
{
    run all = {0}, *r = &all;

    if (argc == 2 && strcmp(argv[1], "--help") == 0)
        return fputs(usage, stdout) < 0 ? 1 : 0;
    if (!parse(argc, argv, &r->o))
        return 2;
    MUST(tutti_init(NULL, &r->ctx));
    join(r);
    make_reducer(r);
    train(r);
    report(r);
    tutti_reducer_destroy(r->reducer);
    network_destroy(&r->net);
    free(r->momentum);
    MUST(tutti_finalize(r->ctx));
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "mlp: standard output could not be written\n");
        return 1;
    }
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "split.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char problem[256];

/* Axes are the program's to name: these three mean something here. Without "dp" all ranks that
 * the others leave are copies. */
static const char *check_axes(const tutti_mesh *mesh)
{
    for (int i = 0; i < tutti_mesh_axis_count(mesh); i++) {
        const char *name = tutti_mesh_axis_name(mesh, i);

        if (strcmp(name, "dp") != 0 && strcmp(name, "pp") != 0 && strcmp(name, "tp") != 0) {
            snprintf(problem, sizeof problem, "--mesh: no axis '%.40s': dp, pp and tp are known",
                     name);
            return problem;
        }
    }
    return NULL;
}

static const char *check_sizes(const split *s, const args *o)
{
    const long long micro = o->accum * s->dp_size;

    problem[0] = '\0';
    if (o->batch % micro != 0)
        snprintf(problem, sizeof problem,
                 "--batch %lld is not a multiple of %d ranks x --accum %lld: it counts the "
                 "sequences of a step over all ranks and micro-steps",
                 (long long)o->batch, s->dp_size, (long long)o->accum);
    else if (o->heads % s->tp_size != 0)
        snprintf(problem, sizeof problem, "--heads %lld cannot be shared by tp=%d",
                 (long long)o->heads, s->tp_size);
    else if (VOCABULARY % s->tp_size != 0)
        snprintf(problem, sizeof problem, "%d tokens cannot be shared by tp=%d", VOCABULARY,
                 s->tp_size);
    else if (o->layers < s->pp_size)
        snprintf(problem, sizeof problem, "--layers %lld are fewer than the stages of pp=%d",
                 (long long)o->layers, s->pp_size);
    return problem[0] == '\0' ? NULL : problem;
}

/* An axis that the mesh lacks has size 1. */
static tutti_status axis(const split *s, const char *name, tutti_comm **comm_out, int *size_out)
{
    bool there = tutti_mesh_size(s->mesh, name) > 0;

    *size_out = there ? tutti_mesh_size(s->mesh, name) : 1;
    return tutti_mesh_comm(s->mesh, there ? name : "", comm_out);
}

static tutti_status make_comms(split *s)
{
    bool pp = tutti_mesh_size(s->mesh, "pp") > 0, tp = tutti_mesh_size(s->mesh, "tp") > 0;
    tutti_status status = axis(s, "dp", &s->dp, &s->dp_size);

    if (status == TUTTI_OK)
        status = axis(s, "pp", &s->pp, &s->pp_size);
    if (status == TUTTI_OK)
        status = axis(s, "tp", &s->tp, &s->tp_size);
    if (status == TUTTI_OK)
        status = tutti_mesh_comm(s->mesh,
                                 pp && tp ? "pp+tp"
                                 : pp     ? "pp"
                                 : tp     ? "tp"
                                          : "",
                                 &s->model);
    s->dp_rank = status == TUTTI_OK ? tutti_rank(s->dp) : 0;
    return status;
}

tutti_status split_create(split *s, tutti_ctx *ctx, const args *o, const char **wrong_out)
{
    const char *given = o->mesh == NULL ? "" : o->mesh;
    bool has_dp = strncmp(given, "dp", 2) == 0 || strstr(given, ",dp") != NULL;
    char axes[256];
    tutti_status status;

    *wrong_out = NULL;
    snprintf(axes, sizeof axes, "%s%s%s", has_dp ? "" : "dp", has_dp || *given == '\0' ? "" : ",",
             given);
    status = tutti_mesh_create(ctx, axes, &s->mesh);
    if (status == TUTTI_ERR_ARG) {
        snprintf(problem, sizeof problem, "--mesh: %.200s", tutti_last_error());
        *wrong_out = problem;
        return TUTTI_OK;
    }
    if (status == TUTTI_OK)
        *wrong_out = check_axes(s->mesh);
    if (status != TUTTI_OK || *wrong_out != NULL)
        return status;
    status = make_comms(s);
    if (status == TUTTI_OK)
        *wrong_out = check_sizes(s, o);
    return status;
}

/* The model computes inline, so one chunk: nothing could be computed beside a transfer. */
static tutti_status make_shares(split *s)
{
    tutti_tp_opts opts = TUTTI_TP_OPTS_INIT;

    opts.chunks = 1;
    return s->tp_size == 1 ? TUTTI_OK : tutti_tp_create(s->tp, &opts, &s->shares);
}

tutti_status split_pipe(split *s, const args *o, int sequences)
{
    tutti_pipe_opts opts = TUTTI_PIPE_OPTS_INIT;
    tutti_status status = make_shares(s);

    opts.micros = (int)o->accum;
    opts.bytes = (size_t)sequences * (size_t)o->context * (size_t)o->width * sizeof(float);
    return status != TUTTI_OK ? status : tutti_pipe_create(s->pp, &opts, &s->pipe);
}

void split_destroy(split *s)
{
    tutti_pipe_destroy(s->pipe);
    tutti_tp_destroy(s->shares);
    tutti_mesh_destroy(s->mesh);
    free(s->targets);
    if (s->dev != NULL)
        s->dev->give(s->sums);
    memset(s, 0, sizeof *s);
}

model_part split_part(const split *s, model_shape shape)
{
    const int stage = tutti_rank(s->pp), from = shape.layers * stage / s->pp_size;
    const int to = shape.layers * (stage + 1) / s->pp_size;

    return (model_part){from,
                        to - from,
                        stage == 0,
                        stage == s->pp_size - 1,
                        tutti_rank(s->tp),
                        s->tp_size,
                        tutti_pipe_in_flight(s->pipe)};
}

typedef struct product {
    model_product make;
    void *arg;
} product;

static tutti_status make_rows(void *arg, size_t first, size_t rows, tutti_stream stream)
{
    const product *p = arg;

    (void)stream; /* the device's own */
    p->make(p->arg, (int)first, (int)rows);
    return TUTTI_OK;
}

static int sum_products(void *arg, model_product make, void *make_arg, real *out, int rows,
                        int cols)
{
    split *s = arg;
    tutti_tp_matrix m = {out, NULL, (size_t)rows, (size_t)cols, TUTTI_FLOAT32};

    return (int)tutti_tp_reduce(s->shares, &m, make_rows, &(product){make, make_arg}, s->stream);
}

/* The device's three passes, with the maxima and sums of all ranks between them. */
static int device_cross_entropy(split *s, real *logits, vocabulary_part part,
                                const uint8_t *targets, real *loss, int rows)
{
    const size_t n = (size_t)rows;
    float *max = s->sums, *sums = s->sums + n;
    tutti_status status;

    s->dev->entropy_max(logits, part.cols, max, rows);
    status = tutti_all_reduce(s->tp, max, max, n, TUTTI_FLOAT32, TUTTI_MAX, s->stream);
    s->dev->entropy_sums(logits, part, targets, max, sums, rows);
    if (status == TUTTI_OK)
        status = tutti_all_reduce(s->tp, sums, sums, 3 * n, TUTTI_FLOAT32, TUTTI_SUM, s->stream);
    s->dev->entropy_end(logits, part.cols, sums, loss, rows);
    return (int)status;
}

static int cross_entropy(void *arg, real *logits, vocabulary_part part, const uint8_t *targets,
                         real *loss, int rows)
{
    split *s = arg;
    tutti_tp_logits l = {logits, s->targets, (size_t)rows, (size_t)part.cols, part.first};

    if (s->dev->entropy_max != NULL)
        return device_cross_entropy(s, logits, part, targets, loss, rows);
    for (int i = 0; i < rows; i++)
        s->targets[i] = targets[i];
    return (int)tutti_tp_cross_entropy(s->shares, &l, loss, s->stream);
}

bool split_links(split *s, const gpt_device *dev, tutti_stream stream, size_t tokens,
                 model_links *links_out)
{
    s->dev = dev;
    s->stream = stream;
    if (s->tp_size == 1)
        return true;
    *links_out = (model_links){s, sum_products, cross_entropy};
    s->targets = calloc(tokens, sizeof *s->targets);
    s->sums = dev->take(4 * tokens * sizeof *s->sums);
    return s->targets != NULL && s->sums != NULL;
}

void split_name(const split *s, char *buf, size_t cap)
{
    snprintf(buf, cap, "pp%d.dp%d.tp%d", s->pp_size, s->dp_size, s->tp_size);
}

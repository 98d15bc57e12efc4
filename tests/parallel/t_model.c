/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pipeline, tensor parallelism and reducer at once, ranks being threads: t_parallel_model [STEPS
 * [swap]]. Eight ranks in a mesh pp=2,dp=2,tp=2; buckets of 4 KiB, so that in a step the streams of
 * each rank carry several hundred operations of three communicators, and of the norm's, beside each
 * other. The host waits for none of it before a step ends. What is in the wrong order on the device
 * shows as a deadlock, or as a wrong result.
 *
 * A layer is a product (a copy), reduced over tp, and, with TUTTI_TP_SEQUENCE, gathered again: both
 * ways it doubles what goes through. So everything that arrives anywhere is a known number: which
 * layers it has come through, of which replica, micro-batch and step it is. The optimizer makes the
 * gradients the parameters. It runs on the host backend and on CUDA's, where memory is the
 * device's.
 *
 * The same with two calls swapped on one rank, in checked mode: every rank is told which. On
 * simulated GPUs only if `swap` is given.
 */
#include <math.h>

#include "boot/context.h"
#include "tt_test.h"

enum {
    MICROS = 4,
    LAYERS = 5, /* of a stage */
    PARTS = 2 * LAYERS,
    ROWS = 16,
    COLS = 64,
    N = ROWS * COLS,
    TENSORS = 2 * LAYERS,
    INPUTS = 4 /* steps after which inputs are the same again */
};

/* Of a layer: what its gradients are copied from is longer. The first fills a bucket. */
static const size_t counts[2] = {1009, 130};

typedef struct setup {
    int steps;
    bool shard;
    uint32_t tp_flags, pipe_flags;
    tutti_dtype wire;
    int swapped; /* the rank that swaps two calls in step 2; -1: none */
} setup;

typedef struct job {
    tt_rank *r;
    const setup *s;
    tutti_mesh *mesh;
    tutti_reducer *red;
    tutti_pipe *pipe;
    tutti_tp *tp;
    tutti_stream stream;
    int step, pp, dp;
    float *memory; /* the device's; what follows lies in it */
    float *input, *d_loss; /* [INPUTS][MICROS][N] */
    float *param, *kept, *flow[2], *part, *norm; /* kept: [MICROS][N], a pass's input by cache */
    float *from; /* what the product of the layer at hand reads */
    float *to;
    float *host; /* [MICROS * N] */
} job;

static float input_at(const job *j, int step, int micro, size_t i)
{
    return (float)(1 + step % INPUTS + 4 * micro + 32 * j->dp) + (float)(i % 8) / 8;
}

static tutti_status copy(job *j, float *to, const float *from, size_t count)
{
    return j->r->ctx->dev_ops->copy(j->r->ctx->dev, to, from, count * sizeof *to, j->stream);
}

static tutti_status product(void *arg, size_t first, size_t rows, tutti_stream stream)
{
    job *j = arg;

    (void)stream; /* j->stream */
    return copy(j, j->to + first * COLS, j->from + first * COLS, rows * COLS);
}

/* to = sum over tp of from; the layer's two calls, in the wrong order where it is tried. */
static tutti_status layer(job *j, float *to, float *from, bool swap)
{
    tutti_tp_matrix m = {to, j->part, ROWS, COLS, TUTTI_FLOAT32};
    tutti_status status = TUTTI_OK;

    j->from = from;
    j->to = to;
    if (swap)
        status = tutti_tp_gather(j->tp, &m, NULL, NULL, j->stream);
    if (status == TUTTI_OK)
        status = tutti_tp_reduce(j->tp, &m, product, j, j->stream);
    if (status == TUTTI_OK && !swap)
        status = tutti_tp_gather(j->tp, &m, NULL, NULL, j->stream);
    return status;
}

static tutti_status forward(job *j, const tutti_pipe_pass *p)
{
    size_t at = (size_t)(j->step % INPUTS * MICROS + p->micro) * N;
    float *x = j->kept + (size_t)p->cache * N;
    tutti_status status = copy(j, x, p->first ? j->input + at : p->in, N);

    for (int l = 0; l < LAYERS && status == TUTTI_OK; l++) {
        bool swap = j->r->rank == j->s->swapped && j->step == 2 && p->micro == 1 && l == 3;
        float *y = j->flow[l % 2];

        if (l == 0)
            status = tutti_reducer_param_wait(j->red, NULL, 0, j->stream);
        if (status == TUTTI_OK)
            status = layer(j, y, x, swap);
        x = y;
    }
    return status == TUTTI_OK && !p->last ? copy(j, p->out, x, N) : status;
}

/* The gradients of a layer: what comes back to it, and the stage's input. */
static tutti_status gradients(job *j, const tutti_pipe_pass *p, int l, const float *d)
{
    const float *from[2] = {d, j->kept + (size_t)p->cache * N};
    tutti_status status = TUTTI_OK;

    for (int k = 1; k >= 0 && status == TUTTI_OK; k--) {
        int id = 2 * l + k;

        status = copy(j, tutti_reducer_grad(j->red, id), from[k], counts[k]);
        if (status == TUTTI_OK)
            status = tutti_reducer_ready(j->red, &id, 1, j->stream);
    }
    return status;
}

static tutti_status backward(job *j, const tutti_pipe_pass *p)
{
    size_t at = (size_t)(j->step % INPUTS * MICROS + p->micro) * N;
    float *d = j->flow[LAYERS % 2];
    tutti_status status = tutti_reducer_begin(j->red, p->micro, MICROS, j->stream);

    if (status == TUTTI_OK)
        status = copy(j, d, p->last ? j->d_loss + at : p->d_out, N);
    for (int l = LAYERS - 1; l >= 0 && status == TUTTI_OK; l--) {
        status = gradients(j, p, l, d);
        if (status == TUTTI_OK)
            status = layer(j, j->flow[l % 2], d, false);
        d = j->flow[l % 2];
    }
    return status == TUTTI_OK && !p->first ? copy(j, p->d_in, d, N) : status;
}

static tutti_status pass(void *arg, const tutti_pipe_pass *p, tutti_stream stream)
{
    (void)stream; /* j->stream */
    return p->kind == TUTTI_PIPE_FORWARD ? forward(arg, p) : backward(arg, p);
}

static tutti_status one_step(job *j)
{
    const tutti_piece *piece;
    tutti_status status = tutti_pipe_run(j->pipe, pass, j, j->stream);

    if (status == TUTTI_OK)
        status = tutti_reducer_wait(j->red, j->stream);
    if (status == TUTTI_OK)
        status = tutti_reducer_grad_norm(j->red, j->stream, j->norm);
    for (size_t k = 0, n = tutti_reducer_pieces(j->red, &piece); k < n && status == TUTTI_OK; k++)
        status = copy(j, piece[k].param, piece[k].grad, (size_t)piece[k].count);
    if (status == TUTTI_OK)
        status = tutti_reducer_gather(j->red, j->stream);
    return status;
}

/* The mean over dp of what the last micro-batch left. */
static float average(const job *j, int k, int layer_of_all, size_t i)
{
    float mean = 0;

    for (int dp = 0; dp < 2; dp++) {
        job other = {.dp = dp};
        mean += input_at(&other, j->step, MICROS - 1, i) / 2;
    }
    return ldexpf(mean, k == 0 ? PARTS - 1 - layer_of_all : j->pp * LAYERS);
}

static void compare(job *j)
{
    double sum = 0; /* of squares, of all ranks; replicas count once in the norm */
    float norm, slack = j->s->wire == TUTTI_BFLOAT16 ? 0x1p-6f : 0;

    TT_EXPECT_OK(j->r, tutti_reducer_param_wait(j->red, NULL, 0, j->stream));
    for (int id = 0; id < TENSORS; id++) {
        int at = j->pp * LAYERS + id / 2;

        TT_EXPECT_OK(j->r, copy(j, j->host, j->param + (size_t)id * N, counts[id % 2]));
        TT_EXPECT_OK(j->r, tutti_stream_sync(j->r->ctx, j->stream));
        for (size_t i = 0; i < counts[id % 2]; i++) {
            float want = average(j, id % 2, at, i);

            TT_EXPECT(j->r, fabsf(j->host[i] - want) <= slack * want);
            sum += (double)want * want;
        }
    }
    TT_EXPECT_OK(j->r, tutti_all_reduce_host(j->r->comm, &sum, 1, TUTTI_SUM));
    TT_EXPECT_OK(j->r, copy(j, &norm, j->norm, 1));
    TT_EXPECT_OK(j->r, tutti_stream_sync(j->r->ctx, j->stream));
    TT_EXPECT(j->r, fabs(norm / sqrt(sum / 2) - 1) <= 0x1p-20 + (double)slack);
}

static void make_parallel(job *j)
{
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;
    tutti_pipe_opts pipe = TUTTI_PIPE_OPTS_INIT;
    tutti_tp_opts tp = TUTTI_TP_OPTS_INIT;
    tutti_comm *comm;

    TT_EXPECT_OK(j->r, tutti_mesh_create(j->r->ctx, "pp=2,dp=2,tp=2", &j->mesh));
    j->pp = tutti_mesh_coord(j->mesh, "pp");
    j->dp = tutti_mesh_coord(j->mesh, "dp");
    TT_EXPECT_OK(j->r, tutti_mesh_comm(j->mesh, "pp", &comm));
    pipe.micros = MICROS;
    pipe.bytes = N * sizeof(float);
    pipe.flags = j->s->pipe_flags;
    TT_EXPECT_OK(j->r, tutti_pipe_create(comm, &pipe, &j->pipe));
    TT_EXPECT_OK(j->r, tutti_mesh_comm(j->mesh, "tp", &comm));
    tp.chunks = 2;
    tp.flags = j->s->tp_flags;
    TT_EXPECT_OK(j->r, tutti_tp_create(comm, &tp, &j->tp));
    TT_EXPECT_OK(j->r, tutti_mesh_comm(j->mesh, "dp", &comm));
    opts.bucket_bytes = opts.first_bucket_bytes = 4096;
    opts.flags = j->s->shard ? TUTTI_SHARD_OPTIMIZER : 0u;
    opts.wire = j->s->wire;
    opts.norm_comm = j->r->comm;
    TT_EXPECT_OK(j->r, tutti_reducer_create(comm, &opts, &j->red));
}

static void lay_out(job *j)
{
    size_t all = (size_t)INPUTS * MICROS * N;
    float *at;

    TT_EXPECT_OK(j->r,
                 tutti_alloc(j->r->comm, (2 * all + TENSORS * N + (MICROS + 4) * N) * sizeof(float),
                             (void **)&j->memory));
    j->input = at = j->memory;
    j->d_loss = at += all;
    j->param = at += all;
    j->kept = at += TENSORS * N;
    j->flow[0] = at += MICROS * N;
    j->flow[1] = at += N;
    j->part = at += N;
    j->norm = at + N;
    for (int id = 0; id < TENSORS; id++) {
        tutti_param p = TUTTI_PARAM_INIT;
        char name[24];

        snprintf(name, sizeof name, "stage%d.t%d", j->pp, id);
        p.name = name;
        p.dtype = TUTTI_FLOAT32;
        p.ndim = 1;
        p.shape[0] = (int64_t)counts[id % 2];
        p.param = j->param + (size_t)id * N;
        TT_EXPECT_OK(j->r, tutti_reducer_add(j->red, &p, NULL));
    }
}

static void fill(job *j)
{
    for (int step = 0; step < INPUTS; step++) {
        for (int micro = 0; micro < MICROS; micro++)
            for (size_t i = 0; i < N; i++)
                j->host[(size_t)micro * N + i] = input_at(j, step, micro, i);
        for (int k = 0; k < 2; k++)
            TT_EXPECT_OK(j->r, copy(j, (k == 0 ? j->input : j->d_loss) + (size_t)step * MICROS * N,
                                    j->host, MICROS * N));
        TT_EXPECT_OK(j->r, tutti_stream_sync(j->r->ctx, j->stream));
    }
    memset(j->host, 0, N * sizeof(float));
    for (int id = 0; id < TENSORS; id++)
        TT_EXPECT_OK(j->r, copy(j, j->param + (size_t)id * N, j->host, N));
    TT_EXPECT_OK(j->r, tutti_stream_sync(j->r->ctx, j->stream));
    TT_EXPECT_OK(j->r, tutti_reducer_commit(j->red));
}

static void train(job *j)
{
    for (j->step = 0; j->step < j->s->steps && !j->r->failed; j->step++) {
        TT_EXPECT_OK(j->r, one_step(j));
        if (j->step % 7 == 0 || j->step == j->s->steps - 1)
            compare(j);
    }
}

/* Every rank ends with a status and a text that names both calls. */
static void train_to_the_swap(job *j)
{
    tutti_status status = TUTTI_OK;
    char text[2048];

    for (j->step = 0; j->step < 60 && status == TUTTI_OK; j->step++) {
        uint32_t todo;

        status = one_step(j);
        if (status == TUTTI_OK)
            status = tutti_stream_sync(j->r->ctx, j->stream);
        if (status == TUTTI_OK)
            status = tutti_step(j->r->ctx, j->step, &todo);
    }
    TT_EXPECT(j->r, status == TUTTI_ERR_MISMATCH || status == TUTTI_ERR_REMOTE);
    TT_EXPECT(j->r, tutti_ctx_error(j->r->ctx, text, sizeof text) != TUTTI_OK);
    if (strstr(text, "reduce_scatter") == NULL || strstr(text, "all_gather") == NULL)
        tt_say(j->r, "what was swapped is not named: %s", text);
}

static void end(job *j)
{
    TT_EXPECT_OK(j->r, tutti_stream_sync(j->r->ctx, j->stream));
    tutti_reducer_destroy(j->red);
    tutti_pipe_destroy(j->pipe);
    tutti_tp_destroy(j->tp);
    TT_EXPECT_OK(j->r, tutti_free(j->r->comm, j->memory));
    tutti_mesh_destroy(j->mesh);
    tutti_stream_destroy(j->r->ctx, j->stream);
}

static void body(tt_rank *r)
{
    job *j = calloc(1, sizeof *j);

    if (j == NULL || (j->host = calloc(MICROS * N, sizeof *j->host)) == NULL)
        abort();
    j->r = r;
    j->s = r->arg;
    if (getenv("SIMGPU_MACHINE") != NULL)
        TT_EXPECT(r, tutti_device(r->ctx) >= 0); /* it is CUDA that is tried */
    TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "compute", 0, &j->stream));
    make_parallel(j);
    if (!r->failed)
        lay_out(j);
    if (!r->failed)
        fill(j);
    if (!r->failed && j->s->swapped < 0)
        train(j);
    else if (!r->failed)
        train_to_the_swap(j);
    if (j->s->swapped < 0)
        end(j);
    else
        r->ctx = NULL; /* failed on purpose; what is left is tutti_finalize's */
    free(j->host);
    free(j);
}

static int steps = 6;

static void small_buckets_deadlock_nowhere(void **state)
{
    const setup cases[] = {
        {steps, false, 0, 0, (tutti_dtype)0, -1},
        {steps, true, TUTTI_TP_SEQUENCE, TUTTI_PIPE_OVERLAP, TUTTI_BFLOAT16, -1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        setup s = cases[i];
        TT_ASSERT_RANKS(8, NULL, body, &s);
    }
}

static void swapped_calls_are_named(void **state)
{
    (void)state;
    setenv("TUTTI_CHECK", "1", 1);
    for (int rank = 0; rank < 8; rank += 5) {
        setup s = {0, true, TUTTI_TP_SEQUENCE, 0, (tutti_dtype)0, rank};
        TT_ASSERT_RANKS(8, NULL, body, &s);
    }
    unsetenv("TUTTI_CHECK");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_buckets_deadlock_nowhere),
        cmocka_unit_test(swapped_calls_are_named),
    };
    const struct CMUnitTest plain[] = {cmocka_unit_test(small_buckets_deadlock_nowhere)};

    if (argc > 1)
        steps = atoi(argv[1]);
    if (argc < 3 && getenv("SIMGPU_MACHINE") != NULL)
        return cmocka_run_group_tests_name("model", plain, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

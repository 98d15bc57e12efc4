/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reducer's further ways on a device, ranks being threads: t_cuda_features [RANKS]: wire types,
 * hooks, accumulation, unused and tied parameters, ranks that run out of samples, gradients that
 * are not finite or read too early. Memory is the device's; what kernels would compute is computed
 * on the host between copies, and gradients come from two streams. Values are small integers, exact
 * in 16 bits and in any order of addition. It runs on the host backend too.
 */
#include <math.h>

#include "boot/context.h"
#include "tt_test.h"

enum { TENSORS = 5, STEPS = 3, FLOATS = 700 };

static const size_t counts[TENSORS] = {700, 33, 256, 1, 490};

typedef struct way {
    const char *name;
    uint32_t flags;
    tutti_dtype wire;
    int micros;
    bool own_grads, hook;
} way;

typedef struct job {
    tt_rank *r;
    const way *w;
    tutti_reducer *red;
    tutti_stream main, side;
    float *memory; /* the device's: parameters, gradients of the program's own, the norm */
    float *param[TENSORS], *norm;
    float host[FLOATS];
    int hooked, updates;
} job;

/* Waits, so that host memory may be used again. */
static tutti_status copy(job *j, void *to, const void *from, size_t count, tutti_stream stream)
{
    tutti_status status =
        j->r->ctx->dev_ops->copy(j->r->ctx->dev, to, from, count * sizeof(float), stream);
    return status != TUTTI_OK ? status : tutti_stream_sync(j->r->ctx, stream);
}

static float value(int rank, int step, int micro, int id, size_t i)
{
    return (float)(4 * ((rank * 3 + step + micro * 2 + id + (int)(i % 7)) % 5));
}

static void add_params(job *j, int tied)
{
    float *at = j->memory;

    for (int id = 0; id < TENSORS; id++) {
        tutti_param p = TUTTI_PARAM_INIT;
        char name[16];
        size_t n = counts[id == tied ? 0 : id];
        snprintf(name, sizeof name, "t%d", id);
        p.name = name;
        p.dtype = TUTTI_FLOAT32;
        p.ndim = 1;
        p.shape[0] = (int64_t)n;
        p.tied = id == tied ? 1 : 0;
        if (id != tied) {
            p.param = j->param[id] = at;
            at += n + 3;
            memset(j->host, 0, sizeof j->host);
            TT_EXPECT_OK(j->r, copy(j, p.param, j->host, n, j->main));
        }
        if (j->w->own_grads) {
            p.grad = at;
            at += n + 3;
        }
        TT_EXPECT_OK(j->r, tutti_reducer_add(j->red, &p, NULL));
    }
    j->norm = at;
    TT_EXPECT_OK(j->r, tutti_reducer_commit(j->red));
}

static void open_job(job *j, tt_rank *r, const way *w, int tied)
{
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;

    j->r = r;
    j->w = w;
    if (getenv("SIMGPU_MACHINE") != NULL)
        TT_EXPECT(r, tutti_device(r->ctx) >= 0); /* it is CUDA that is tried */
    TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "main", 0, &j->main));
    TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "side", 0, &j->side));
    TT_EXPECT_OK(r, tutti_alloc(r->comm, 2 * (TENSORS + 1) * (FLOATS + 3) * sizeof(float),
                                (void **)&j->memory));
    opts.flags = w->flags;
    opts.wire = w->wire;
    opts.bucket_bytes = opts.first_bucket_bytes = 2000;
    TT_EXPECT_OK(r, tutti_reducer_create(r->comm, &opts, &j->red));
    add_params(j, tied);
}

static void close_job(job *j)
{
    TT_EXPECT_OK(j->r, tutti_stream_sync(j->r->ctx, j->main));
    TT_EXPECT_OK(j->r, tutti_stream_sync(j->r->ctx, j->side));
    tutti_reducer_destroy(j->red);
    TT_EXPECT_OK(j->r, tutti_free(j->r->comm, j->memory));
    tutti_stream_destroy(j->r->ctx, j->side);
    tutti_stream_destroy(j->r->ctx, j->main);
}

static void begin(job *j, int micro)
{
    TT_EXPECT_OK(j->r, tutti_reducer_begin(j->red, micro, j->w->micros, j->main));
    TT_EXPECT_OK(j->r, tutti_stream_wait(j->r->ctx, j->side, j->main));
}

/* A backward pass adds to what is there. */
static void backward(job *j, int step, int micro, int id)
{
    tutti_stream stream = id % 2 == 0 ? j->main : j->side;
    float *grad = tutti_reducer_grad(j->red, id);

    TT_EXPECT_OK(j->r, copy(j, j->host, grad, counts[id], stream));
    for (size_t i = 0; i < counts[id]; i++)
        j->host[i] += value(j->r->rank, step, micro, id, i);
    TT_EXPECT_OK(j->r, copy(j, grad, j->host, counts[id], stream));
    TT_EXPECT_OK(j->r, tutti_reducer_ready(j->red, &id, 1, stream));
}

static void pass(job *j, int step, int micro)
{
    begin(j, micro);
    for (int id = TENSORS - 1; id >= 0 && !j->r->failed; id--)
        backward(j, step, micro, id);
}

static double sum_of(const job *j, int step, int id, size_t i)
{
    double sum = 0;

    for (int rank = 0; rank < j->r->size; rank++)
        for (int micro = 0; micro < j->w->micros; micro++)
            sum += value(rank, step, micro, id, i);
    return sum;
}

/* The averages that this rank has (its shard), and the norm of all. */
static void compare(job *j, int step)
{
    const tutti_piece *piece;
    double squares = 0;
    float norm;

    for (size_t k = 0, n = tutti_reducer_pieces(j->red, &piece); k < n; k++) {
        TT_EXPECT_OK(j->r, copy(j, j->host, piece[k].grad, (size_t)piece[k].count, j->main));
        for (size_t i = 0; i < (size_t)piece[k].count; i++) {
            size_t at = (size_t)((float *)piece[k].param - j->param[piece[k].id]) + i;
            double want = sum_of(j, step, piece[k].id, at) / j->r->size;
            if ((double)j->host[i] != want)
                tt_say(j->r, "%s, step %d: t%d[%zu] is %g, not %g", j->w->name, step, piece[k].id,
                       at, (double)j->host[i], want);
        }
    }
    for (int id = 0; id < TENSORS; id++)
        for (size_t i = 0; i < counts[id]; i++)
            squares += pow(sum_of(j, step, id, i) / j->r->size, 2);
    TT_EXPECT_OK(j->r, tutti_reducer_grad_norm(j->red, j->main, j->norm));
    TT_EXPECT_OK(j->r, copy(j, &norm, j->norm, 1, j->main));
    TT_EXPECT(j->r, norm == (float)sqrt(squares));
}

/* What NCCL or we do, and our own hook does: the same averages. */
static tutti_status average_hook(void *arg, const tutti_bucket *b)
{
    (*(int *)arg)++;
    return tutti_all_reduce(b->comm, b->data, b->data, b->count, b->dtype, TUTTI_AVG, b->stream);
}

static void average_body(tt_rank *r)
{
    job *j = calloc(1, sizeof *j);

    open_job(j, r, r->arg, -1);
    if (j->w->hook && !r->failed)
        TT_EXPECT_OK(r, tutti_reducer_hook(j->red, average_hook, &j->hooked));
    for (int step = 0; step < STEPS && !r->failed; step++) {
        for (int micro = 0; micro < j->w->micros && !r->failed; micro++)
            pass(j, step, micro);
        TT_EXPECT_OK(r, tutti_reducer_wait(j->red, j->main));
        compare(j, step);
        TT_EXPECT_OK(r, tutti_reducer_gather(j->red, j->main));
        TT_EXPECT_OK(r, tutti_reducer_param_wait(j->red, NULL, 0, j->main));
    }
    TT_EXPECT(r, r->failed || (j->hooked > 0) == j->w->hook);
    if (!r->failed)
        close_job(j);
    free(j);
}

static int ranks = 2;
static const way plain = {"plain", 0, (tutti_dtype)0, 1, false, false};

static void averages(void **state)
{
    const uint32_t shard = TUTTI_SHARD_OPTIMIZER;
    const way ways[] = {
        {"accumulation", 0, (tutti_dtype)0, 3, false, false},
        {"bf16", 0, TUTTI_BFLOAT16, 1, false, false},
        {"f16, accumulation, own memory", 0, TUTTI_FLOAT16, 2, true, false},
        {"bf16, shards", shard, TUTTI_BFLOAT16, 1, false, false},
        {"f16, shards, own memory", shard, TUTTI_FLOAT16, 1, true, false},
        {"hook", 0, (tutti_dtype)0, 1, false, true},
        {"hook, own memory", 0, (tutti_dtype)0, 2, true, true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++)
        TT_ASSERT_RANKS(ranks, NULL, average_body, (void *)(uintptr_t)&ways[i]);
}

/* Parameter 1 is used by nobody, parameter 2 by the last rank. */
static void unused_body(tt_rank *r)
{
    job *j = calloc(1, sizeof *j);

    open_job(j, r, r->arg, -1);
    for (int step = 0; step < STEPS && !r->failed; step++) {
        begin(j, 0);
        for (int id = TENSORS - 1; id >= 0 && !r->failed; id--)
            if (id != 1 && (id != 2 || r->rank == r->size - 1))
                backward(j, step, 0, id);
        TT_EXPECT_OK(r, tutti_reducer_wait(j->red, j->main));
        for (int id = 0; id < TENSORS; id++) {
            double want = sum_of(j, step, id, 0) / r->size;
            if (id == 1 || id == 2)
                want = id == 1 ? 0 : (double)value(r->size - 1, step, 0, id, 0) / r->size;
            TT_EXPECT_OK(r, copy(j, j->host, tutti_reducer_grad(j->red, id), 1, j->main));
            TT_EXPECT(r, (double)j->host[0] == want);
            TT_EXPECT(r, tutti_reducer_used(j->red, id) == (id != 1));
        }
    }
    if (!r->failed)
        close_job(j);
    free(j);
}

static void unused_parameters(void **state)
{
    way w = plain;

    (void)state;
    w.flags = TUTTI_REDUCER_FIND_UNUSED;
    TT_ASSERT_RANKS(ranks, NULL, unused_body, &w);
}

/* The last one is the first one again: both uses add to one gradient. */
static void tied_body(tt_rank *r)
{
    const int head = TENSORS - 1;
    job *j = calloc(1, sizeof *j);
    float *grad;
    double want = 0;

    open_job(j, r, r->arg, head);
    grad = tutti_reducer_grad(j->red, 0);
    TT_EXPECT(r, grad == tutti_reducer_grad(j->red, head));
    pass(j, 0, 0); /* both uses are on the stream of even ones */
    TT_EXPECT_OK(r, tutti_reducer_wait(j->red, j->main));
    for (int rank = 0; rank < r->size; rank++)
        want += (double)(value(rank, 0, 0, 0, 5) + value(rank, 0, 0, head, 5)) / r->size;
    TT_EXPECT_OK(r, copy(j, j->host, grad + 5, 1, j->main));
    TT_EXPECT(r, (double)j->host[0] == want);
    if (!r->failed)
        close_job(j);
    free(j);
}

static void tied_parameters(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(ranks, NULL, tied_body, (void *)(uintptr_t)&plain);
}

/* One value of one rank is infinite: all ranks see a norm that is none. */
static void finite_body(tt_rank *r)
{
    job *j = calloc(1, sizeof *j);
    float norm = 0, bad = INFINITY;

    open_job(j, r, r->arg, -1);
    for (int step = 0; step < 2 && !r->failed; step++) {
        begin(j, 0);
        for (int id = TENSORS - 1; id >= 0 && !r->failed; id--) {
            tutti_stream stream = id % 2 == 0 ? j->main : j->side;
            if (step == 0 && id == 2 && r->rank == r->size - 1)
                TT_EXPECT_OK(
                    r, copy(j, (float *)tutti_reducer_grad(j->red, id) + 99, &bad, 1, stream));
            TT_EXPECT_OK(r, tutti_reducer_ready(j->red, &id, 1, stream));
        }
        TT_EXPECT_OK(r, tutti_reducer_wait(j->red, j->main));
        TT_EXPECT_OK(r, tutti_reducer_grad_norm(j->red, j->main, j->norm));
        TT_EXPECT_OK(r, copy(j, &norm, j->norm, 1, j->main));
        TT_EXPECT(r, step == 0 ? !isfinite(norm) : norm == 0);
    }
    if (!r->failed)
        close_job(j);
    free(j);
}

static void values_not_finite(void **state)
{
    const uint32_t flags[] = {0, TUTTI_SHARD_OPTIMIZER};
    const tutti_dtype wires[] = {(tutti_dtype)0, TUTTI_FLOAT16};

    (void)state;
    for (int i = 0; i < 2; i++) {
        way w = plain;
        w.flags = flags[i];
        w.wire = wires[i];
        TT_ASSERT_RANKS(ranks, NULL, finite_body, &w);
    }
}

/* Rank r has 1 + r batches. Gradients are 12 (r + 1), the optimizer subtracts the average. */
static tutti_status update(void *arg)
{
    job *j = arg;
    const tutti_piece *piece;
    tutti_status status = tutti_reducer_grad_norm(j->red, j->main, j->norm);
    float w[FLOATS];

    for (size_t k = 0, n = tutti_reducer_pieces(j->red, &piece); k < n && status == TUTTI_OK; k++) {
        size_t count = (size_t)piece[k].count;
        status = copy(j, j->host, piece[k].grad, count, j->main);
        if (status == TUTTI_OK)
            status = copy(j, w, piece[k].param, count, j->main);
        for (size_t i = 0; i < count; i++)
            w[i] -= j->host[i];
        if (status == TUTTI_OK)
            status = copy(j, piece[k].param, w, count, j->main);
    }
    j->updates++;
    return status != TUTTI_OK ? status : tutti_reducer_gather(j->red, j->main);
}

static void uneven_step(job *j)
{
    begin(j, 0);
    for (int id = TENSORS - 1; id >= 0 && !j->r->failed; id--) {
        tutti_stream stream = id % 2 == 0 ? j->main : j->side;
        for (size_t i = 0; i < counts[id]; i++)
            j->host[i] = (float)(12 * (j->r->rank + 1));
        TT_EXPECT_OK(j->r, copy(j, tutti_reducer_grad(j->red, id), j->host, counts[id], stream));
        TT_EXPECT_OK(j->r, tutti_reducer_ready(j->red, &id, 1, stream));
    }
    TT_EXPECT_OK(j->r, tutti_reducer_wait(j->red, j->main));
    TT_EXPECT_OK(j->r, update(j));
    TT_EXPECT_OK(j->r, tutti_reducer_param_wait(j->red, NULL, 0, j->main));
}

static void uneven_body(tt_rank *r)
{
    job *j = calloc(1, sizeof *j);
    bool present;
    double want = 0;

    open_job(j, r, r->arg, -1);
    present = (j->w->flags & TUTTI_REDUCER_AVERAGE_PRESENT) != 0;
    while (j->updates < 1 + r->rank && !r->failed)
        uneven_step(j);
    if (!r->failed)
        TT_EXPECT_OK(r, tutti_reducer_join(j->red, j->main, update, j));
    TT_EXPECT(r, j->updates == r->size);
    for (int step = 0; step < r->size; step++) /* ranks step ... size - 1 are there */
        for (int rank = step; rank < r->size; rank++)
            want -= 12.0 * (rank + 1) / (present ? r->size - step : r->size);
    TT_EXPECT_OK(r, tutti_reducer_param_wait(j->red, NULL, 0, j->main));
    for (int id = 0; id < TENSORS; id++) {
        TT_EXPECT_OK(r, copy(j, j->host, j->param[id], counts[id], j->main));
        for (size_t i = 0; i < counts[id]; i++)
            TT_EXPECT(r, fabs((double)j->host[i] - want) < 1e-4);
    }
    TT_EXPECT_OK(r, tutti_reducer_check(j->red));
    if (!r->failed)
        close_job(j);
    free(j);
}

static void uneven_inputs(void **state)
{
    const uint32_t flags[] = {0, TUTTI_REDUCER_AVERAGE_PRESENT | TUTTI_SHARD_OPTIMIZER};

    (void)state;
    for (int i = 0; i < 2; i++) {
        way w = plain;
        w.flags = TUTTI_REDUCER_UNEVEN | flags[i];
        TT_ASSERT_RANKS(ranks, NULL, uneven_body, &w);
    }
}

/* Checked mode: what is read between ready and wait is NaN, what is read after wait is right. */
static void early_body(tt_rank *r)
{
    job *j = calloc(1, sizeof *j);

    open_job(j, r, r->arg, -1);
    for (int step = 0; step < 2 && !r->failed; step++) {
        pass(j, step, 0);
        TT_EXPECT(r, r->ctx->dev_ops->drain(r->ctx->dev)); /* else reading would be a race */
        for (int id = 0; id < TENSORS; id++) {
            TT_EXPECT_OK(r, copy(j, j->host, tutti_reducer_grad(j->red, id), counts[id], j->main));
            for (size_t i = 0; i < counts[id]; i++)
                TT_EXPECT(r, isnan(j->host[i]));
        }
        TT_EXPECT_OK(r, tutti_reducer_wait(j->red, j->main));
        compare(j, step);
    }
    if (!r->failed)
        close_job(j);
    free(j);
}

static void gradients_read_early(void **state)
{
    const way ways[] = {
        plain,
        {"poisoned, bf16", 0, TUTTI_BFLOAT16, 1, true, false},
        {"poisoned, f16, shards", TUTTI_SHARD_OPTIMIZER, TUTTI_FLOAT16, 1, false, false},
    };

    (void)state;
    setenv("TUTTI_CHECK", "1", 1);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++)
        TT_ASSERT_RANKS(ranks, NULL, early_body, (void *)(uintptr_t)&ways[i]);
    unsetenv("TUTTI_CHECK");
}

/* MIN and MAX of a NaN and a number: what tutti/status.h says of each backend. A real NCCL is left
 * alone: its kernels are its own. */
static void extremes_body(tt_rank *r)
{
    float values[3] = {r->rank == 0 ? NAN : (float)r->rank, NAN, (float)r->rank};
    float *memory;
    bool host = tutti_device(r->ctx) < 0;
    job *j = calloc(1, sizeof *j);

    j->r = r;
    TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "main", 0, &j->main));
    TT_EXPECT_OK(r, tutti_alloc(r->comm, sizeof values, (void **)&memory));
    for (int k = 0; k < 2; k++) {
        float want = k == 0 ? (float)(r->size - 1) : 1; /* of those that have a number */
        TT_EXPECT_OK(r, copy(j, memory, values, 3, j->main));
        TT_EXPECT_OK(r, tutti_all_reduce(r->comm, memory, memory, 3, TUTTI_FLOAT32,
                                         k == 0 ? TUTTI_MAX : TUTTI_MIN, j->main));
        TT_EXPECT_OK(r, copy(j, j->host, memory, 3, j->main));
        TT_EXPECT(r, host ? isnan(j->host[0]) : j->host[0] == want);
        TT_EXPECT(r, isnan(j->host[1]));
        TT_EXPECT(r, j->host[2] == (k == 0 ? want : 0));
    }
    TT_EXPECT_OK(r, tutti_free(r->comm, memory));
    tutti_stream_destroy(r->ctx, j->main);
    free(j);
}

static void extremes_of_nan(void **state)
{
    const char *backend = getenv("TUTTI_BACKEND");

    (void)state;
    if (ranks < 2 ||
        (getenv("SIMGPU_MACHINE") == NULL && (backend == NULL || strcmp(backend, "host") != 0)))
        skip();
    TT_ASSERT_RANKS(ranks, NULL, extremes_body, NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(averages),        cmocka_unit_test(unused_parameters),
        cmocka_unit_test(tied_parameters), cmocka_unit_test(values_not_finite),
        cmocka_unit_test(uneven_inputs),   cmocka_unit_test(gradients_read_early),
        cmocka_unit_test(extremes_of_nan),
    };
    if (argc > 1)
        ranks = (int)strtol(argv[1], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

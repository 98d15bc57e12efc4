/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arithmetic on host memory in stream order (comm/math.h): the reduction kernels with one or two
 * operands, and exact sums. A task is copied and run by the stream's worker; on the inline stream
 * it runs from the caller's stack.
 */
#include "host/math.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "host/kernels.h"

typedef struct task {
    void (*run)(const struct task *t);
    void *dst;
    const void *a, *b;
    size_t n;
    tutti_dtype to, from;
    int divisor;
    double real_divisor;
    bool root;
} task;

static tutti_status run_task(void *arg)
{
    const task *t = arg;

    t->run(t);
    return TUTTI_OK;
}

static tutti_status submit(tt_device *dev, task *t, tutti_stream stream)
{
    return dev->ops->stream_call(dev, stream, run_task, t, sizeof *t);
}

static tt_tree_node one_leaf[] = {{-1, -1, 0}};
static tt_tree_node two_leaves[] = {{1, 2, -1}, {-1, -1, 0}, {-1, -1, 1}};
static const tt_tree one = {0, 1, one_leaf}, two = {0, 3, two_leaves};

static void run_add(const task *t)
{
    const tt_operand in[2] = {{t->a, false}, {t->b, false}};
    const tt_reduce_job job = {.tree = &two,
                               .in = in,
                               .n = t->n,
                               .dtype = t->to,
                               .op = TUTTI_SUM,
                               .out = t->dst,
                               .divisor = 1};

    if (t->n > 0)
        tt_reduce(&job);
}

static tutti_status host_add(tt_device *dev, void *dst, const void *a, const void *b, size_t n,
                             tutti_dtype dtype, tutti_stream stream)
{
    task t = {.run = run_add, .dst = dst, .a = a, .b = b, .n = n, .to = dtype};
    return submit(dev, &t, stream);
}

/* The kernels know fp32 as the partial form of a 16-bit type. */
static void run_cast(const task *t)
{
    bool narrow = t->to != t->from && t->from == TUTTI_FLOAT32, wide = t->to != t->from && !narrow;
    const tt_operand in[1] = {{t->a, narrow}};
    const tt_reduce_job job = {.tree = &one,
                               .in = in,
                               .n = t->n,
                               .dtype = narrow ? t->to : t->from,
                               .op = TUTTI_SUM,
                               .out = t->dst,
                               .out_partial = wide,
                               .divisor = t->divisor};

    if (t->n > 0)
        tt_reduce(&job);
}

static tutti_status host_cast(tt_device *dev, const tt_math_cast *cast, tutti_stream stream)
{
    task t = {.run = run_cast,
              .dst = cast->dst,
              .a = cast->src,
              .n = cast->n,
              .to = cast->to,
              .from = cast->from,
              .divisor = cast->divisor};
    return submit(dev, &t, stream);
}

/* Types of 16 bits are widened block by block. */
static void squares_16(const task *t)
{
    float wide[16 * TT_EXACT_BLOCK];
    const size_t step = sizeof wide / sizeof wide[0];

    for (size_t at = 0; at < t->n; at += step) {
        const task cast = {.dst = wide,
                           .a = (const uint16_t *)t->a + at,
                           .n = tt_min_size(step, t->n - at),
                           .to = TUTTI_FLOAT32,
                           .from = t->from,
                           .divisor = 1};
        run_cast(&cast);
        tt_exact_squares_f32(t->dst, wide, cast.n);
    }
}

static void run_squares(const task *t)
{
    if (t->from == TUTTI_FLOAT32)
        tt_exact_squares_f32(t->dst, t->a, t->n);
    else if (t->from == TUTTI_FLOAT64)
        tt_exact_squares_f64(t->dst, t->a, t->n);
    else
        squares_16(t);
}

static tutti_status host_squares(tt_device *dev, int64_t *sum, const void *x, size_t n,
                                 tutti_dtype dtype, tutti_stream stream)
{
    task t = {.run = run_squares, .dst = sum, .a = x, .n = n, .from = dtype};
    return submit(dev, &t, stream);
}

static void run_exact_add(const task *t)
{
    int64_t *sums = t->dst;
    const float *x = t->a;

    for (size_t i = 0; i < t->n; i++) {
        tt_exact_add(sums + i * TT_EXACT_WORDS, (double)x[i]);
        tt_exact_carry(sums + i * TT_EXACT_WORDS);
    }
}

static tutti_status host_exact_add(tt_device *dev, int64_t *sums, const float *x, size_t n,
                                   tutti_stream stream)
{
    task t = {.run = run_exact_add, .dst = sums, .a = x, .n = n};
    return submit(dev, &t, stream);
}

static void run_exact_get(const task *t)
{
    const int64_t *sums = t->a;
    float *x = t->dst;

    for (size_t i = 0; i < t->n; i++) {
        double value = tt_exact_get(sums + i * TT_EXACT_WORDS);
        x[i] = (float)(t->root ? sqrt(value) : value / t->real_divisor);
    }
}

static tutti_status host_exact_get(tt_device *dev, float *x, const int64_t *sums, size_t n,
                                   double divisor, bool root, tutti_stream stream)
{
    task t = {
        .run = run_exact_get, .dst = x, .a = sums, .n = n, .real_divisor = divisor, .root = root};
    return submit(dev, &t, stream);
}

const tt_math_ops tt_math_host = {
    .size = sizeof(tt_math_ops),
    .add = host_add,
    .cast = host_cast,
    .squares = host_squares,
    .exact_add = host_exact_add,
    .exact_get = host_exact_get,
    .entropy_max = tt_host_entropy_max,
    .entropy_sums = tt_host_entropy_sums,
    .entropy_end = tt_host_entropy_end,
};

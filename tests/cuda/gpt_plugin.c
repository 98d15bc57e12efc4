/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of examples/gpt for the simulated GPUs: their bodies, and what each reads and writes.
 */
#include "device_code.h"

#include "cuda_body.h"

typedef gpt_k k_t;

static k_t of(void *const *args)
{
    return *(k_t *)args[0];
}

static void reads(sg_ranges *out, const void *p, size_t floats)
{
    if (p != NULL)
        sg_reads(out, p, floats * sizeof(float));
}

static void writes(sg_ranges *out, void *p, size_t floats)
{
    sg_writes(out, p, floats * sizeof(float));
}

/* A body, and the ranges of its fields in floats; tokens in bytes. */
#define KERNEL(name, o_, p_, q_, a_, b_, c_, d_, t_)                                               \
    static void name##_ranges(void *const *args, const sg_launch *launch, sg_ranges *out)          \
    {                                                                                              \
        const k_t k = of(args);                                                                    \
        const size_t rows = (size_t)k.rows, n = (size_t)k.n, count = k.count;                      \
                                                                                                   \
        (void)launch;                                                                              \
        (void)rows;                                                                                \
        (void)n;                                                                                   \
        (void)count;                                                                               \
        if ((o_) > 0)                                                                              \
            writes(out, k.o, o_);                                                                  \
        if ((p_) > 0)                                                                              \
            writes(out, k.p, p_);                                                                  \
        if ((q_) > 0)                                                                              \
            writes(out, k.q, q_);                                                                  \
        if ((a_) > 0)                                                                              \
            reads(out, k.a, a_);                                                                   \
        if ((b_) > 0)                                                                              \
            reads(out, k.b, b_);                                                                   \
        if ((c_) > 0)                                                                              \
            reads(out, k.c, c_);                                                                   \
        if ((d_) > 0)                                                                              \
            reads(out, k.d, d_);                                                                   \
        if ((t_) > 0)                                                                              \
            sg_reads(out, k.t, t_);                                                                \
    }

#define PLAIN(name)                                                                                \
    static void name(void *const *args)                                                            \
    {                                                                                              \
        gpt_k_##name##_body(of(args));                                                             \
    }

static const size_t tokens = 256;

PLAIN(spread_bias)
KERNEL(spread_bias, count, 0, 0, count, n, 0, 0, 0)
PLAIN(norm)
KERNEL(norm, count, 2 * rows, 0, count, n, n, 0, 0)
PLAIN(norm_back)
KERNEL(norm_back, count, 0, 0, count, n, 2 * rows, count, 0)
PLAIN(gelu)
KERNEL(gelu, count, 0, 0, count, 0, 0, 0, 0)
PLAIN(gelu_back)
KERNEL(gelu_back, count, 0, 0, count, 0, 0, 0, 0)
PLAIN(causal)
KERNEL(causal, count, 0, 0, 0, 0, 0, 0, 0)
PLAIN(causal_back)
KERNEL(causal_back, count, 0, 0, count, 0, 0, 0, 0)
PLAIN(entropy_max)
KERNEL(entropy_max, rows, 0, 0, count, 0, 0, 0, 0)
PLAIN(entropy_sums)
KERNEL(entropy_sums, count, 3 * rows, 0, 0, rows, 0, 0, rows)
PLAIN(entropy_end)
KERNEL(entropy_end, count, rows, 0, 0, 3 * rows, 0, 0, 0)
PLAIN(entropy_back)
KERNEL(entropy_back, count, 0, 0, 0, 0, 0, 0, rows)
PLAIN(embed)
KERNEL(embed, count, 0, 0, tokens *n, (size_t)k.time *n, 0, 0, rows)
PLAIN(embed_tokens)
KERNEL(embed_tokens, count, 0, 0, rows *n, 0, 0, 0, rows)
PLAIN(embed_positions)
KERNEL(embed_positions, count, 0, 0, rows *n, 0, 0, 0, 0)
PLAIN(adamw)
KERNEL(adamw, count, count, count, count, 0, 0, 0, 0)
PLAIN(cast)
KERNEL(cast, (count + 1) / 2, 0, 0, (rows - 1) * (size_t)k.stride + n, 0, 0, 0, 0)
KERNEL(sum_columns, n, 0, 0, count, 0, 0, 0, 0)
KERNEL(norm_params, n, n, 0, count, 0, 2 * rows, count, 0)
KERNEL(mean, 1, 0, 0, count, 0, 0, 0, 0)

/* One block runs at a time, so shared memory is static. */
static void sum_columns(void *const *args)
{
    static float shared[GPT_K_THREADS];

    gpt_k_sum_columns_body(of(args), shared);
}

static void norm_params(void *const *args)
{
    static float shared[2 * GPT_K_THREADS];

    gpt_k_norm_params_body(of(args), shared);
}

static void mean(void *const *args)
{
    static double shared[GPT_K_THREADS];

    gpt_k_mean_body(of(args), shared);
}

static const size_t sizes[] = {sizeof(gpt_k)};
#define ROW(name, flags)                                                                           \
    {                                                                                              \
        "gpt_k_" #name, 1, sizes, name, name##_ranges, flags                                       \
    }

static const sg_kernel table[] = {
    ROW(spread_bias, 0),
    ROW(norm, SG_KERNEL_SYNCS),
    ROW(norm_back, SG_KERNEL_SYNCS),
    ROW(gelu, 0),
    ROW(gelu_back, 0),
    ROW(causal, SG_KERNEL_SYNCS),
    ROW(causal_back, SG_KERNEL_SYNCS),
    ROW(entropy_max, SG_KERNEL_SYNCS),
    ROW(entropy_sums, SG_KERNEL_SYNCS),
    ROW(entropy_end, 0),
    ROW(entropy_back, 0),
    ROW(embed, 0),
    ROW(embed_tokens, 0),
    ROW(embed_positions, 0),
    ROW(adamw, 0),
    ROW(cast, 0),
    ROW(sum_columns, SG_KERNEL_SYNCS),
    ROW(norm_params, SG_KERNEL_SYNCS),
    ROW(mean, SG_KERNEL_SYNCS),
};

__attribute__((constructor)) static void list_kernels(void)
{
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        sg_kernel_register(&table[i]);
}

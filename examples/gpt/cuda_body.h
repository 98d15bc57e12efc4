/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPU's kernels' bodies, for nvcc and for the simulated GPUs of the tests (which compile them
 * for the host). All take one struct, whose fields mean what each body says. Sums have a fixed
 * order: over a row by a warp in a butterfly, over rows by eight threads per column, so that equal
 * runs are equal bit for bit. No atomics.
 */
#ifndef GPT_CUDA_BODY_H
#define GPT_CUDA_BODY_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

enum { GPT_K_THREADS = 256, GPT_K_WARP = 32, GPT_K_PARTS = GPT_K_THREADS / GPT_K_WARP };

typedef struct gpt_k {
    float *o, *p, *q; /* out */
    const float *a, *b, *c, *d; /* in */
    const uint8_t *t; /* tokens */
    size_t count; /* elements */
    int rows, n, time, first, stride, kind;
    float f[6];
} gpt_k;

#define GPT_K_FN static __device__ inline

GPT_K_FN size_t gpt_k_thread(void)
{
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}

GPT_K_FN size_t gpt_k_threads(void)
{
    return (size_t)gridDim.x * blockDim.x;
}

GPT_K_FN int gpt_k_lane(void)
{
    return (int)(threadIdx.x % GPT_K_WARP);
}

GPT_K_FN float gpt_k_warp_sum(float x)
{
    for (int by = GPT_K_WARP / 2; by > 0; by /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, by);
    return x;
}

GPT_K_FN float gpt_k_warp_max(float x)
{
    for (int by = GPT_K_WARP / 2; by > 0; by /= 2) {
        float other = __shfl_xor_sync(0xffffffffu, x, by);

        x = other > x ? other : x;
    }
    return x;
}

/* A warp takes a row, then the row that is as many further as there are warps. */
#define GPT_K_ROWS(k, row)                                                                         \
    for (int row = (int)(gpt_k_thread() / GPT_K_WARP); row < (k).rows;                             \
         row += (int)(gpt_k_threads() / GPT_K_WARP))

#define GPT_K_ELEMENTS(k, i) for (size_t i = gpt_k_thread(); i < (k).count; i += gpt_k_threads())

/* o = b (+ a), rows of n. */
GPT_K_FN void gpt_k_spread_bias_body(gpt_k k)
{
    GPT_K_ELEMENTS(k, i)
    k.o[i] = k.b[i % (size_t)k.n] + (k.a != NULL ? k.a[i] : 0);
}

/* o += the columns' sums of a. A block has 32 columns, of which each is summed by 8 threads. */
GPT_K_FN void gpt_k_sum_columns_body(gpt_k k, float *shared)
{
    const int lane = gpt_k_lane(), part = (int)threadIdx.x / GPT_K_WARP;
    const int column = (int)blockIdx.x * GPT_K_WARP + lane;
    float sum = 0;

    for (int i = part; i < k.rows && column < k.n; i += GPT_K_PARTS)
        sum += k.a[(size_t)i * (size_t)k.n + (size_t)column];
    shared[threadIdx.x] = sum;
    __syncthreads();
    if (part == 0 && column < k.n) {
        for (int i = 1; i < GPT_K_PARTS; i++)
            sum += shared[i * GPT_K_WARP + lane];
        k.o[column] += sum;
    }
}

/* o = norm of a's rows, weight b, bias c; p: mean and 1/deviation. */
GPT_K_FN void gpt_k_norm_body(gpt_k k)
{
    const int lane = gpt_k_lane();

    GPT_K_ROWS(k, row)
    {
        const float *x = k.a + (size_t)row * (size_t)k.n;
        float *y = k.o + (size_t)row * (size_t)k.n, mean = 0, variance = 0, scale;

        for (int j = lane; j < k.n; j += GPT_K_WARP)
            mean += x[j];
        mean = gpt_k_warp_sum(mean) / (float)k.n;
        for (int j = lane; j < k.n; j += GPT_K_WARP)
            variance += (x[j] - mean) * (x[j] - mean);
        scale = 1 / sqrtf(gpt_k_warp_sum(variance) / (float)k.n + 1e-5F);
        for (int j = lane; j < k.n; j += GPT_K_WARP)
            y[j] = (x[j] - mean) * scale * k.b[j] + k.c[j];
        if (lane == 0) {
            k.p[2 * row] = mean;
            k.p[2 * row + 1] = scale;
        }
    }
}

/* o += gradient of the input; a: input, b: weight, c: stats, d: gradient of the output. */
GPT_K_FN void gpt_k_norm_back_body(gpt_k k)
{
    const int lane = gpt_k_lane();

    GPT_K_ROWS(k, row)
    {
        const float *x = k.a + (size_t)row * (size_t)k.n, *dy = k.d + (size_t)row * (size_t)k.n;
        float *dx = k.o + (size_t)row * (size_t)k.n, sum = 0, sum_norm = 0;
        const float mean = k.c[2 * row], scale = k.c[2 * row + 1];

        for (int j = lane; j < k.n; j += GPT_K_WARP) {
            sum += dy[j] * k.b[j];
            sum_norm += dy[j] * k.b[j] * (x[j] - mean) * scale;
        }
        sum = gpt_k_warp_sum(sum) / (float)k.n;
        sum_norm = gpt_k_warp_sum(sum_norm) / (float)k.n;
        for (int j = lane; j < k.n; j += GPT_K_WARP)
            dx[j] += (dy[j] * k.b[j] - sum - (x[j] - mean) * scale * sum_norm) * scale;
    }
}

/* o += gradient of the weight, p += of the bias; as gpt_k_sum_columns_body. */
GPT_K_FN void gpt_k_norm_params_body(gpt_k k, float *shared)
{
    const int lane = gpt_k_lane(), part = (int)threadIdx.x / GPT_K_WARP;
    const int column = (int)blockIdx.x * GPT_K_WARP + lane;
    float weight = 0, bias = 0;

    for (int i = part; i < k.rows && column < k.n; i += GPT_K_PARTS) {
        const size_t at = (size_t)i * (size_t)k.n + (size_t)column;

        weight += k.d[at] * (k.a[at] - k.c[2 * i]) * k.c[2 * i + 1];
        bias += k.d[at];
    }
    shared[threadIdx.x] = weight;
    shared[GPT_K_THREADS + threadIdx.x] = bias;
    __syncthreads();
    if (part == 0 && column < k.n) {
        for (int i = 1; i < GPT_K_PARTS; i++) {
            weight += shared[i * GPT_K_WARP + lane];
            bias += shared[GPT_K_THREADS + i * GPT_K_WARP + lane];
        }
        k.o[column] += weight;
        k.p[column] += bias;
    }
}

#define GPT_K_GELU_A 1.5957691216057308F /* 2 sqrt(2/pi), as kernels.c */
#define GPT_K_GELU_B 0.044715F

GPT_K_FN void gpt_k_gelu_body(gpt_k k)
{
    GPT_K_ELEMENTS(k, i)
    {
        float x = k.a[i];

        k.o[i] = x / (1 + expf(-GPT_K_GELU_A * (x + GPT_K_GELU_B * x * x * x)));
    }
}

/* o: gradient of the output, becomes that of the input a. */
GPT_K_FN void gpt_k_gelu_back_body(gpt_k k)
{
    GPT_K_ELEMENTS(k, i)
    {
        float x = k.a[i], s = 1 / (1 + expf(-GPT_K_GELU_A * (x + GPT_K_GELU_B * x * x * x)));
        float slope = GPT_K_GELU_A * (1 + 3 * GPT_K_GELU_B * x * x);

        k.o[i] *= s + x * s * (1 - s) * slope;
    }
}

/* o: rows of n scores of a causal square, in place to probabilities: row r of n has r + 1. */
GPT_K_FN void gpt_k_causal_body(gpt_k k)
{
    const int lane = gpt_k_lane();

    GPT_K_ROWS(k, row)
    {
        float *x = k.o + (size_t)row * (size_t)k.n, top = -INFINITY, sum = 0;
        const int valid = row % k.n + 1;

        for (int j = lane; j < valid; j += GPT_K_WARP)
            top = x[j] > top ? x[j] : top;
        top = gpt_k_warp_max(top);
        for (int j = lane; j < valid; j += GPT_K_WARP)
            sum += expf(x[j] - top);
        sum = 1 / gpt_k_warp_sum(sum);
        for (int j = lane; j < k.n; j += GPT_K_WARP)
            x[j] = j < valid ? expf(x[j] - top) * sum : 0;
    }
}

/* o: gradient of the probabilities a, becomes that of the scores. */
GPT_K_FN void gpt_k_causal_back_body(gpt_k k)
{
    const int lane = gpt_k_lane();

    GPT_K_ROWS(k, row)
    {
        const float *p = k.a + (size_t)row * (size_t)k.n;
        float *d = k.o + (size_t)row * (size_t)k.n, dot = 0;

        for (int j = lane; j < k.n; j += GPT_K_WARP)
            dot += p[j] * d[j];
        dot = gpt_k_warp_sum(dot);
        for (int j = lane; j < k.n; j += GPT_K_WARP)
            d[j] = p[j] * (d[j] - dot);
    }
}

/* o: maxima of a's rows. */
GPT_K_FN void gpt_k_entropy_max_body(gpt_k k)
{
    GPT_K_ROWS(k, row)
    {
        const float *x = k.a + (size_t)row * (size_t)k.n;
        float top = -INFINITY;

        for (int j = gpt_k_lane(); j < k.n; j += GPT_K_WARP)
            top = x[j] > top ? x[j] : top;
        top = gpt_k_warp_max(top);
        if (gpt_k_lane() == 0)
            k.o[row] = top;
    }
}

/* o: logits, become exponentials below the maxima b; p: [3][rows] sum, target's exponent, whether
 * the target t is among the columns first ... */
GPT_K_FN void gpt_k_entropy_sums_body(gpt_k k)
{
    GPT_K_ROWS(k, row)
    {
        float *x = k.o + (size_t)row * (size_t)k.n, sum = 0;
        const int target = (int)k.t[row] - k.first;
        const int here = target >= 0 && target < k.n;
        const float at = here ? x[target] - k.b[row] : 0;

        __syncwarp(); /* all have read it */
        for (int j = gpt_k_lane(); j < k.n; j += GPT_K_WARP) {
            x[j] = expf(x[j] - k.b[row]);
            sum += x[j];
        }
        sum = gpt_k_warp_sum(sum);
        if (gpt_k_lane() == 0) {
            k.p[row] = sum;
            k.p[k.rows + row] = at;
            k.p[2 * k.rows + row] = (float)here;
        }
    }
}

/* o: exponentials, become probabilities by the sums b; p: losses. */
GPT_K_FN void gpt_k_entropy_end_body(gpt_k k)
{
    GPT_K_ROWS(k, row)
    {
        float *x = k.o + (size_t)row * (size_t)k.n;

        for (int j = gpt_k_lane(); j < k.n; j += GPT_K_WARP)
            x[j] /= k.b[row];
        if (gpt_k_lane() == 0)
            k.p[row] = k.b[2 * k.rows + row] > 0 ? logf(k.b[row]) - k.b[k.rows + row] : INFINITY;
    }
}

/* o: probabilities, become f[0] * (p - 1 at the target). */
GPT_K_FN void gpt_k_entropy_back_body(gpt_k k)
{
    GPT_K_ELEMENTS(k, i)
    {
        const int target = (int)k.t[i / (size_t)k.n] - k.first;

        k.o[i] = k.f[0] * (k.o[i] - ((int)(i % (size_t)k.n) == target ? 1.0F : 0.0F));
    }
}

/* o = token's row of a + position's row of b. */
GPT_K_FN void gpt_k_embed_body(gpt_k k)
{
    GPT_K_ELEMENTS(k, i)
    {
        const size_t row = i / (size_t)k.n, j = i % (size_t)k.n;

        k.o[i] = k.a[k.t[row] * (size_t)k.n + j] + k.b[row % (size_t)k.time * (size_t)k.n + j];
    }
}

/* o += by token the sums of a's rows: each thread has one number of the table. */
GPT_K_FN void gpt_k_embed_tokens_body(gpt_k k)
{
    GPT_K_ELEMENTS(k, i)
    {
        const size_t token = i / (size_t)k.n, j = i % (size_t)k.n;
        float sum = 0;

        for (int row = 0; row < k.rows; row++)
            if (k.t[row] == token)
                sum += k.a[(size_t)row * (size_t)k.n + j];
        k.o[i] += sum;
    }
}

/* o += by position. */
GPT_K_FN void gpt_k_embed_positions_body(gpt_k k)
{
    GPT_K_ELEMENTS(k, i)
    {
        float sum = 0;

        for (size_t row = i / (size_t)k.n; row < (size_t)k.rows; row += (size_t)k.time)
            sum += k.a[row * (size_t)k.n + i % (size_t)k.n];
        k.o[i] += sum;
    }
}

/* o[0] = mean of a; one block. */
GPT_K_FN void gpt_k_mean_body(gpt_k k, double *shared)
{
    double sum = 0;

    for (size_t i = threadIdx.x; i < k.count; i += GPT_K_THREADS)
        sum += (double)k.a[i];
    shared[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < GPT_K_THREADS; i++)
            sum += shared[i];
        k.o[0] = (float)(sum / (double)k.count);
    }
}

/* o: weights, p and q: means, a: gradients; f: as adamw_factors. */
GPT_K_FN void gpt_k_adamw_body(gpt_k k)
{
    GPT_K_ELEMENTS(k, i)
    {
        const float g = k.a[i] * k.f[0], b1 = k.f[4], b2 = k.f[5];
        const float m = b1 * k.p[i] + (1 - b1) * g, v = b2 * k.q[i] + (1 - b2) * g * g;

        k.p[i] = m;
        k.q[i] = v;
        k.o[i] -= k.f[3] * k.o[i] + k.f[1] * m / (sqrtf(v * k.f[2]) + 1e-8F);
    }
}

GPT_K_FN uint32_t gpt_k_bits(float x)
{
    union {
        float f;
        uint32_t u;
    } pun;

    pun.f = x;
    return pun.u;
}

/* To nearest, ties to even. */
GPT_K_FN uint16_t gpt_k_bf16(float x)
{
    const uint32_t u = gpt_k_bits(x);

    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

GPT_K_FN uint16_t gpt_k_f16(float x)
{
    const uint32_t u = gpt_k_bits(x), sign = u >> 16 & 0x8000u, size = u & 0x7fffffffu;
    uint32_t shift, mantissa, half;

    if (size >= 0x7f800000u)
        return (uint16_t)(sign | 0x7c00u | (size > 0x7f800000u ? 0x200u : 0u));
    if (size >= 0x477ff000u)
        return (uint16_t)(sign | 0x7c00u); /* rounds to infinity */
    if (size < 0x33000000u)
        return (uint16_t)sign; /* rounds to zero */
    if (size >= 0x38800000u)
        return (uint16_t)(sign | ((size - 0x38000000u + 0xfffu + (size >> 13 & 1)) >> 13));
    shift = 126 - (size >> 23); /* a subnormal */
    mantissa = (size & 0x7fffffu) | 0x800000u;
    half = mantissa >> shift;
    mantissa &= (1u << shift) - 1;
    half += mantissa > 1u << (shift - 1) || (mantissa == 1u << (shift - 1) && (half & 1));
    return (uint16_t)(sign | half);
}

/* o as 16-bit numbers, dense: a's rows of n, `stride` apart; kind 1: bf16, 2: f16. */
GPT_K_FN void gpt_k_cast_body(gpt_k k)
{
    uint16_t *to = (uint16_t *)(void *)k.o;

    GPT_K_ELEMENTS(k, i)
    {
        const float x = k.a[i / (size_t)k.n * (size_t)k.stride + i % (size_t)k.n];

        to[i] = k.kind == 1 ? gpt_k_bf16(x) : gpt_k_f16(x);
    }
}

#endif

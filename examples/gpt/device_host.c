/* SPDX-License-Identifier: Apache-2.0 */
#include "device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "simd.h"

static void *take(size_t bytes)
{
    size_t whole = (bytes + 63) / 64 * 64;
    void *memory = aligned_alloc(64, whole > 0 ? whole : 64);

    if (memory != NULL)
        memset(memory, 0, whole);
    return memory;
}

/* The memory is the same, and so may the place be. */
static void move(void *to, const void *from, size_t bytes)
{
    if (to != from)
        memcpy(to, from, bytes);
}

static void zero(void *to, size_t bytes)
{
    memset(to, 0, bytes);
}

static const char *problem(void)
{
    return NULL;
}

static void mean(const real *values, int count, float *out)
{
    double sum = 0;

    for (int i = 0; i < count; i++)
        sum += (double)values[i];
    *out = (float)(sum / count);
}

HOT static void adamw(float *restrict w, const float *restrict g, float *restrict m,
                      float *restrict v, size_t n, adamw_factors f)
{
    const float b1 = f.beta1, b2 = f.beta2;

    for (size_t i = 0; i < n; i++) {
        float grad = g[i] * f.grad_scale;

        m[i] = b1 * m[i] + (1 - b1) * grad;
        v[i] = b2 * v[i] + (1 - b2) * grad * grad;
        w[i] -= f.decay * w[i] + f.rate * m[i] / (sqrtf(v[i] * f.v_scale) + 1e-8f);
    }
}

const gpt_device gpt_device_host = {
    .name = "host",
    .take = take,
    .give = free,
    .take_host = take,
    .give_host = free,
    .upload = move,
    .download = move,
    .copy = move,
    .zero = zero,
    .problem = problem,
    .matmul = matmul,
    .spread_bias = spread_bias,
    .sum_columns = sum_columns,
    .layer_norm_forward = layer_norm_forward,
    .layer_norm_backward = layer_norm_backward,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
    .cross_entropy_forward = cross_entropy_forward,
    .cross_entropy_backward = cross_entropy_backward,
    .embed = embed,
    .embed_backward = embed_backward,
    .mean = mean,
    .adamw = adamw,
};

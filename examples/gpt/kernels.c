/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layers; see kernels.h.
 *
 * Nearly all the arithmetic is in the matrix products, which OpenBLAS does well. What remains is
 * bound by memory or by exp, so each loop here is written to be one pass over contiguous rows that
 * the compiler vectorises: sums are marked as reductions (their order is then fixed by the vector
 * width, the same in every run on a machine), and exp is inlined. Attention works per sequence and
 * head on whole time x time blocks; it computes the masked half for nothing, which for short
 * contexts costs less than smaller products would.
 */
#include "kernels.h"

#include <math.h>
#include <string.h>

#include "simd.h"

HOT void spread_bias(const real *bias, const real *residual, real *out, int rows, int n)
{
    for (int i = 0; i < rows; i++) {
        real *row = out + (size_t)i * (size_t)n;

        if (residual == NULL) {
            memcpy(row, bias, (size_t)n * sizeof *row);
            continue;
        }
        for (int j = 0; j < n; j++)
            row[j] = residual[(size_t)i * (size_t)n + (size_t)j] + bias[j];
    }
}

HOT void sum_columns(const real *restrict in, real *restrict sum, int rows, int n)
{
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < n; j++)
            sum[j] += in[(size_t)i * (size_t)n + (size_t)j];
}

HOT void layer_norm_forward(const layer_norm *n, const real *in, real *stats, real *out, int rows)
{
    const int width = n->weight.rows;
    const real *weight = n->weight.value, *bias = n->bias.value;

    for (int i = 0; i < rows; i++) {
        const real *x = in + (size_t)i * (size_t)width;
        real *y = out + (size_t)i * (size_t)width;
        real mean = 0, variance = 0, scale;

#pragma omp simd reduction(+ : mean)
        for (int j = 0; j < width; j++)
            mean += x[j];
        mean /= (real)width;
#pragma omp simd reduction(+ : variance)
        for (int j = 0; j < width; j++)
            variance += (x[j] - mean) * (x[j] - mean);
        scale = 1 / (real)sqrt(variance / (real)width + (real)1e-5);
        for (int j = 0; j < width; j++)
            y[j] = (x[j] - mean) * scale * weight[j] + bias[j];
        stats[2 * i] = mean;
        stats[2 * i + 1] = scale;
    }
}

HOT void layer_norm_backward(layer_norm *n, const real *in, const real *stats, const real *dout,
                             real *din, int rows)
{
    const int width = n->weight.rows;
    const real *weight = n->weight.value;
    real *restrict dweight = n->weight.grad, *restrict dbias = n->bias.grad;

    for (int i = 0; i < rows; i++) {
        const real *x = in + (size_t)i * (size_t)width, *dy = dout + (size_t)i * (size_t)width;
        real *restrict dx = din + (size_t)i * (size_t)width;
        const real mean = stats[2 * i], scale = stats[2 * i + 1];
        real sum = 0, sum_norm = 0; /* of the gradient before scale and shift, and of it times x^ */

#pragma omp simd reduction(+ : sum, sum_norm)
        for (int j = 0; j < width; j++) {
            real norm = (x[j] - mean) * scale, d = dy[j] * weight[j];

            sum += d;
            sum_norm += d * norm;
            dweight[j] += dy[j] * norm;
            dbias[j] += dy[j];
        }
        sum /= (real)width;
        sum_norm /= (real)width;
        for (int j = 0; j < width; j++) {
            real norm = (x[j] - mean) * scale;

            dx[j] += (dy[j] * weight[j] - sum - norm * sum_norm) * scale;
        }
    }
}

/* GELU in its tanh form, x/2 (1 + tanh u) with u = sqrt(2/pi) (x + 0.044715 x^3), which is x times
 * the logistic function of 2u. */
#define GELU_A ((real)1.5957691216057308) /* 2 sqrt(2/pi) */
#define GELU_B ((real)0.044715)

HOT void gelu_forward(const real *restrict in, real *restrict out, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        real x = in[i], u2 = GELU_A * (x + GELU_B * x * x * x);

        out[i] = x / (1 + exp_fast(-u2));
    }
}

HOT void gelu_backward(const real *restrict in, real *restrict d, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        real x = in[i], u2 = GELU_A * (x + GELU_B * x * x * x);
        real s = 1 / (1 + exp_fast(-u2));
        real slope = GELU_A * (1 + 3 * GELU_B * x * x);

        d[i] *= s + x * s * (1 - s) * slope;
    }
}

HOT void embed(const uint8_t *inputs, const param *tokens, const param *positions, real *out,
               int rows, int time)
{
    const int width = tokens->cols;

    for (int i = 0; i < rows; i++) {
        const real *token = tokens->value + (size_t)inputs[i] * (size_t)width;
        const real *position = positions->value + (size_t)(i % time) * (size_t)width;
        real *restrict row = out + (size_t)i * (size_t)width;

        for (int j = 0; j < width; j++)
            row[j] = token[j] + position[j];
    }
}

HOT void embed_backward(const uint8_t *inputs, param *tokens, param *positions, const real *d,
                        int rows, int time)
{
    const int width = tokens->cols;

    for (int i = 0; i < rows; i++) {
        real *restrict token = tokens->grad + (size_t)inputs[i] * (size_t)width;
        real *restrict position = positions->grad + (size_t)(i % time) * (size_t)width;
        const real *row = d + (size_t)i * (size_t)width;

        for (int j = 0; j < width; j++) {
            token[j] += row[j];
            position[j] += row[j];
        }
    }
}

/* In 16 lanes: compilers do not turn a plain maximum into vector code, because of NaN. */
static inline real largest(const real *x, int n)
{
    enum { LANES = 16 };
    real lane[LANES], top = x[0];
    int j = 0;

    for (int i = 0; i < LANES; i++)
        lane[i] = x[0];
    for (; j + LANES <= n; j += LANES)
        for (int i = 0; i < LANES; i++)
            lane[i] = x[j + i] > lane[i] ? x[j + i] : lane[i];
    for (; j < n; j++)
        top = x[j] > top ? x[j] : top;
    for (int i = 0; i < LANES; i++)
        top = lane[i] > top ? lane[i] : top;
    return top;
}

HOT void softmax(real *x, int valid, int n)
{
    const real top = largest(x, valid);
    real sum = 0;

    /* All n, so that the loop has no odd end; the rest is zeroed after. */
    for (int j = 0; j < n; j++)
        x[j] = exp_fast(x[j] - top);
    for (int j = valid; j < n; j++)
        x[j] = 0;
#pragma omp simd reduction(+ : sum)
    for (int j = 0; j < n; j++)
        sum += x[j];
    sum = 1 / sum;
    for (int j = 0; j < n; j++)
        x[j] *= sum;
}

/* Where a sequence's head keeps its part. In a row of qkv its query, key and value lie side by
 * side, so that some of the heads are some of the columns. */
typedef struct head_view {
    size_t qkv, out, prob;
} head_view;

static head_view view_of(attention_shape s, int sequence, int head)
{
    size_t row = (size_t)sequence * (size_t)s.time, width = (size_t)s.width;
    size_t column = (size_t)head * (width / (size_t)s.heads);
    size_t square = (size_t)s.time * (size_t)s.time;

    return (head_view){row * 3 * width + 3 * column, row * width + column,
                       ((size_t)sequence * (size_t)s.heads + (size_t)head) * square};
}

void attention_forward(attention_shape s, const real *qkv, real *prob, real *out)
{
    const int size = s.width / s.heads, stride = 3 * s.width;
    const real scale = 1 / (real)sqrt((double)size);

    for (int b = 0; b < s.batch; b++) {
        for (int h = 0; h < s.heads; h++) {
            head_view at = view_of(s, b, h);
            const real *q = qkv + at.qkv, *k = q + size, *v = k + size;
            real *p = prob + at.prob;

            matmul((product_size){s.time, s.time, size}, (matrix){q, stride, false},
                   (matrix){k, stride, true}, scale, p, s.time, false);
            for (int t = 0; t < s.time; t++) /* causal: token t sees 0 ... t */
                softmax(p + (size_t)t * (size_t)s.time, t + 1, s.time);
            matmul((product_size){s.time, size, s.time}, (matrix){p, s.time, false},
                   (matrix){v, stride, false}, 1, out + at.out, s.width, false);
        }
    }
}

/* d: gradient of the probabilities, then of the scores. Masked entries have p = 0 and stay 0. */
HOT static void softmax_backward(const real *restrict prob, real *restrict d, int time)
{
    for (int t = 0; t < time; t++) {
        const real *p = prob + (size_t)t * (size_t)time;
        real *row = d + (size_t)t * (size_t)time;
        real dot = 0;

#pragma omp simd reduction(+ : dot)
        for (int j = 0; j < time; j++)
            dot += p[j] * row[j];
        for (int j = 0; j < time; j++)
            row[j] = p[j] * (row[j] - dot);
    }
}

void attention_backward(attention_shape s, const real *qkv, const real *prob, const real *dout,
                        real *dqkv, real *scratch)
{
    const int size = s.width / s.heads, stride = 3 * s.width;
    const real scale = 1 / (real)sqrt((double)size);
    const product_size square = {s.time, s.time, size}, tall = {s.time, size, s.time};

    for (int b = 0; b < s.batch; b++) {
        for (int h = 0; h < s.heads; h++) {
            head_view at = view_of(s, b, h);
            const real *q = qkv + at.qkv, *k = q + size, *v = k + size;
            real *dq = dqkv + at.qkv, *dk = dq + size, *dv = dk + size;
            matrix p_t = {prob + at.prob, s.time, true};
            matrix d = {scratch, s.time, false}, d_t = {scratch, s.time, true};
            matrix dy = {dout + at.out, s.width, false};

            matmul(tall, p_t, dy, 1, dv, stride, false);
            matmul(square, dy, (matrix){v, stride, true}, 1, scratch, s.time, false);
            softmax_backward(prob + at.prob, scratch, s.time);
            matmul(tall, d, (matrix){k, stride, false}, scale, dq, stride, false);
            matmul(tall, d_t, (matrix){q, stride, false}, scale, dk, stride, false);
        }
    }
}

void cross_entropy_forward(real *logits, const uint8_t *targets, real *loss, int rows)
{
    for (int i = 0; i < rows; i++) {
        real *row = logits + (size_t)i * VOCABULARY;
        real p;

        softmax(row, VOCABULARY, VOCABULARY);
        p = row[targets[i]];
        loss[i] = -(real)log(p > (real)1e-37 ? p : (real)1e-37);
    }
}

HOT void cross_entropy_backward(real *prob, vocabulary_part part, const uint8_t *targets,
                                real scale, int rows)
{
    for (int i = 0; i < rows; i++) {
        real *row = prob + (size_t)i * (size_t)part.cols;
        int target = targets[i] - part.first;

        for (int j = 0; j < part.cols; j++)
            row[j] *= scale;
        if (target >= 0 && target < part.cols)
            row[target] -= scale;
    }
}

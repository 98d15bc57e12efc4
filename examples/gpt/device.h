/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the model computes: a table of what its layers are made of, on the host (device_host.c) or
 * on a GPU (device_cuda.cu). Arrays are the device's own. On the GPU everything is queued on one
 * stream and nothing is waited for but in download; a call that fails is told by problem().
 */
#ifndef GPT_DEVICE_H
#define GPT_DEVICE_H

#include "kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum gpt_precision {
    PRECISION_F32,
    PRECISION_BF16,
    PRECISION_F16
} gpt_precision; /* of the factors of matrix products; sums and weights are fp32 */

typedef struct adamw_factors { /* see optim.c */
    float grad_scale, rate, v_scale, decay, beta1, beta2;
} adamw_factors;

typedef struct gpt_device {
    const char *name;
    void *(*take)(size_t bytes); /* zeroed; NULL: none left */
    void (*give)(void *memory);
    void *(*take_host)(size_t bytes); /* memory of the host's that upload likes best */
    void (*give_host)(void *memory);
    void (*upload)(void *to, const void *from, size_t bytes); /* from host memory that stays as it
                                                                 is until the next download */
    void (*download)(void *to, const void *from, size_t bytes); /* waits for all work */
    void (*copy)(void *to, const void *from, size_t bytes);
    void (*zero)(void *to, size_t bytes);
    const char *(*problem)(void); /* what went wrong first, or NULL */

    void (*matmul)(product_size size, matrix a, matrix b, real alpha, real *c, int c_stride,
                   bool add);
    void (*spread_bias)(const real *bias, const real *residual, real *out, int rows, int n);
    void (*sum_columns)(const real *in, real *sum, int rows, int n);
    void (*layer_norm_forward)(const layer_norm *n, const real *in, real *stats, real *out,
                               int rows);
    void (*layer_norm_backward)(layer_norm *n, const real *in, const real *stats, const real *dout,
                                real *din, int rows);
    void (*gelu_forward)(const real *in, real *out, size_t count);
    void (*gelu_backward)(const real *in, real *d, size_t count);
    void (*attention_forward)(attention_shape s, const real *qkv, real *prob, real *out);
    void (*attention_backward)(attention_shape s, const real *qkv, const real *prob,
                               const real *dout, real *dqkv, real *scratch);
    void (*cross_entropy_forward)(real *logits, const uint8_t *targets, real *loss, int rows);
    void (*cross_entropy_backward)(real *prob, vocabulary_part part, const uint8_t *targets,
                                   real scale, int rows);
    /* The three passes over some columns of the logits, between which ranks exchange: maxima
     * [rows]; sums [3][rows] of the exponentials, of the target's exponent, and whether it is here;
     * then probabilities and losses. NULL: the library does it. */
    void (*entropy_max)(const real *logits, int cols, real *max, int rows);
    void (*entropy_sums)(real *logits, vocabulary_part part, const uint8_t *targets,
                         const real *max, real *sums, int rows);
    void (*entropy_end)(real *logits, int cols, const real *sums, real *loss, int rows);
    void (*embed)(const uint8_t *inputs, const param *tokens, const param *positions, real *out,
                  int rows, int time);
    void (*embed_backward)(const uint8_t *inputs, param *tokens, param *positions, const real *d,
                           int rows, int time);
    void (*mean)(const real *values, int count, float *out);
    void (*adamw)(float *w, const float *g, float *m, float *v, size_t n, adamw_factors f);
} gpt_device;

extern const gpt_device gpt_device_host;
/* The GPU's, computing on this cudaStream_t; NULL: this program was built without, or *problem_out
 * says why not (static memory). */
const gpt_device *gpt_device_cuda(void *stream, gpt_precision precision, const char **problem_out);
void gpt_device_cuda_close(void);

#ifdef __cplusplus
}
#endif
#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layers of a GPT as functions on plain arrays: linear, layer norm, GELU, causal attention,
 * cross entropy; each with its backward pass.
 *
 * Arrays are row major, one row per token. A backward function takes the gradient of its output
 * ("dout"), writes the gradient of its input ("din") and adds the gradients of its parameters to
 * param.grad, so that micro-steps accumulate.
 */
#ifndef GPT_KERNELS_H
#define GPT_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The model computes in float. The gradient test compiles the same files with double, where finite
 * differences are exact enough to see a wrong term. */
#ifdef GPT_DOUBLE
typedef double real;
#else
typedef float real;
#endif

enum { VOCABULARY = 256 }; /* a token is a byte */

/* A parameter tensor of one or two dimensions (cols = 0: one), or this rank's box of it. */
typedef struct param {
    char name[48];
    int rows, cols;
    int first_row, first_col, whole_rows, whole_cols; /* where the box lies in the whole tensor */
    int id; /* among the parameters of the whole model */
    bool replica; /* the other ranks that share the matrices hold the same values */
    size_t count;
    real *value, *grad;
    bool decay; /* weight decay applies: matrices yes, biases and norms no */
} param;

typedef struct linear {
    param weight, bias; /* [out][in], [out] */
    bool adds; /* bias and residual are added here: everywhere, but where several ranks' products
                  are to be summed, on the first of them alone */
} linear;

typedef struct layer_norm {
    param weight, bias;
} layer_norm;

typedef struct attention_shape {
    int batch, time, width, heads; /* width: of these heads together */
} attention_shape;

/* c (m x n) = alpha a b, added to c with `add`; a is m x k and b k x n, after transposition.
 * Strides are those of the rows in memory. */
typedef struct matrix {
    const real *data;
    int stride;
    bool transposed;
} matrix;
typedef struct product_size {
    int m, n, k;
} product_size;
void matmul(product_size size, matrix a, matrix b, real alpha, real *c, int c_stride, bool add);
/* What carries out the products, in words; makes it single threaded. */
const char *matmul_setup(void);
/* OpenBLAS chooses its kernels while it is loaded, from a list of processors; one that is newer
 * than the list may get kernels of 2004, six times slower. NULL when the choice is sound, else the
 * value of OPENBLAS_CORETYPE to start again with. */
const char *matmul_better_kernels(void);

void spread_bias(const real *bias, const real *residual, real *out, int rows, int n);
void sum_columns(const real *in, real *sum, int rows, int n); /* adds to sum */

/* stats keeps each row's mean and 1/deviation. din is added to: a norm sits beside a residual. */
void layer_norm_forward(const layer_norm *n, const real *in, real *stats, real *out, int rows);
void layer_norm_backward(layer_norm *n, const real *in, const real *stats, const real *dout,
                         real *din, int rows);

void gelu_forward(const real *in, real *out, size_t count);
/* In place: d holds the gradient of the output, then that of the input. */
void gelu_backward(const real *in, real *d, size_t count);

/* qkv: per token and head the query, key and value, [heads][3][width / heads]. prob keeps the
 * attention weights [batch][heads][time][time]. */
void attention_forward(attention_shape s, const real *qkv, real *prob, real *out);
/* scratch: [heads][time][time]. */
void attention_backward(attention_shape s, const real *qkv, const real *prob, const real *dout,
                        real *dqkv, real *scratch);

/* Turns each row of logits into probabilities, in place, and gives -log p(target) per row. */
void cross_entropy_forward(real *logits, const uint8_t *targets, real *loss, int rows);
/* Turns the probabilities of tokens first ... first + cols - 1 into the gradient of scale * (sum of
 * losses), in place. */
typedef struct vocabulary_part {
    int first, cols;
} vocabulary_part;
void cross_entropy_backward(real *prob, vocabulary_part part, const uint8_t *targets, real scale,
                            int rows);

void embed(const uint8_t *inputs, const param *tokens, const param *positions, real *out, int rows,
           int time);
void embed_backward(const uint8_t *inputs, param *tokens, param *positions, const real *d, int rows,
                    int time);

/* Softmax of n values in place; those at `valid` and beyond count as minus infinity. */
void softmax(real *x, int valid, int n);

#endif

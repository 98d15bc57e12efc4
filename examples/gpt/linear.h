/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers, on any device. */
#ifndef GPT_LINEAR_H
#define GPT_LINEAR_H

#include "device.h"

/* out = in weight^T + bias (+ residual, unless NULL). */
static inline void linear_forward(const gpt_device *dev, const linear *l, const real *in,
                                  const real *residual, real *out, int rows)
{
    const int n = l->weight.rows, k = l->weight.cols;
    const matrix x = {in, k, false}, w = {l->weight.value, k, true};

    if (l->adds)
        dev->spread_bias(l->bias.value, residual, out, rows, n);
    dev->matmul((product_size){rows, n, k}, x, w, 1, out, n, l->adds);
}

/* The gradient of the input. */
static inline void linear_backward_input(const gpt_device *dev, const linear *l, const real *dout,
                                         real *din, int rows)
{
    const int n = l->weight.rows, k = l->weight.cols;
    const matrix d = {dout, n, false}, w = {l->weight.value, k, false};

    dev->matmul((product_size){rows, k, n}, d, w, 1, din, k, false);
}

/* Those of the parameters. */
static inline void linear_backward_params(const gpt_device *dev, linear *l, const real *in,
                                          const real *dout, int rows)
{
    const int n = l->weight.rows, k = l->weight.cols;
    const matrix dt = {dout, n, true}, x = {in, k, false};

    dev->matmul((product_size){n, k, rows}, dt, x, 1, l->weight.grad, k, true);
    dev->sum_columns(dout, l->bias.grad, rows, n);
}

#endif

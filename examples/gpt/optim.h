/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AdamW over the pieces of parameters that this rank updates.
 */
#ifndef GPT_OPTIM_H
#define GPT_OPTIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tutti/tutti.h>

#include "device.h"

/* The reducer's tag of a parameter (tutti_param.group): whether weight decay applies. */
enum { GROUP_PLAIN = 0, GROUP_DECAY = 1 };

typedef struct adamw {
    const gpt_device *dev;
    float *m, *v; /* running mean of gradients and of their squares */
    size_t count;
} adamw;

bool adamw_create(adamw *opt, const gpt_device *dev, size_t count);
void adamw_destroy(adamw *opt);

/* The rate of step `step` (from 0): linear warm-up over the first twentieth (at most 200 steps),
 * then a cosine down to a tenth of `peak` at `steps`. */
double learning_rate(double peak, int64_t step, int64_t steps);

/* The factor that brings gradients of a larger norm down to norm 1; not above 0 if the norm is no
 * finite number. */
double clip_factor(double norm);

/* One update; `step` counts from 0. */
typedef struct adamw_step {
    int64_t step;
    double rate, grad_scale;
} adamw_step;
void adamw_update(adamw *opt, const tutti_piece *pieces, size_t n, adamw_step s);

#endif

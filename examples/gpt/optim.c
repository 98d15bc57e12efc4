/* SPDX-License-Identifier: Apache-2.0 */
#include "optim.h"

#include <math.h>
#include <string.h>

static const double beta1 = 0.9, beta2 = 0.99, weight_decay = 0.1;

bool adamw_create(adamw *opt, const gpt_device *dev, size_t count)
{
    opt->dev = dev;
    opt->count = count;
    opt->m = dev->take((count + 1) * sizeof *opt->m);
    opt->v = dev->take((count + 1) * sizeof *opt->v);
    if (opt->m != NULL && opt->v != NULL)
        return true;
    adamw_destroy(opt);
    return false;
}

void adamw_destroy(adamw *opt)
{
    if (opt->dev != NULL) {
        opt->dev->give(opt->m);
        opt->dev->give(opt->v);
    }
    memset(opt, 0, sizeof *opt);
}

double learning_rate(double peak, int64_t step, int64_t steps)
{
    const double least = 0.1 * peak;
    int64_t warmup = steps / 20 < 200 ? steps / 20 : 200;
    double done;

    if (step < warmup)
        return peak * (double)(step + 1) / (double)(warmup + 1);
    done = (double)(step - warmup) / (double)(steps - warmup);
    return least + (peak - least) * 0.5 * (1 + cos(3.14159265358979 * done));
}

double clip_factor(double norm)
{
    return norm <= 1 ? 1 : 1 / norm;
}

/* Both corrections for the zeros that m and v begin with are in `rate` and `v_scale`. Decay is
 * decoupled: it acts on the weight, not through m and v. */
void adamw_update(adamw *opt, const tutti_piece *pieces, size_t n, adamw_step s)
{
    const double t = (double)(s.step + 1);
    adamw_factors f = {(float)s.grad_scale,
                       (float)(s.rate / (1 - pow(beta1, t))),
                       (float)(1 / (1 - pow(beta2, t))),
                       0,
                       (float)beta1,
                       (float)beta2};

    for (size_t i = 0; i < n; i++) {
        const tutti_piece *p = &pieces[i];

        f.decay = p->group == GROUP_DECAY ? (float)(s.rate * weight_decay) : 0;
        opt->dev->adamw(p->param, p->grad, opt->m + p->state_offset, opt->v + p->state_offset,
                        (size_t)p->count, f);
    }
}

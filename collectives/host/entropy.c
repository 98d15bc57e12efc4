/* SPDX-License-Identifier: Apache-2.0 */
/* The three passes of a cross entropy over shared columns (comm/math.h), on the stream's worker. */
#include <math.h>

#include "host/math.h"

static tutti_status find_max(void *arg)
{
    const tt_math_entropy *e = arg;

    for (size_t i = 0; i < e->rows; i++) {
        const float *row = e->logits + i * e->count;
        float max = -INFINITY;

        for (size_t j = 0; j < e->count; j++)
            max = row[j] > max || isnan(row[j]) ? row[j] : max;
        e->max[i] = max;
    }
    return TUTTI_OK;
}

static tutti_status exponentiate(void *arg)
{
    const tt_math_entropy *e = arg;

    for (size_t i = 0; i < e->rows; i++) {
        float *row = e->logits + i * e->count, max = e->max[i], sum = 0;
        int64_t target = (int64_t)e->targets[i] - e->first;
        bool here = target >= 0 && (uint64_t)target < e->count;

        e->sums[e->rows + i] = here ? row[target] - max : 0;
        e->sums[2 * e->rows + i] = here;
        for (size_t j = 0; j < e->count; j++) {
            row[j] = expf(row[j] - max);
            sum += row[j];
        }
        e->sums[i] = sum;
    }
    return TUTTI_OK;
}

static tutti_status divide(void *arg)
{
    const tt_math_entropy *e = arg;

    for (size_t i = 0; i < e->rows; i++) {
        float *row = e->logits + i * e->count, inverse = 1 / e->sums[i];

        e->loss[i] = logf(e->sums[i]) - e->sums[e->rows + i];
        if (e->sums[2 * e->rows + i] == 0)
            e->loss[i] = INFINITY; /* no rank has that column */
        for (size_t j = 0; j < e->count; j++)
            row[j] *= inverse;
    }
    return TUTTI_OK;
}

static tutti_status submit(tt_device *dev, tt_work_fn pass, const tt_math_entropy *e,
                           tutti_stream stream)
{
    tt_math_entropy copy = *e;
    return dev->ops->stream_call(dev, stream, pass, &copy, sizeof copy);
}

tutti_status tt_host_entropy_max(tt_device *dev, const tt_math_entropy *e, tutti_stream stream)
{
    return submit(dev, find_max, e, stream);
}

tutti_status tt_host_entropy_sums(tt_device *dev, const tt_math_entropy *e, tutti_stream stream)
{
    return submit(dev, exponentiate, e, stream);
}

tutti_status tt_host_entropy_end(tt_device *dev, const tt_math_entropy *e, tutti_stream stream)
{
    return submit(dev, divide, e, stream);
}

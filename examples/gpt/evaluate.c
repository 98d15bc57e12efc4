/* SPDX-License-Identifier: Apache-2.0 */
#include "evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Windows of `time` bytes move on by half of that; each scores what no window before it has scored,
 * so every byte but the first few is predicted with at least half a context before it. */
typedef struct windows {
    size_t targets, time, stride, count;
} windows;

static windows windows_of(const corpus *t, int context)
{
    windows w;

    w.targets = t->held_out_bytes - 1;
    w.time = w.targets < (size_t)context ? w.targets : (size_t)context;
    w.stride = w.time / 2 > 0 ? w.time / 2 : 1;
    w.count = 1 + (w.targets - w.time + w.stride - 1) / w.stride;
    return w;
}

/* The last window is moved back to end with the text. */
static size_t window_start(const windows *w, size_t i)
{
    size_t start = i * w->stride;

    return start < w->targets - w->time ? start : w->targets - w->time;
}

static loss_sum score(const model *m, const windows *w, size_t i, int row)
{
    loss_sum s = {0, 0};
    size_t start = window_start(w, i);
    size_t first = i == 0 ? 0 : window_start(w, i - 1) + w->time - start;

    for (size_t j = first; j < w->time; j++)
        s.sum += (double)m->loss[(size_t)row * w->time + j];
    s.count = (double)(w->time - first);
    return s;
}

loss_sum held_out_share(model *m, const corpus *t, token_buffers b, int rank, int ranks)
{
    const windows w = windows_of(t, m->shape.context);
    const size_t step = (size_t)ranks, batch = (size_t)m->max_batch;
    loss_sum total = {0, 0};

    for (size_t i = (size_t)rank; i < w.count; i += batch * step) {
        int rows = 0;

        for (size_t j = i; j < w.count && rows < m->max_batch; j += step, rows++) {
            const uint8_t *from = t->held_out + window_start(&w, j);

            memcpy(b.inputs + (size_t)rows * w.time, from, w.time);
            memcpy(b.targets + (size_t)rows * w.time, from + 1, w.time);
        }
        model_forward(m, b.inputs, rows, (int)w.time);
        (void)model_loss(m, b.targets);
        for (int r = 0; r < rows; r++) {
            loss_sum s = score(m, &w, i + (size_t)r * step, r);

            total.sum += s.sum;
            total.count += s.count;
        }
    }
    return total;
}

/*
 * Witten and Bell's interpolation: a context seen n times with d different next bytes trusts its
 * own counts by n / (n + d) and the next shorter context for the rest, down to the uniform 1/256:
 *   p(c | ab) = (n(abc) + d(ab) p(c | b)) / (n(ab) + d(ab))
 */
typedef struct counts {
    uint32_t three[256][256][256], two[256][256], one[256];
} counts;

static double interpolate(const uint32_t *next, uint8_t c, double shorter)
{
    double seen = 0, kinds = 0;

    for (int i = 0; i < VOCABULARY; i++) {
        seen += next[i];
        kinds += next[i] > 0;
    }
    return seen > 0 ? (next[c] + kinds * shorter) / (seen + kinds) : shorter;
}

double trigram_held_out_loss(const corpus *t)
{
    counts *n = calloc(1, sizeof *n);
    const uint8_t *x = t->train;
    double sum = 0;

    if (n == NULL)
        return -1;
    for (size_t i = 0; i < t->train_bytes; i++) {
        n->one[x[i]]++;
        if (i >= 1)
            n->two[x[i - 1]][x[i]]++;
        if (i >= 2)
            n->three[x[i - 2]][x[i - 1]][x[i]]++;
    }
    x = t->held_out;
    for (size_t i = 1; i < t->held_out_bytes; i++) {
        double p = interpolate(n->one, x[i], 1.0 / VOCABULARY);

        p = interpolate(n->two[x[i - 1]], x[i], p);
        if (i >= 2)
            p = interpolate(n->three[x[i - 2]][x[i - 1]], x[i], p);
        sum -= log(p);
    }
    free(n);
    return sum / (double)(t->held_out_bytes - 1);
}

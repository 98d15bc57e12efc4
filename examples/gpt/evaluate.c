/* SPDX-License-Identifier: Apache-2.0 */
#include "evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/*
 * Windows of `time` bytes. Each but the first scores its second half, so that every scored byte is
 * predicted with at least half a context before it; windows are half a window apart, which scores
 * every byte once, or further apart in a long text, whose bytes are then a sample.
 */
typedef struct windows {
    size_t targets, time, stride, count;
} windows;
static const size_t most_windows = 4096;

static windows windows_of(const corpus *t, int context)
{
    windows w;
    size_t rest;

    w.targets = t->held_out_bytes - 1;
    w.time = w.targets < (size_t)context ? w.targets : (size_t)context;
    rest = w.targets - w.time;
    w.stride = (w.time + 1) / 2;
    if (rest / w.stride > most_windows)
        w.stride = rest / most_windows;
    w.count = 1 + (rest + w.stride - 1) / w.stride;
    return w;
}

/* The last window is moved back to end with the text. */
static size_t window_start(const windows *w, size_t i)
{
    size_t start = i * w->stride;

    return start < w->targets - w->time ? start : w->targets - w->time;
}

/* The first token of window i that it scores. */
static size_t first_scored(const windows *w, size_t i)
{
    size_t start = window_start(w, i), half = w->time / 2, before;

    if (i == 0)
        return 0;
    before = window_start(w, i - 1) + w->time; /* scored up to here */
    return before > start + half ? before - start : half;
}

static loss_sum score(const real *losses, const windows *w, size_t i, int row)
{
    const size_t first = first_scored(w, i);
    loss_sum s = {0, (double)(w->time - first)};

    for (size_t j = first; j < w->time; j++)
        s.sum += (double)losses[(size_t)row * w->time + j];
    return s;
}

int held_out_share(const held_out_job *job, loss_sum *out)
{
    const model *m = job->m;
    const windows w = windows_of(job->t, m->shape.context);
    const size_t step = (size_t)job->copies, batch = (size_t)m->max_batch;
    loss_sum total = {0, 0};

    for (size_t i = (size_t)job->copy; i < w.count; i += batch * step) {
        int rows = 0, status;

        for (size_t j = i; j < w.count && rows < m->max_batch; j += step, rows++) {
            const uint8_t *from = job->t->held_out + window_start(&w, j);

            memcpy(job->b.inputs + (size_t)rows * w.time, from, w.time);
            memcpy(job->b.targets + (size_t)rows * w.time, from + 1, w.time);
        }
        status = job->pass(job->arg, job->b, rows, (int)w.time, job->losses);
        if (status != 0)
            return status;
        for (int r = 0; r < rows && m->part.last; r++) {
            loss_sum s = score(job->losses, &w, i + (size_t)r * step, r);

            total.sum += s.sum;
            total.count += s.count;
        }
    }
    *out = total;
    return 0;
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

static counts *count_trigrams(const corpus *t)
{
    counts *n = calloc(1, sizeof *n);
    const uint8_t *x = t->train;

    for (size_t i = 0; n != NULL && i < t->train_bytes; i++) {
        n->one[x[i]]++;
        if (i >= 1)
            n->two[x[i - 1]][x[i]]++;
        if (i >= 2)
            n->three[x[i - 2]][x[i - 1]][x[i]]++;
    }
    return n;
}

static double trigram_loss(const counts *n, const uint8_t *x, size_t i)
{
    double p = interpolate(n->one, x[i], 1.0 / VOCABULARY);

    p = interpolate(n->two[x[i - 1]], x[i], p);
    if (i >= 2)
        p = interpolate(n->three[x[i - 2]][x[i - 1]], x[i], p);
    return -log(p);
}

double trigram_held_out_loss(const corpus *t, int context)
{
    const windows w = windows_of(t, context);
    counts *n = count_trigrams(t);
    loss_sum total = {0, 0};

    if (n == NULL)
        return -1;
    for (size_t i = 0; i < w.count; i++) {
        size_t start = window_start(&w, i);

        for (size_t j = first_scored(&w, i); j < w.time; j++) {
            total.sum += trigram_loss(n, t->held_out, start + j + 1);
            total.count += 1;
        }
    }
    free(n);
    return total.sum / total.count;
}

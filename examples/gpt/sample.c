/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "random.h"

static const double temperature = 0.8;

/* Draws the byte after those of the last pass from its last row of logits. */
static uint8_t draw(model *m, double unit)
{
    real *row = m->logits + (size_t)(m->time - 1) * VOCABULARY;
    double sum = 0;

    for (int i = 0; i < VOCABULARY; i++)
        row[i] /= (real)temperature;
    softmax(row, VOCABULARY, VOCABULARY);
    for (int i = 0; i < VOCABULARY; i++) {
        sum += (double)row[i];
        if (unit < sum)
            return (uint8_t)i;
    }
    return '\n';
}

/* A byte that a terminal cannot show, or would obey, is shown as a dot. */
static void show(uint8_t c)
{
    putchar(c == '\n' || c == '\t' || isprint(c) ? c : '.');
}

/* The sample goes on from the first few held-out bytes. Returns how many. */
static int begin(const run *r, uint8_t *window)
{
    const int half = r->model.shape.context / 2;
    int length = half < 16 ? half : 16;

    if ((size_t)length > r->text.held_out_bytes)
        length = (int)r->text.held_out_bytes;
    memcpy(window, r->text.held_out, (size_t)length);
    for (int i = 0; i < length; i++)
        show(window[i]);
    return length;
}

void sample_text(run *r)
{
    model *m = &r->model;
    const int context = m->shape.context;
    uint8_t *window = r->buffers.inputs;
    int length;

    if (r->options->sample == 0)
        return;
    /* The other ranks go on to tutti_finalize and wait there. */
    tutti_expect_quiet(r->ctx, 0.1 * (double)r->options->sample);
    if (r->rank != 0)
        return;
    report_say(&r->report,
               "\na sample of the model's text (temperature %.1f) after the first held-out bytes",
               temperature);
    length = begin(r, window);
    for (int64_t i = 0; i < r->options->sample; i++) {
        uint64_t bits = random_at((uint64_t)r->options->seed, 0x73616d706c65u, (uint64_t)i);

        if (length == context) { /* full: go on with the newer half */
            length = context - context / 2;
            memmove(window, window + context / 2, (size_t)length);
        }
        model_forward(m, window, 1, length);
        window[length] = draw(m, random_unit(bits));
        show(window[length++]);
    }
    putchar('\n');
    fflush(stdout);
}

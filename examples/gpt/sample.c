/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "random.h"

static const double temperature = 0.8;

/* Draws the byte after those of the last pass from its last row of logits, put together from the
 * ranks that share the vocabulary. Every rank of the last stage draws the same. */
static tutti_status draw(run *r, double unit, uint8_t *out)
{
    model *m = &r->model;
    const vocabulary_part part = model_vocabulary(m);
    double logits[VOCABULARY] = {0}, sum = 0;
    real row[VOCABULARY];
    tutti_status status;

    r->dev->download(row, m->logits + (size_t)(m->time - 1) * (size_t)part.cols,
                     (size_t)part.cols * sizeof *row);
    for (int i = 0; i < part.cols; i++)
        logits[part.first + i] = (double)row[i];
    status = tutti_all_reduce_host(r->split.tp, logits, VOCABULARY, TUTTI_SUM);
    for (int i = 0; i < VOCABULARY; i++)
        row[i] = (real)(logits[i] / temperature);
    softmax(row, VOCABULARY, VOCABULARY);
    *out = '\n';
    for (int i = VOCABULARY - 1; i >= 0; i--)
        sum += (double)row[i];
    unit *= sum;
    for (int i = 0; i < VOCABULARY; i++) {
        *out = (uint8_t)i;
        unit -= (double)row[i];
        if (unit < 0)
            break;
    }
    return status;
}

/* The next byte, known to all ranks of the copy. */
static tutti_status next_byte(run *r, uint8_t *window, int length, int64_t index, uint8_t *out)
{
    uint64_t bits = random_at((uint64_t)r->options->seed, 0x73616d706c65u, (uint64_t)index);
    tutti_status status = forward_only(r, (token_buffers){window, NULL}, 1, length);
    double value = 0;

    if (status == TUTTI_OK && r->model.part.last) {
        status = draw(r, random_unit(bits), out);
        value = *out;
    }
    if (status == TUTTI_OK)
        status = tutti_all_reduce_host(r->split.pp, &value, 1, TUTTI_SUM);
    *out = (uint8_t)value;
    return status;
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
    for (int i = 0; i < length && r->rank == 0; i++)
        show(window[i]);
    return length;
}

int sample_text(run *r)
{
    const int context = r->model.shape.context;
    uint8_t *window = r->made.inputs;
    tutti_status status = TUTTI_OK;
    int length;

    if (r->options->sample == 0)
        return 0;
    /* The other copies go on to tutti_finalize and wait there. */
    tutti_expect_quiet(r->ctx, 0.1 * (double)r->options->sample);
    if (r->split.dp_rank != 0)
        return 0;
    report_say(&r->report,
               "\na sample of the model's text (temperature %.1f) after the first held-out bytes",
               temperature);
    length = begin(r, window);
    for (int64_t i = 0; i < r->options->sample && status == TUTTI_OK; i++) {
        if (length == context) { /* full: go on with the newer half */
            length = context - context / 2;
            memmove(window, window + context / 2, (size_t)length);
        }
        status = next_byte(r, window, length, i, &window[length]);
        if (r->rank == 0 && status == TUTTI_OK)
            show(window[length]);
        length++;
    }
    if (r->rank == 0)
        putchar('\n');
    fflush(stdout);
    return run_check(r, status);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tutti_tp_cross_entropy on a device, ranks being threads, against the plain one in double: calls
 * of growing and shrinking size follow each other on two streams. It runs on the host backend too.
 */
#include <math.h>

#include "boot/context.h"
#include "tt_test.h"

enum { VOCABULARY = 48, MOST = 300, CALLS = 6 };

typedef struct job {
    tt_rank *r;
    size_t first, count; /* this rank's columns */
    float *logits[CALLS], *loss[CALLS]; /* the device's */
    int32_t *targets[CALLS];
    float host[MOST * VOCABULARY];
    int32_t host_targets[MOST];
} job;

static size_t rows_of(int call)
{
    static const size_t rows[CALLS] = {9, 40, 1, 41, MOST, 7};
    return rows[call];
}

/* Row 0's target is far from the maximum, row 1's values would overflow alone, row 2 has a NaN. */
static float logit_at(int call, size_t row, size_t v)
{
    float value = sinf((float)(row * 31 + v * 7 + (size_t)call)) * 4;

    if (row == 0)
        return v == 3 ? -150 : value;
    if (row == 2 && v == 5)
        return NAN;
    return row == 1 ? value + 800 : value;
}

static int32_t target_at(size_t row)
{
    return row == 8 ? VOCABULARY : (int32_t)(row * 5 + 3) % VOCABULARY;
}

static tutti_status copy(job *j, void *to, const void *from, size_t bytes, tutti_stream stream)
{
    tutti_status status = j->r->ctx->dev_ops->copy(j->r->ctx->dev, to, from, bytes, stream);
    return status != TUTTI_OK ? status : tutti_stream_sync(j->r->ctx, stream);
}

static void fill(job *j, int call, tutti_stream stream)
{
    size_t rows = rows_of(call);

    for (size_t i = 0; i < rows; i++) {
        j->host_targets[i] = target_at(i);
        for (size_t v = 0; v < j->count; v++)
            j->host[i * j->count + v] = logit_at(call, i, j->first + v);
    }
    TT_EXPECT_OK(j->r, copy(j, j->logits[call], j->host, rows * j->count * sizeof(float), stream));
    TT_EXPECT_OK(j->r, copy(j, j->targets[call], j->host_targets, rows * sizeof(int32_t), stream));
}

static void compare_row(job *j, int call, size_t i, float loss)
{
    double sum = 0, want, top = (double)logit_at(call, i, 0);

    if (i == 2) {
        TT_EXPECT(j->r, isnan(loss));
        return;
    }
    for (size_t v = 0; v < VOCABULARY; v++)
        sum += exp((double)logit_at(call, i, v) - top);
    for (size_t v = 0; v < j->count; v++) {
        double p = exp((double)logit_at(call, i, j->first + v) - top) / sum;
        TT_EXPECT(j->r, fabs((double)j->host[i * j->count + v] - p) <= 2e-5 * p + 1e-30);
    }
    if (i == 8) {
        TT_EXPECT(j->r, isinf(loss)); /* no such token */
        return;
    }
    want = log(sum) + top - (double)logit_at(call, i, (size_t)target_at(i));
    TT_EXPECT(j->r, fabs((double)loss - want) <= 2e-5 * fmax(1, fabs(want)));
}

static void compare(job *j, int call, tutti_stream stream)
{
    float loss[MOST];
    size_t rows = rows_of(call);

    TT_EXPECT_OK(j->r, copy(j, j->host, j->logits[call], rows * j->count * sizeof(float), stream));
    TT_EXPECT_OK(j->r, copy(j, loss, j->loss[call], rows * sizeof(float), stream));
    for (size_t i = 0; i < rows && !j->r->failed; i++)
        compare_row(j, call, i, loss[i]);
}

static void run(job *j, tutti_tp *tp, const tutti_stream stream[2])
{
    for (int call = 0; call < CALLS; call++)
        fill(j, call, stream[0]);
    TT_EXPECT_OK(j->r, tutti_stream_wait(j->r->ctx, stream[1], stream[0]));
    for (int call = 0; call < CALLS; call++) {
        const tutti_tp_logits l = {.logits = j->logits[call],
                                   .targets = j->targets[call],
                                   .rows = rows_of(call),
                                   .count = j->count,
                                   .first = (int32_t)j->first};
        TT_EXPECT_OK(j->r, tutti_tp_cross_entropy(tp, &l, j->loss[call], stream[call % 2]));
    }
    for (int call = 0; call < CALLS; call++)
        compare(j, call, stream[call % 2]);
}

static void body(tt_rank *r)
{
    const size_t each = (size_t)MOST * (VOCABULARY + 2);
    job *j = calloc(1, sizeof *j);
    tutti_stream stream[2];
    float *memory;
    tutti_tp *tp;

    if (j == NULL)
        abort();
    j->r = r;
    if (getenv("SIMGPU_MACHINE") != NULL)
        TT_EXPECT(r, tutti_device(r->ctx) >= 0); /* it is CUDA that is tried */
    TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "one", 0, &stream[0]));
    TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "two", 0, &stream[1]));
    TT_EXPECT_OK(r, tutti_alloc(r->comm, CALLS * each * sizeof(float), (void **)&memory));
    for (int call = 0; call < CALLS; call++) {
        j->logits[call] = memory + (size_t)call * each;
        j->loss[call] = j->logits[call] + (size_t)MOST * VOCABULARY;
        j->targets[call] = (int32_t *)(void *)(j->loss[call] + MOST);
    }
    TT_EXPECT_OK(r, tutti_tp_range(r->comm, "tokens", VOCABULARY, &j->first, &j->count));
    TT_EXPECT_OK(r, tutti_tp_create(r->comm, NULL, &tp));
    run(j, tp, stream);
    tutti_tp_destroy(tp);
    TT_EXPECT_OK(r, tutti_free(r->comm, memory));
    tutti_stream_destroy(r->ctx, stream[0]);
    tutti_stream_destroy(r->ctx, stream[1]);
    free(j);
}

static void the_vocabulary_may_be_shared(void **state)
{
    (void)state;
    for (int n = 1; n <= 4; n++)
        TT_ASSERT_RANKS(n, NULL, body, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_vocabulary_may_be_shared)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

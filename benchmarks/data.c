/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inputs whose results are known exactly. Element i of rank r is base((i + 7r) mod PERIOD): small
 * whole numbers, bounded so that no partial sum leaves the range that the type holds exactly. A
 * result repeats with the same period, so one period is computed in double and compared byte for
 * byte along the whole buffer; each element that differs counts, as nccl-tests' #wrong does. Only
 * AVG of a number of ranks that is no power of two rounds: it gets one part in 2^mantissa.
 */
#include <stdlib.h>
#include <math.h>
#include <string.h>

#include "bench.h"
#include "core/mem.h"

enum { PERIOD = 251, STEP = 7 };

static uint16_t to_bf16(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, 4);
    bits += 0x7fff + (bits >> 16 & 1);
    return (uint16_t)(bits >> 16);
}

/* Of whole numbers and their quotients that are normal in f16. */
static uint16_t to_f16(float value)
{
    uint32_t bits, mantissa;
    int exponent;

    memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffff) == 0)
        return 0;
    exponent = (int)(bits >> 23 & 0xff) - 127 + 15;
    mantissa = (bits & 0x7fffff) | (uint32_t)exponent << 23;
    mantissa += 0xfff + (mantissa >> 13 & 1);
    return (uint16_t)((bits >> 16 & 0x8000) | mantissa >> 13);
}

static void store(tutti_dtype dtype, double value, char *at)
{
    float f = (float)value;
    uint16_t half = dtype == TUTTI_BFLOAT16 ? to_bf16(f) : to_f16(f);
    int64_t whole = (int64_t)value;

    if (dtype == TUTTI_FLOAT64)
        memcpy(at, &value, 8);
    else if (dtype == TUTTI_FLOAT32)
        memcpy(at, &f, 4);
    else if (dtype == TUTTI_BFLOAT16 || dtype == TUTTI_FLOAT16)
        memcpy(at, &half, 2);
    else
        memcpy(at, &whole, tutti_dtype_size(dtype)); /* little endian: x86-64 and arm64 */
}

/* The largest whole number up to which the type holds all. */
static double exact_limit(tutti_dtype dtype)
{
    switch (dtype) {
    case TUTTI_INT8:
        return 127;
    case TUTTI_UINT8:
        return 255;
    case TUTTI_BFLOAT16:
        return 256;
    case TUTTI_FLOAT16:
        return 2048;
    default:
        return 1 << 24;
    }
}

static double value_of(const bench_case *c, int rank, size_t index)
{
    size_t at = (index + (size_t)STEP * (size_t)rank) % PERIOD;
    double levels = 1 + floor(exact_limit(c->dtype) / c->size);

    if (c->op->reduces && c->redop == TUTTI_PROD)
        return at < 3 ? 2 : 1;
    if (levels > 100)
        levels = 100;
    return fmod((double)at, c->op->reduces ? fmax(levels, 2) : 100);
}

static double reduced(const bench_case *c, size_t index)
{
    double result = value_of(c, 0, index);
    int rank;

    for (rank = 1; rank < c->size; rank++) {
        double value = value_of(c, rank, index);

        if (c->redop == TUTTI_MAX)
            result = fmax(result, value);
        else if (c->redop == TUTTI_MIN)
            result = fmin(result, value);
        else if (c->redop == TUTTI_PROD)
            result *= value;
        else
            result += value;
    }
    if (c->redop == TUTTI_AVG)
        result = c->dtype == TUTTI_FLOAT64 ? result * (1.0 / c->size)
                                           : (double)((float)result * (1.0F / (float)c->size));
    return result;
}

/* Where buffer number `at` of the arenas lies. */
void bench_place_of(const bench_variant *v, const bench_case *c, size_t at, const char **in_out,
                    char **out_out)
{
    ptrdiff_t shift = c->in_place ? c->op->shift(c) : 0;
    ptrdiff_t bytes = shift * (ptrdiff_t)tutti_dtype_size(c->dtype);

    *in_out = v->in + at + (bytes < 0 ? -bytes : 0);
    *out_out = c->in_place ? v->in + at + (bytes > 0 ? bytes : 0) : v->out + at;
}

static tutti_status move(bench_job *job, bench_variant *v, void *dst, const void *src, size_t bytes)
{
    if (!v->device) {
        memcpy(dst, src, bytes);
        return TUTTI_OK;
    }
    TT_TRY(job->ctx->dev_ops->copy(job->ctx->dev, dst, src, bytes, job->stream));
    return tutti_stream_sync(job->ctx, job->stream);
}

/* Repeats one period, starting at its element `phase`, over n elements. */
static tutti_status spread(bench_job *job, bench_variant *v, char *dst, const char *period,
                           size_t element, size_t n)
{
    size_t done = 0, chunk = (size_t)PERIOD * 256;
    char *many;
    tutti_status status = TUTTI_OK;

    TT_TRY(tt_calloc(chunk, element, &many));
    for (size_t i = 0; i < 256; i++)
        memcpy(many + i * PERIOD * element, period, PERIOD * element);
    for (; done < n && status == TUTTI_OK; done += chunk)
        status = move(job, v, dst + done * element, many, tt_min_size(chunk, n - done) * element);
    free(many);
    return status;
}

tutti_status bench_fill(bench_job *job, bench_variant *v, const bench_case *c, size_t at)
{
    size_t element = tutti_dtype_size(c->dtype), i;
    char period[PERIOD * 8];
    const char *in;
    char *out;

    for (i = 0; i < PERIOD; i++)
        store(c->dtype, value_of(c, c->rank, i), period + i * element);
    bench_place_of(v, c, at, &in, &out);
    return spread(job, v, v->in + (in - v->in), period, element, c->op->in_count(c));
}

/* Zeros stay zeros, however often they are summed in place. */
tutti_status bench_clear(bench_job *job, bench_variant *v, const bench_case *c)
{
    if (!v->device) {
        memset(v->in, 0, v->bytes);
        return TUTTI_OK;
    }
    (void)c;
    TT_TRY(job->ctx->dev_ops->zero(job->ctx->dev, v->in, v->bytes, job->stream));
    return tutti_stream_sync(job->ctx, job->stream);
}

static bool differs(const bench_case *c, const char *got, const char *want)
{
    double a, b;
    float f, g;

    if (memcmp(got, want, tutti_dtype_size(c->dtype)) == 0)
        return false;
    if (!c->op->reduces || c->redop != TUTTI_AVG || (c->size & (c->size - 1)) == 0)
        return true;
    if (c->dtype == TUTTI_FLOAT32) {
        memcpy(&f, got, 4);
        memcpy(&g, want, 4);
        return fabsf(f - g) > 2.4e-7F * fabsf(g);
    }
    if (c->dtype == TUTTI_FLOAT64) {
        memcpy(&a, got, 8);
        memcpy(&b, want, 8);
        return fabs(a - b) > 4.5e-16 * fabs(b);
    }
    if (c->dtype == TUTTI_BFLOAT16 || c->dtype == TUTTI_FLOAT16) {
        uint16_t x, y;

        memcpy(&x, got, 2);
        memcpy(&y, want, 2);
        return x > y ? x - y > 1 : y - x > 1; /* neighbours; all are positive */
    }
    return true;
}

/* Counts what differs from one period, repeated, in n elements. */
static tutti_status compare(bench_job *job, bench_variant *v, const bench_case *c, const char *got,
                            const char *period, size_t n, uint64_t *wrong)
{
    size_t element = tutti_dtype_size(c->dtype), chunk = PERIOD, i, done;
    char copy[PERIOD * 8];

    for (done = 0; done < n; done += chunk) {
        size_t count = tt_min_size(chunk, n - done);
        const char *here = got + done * element;

        if (v->device) {
            TT_TRY(move(job, v, copy, here, count * element));
            here = copy;
        }
        if (memcmp(here, period, count * element) == 0)
            continue;
        for (i = 0; i < count; i++)
            *wrong += differs(c, here + i * element, period + i * element);
    }
    return TUTTI_OK;
}

/* Which rank's elements, from which index on, a block of `out` holds; -1: reduced ones. */
static int source_of(const bench_case *c, int block, size_t *first)
{
    const char *name = c->op->name;
    size_t n = c->n;

    *first = 0;
    if (c->op->reduces) {
        *first = strcmp(name, "reduce_scatter") == 0 ? n * (size_t)c->rank : 0;
        return -1;
    }
    if (strcmp(name, "broadcast") == 0)
        return c->root;
    if (strcmp(name, "scatter") == 0) {
        *first = n * (size_t)c->rank;
        return c->root;
    }
    if (strcmp(name, "all_to_all") == 0)
        *first = n * (size_t)c->rank;
    if (strcmp(name, "send_recv") == 0)
        return (c->rank + c->size - 1) % c->size;
    return block;
}

tutti_status bench_check(bench_job *job, bench_variant *v, const bench_case *c, size_t at,
                         uint64_t *wrong_out)
{
    size_t element = tutti_dtype_size(c->dtype), count = c->op->out_count(c), i, first;
    int block, blocks = count > c->n ? c->size : 1;
    char period[PERIOD * 8];
    double wrong_all;
    uint64_t wrong = 0;
    const char *in;
    char *out;

    bench_place_of(v, c, at, &in, &out);
    for (block = 0; block < blocks && count > 0; block++) {
        int source = source_of(c, block, &first);

        for (i = 0; i < PERIOD; i++)
            store(c->dtype, source < 0 ? reduced(c, first + i) : value_of(c, source, first + i),
                  period + i * element);
        TT_TRY(compare(job, v, c, out + (size_t)block * c->n * element, period, c->n, &wrong));
    }
    wrong_all = (double)wrong;
    TT_TRY(tutti_all_reduce_host(job->world, &wrong_all, 1, TUTTI_SUM));
    *wrong_out = (uint64_t)wrong_all;
    return TUTTI_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tutti bench takes for a right result: every operation, type and operator has none wrong, and
 * one element that is spoiled on one rank is counted as one.
 */
#include "bench.h"
#include "tt_test.h"

enum { N = 300, ARENA = 8 * N * 4 };

static size_t largest_n(const bench_op *op)
{
    return op->divides ? N / 4 : N;
}

/* Spoils the last element that this rank got; false if it got none. */
static bool spoil(bench_variant *v, const bench_case *c)
{
    const size_t element = tutti_dtype_size(c->dtype), count = c->op->out_count(c);
    const char *in;
    char *out;
    if (count == 0)
        return false;
    bench_place_of(v, c, 0, &in, &out);
    out[count * element - 1] ^= 0x10;
    return true;
}

static bool try_case(tt_rank *r, bench_job *job, bench_variant *v, const bench_case *c)
{
    const tutti_stream inline_stream = {0};
    uint64_t wrong = 1, found = 0;
    double spoilt;
    const char *in;
    char *out;
    bench_place_of(v, c, 0, &in, &out);
    memset(v->out, 0x55, ARENA);
    if (bench_fill(job, v, c, 0) != TUTTI_OK ||
        c->op->call(job->world, c, in, out, inline_stream) != TUTTI_OK ||
        bench_check(job, v, c, 0, &wrong) != TUTTI_OK)
        return false;
    spoilt = r->rank == r->size - 1 && spoil(v, c);
    if (bench_check(job, v, c, 0, &found) != TUTTI_OK ||
        tutti_all_reduce_host(job->world, &spoilt, 1, TUTTI_SUM) != TUTTI_OK)
        return false;
    if (wrong == 0 && found == (uint64_t)spoilt)
        return true;
    tt_say(r, "%s, %s, op %d, %s: %d wrong, %d of %d spoilt found", c->op->name,
           tutti_dtype_name(c->dtype), (int)c->redop, c->in_place ? "in place" : "out of place",
           (int)wrong, (int)found, (int)spoilt);
    return false;
}

static void try_all(tt_rank *r)
{
    static const tutti_dtype dtypes[] = {TUTTI_FLOAT32,  TUTTI_FLOAT64, TUTTI_FLOAT16,
                                         TUTTI_BFLOAT16, TUTTI_INT8,    TUTTI_UINT8,
                                         TUTTI_INT32,    TUTTI_INT64};
    char *memory = calloc(2, ARENA);
    bench_job job = {.ctx = r->ctx, .world = r->comm, .rank = r->rank, .size = r->size};
    bench_variant v = {.in = memory, .out = memory + ARENA, .bytes = ARENA};
    bool right = memory != NULL;
    for (size_t op = 0; right && bench_op_at(op) != NULL; op++) {
        for (size_t i = 0; right && i < 5 * 2 * sizeof dtypes / sizeof dtypes[0]; i++) {
            bench_case c = {.op = bench_op_at(op),
                            .dtype = dtypes[i / 10],
                            .redop = (tutti_op)(TUTTI_SUM + (int)(i / 2 % 5)),
                            .root = r->size - 1,
                            .rank = r->rank,
                            .size = r->size,
                            .in_place = i % 2 != 0};
            c.n = largest_n(c.op);
            c.bytes = c.n * tutti_dtype_size(c.dtype);
            if ((c.in_place && !c.op->has_in_place) || (!c.op->reduces && c.redop != TUTTI_SUM))
                continue;
            right = try_case(r, &job, &v, &c);
        }
    }
    free(memory);
    TT_EXPECT(r, right);
}

static void wrong_elements_are_counted(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(2, NULL, try_all, NULL);
    TT_ASSERT_RANKS(3, NULL, try_all, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(wrong_elements_are_counted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

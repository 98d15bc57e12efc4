/* SPDX-License-Identifier: Apache-2.0 */
/* The plan alone: no ranks, no device. */
#include "tt_test.h"

#include "reducer/reducer.h"

enum { MAX = 60 };

static const tutti_dtype dtypes[] = {TUTTI_FLOAT32, TUTTI_BFLOAT16, TUTTI_FLOAT64, TUTTI_FLOAT16};

typedef struct model {
    tutti_reducer red;
    tt_red_param param[MAX];
    uint8_t follows[MAX];
    char *memory;
} model;

static void make(model *m, uint64_t seed)
{
    tt_rng rng = {seed};
    size_t at = 0;

    memset(m, 0, sizeof *m);
    m->memory = malloc(1 << 20);
    assert_non_null(m->memory);
    m->red.params = m->param;
    m->red.nparams = 1 + tt_rand_below(&rng, MAX - 1);
    m->red.bucket_bytes = 64 + tt_rand_below(&rng, 20000);
    m->red.first_bucket_bytes = 64 + tt_rand_below(&rng, m->red.bucket_bytes);
    for (size_t id = 0; id < m->red.nparams; id++) {
        tt_red_param *p = &m->param[id];
        p->dtype = dtypes[tt_rand_below(&rng, 1 + seed % 4)];
        p->count = tt_rand_below(&rng, 900);
        p->bytes = p->count * tutti_dtype_size(p->dtype);
        p->owned = tt_rand_below(&rng, 2) == 0;
        at = (at + 7) / 8 * 8 + 8 * tt_rand_below(&rng, 2);
        p->grad = p->owned ? NULL : m->memory + at;
        at += p->owned ? 0 : p->bytes;
    }
    assert_int_equal(tt_red_plan_buckets(&m->red), TUTTI_OK);
    m->red.arena = m->memory; /* stands in: only addresses are looked at */
    tt_red_plan_follows(&m->red, m->follows);
    tt_red_plan_runs(&m->red, m->follows);
}

static void drop(model *m)
{
    free(m->red.buckets);
    free(m->red.members);
    free(m->red.runs);
    free(m->red.param_runs);
    free(m->memory);
}

static void check_membership(const model *m)
{
    int seen[MAX] = {0};

    for (int b = 0; b < m->red.nbuckets; b++) {
        const tt_red_bucket *bucket = &m->red.buckets[b];
        int last = bucket->ids[0];
        assert_true(bucket->n > 0);
        for (int i = 0; i < bucket->n; i++) {
            const tt_red_param *p = &m->param[bucket->ids[i]];
            seen[bucket->ids[i]]++;
            assert_int_equal(p->bucket, b);
            assert_int_equal(p->dtype, bucket->dtype);
            assert_int_equal(p->owned, bucket->owned);
            last = bucket->ids[i] < last ? bucket->ids[i] : last;
        }
        assert_int_equal(bucket->last_id, last);
        if (b > 0)
            assert_true(m->red.buckets[b - 1].last_id > last);
        assert_true(bucket->bytes <= m->red.bucket_bytes || bucket->n == 1);
    }
    assert_true(m->red.buckets[0].bytes <= m->red.first_bucket_bytes || m->red.buckets[0].n == 1);
    for (size_t id = 0; id < m->red.nparams; id++)
        assert_int_equal(seen[id], 1);
}

static void check_runs(const model *m)
{
    size_t total = 0;

    for (int b = 0; b < m->red.nbuckets; b++) {
        const tt_red_bucket *bucket = &m->red.buckets[b];
        size_t elements = 0, in_runs = 0, size = tutti_dtype_size(bucket->dtype);
        for (int i = 0; i < bucket->n; i++)
            elements += m->param[bucket->ids[i]].count;
        for (int i = 0; i < bucket->nruns; i++)
            in_runs += bucket->runs[i].count;
        if (bucket->owned) { /* with the gaps between tensors */
            assert_int_equal(bucket->nruns, 1);
            assert_true(in_runs >= elements && in_runs <= elements + (size_t)bucket->n * 64 / size);
        } else {
            assert_int_equal(in_runs, elements);
        }
        for (int i = 0; i < bucket->n; i++) {
            const tt_red_param *p = &m->param[bucket->ids[i]];
            bool inside = false;
            if (bucket->owned)
                assert_int_equal(p->offset % TT_RED_ALIGN, 0);
            for (int k = 0; k < bucket->nruns && !inside; k++) {
                char *from = bucket->runs[k].ptr, *to = from + bucket->runs[k].count * size;
                inside = (char *)p->grad >= from && (char *)p->grad + p->bytes <= to;
            }
            assert_true(inside);
        }
        total += bucket->bytes;
    }
    assert_int_equal(total, m->red.step_bytes);
}

static void any_list_is_planned(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 400; seed++) {
        model m;
        make(&m, seed);
        check_membership(&m);
        check_runs(&m);
        drop(&m);
    }
}

static void neighbours_become_one_run(void **state)
{
    static float memory[4][10];
    model m = {0};
    (void)state;

    m.red.params = m.param;
    m.red.nparams = 4;
    m.red.bucket_bytes = m.red.first_bucket_bytes = 1 << 20;
    for (int id = 0; id < 4; id++)
        m.param[id] = (tt_red_param){
            .dtype = TUTTI_FLOAT32, .count = 10, .bytes = sizeof memory[0], .grad = memory[id]};
    assert_int_equal(tt_red_plan_buckets(&m.red), TUTTI_OK);
    tt_red_plan_follows(&m.red, m.follows);
    m.follows[2] = 0; /* not so on another rank */
    tt_red_plan_runs(&m.red, m.follows);
    assert_int_equal(m.red.nbuckets, 1);
    assert_int_equal(m.red.buckets[0].nruns, 2);
    assert_ptr_equal(m.red.buckets[0].runs[0].ptr, memory[0]);
    assert_ptr_equal(m.red.buckets[0].runs[1].ptr, memory[2]);
    assert_int_equal(m.red.buckets[0].runs[1].count, 20);
    drop(&m);
}

/* Their sum would come out as 0: no arena, and gradients that lie nowhere. */
static void a_total_that_overflows(void **state)
{
    char name[] = "p";
    model m = {0};
    (void)state;

    m.red.params = m.param;
    m.red.nparams = 4;
    m.red.bucket_bytes = m.red.first_bucket_bytes = 1 << 20;
    for (int id = 0; id < 4; id++)
        m.param[id] = (tt_red_param){.name = name,
                                     .dtype = TUTTI_FLOAT32,
                                     .count = (size_t)1 << 60,
                                     .bytes = (size_t)1 << 62,
                                     .owned = true};
    assert_int_equal(tt_red_plan_buckets(&m.red), TUTTI_ERR_ARG);
    drop(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_list_is_planned),
        cmocka_unit_test(neighbours_become_one_run),
        cmocka_unit_test(a_total_that_overflows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* How a checkpoint may be read: lazily, strictly, before a step, by pattern, as other floats. */
#include "ckpt_test.h"

#include <math.h>

#include "ckpt/convert.h"

static char dir[PATH_CAP];

static int setup(void **state)
{
    (void)state;
    scratch_make(dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove(dir);
    return 0;
}

static void spoil(int64_t step)
{
    char path[PATH_CAP + 64];
    size_t bytes;
    snprintf(path, sizeof path, "%s/step-%012lld/shard-00000.h5", dir, (long long)step);
    unsigned char *data = file_get(path, &bytes);
    for (size_t i = 4096; i < bytes; i += 512)
        data[i] ^= 4;
    file_put(path, data, bytes);
    free(data);
}

static tutti_status open_and_check(tt_rank *r, const tutti_ckpt_open_opts *opts, int64_t *step_out)
{
    tutti_ckpt_reader *rd;
    tutti_status status = tutti_ckpt_open_with(r->ctx, dir, TUTTI_CKPT_STEP_NEWEST, opts, &rd);
    if (status != TUTTI_OK)
        return status;
    *step_out = tutti_ckpt_step(rd);
    status = small_check(r, rd, *step_out);
    tutti_ckpt_close(rd);
    return status;
}

/* Step 3 is damaged in its data. */
static void options_body(tt_rank *r)
{
    tutti_ckpt_open_opts opts = TUTTI_CKPT_OPEN_OPTS_INIT;
    int64_t step = -1;
    TT_EXPECT_OK(r, open_and_check(r, NULL, &step));
    TT_EXPECT(r, step == 2);
    opts.before = 2;
    TT_EXPECT_OK(r, open_and_check(r, &opts, &step));
    TT_EXPECT(r, step == 1);
    opts.before = 1;
    TT_EXPECT(r, open_and_check(r, &opts, &step) == TUTTI_ERR_NOT_FOUND);
    opts.before = 0;
    opts.flags = TUTTI_CKPT_OPEN_STRICT;
    TT_EXPECT(r, open_and_check(r, &opts, &step) == TUTTI_ERR_CORRUPT);
    opts.flags = TUTTI_CKPT_OPEN_LAZY;
    step = -1;
    TT_EXPECT(r, open_and_check(r, &opts, &step) == TUTTI_ERR_CORRUPT && step == 3);
    opts.before = step;
    TT_EXPECT_OK(r, open_and_check(r, &opts, &step));
    TT_EXPECT(r, step == 2);
    opts.flags = 64;
    TT_EXPECT(r, open_and_check(r, &opts, &step) == TUTTI_ERR_ARG);
}

static void options(void **state)
{
    (void)state;
    for (int64_t step = 1; step <= 3; step++)
        assert_string_equal(small_job_save(2, dir, step), "");
    spoil(3);
    TT_ASSERT_RANKS(2, NULL, options_body, NULL);
}

enum { N = 1000 };

static void save_floats(tt_rank *r, float *data)
{
    static const char *const names[] = {"layer.0/w", "layer.1/w", "layer.10/w", "other"};
    tutti_ckpt *ck;
    for (int i = 0; i < N; i++)
        data[i] = (float)(i - N / 2) * 1.0009765625f;
    TT_EXPECT_OK(r, tutti_ckpt_begin(r->ctx, dir, 5, &ck));
    for (int i = 0; i < 4; i++) {
        tutti_tensor t = tensor_1d(names[i], TUTTI_FLOAT32, N, 0, 0, data);
        TT_EXPECT_OK(r, tutti_ckpt_add(ck, &t));
    }
    int32_t whole[N] = {0};
    tutti_tensor t = tensor_1d("whole", TUTTI_INT32, N, 0, 0, whole);
    TT_EXPECT_OK(r, tutti_ckpt_add(ck, &t));
    TT_EXPECT_OK(r, tutti_ckpt_add_bytes(ck, "note", "x", 1, TUTTI_CKPT_PER_RANK));
    TT_EXPECT_OK(r, tutti_ckpt_commit(ck, (tutti_stream){0}, NULL));
    TT_EXPECT_OK(r, tutti_ckpt_wait(r->ctx, NULL));
}

static int count(tt_rank *r, const tutti_ckpt_reader *rd, const char *pattern)
{
    size_t at = 0;
    int n = 0;
    tutti_tensor info;
    while (tutti_ckpt_next(rd, pattern, &at, &info) == TUTTI_OK) {
        n++;
        if (info.name == NULL || info.shape[0] < 1)
            tt_say(r, "%s: a broken description", pattern);
    }
    return n;
}

static void convert_body(tt_rank *r)
{
    static float data[2][N];
    double wide[N];
    uint16_t half[N];
    tutti_ckpt_reader *rd;
    save_floats(r, data[r->rank]);
    TT_EXPECT_OK(r, tutti_ckpt_open(r->ctx, dir, -1, &rd));
    TT_EXPECT(r, count(r, rd, "layer.*") == 3 && count(r, rd, "layer.1?/*") == 1);
    TT_EXPECT(r, count(r, rd, "*") == 7 && count(r, rd, "rank/1/*") == 1);
    tutti_tensor t[2] = {tensor_1d("layer.1/w", TUTTI_FLOAT64, N, 0, 0, wide),
                         tensor_1d("other", TUTTI_BFLOAT16, N, 100, 200, half)};
    TT_EXPECT(r, tutti_ckpt_read(rd, t, 2, (tutti_stream){0}) == TUTTI_ERR_SHAPE);
    t[0].flags = t[1].flags = TUTTI_CKPT_CONVERT;
    TT_EXPECT_OK(r, tutti_ckpt_read(rd, t, 2, (tutti_stream){0}));
    for (int i = 0; i < N; i++)
        TT_EXPECT(r, wide[i] == data[r->rank][i]);
    for (int i = 0; i < 200; i++)
        TT_EXPECT(r, fabs(tt_value(TUTTI_BFLOAT16, &half[i]) - data[r->rank][100 + i]) <=
                         fabs(data[r->rank][100 + i]) / 256);
    tutti_tensor whole = tensor_1d("whole", TUTTI_FLOAT32, N, 0, 0, wide);
    whole.flags = TUTTI_CKPT_CONVERT; /* integers are no floats */
    TT_EXPECT(r, tutti_ckpt_read(rd, &whole, 1, (tutti_stream){0}) == TUTTI_ERR_SHAPE);
    tutti_ckpt_close(rd);
}

static void patterns_and_floats(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(2, NULL, convert_body, NULL);
}

/* Every 16-bit float goes to double and back; doubles round as the hardware or the definition. */
static void sixteen_bits(void **state)
{
    (void)state;
    static const tutti_dtype types[] = {TUTTI_FLOAT16, TUTTI_BFLOAT16};
    for (int k = 0; k < 2; k++) {
        for (uint32_t bits = 0; bits < 65536; bits++) {
            uint16_t in = (uint16_t)bits, out;
            double value;
            tt_convert(TUTTI_FLOAT64, &value, types[k], &in, 1);
            tt_convert(types[k], &out, TUTTI_FLOAT64, &value, 1);
            if (isnan(value))
                assert_true(isnan(tt_value(types[k], &out)));
            else
                assert_int_equal(in, out);
        }
    }
    tt_rng rng = {3};
    for (int i = 0; i < 200000; i++) {
        uint32_t bits = (uint32_t)tt_rand(&rng);
        float value;
        uint16_t bf, half;
        memcpy(&value, &bits, sizeof value);
        if (isnan(value))
            continue;
        tt_convert(TUTTI_BFLOAT16, &bf, TUTTI_FLOAT32, &value, 1);
        assert_int_equal(bf, (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
        value = ldexpf(value, (int)(tt_rand(&rng) % 3) - 1);
        tt_convert(TUTTI_FLOAT16, &half, TUTTI_FLOAT32, &value, 1);
        /* nearest: no other half is nearer */
        double have = tt_value(TUTTI_FLOAT16, &half), error = fabs(have - value);
        for (int step = -1; step <= 1; step += 2) {
            uint16_t beside = (uint16_t)(half + step);
            double other = tt_value(TUTTI_FLOAT16, &beside);
            if (isfinite(have) && isfinite(other))
                assert_true(error < fabs(other - value) ||
                            (error == fabs(other - value) && (half & 1) == 0));
        }
    }
}

/* Decoded anew, in integers: `mantissa` bits of mantissa, the smallest number 2^-low; codes from
 * `over` on are infinity (the first, where it is not `nan` too) or NaN. */
typedef struct tiny {
    tutti_dtype dtype;
    int mantissa, low;
    uint8_t over, nan;
} tiny;

static const tiny tinies[] = {{TUTTI_FLOAT8_E4M3, 3, 9, 0x7f, 0x7f},
                              {TUTTI_FLOAT8_E5M2, 2, 16, 0x7c, 0x7e}};

static double tiny_value(const tiny *t, int code)
{
    int exponent = (code & 0x7f) >> t->mantissa, mantissa = code & ((1 << t->mantissa) - 1);
    int64_t units =
        exponent == 0 ? mantissa : (int64_t)((1 << t->mantissa) + mantissa) << (exponent - 1);
    double value = (double)units / (double)(1 << t->low);
    if ((code & 0x7f) >= t->over)
        value = (code & 0x7f) == t->over && t->over != t->nan ? INFINITY : NAN;
    return code > 0x7f ? -value : value;
}

/* By looking at all finite codes; the number after the last one decides what is beyond. */
static int tiny_nearest(const tiny *t, double value)
{
    int best = 0, last = t->over - 1;
    double top = tiny_value(t, last), step = top - tiny_value(t, last - 1), size = fabs(value);
    if (isnan(value))
        return t->nan;
    if (size > top + step / 2 || (size == top + step / 2 && last % 2 != 0))
        return t->over;
    for (int code = 1; code <= last; code++) {
        double here = fabs(tiny_value(t, code) - size), there = fabs(tiny_value(t, best) - size);
        if (here < there || (here == there && code % 2 == 0))
            best = code;
    }
    return best;
}

static void tiny_round(const tiny *t, double value)
{
    uint8_t code, twice;
    float single = (float)value;
    tt_convert(t->dtype, &code, TUTTI_FLOAT64, &value, 1);
    if (code != (tiny_nearest(t, value) | (signbit(value) ? 0x80 : 0)))
        fail_msg("%s: %g became %#x", tutti_dtype_name(t->dtype), value, code);
    tt_convert(t->dtype, &twice, TUTTI_FLOAT32, &single, 1);
    if ((double)single == value || isnan(value))
        assert_int_equal(twice, code);
}

static void eight_bits(void **state)
{
    (void)state;
    static const double firm[] = {448,      464,       464.0000001, 480,      57344, 61440,
                                  61439.99, 65536,     1e300,       INFINITY, NAN,   0,
                                  0x1p-10,  0x1.8p-10, 0x1p-17,     0x1.8p-17};
    tt_rng rng = {8};
    assert_true(tiny_value(&tinies[0], 0x7e) == 448 && tiny_value(&tinies[1], 0x7b) == 57344);
    for (int k = 0; k < 2; k++) {
        const tiny *t = &tinies[k];
        for (int code = 0; code < 256; code++) {
            uint8_t in = (uint8_t)code, out;
            double want = tiny_value(t, code);
            float wide;
            uint16_t bf;
            tt_convert(TUTTI_FLOAT32, &wide, t->dtype, &in, 1);
            tt_convert(TUTTI_BFLOAT16, &bf, t->dtype, &in, 1);
            double from_bf = tt_value(TUTTI_BFLOAT16, &bf);
            tt_convert(t->dtype, &out, TUTTI_BFLOAT16, &bf, 1);
            assert_true(isnan(want) ? isnan(wide) && isnan(from_bf)
                                    : wide == want && from_bf == want && out == in);
            assert_true((signbit(want) != 0) == (signbit(wide) != 0));
            assert_true(!isnan(want) || out == (t->nan | (code & 0x80)));
        }
        for (size_t i = 0; i < sizeof firm / sizeof firm[0]; i++) {
            tiny_round(t, firm[i]);
            tiny_round(t, -firm[i]);
        }
        for (int i = 0; i < 4000; i++) /* to the middle between two, and a little beside it */
            tiny_round(t, ldexp((double)(int64_t)(tt_rand(&rng) % 4096) - 2048,
                                (int)(tt_rand(&rng) % 34) - 24));
    }
}

/* All codes of both, saved by two ranks, read as they are and as other floats, and the way back. */
static void f8_body(tt_rank *r)
{
    static const char *const names[] = {"w.e4m3", "w.e5m2"};
    uint8_t half[128], whole[2][256], narrow[256];
    float wide[2][256], data[256];
    tutti_tensor t[5];
    tutti_ckpt *ck;
    tutti_ckpt_reader *rd;
    for (int i = 0; i < 128; i++)
        half[i] = (uint8_t)(128 * r->rank + i);
    for (int i = 0; i < 256; i++)
        data[i] = (float)tiny_value(&tinies[0], i);
    TT_EXPECT_OK(r, tutti_ckpt_begin(r->ctx, dir, 1, &ck));
    for (int k = 0; k < 2; k++) {
        t[k] = tensor_1d(names[k], tinies[k].dtype, 256, 128 * r->rank, 128, half);
        TT_EXPECT_OK(r, tutti_ckpt_add(ck, &t[k]));
    }
    t[4] = tensor_1d("f32", TUTTI_FLOAT32, 256, 0, 0, data);
    TT_EXPECT_OK(r, tutti_ckpt_add(ck, &t[4]));
    TT_EXPECT_OK(r, tutti_ckpt_commit(ck, (tutti_stream){0}, NULL));
    TT_EXPECT_OK(r, tutti_ckpt_wait(r->ctx, NULL));
    TT_EXPECT_OK(r, tutti_ckpt_open(r->ctx, dir, 1, &rd));
    for (int k = 0; k < 2; k++) {
        t[k] = tensor_1d(names[k], tinies[k].dtype, 256, 0, 0, whole[k]);
        t[2 + k] = tensor_1d(names[k], TUTTI_FLOAT32, 256, 0, 0, wide[k]);
    }
    TT_EXPECT(r, tutti_ckpt_read(rd, t, 4, (tutti_stream){0}) == TUTTI_ERR_SHAPE);
    t[4] = tensor_1d("f32", TUTTI_FLOAT8_E4M3, 256, 0, 0, narrow);
    t[2].flags = t[3].flags = t[4].flags = TUTTI_CKPT_CONVERT;
    TT_EXPECT_OK(r, tutti_ckpt_read(rd, t, 5, (tutti_stream){0}));
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 256; i++) {
            double want = tiny_value(&tinies[k], i);
            TT_EXPECT(r, whole[k][i] == i && narrow[i] == i);
            TT_EXPECT(r, wide[k][i] == want || (isnan(wide[k][i]) && isnan(want)));
        }
    tutti_ckpt_close(rd);
}

static void f8_in_a_checkpoint(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(2, NULL, f8_body, NULL);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {T(options), T(patterns_and_floats), T(sixteen_bits),
                                       T(eight_bits), T(f8_in_a_checkpoint)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

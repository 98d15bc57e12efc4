/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tt_reduce against a reference that goes element by element, converts by ldexp and nearbyint, and
 * walks its own tree. All results are compared bit for bit, for every instruction set of this CPU.
 */
#include "tt_test.h"

#include <math.h>

#include "host/kernels_loops.h"

enum { K_MAX = 9, N_MAX = 3000, SPACE = N_MAX * 8 + 256 };

static const tutti_dtype dtypes[] = {TUTTI_FLOAT32, TUTTI_BFLOAT16, TUTTI_UINT8, TUTTI_INT64,
                                     TUTTI_FLOAT64, TUTTI_FLOAT16,  TUTTI_INT8,  TUTTI_INT32,
                                     TUTTI_UINT32,  TUTTI_UINT64};
static const tutti_op all_ops[] = {TUTTI_SUM, TUTTI_AVG, TUTTI_MAX, TUTTI_MIN, TUTTI_PROD};

/* The reference's conversions. */

static double half_value(uint16_t half, int mantissa, int bias)
{
    int exponent_max = (1 << (15 - mantissa)) - 1;
    int exponent = (half & 0x7fff) >> mantissa;
    int fraction = half & ((1 << mantissa) - 1);
    double value;
    if (exponent == exponent_max)
        value = fraction != 0 ? (double)NAN : (double)INFINITY;
    else if (exponent == 0)
        value = ldexp(fraction, 1 - bias - mantissa);
    else
        value = ldexp(fraction + (1 << mantissa), exponent - bias - mantissa);
    return half & 0x8000 ? -value : value;
}

static uint16_t half_of(double value, int mantissa, int bias)
{
    int infinity = ((1 << (15 - mantissa)) - 1) << mantissa, bits, exponent;
    double size = fabs(value);
    if (isnan(value))
        return (uint16_t)(infinity | 1 << (mantissa - 1));
    if (isinf(value)) {
        bits = infinity;
    } else if (size < ldexp(1, 1 - bias)) {
        bits = (int)nearbyint(ldexp(size, bias - 1 + mantissa));
    } else {
        frexp(size, &exponent);
        bits = ((exponent - 2 + bias) << mantissa) +
               (int)nearbyint(ldexp(size, mantissa + 1 - exponent));
        bits = bits > infinity ? infinity : bits;
    }
    return (uint16_t)(bits | (signbit(value) ? 0x8000 : 0));
}

static double from_half(tutti_dtype dtype, uint16_t half)
{
    return dtype == TUTTI_BFLOAT16 ? half_value(half, 7, 127) : half_value(half, 10, 15);
}

static uint16_t to_half(tutti_dtype dtype, double value)
{
    return dtype == TUTTI_BFLOAT16 ? half_of(value, 7, 127) : half_of(value, 10, 15);
}

/* The reference: values as one of three kinds. */
typedef union value {
    float f;
    double d;
    uint64_t u; /* all integers, sign extended */
} value;

static bool is_16bit(tutti_dtype dtype)
{
    return dtype == TUTTI_BFLOAT16 || dtype == TUTTI_FLOAT16;
}

static bool is_signed(tutti_dtype dtype)
{
    return dtype == TUTTI_INT8 || dtype == TUTTI_INT32 || dtype == TUTTI_INT64;
}

static uint64_t wrap(tutti_dtype dtype, uint64_t u)
{
    unsigned bits = (unsigned)tutti_dtype_size(dtype) * 8;
    if (bits == 64)
        return u;
    u &= ((uint64_t)1 << bits) - 1;
    return is_signed(dtype) && u >> (bits - 1) != 0 ? u | ~(((uint64_t)1 << bits) - 1) : u;
}

static value load(tutti_dtype dtype, const void *data, bool partial, size_t i)
{
    value v = {.u = 0};
    size_t size = tt_operand_size(dtype, partial);
    const char *at = (const char *)data + i * size;
    uint16_t half;
    if (is_16bit(dtype) && !partial) {
        memcpy(&half, at, 2);
        v.f = (float)from_half(dtype, half);
    } else if (is_16bit(dtype) || dtype == TUTTI_FLOAT32) {
        memcpy(&v.f, at, 4);
    } else if (dtype == TUTTI_FLOAT64) {
        memcpy(&v.d, at, 8);
    } else {
        memcpy(&v.u, at, size);
        v.u = wrap(dtype, v.u);
    }
    return v;
}

static double combine_floats(tutti_op op, double a, double b, bool single)
{
    if (op == TUTTI_SUM || op == TUTTI_AVG)
        return single ? (double)((float)a + (float)b) : a + b;
    if (op == TUTTI_PROD)
        return single ? (double)((float)a * (float)b) : a * b;
    if (isnan(a) || isnan(b))
        return (double)NAN;
    if (op == TUTTI_MAX)
        return a > b ? a : b;
    return a < b ? a : b;
}

static value combine(tutti_dtype dtype, tutti_op op, value a, value b)
{
    value v = {.u = 0};
    bool less = is_signed(dtype) ? (int64_t)a.u < (int64_t)b.u : a.u < b.u;
    if (dtype == TUTTI_FLOAT64)
        v.d = combine_floats(op, a.d, b.d, false);
    else if (dtype == TUTTI_FLOAT32 || is_16bit(dtype))
        v.f = (float)combine_floats(op, (double)a.f, (double)b.f, true);
    else if (op == TUTTI_SUM || op == TUTTI_AVG)
        v.u = wrap(dtype, a.u + b.u);
    else if (op == TUTTI_PROD)
        v.u = wrap(dtype, a.u * b.u);
    else
        v.u = (op == TUTTI_MAX) == less ? b.u : a.u;
    return v;
}

static value tree_value(const tt_reduce_job *job, int first, int k, size_t i)
{
    int left = 1;
    if (k == 1)
        return load(job->dtype, job->in[first].data, job->in[first].partial, i);
    while (left * 2 < k)
        left *= 2;
    return combine(job->dtype, job->op, tree_value(job, first, left, i),
                   tree_value(job, first + left, k - left, i));
}

/* Expects the result's bytes of element i at `to`. */
static void reference(const tt_reduce_job *job, int k, size_t i, unsigned char *to)
{
    tutti_dtype dtype = job->dtype;
    value v = tree_value(job, 0, k, i);
    float f = job->divisor > 1 ? v.f * (1.0f / (float)job->divisor) : v.f;
    double d = job->divisor > 1 ? v.d * (1.0 / job->divisor) : v.d;
    if (k == 1 && job->divisor <= 1 &&
        (!is_16bit(dtype) || job->in[0].partial == job->out_partial)) {
        size_t size = tt_operand_size(dtype, job->out_partial);
        memcpy(to, (const char *)job->in[0].data + i * size, size);
    } else if (dtype == TUTTI_FLOAT64) {
        d = isnan(d) ? (double)NAN : d;
        memcpy(to, &d, 8);
    } else if (dtype == TUTTI_FLOAT32 || (is_16bit(dtype) && job->out_partial)) {
        f = isnan(f) ? NAN : f;
        memcpy(to, &f, 4);
    } else if (is_16bit(dtype)) {
        uint16_t half = to_half(dtype, (double)f);
        memcpy(to, &half, 2);
    } else {
        if (job->divisor > 1)
            v.u = is_signed(dtype) ? (uint64_t)((int64_t)v.u / job->divisor)
                                   : v.u / (uint64_t)job->divisor;
        memcpy(to, &v.u, tutti_dtype_size(dtype));
    }
}

/* Values that could break something. */
static void random_bytes(tt_rng *rng, tutti_dtype dtype, bool partial, unsigned char *to, size_t n)
{
    static const float odd_f32[] = {0,        -0.0f,     INFINITY, -INFINITY, NAN,       1e-45f,
                                    -1e-45f,  3.4e38f,   -3.4e38f, 65504,     65520,     6e-8f,
                                    -2.9e-8f, 1.000489f, 1,        -1,        1.17e-38f, 33554432};
    static const double odd_f64[] = {0,      -0.0,    (double)INFINITY, -(double)INFINITY, NAN,
                                     5e-324, 1.7e308, -1.7e308,         2.2e-308,          1};
    static const uint16_t odd_half[] = {0,      0x8000, 0x7f80, 0xff80, 0x7c00, 0xfc00, 0x7fc0,
                                        0x7e00, 0x7c01, 1,      0x8001, 0x7bff, 0x7f7f, 0x03ff,
                                        0x0400, 0x3c00, 0x3f80, 0x3c01, 0x3f81};
    size_t size = tt_operand_size(dtype, partial);
    for (size_t i = 0; i < n; i++, to += size) {
        uint64_t bits = tt_rand(rng);
        unsigned kind = (unsigned)tt_rand_below(rng, 8);
        float f = (float)(int64_t)bits * 0x1p-60f;
        double d = (double)(int64_t)bits * 0x1p-60;
        uint16_t half = is_16bit(dtype) ? to_half(dtype, d) : 0;
        if (kind == 0) { /* any bits */
            memcpy(&f, &bits, 4);
            memcpy(&d, &bits, 8);
            half = (uint16_t)bits;
        } else if (kind == 1) {
            f = odd_f32[bits % (sizeof odd_f32 / sizeof *odd_f32)];
            d = odd_f64[bits % (sizeof odd_f64 / sizeof *odd_f64)];
            half = odd_half[bits % (sizeof odd_half / sizeof *odd_half)];
        }
        if (size == 4 && (is_16bit(dtype) || dtype == TUTTI_FLOAT32))
            memcpy(to, &f, 4);
        else if (dtype == TUTTI_FLOAT64)
            memcpy(to, &d, 8);
        else if (is_16bit(dtype))
            memcpy(to, &half, 2);
        else
            memcpy(to, &bits, size);
    }
}

static unsigned char in_space[K_MAX][SPACE], out_space[SPACE], expected[SPACE], kept[SPACE];

/* Runs the job in random pieces. */
static void run_pieces(tt_rng *rng, const tt_loops *loops, const tt_reduce_job *whole, int k)
{
    tt_operand in[K_MAX];
    size_t done = 0, at = 0;
    do {
        tt_reduce_job piece = *whole;
        size_t left = whole->n - done;
        piece.n = tt_rand_below(rng, 2) == 0 ? left : tt_rand_below(rng, left + 1);
        for (int i = 0; i < k; i++) {
            at = done * tt_operand_size(whole->dtype, whole->in[i].partial);
            in[i] = (tt_operand){(const char *)whole->in[i].data + at, whole->in[i].partial};
        }
        piece.in = in;
        piece.out = (char *)whole->out + done * tt_operand_size(whole->dtype, whole->out_partial);
        tt_reduce_with(loops, &piece);
        done += piece.n;
    } while (done < whole->n);
}

static void check_case(tt_rng *rng, tutti_dtype dtype, tutti_op op, int k)
{
    static const size_t sizes[] = {0, 1, 2, 7, 63, 64, 65, 511, 1023, 1024, 1025, 2050, N_MAX};
    tt_operand in[K_MAX];
    tt_tree tree;
    tt_reduce_job job = {.tree = &tree, .in = in, .dtype = dtype, .op = op, .divisor = 1};
    size_t n_loops, offset, size;
    const tt_loops *const *loops = tt_loops_here(&n_loops);
    int alias = (int)tt_rand_below(rng, (uint64_t)k * 2) - k;

    assert_int_equal(tt_tree_balanced(0, k, &tree), TUTTI_OK);
    job.n =
        tt_rand_below(rng, 2) == 0 ? sizes[tt_rand_below(rng, 13)] : tt_rand_below(rng, N_MAX + 1);
    job.out_partial = tt_rand_below(rng, 4) == 0;
    if (op == TUTTI_AVG)
        job.divisor = 1 + (int)tt_rand_below(rng, 200);
    for (int i = 0; i < k; i++) {
        in[i].partial = tt_rand_below(rng, 3) == 0;
        in[i].data = in_space[i] + tt_rand_below(rng, 64);
        random_bytes(rng, dtype, in[i].partial, (unsigned char *)(size_t)in[i].data, job.n);
    }
    size = tt_operand_size(dtype, job.out_partial);
    job.out = out_space + 64 + tt_rand_below(rng, 64);
    if (alias >= 0 && size == tt_operand_size(dtype, in[alias].partial))
        job.out = (void *)(size_t)in[alias].data;
    else
        alias = -1;
    for (size_t i = 0; i < job.n; i++)
        reference(&job, k, i, expected + i * size);
    memcpy(kept, alias >= 0 ? in_space[alias] : out_space, SPACE);
    offset = (size_t)((unsigned char *)job.out - (alias >= 0 ? in_space[alias] : out_space));
    for (size_t i = 0; i < n_loops; i++) {
        unsigned char *space = alias >= 0 ? in_space[alias] : out_space;
        memcpy(space, kept, SPACE);
        run_pieces(rng, loops[i], &job, k);
        for (size_t at = 0; at < job.n * size; at++)
            if (space[offset + at] != expected[at])
                fail_msg("%s, dtype %s, op %d, k %d, n %zu, divisor %d, out %s%s: element %zu",
                         loops[i]->name, tutti_dtype_name(dtype), op, k, job.n, job.divisor,
                         job.out_partial ? "partial" : "full", alias >= 0 ? ", in place" : "",
                         at / size);
        assert_memory_equal(space, kept, offset);
        assert_memory_equal(space + offset + job.n * size, kept + offset + job.n * size,
                            SPACE - offset - job.n * size);
    }
    tt_tree_free(&tree);
}

static void every_type_and_operator(void **state)
{
    tt_rng rng = {2024};
    (void)state;
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        for (size_t o = 0; o < sizeof all_ops / sizeof *all_ops; o++)
            for (int k = 1; k <= K_MAX; k++)
                for (int i = 0; i < (is_16bit(dtypes[d]) ? 4 : 2); i++)
                    check_case(&rng, dtypes[d], all_ops[o], k);
}

/* A result in two places, by way of the cache and past it. */
static void check_two_places(tt_rng *rng, tutti_dtype dtype, tutti_op op, int k)
{
    enum { N = 700 };
    static unsigned char two[2][N * 8 + 64] __attribute__((aligned(64)));
    tt_operand in[K_MAX];
    tt_tree tree;
    size_t n_loops;
    const tt_loops *const *loops = tt_loops_here(&n_loops);
    tt_reduce_job job = {.tree = &tree,
                         .in = in,
                         .dtype = dtype,
                         .op = op,
                         .divisor = op == TUTTI_AVG ? k : 1,
                         .out = two[0],
                         .out2 = two[1]};
    const size_t bytes = N * tutti_dtype_size(dtype);

    assert_int_equal(tt_tree_balanced(0, k, &tree), TUTTI_OK);
    job.n = N - tt_rand_below(rng, 3);
    for (int i = 0; i < k; i++) {
        in[i] = (tt_operand){in_space[i] + tt_rand_below(rng, 64), false};
        random_bytes(rng, dtype, false, (unsigned char *)(size_t)in[i].data, job.n);
    }
    tt_reduce_job plain = job;
    plain.out = expected;
    memset(expected, 0xee, bytes);
    tt_reduce_with(loops[0], &plain);
    memset(two, 0xee, sizeof two);
    tt_reduce(&job);
    assert_memory_equal(two[0], expected, bytes);
    assert_memory_equal(two[1], expected, bytes);
    for (size_t i = 0; i < n_loops; i++) {
        memset(two, 0xee, sizeof two);
        if (!tt_reduce_past_with(loops[i], &job))
            continue;
        tt_copy_past_cache_end();
        assert_memory_equal(two[0], expected, bytes);
        assert_memory_equal(two[1], expected, bytes);
        plain = job;
        plain.out = two[0] + 4;
        assert_false(tt_reduce_past_with(loops[i], &plain)); /* not aligned */
    }
    memset(two, 0xee, sizeof two);
    tt_copy_past_cache(two[0] + 3, expected, bytes - 5);
    tt_copy_past_cache_end();
    assert_memory_equal(two[0] + 3, expected, bytes - 5);
    assert_int_equal(two[0][bytes - 2], 0xee);
    tt_tree_free(&tree);
}

static void two_places(void **state)
{
    tt_rng rng = {77};
    (void)state;
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        for (size_t o = 0; o < sizeof all_ops / sizeof *all_ops; o++)
            for (int k = 1; k <= 4; k++)
                check_two_places(&rng, dtypes[d], all_ops[o], k);
}

/* All 16-bit values, and all fp32 values at and beside the borders between them. */
static void conversions(void **state)
{
    static const tutti_dtype half_types[] = {TUTTI_BFLOAT16, TUTTI_FLOAT16};
    static uint16_t half[65536], back[65536 * 3];
    static float wide[65536], border[65536 * 3];
    size_t n_loops, n;
    const tt_loops *const *loops = tt_loops_here(&n_loops);

    (void)state;
    for (size_t t = 0; t < 2 * n_loops; t++) {
        const tt_half_loops *h = &loops[t / 2]->half[t % 2 == 0 ? TT_HALF_BF16 : TT_HALF_F16];
        for (size_t i = 0; i < 65536; i++)
            half[i] = (uint16_t)i;
        h->widen(&(tt_loop_args){wide, half, NULL, 65536, 1, NULL});
        for (size_t i = n = 0; i < 65536; i++) {
            double next = from_half(half_types[t % 2], (uint16_t)(i + 1));
            double here = from_half(half_types[t % 2], (uint16_t)i);
            assert_true(isnan(here) ? isnan(wide[i]) : (double)wide[i] == here);
            assert_int_equal(signbit(wide[i]) != 0, i >= 0x8000);
            border[n++] = (float)(isinf(next) ? here * 1.001 : (here + next) / 2);
            border[n] = nextafterf(border[n - 1], INFINITY);
            border[n + 1] = nextafterf(border[n - 1], -INFINITY);
            n += 2;
        }
        h->narrow(&(tt_loop_args){back, wide, NULL, 65536, 1, NULL});
        for (size_t i = 0; i < 65536; i++)
            assert_int_equal(back[i], to_half(half_types[t % 2], (double)wide[i]));
        h->narrow(&(tt_loop_args){back, border, NULL, n, 1, NULL});
        for (size_t i = 0; i < n; i++)
            if (back[i] != to_half(half_types[t % 2], (double)border[i]))
                fail_msg("%s: %a becomes %#x", loops[t / 2]->name, (double)border[i], back[i]);
    }
}

#if defined(__x86_64__)
/* A program built with -ffast-math flushes subnormals to zero; those of fp16 are normal in fp32 and
 * must survive. */
static void f16_survives_flushing(void **state)
{
    static uint16_t half[65536], back[65536];
    static float wide[65536], flushed[65536];
    size_t n_loops;
    const tt_loops *const *loops = tt_loops_here(&n_loops);
    unsigned mode = __builtin_ia32_stmxcsr();

    (void)state;
    for (size_t i = 0; i < 65536; i++)
        half[i] = (uint16_t)i;
    for (size_t t = 0; t < n_loops; t++) {
        const tt_half_loops *h = &loops[t]->half[TT_HALF_F16];
        h->widen(&(tt_loop_args){wide, half, NULL, 65536, 1, NULL});
        __builtin_ia32_ldmxcsr(mode | 0x8040);
        h->widen(&(tt_loop_args){flushed, half, NULL, 65536, 1, NULL});
        h->narrow(&(tt_loop_args){back, flushed, NULL, 65536, 1, NULL});
        __builtin_ia32_ldmxcsr(mode);
        assert_memory_equal(wide, flushed, sizeof wide);
        for (size_t i = 0; i < 65536; i++)
            if ((i & 0x7fff) <= 0x7c00)
                assert_int_equal(back[i], half[i]);
    }
}
#endif

static char *tree_text(const tt_tree *tree, int node, char *to)
{
    const tt_tree_node *nd = &tree->node[node];
    if (nd->leaf >= 0)
        return to + sprintf(to, "%d", nd->leaf);
    *to++ = '(';
    to = tree_text(tree, nd->left, to);
    *to++ = ' ';
    to = tree_text(tree, nd->right, to);
    *to++ = ')';
    *to = '\0';
    return to;
}

static void trees(void **state)
{
    static const char *const balanced[] = {
        "4", "(4 5)", "((4 5) 6)", "((4 5) (6 7))", "(((4 5) (6 7)) 8)", "(((4 5) (6 7)) (8 9))"};
    tt_tree tree, part[3];
    char text[256];

    (void)state;
    for (int n = 1; n <= 6; n++) {
        assert_int_equal(tt_tree_balanced(4, n, &tree), TUTTI_OK);
        tree_text(&tree, tree.root, text);
        assert_string_equal(text, balanced[n - 1]);
        tt_tree_free(&tree);
    }
    tt_tree_balanced(0, 3, &part[0]);
    tt_tree_balanced(3, 1, &part[1]);
    tt_tree_balanced(4, 2, &part[2]);
    assert_int_equal(tt_tree_over(part, 3, &tree), TUTTI_OK);
    tree_text(&tree, tree.root, text);
    assert_string_equal(text, "((((0 1) 2) 3) (4 5))");
    tt_tree_free(&tree);
    assert_int_equal(tt_tree_over(part, 1, &tree), TUTTI_OK);
    tree_text(&tree, tree.root, text);
    assert_string_equal(text, "((0 1) 2)");
    tt_tree_free(&tree);
    for (int i = 0; i < 3; i++)
        tt_tree_free(&part[i]);
    tt_tree_free(&part[0]); /* all zero */
}

/* Where the order shows: in a two-level tree, and in the fp32 partials of 16-bit types. */
static void the_order_is_the_tree_s(void **state)
{
    float number[5] = {1e8f, 1, -1e8f, 1, 0.5f}, sum;
    uint16_t half[3] = {to_half(TUTTI_FLOAT16, 60000), to_half(TUTTI_FLOAT16, 60000),
                        to_half(TUTTI_FLOAT16, -60000)};
    uint16_t half_sum;
    double doubles[3] = {1e17, 1, -1e17}, folded;
    tt_operand in[5];
    tt_tree flat, part[2], two_level;
    tt_reduce_job job = {.in = in, .n = 1, .dtype = TUTTI_FLOAT32, .op = TUTTI_SUM, .divisor = 1};

    (void)state;
    tt_tree_balanced(0, 5, &flat);
    tt_tree_balanced(0, 3, &part[0]);
    tt_tree_balanced(3, 2, &part[1]);
    tt_tree_over(part, 2, &two_level);
    for (int i = 0; i < 5; i++)
        in[i] = (tt_operand){&number[i], false};
    job.out = &sum;
    job.tree = &flat; /* ((1e8 + 1) + (-1e8 + 1)) + 0.5, where 1 is lost twice */
    tt_reduce(&job);
    assert_true(sum == 0.5f);
    job.tree = &two_level; /* ((1e8 + 1) + -1e8) + (1 + 0.5) */
    tt_reduce(&job);
    assert_true(sum == 1.5f);
    for (int i = 0; i < 3; i++)
        in[i] = (tt_operand){&half[i], false};
    job.out = &half_sum;
    job.tree = &part[0];
    job.dtype = TUTTI_FLOAT16;
    tt_reduce(&job);
    assert_int_equal(half_sum, half[0]); /* 120000 is no fp16, but it is no result either */
    for (int i = 0; i < 3; i++)
        in[i] = (tt_operand){&doubles[i], false};
    tt_fold_host_doubles(&part[0], in, 1, TUTTI_AVG, 3, &folded);
    assert_true(folded == 0);
    in[1].data = &doubles[2];
    in[2].data = &doubles[1];
    tt_fold_host_doubles(&part[0], in, 1, TUTTI_SUM, 1, &folded);
    assert_true(folded == 1);
    tt_tree_free(&flat);
    tt_tree_free(&part[0]);
    tt_tree_free(&part[1]);
    tt_tree_free(&two_level);
}

/* More operands than any scratch bound was made for by chance. */
static void a_thousand_operands(void **state)
{
    enum { K = 1000 };
    static float number[K];
    static tt_operand in[K];
    tt_tree tree, over, *part = calloc(K, sizeof *part);
    float sum = 0;
    tt_reduce_job job = {.tree = &over,
                         .in = in,
                         .n = 1,
                         .dtype = TUTTI_FLOAT32,
                         .op = TUTTI_SUM,
                         .out = &sum,
                         .divisor = K};

    (void)state;
    assert_non_null(part);
    for (int i = 0; i < K; i++) {
        number[i] = 3;
        in[i].data = &number[i];
        assert_int_equal(tt_tree_balanced(i, 1, &part[i]), TUTTI_OK);
    }
    assert_int_equal(tt_tree_over(part, K, &over), TUTTI_OK);
    tt_reduce(&job);
    assert_true(fabsf(sum - 3) < 1e-6f);
    assert_int_equal(tt_tree_balanced(0, K, &tree), TUTTI_OK);
    job.tree = &tree;
    tt_reduce(&job);
    assert_true(fabsf(sum - 3) < 1e-6f);
    for (int i = 0; i < K; i++)
        tt_tree_free(&part[i]);
    tt_tree_free(&tree);
    tt_tree_free(&over);
    free(part);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trees),
        cmocka_unit_test(conversions),
#if defined(__x86_64__)
        cmocka_unit_test(f16_survives_flushing),
#endif
        cmocka_unit_test(the_order_is_the_tree_s),
        cmocka_unit_test(a_thousand_operands),
        cmocka_unit_test(every_type_and_operator),
        cmocka_unit_test(two_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels' bodies, for nvcc and, by way of a header that stands in for the CUDA language
 * (tests/simgpu/device_code.h), for a C compiler. kernels.cu has the launches only.
 *
 * Every kernel walks its elements in a grid-stride loop, eight at a time through 16-byte loads and
 * stores where its pointers are aligned for that, and one at a time for the rest. The type of an
 * element is an argument: the branch is the same for all threads, and memory is what these loops
 * wait for. Values pass through fp32, or through fp64 for that type, in kernels of their own
 * (`_d`).
 *
 * The order of a sum never depends on the launch: the tree over ranks is walked per element, and
 * the squared norm adds the same elements in the same order for every grid, because its grid is
 * fixed.
 */
#ifndef TT_CUDA_KERNELS_BODY_H
#define TT_CUDA_KERNELS_BODY_H

#include <stddef.h>
#include <stdint.h>

#define TT_EXACT_FN static __device__ inline
#include "comm/exact_body.h"

enum {
    TT_K_F32 = 1, /* as tutti_dtype */
    TT_K_BF16 = 2,
    TT_K_F64 = 5,
    TT_K_F16 = 6,
    TT_K_V = 8, /* elements per step */
    TT_K_THREADS = 256,
    TT_K_LANES = 8, /* of a block of squares, as in comm/exact.c */
    TT_K_WARP = 32,
    TT_K_TREE_DEPTH = 32
};

typedef struct __attribute__((aligned(16))) tt_k_vector {
    uint32_t w[4];
} tt_k_vector;

static __device__ inline float tt_k_float(uint32_t bits)
{
    union {
        uint32_t u;
        float f;
    } pun;
    pun.u = bits;
    return pun.f;
}

static __device__ inline uint32_t tt_k_bits(float value)
{
    union {
        uint32_t u;
        float f;
    } pun;
    pun.f = value;
    return pun.u;
}

static __device__ inline float tt_k_from_bf16(uint32_t h)
{
    return tt_k_float(h << 16);
}

/* To nearest, ties to even; any NaN becomes the quiet one. */
static __device__ inline uint32_t tt_k_to_bf16(float value)
{
    uint32_t u = tt_k_bits(value);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return 0x7fc0u;
    return (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}

static __device__ inline float tt_k_from_f16(uint32_t h)
{
    uint32_t sign = (h & 0x8000u) << 16, exponent = h >> 10 & 0x1fu, fraction = h & 0x3ffu;
    if (exponent == 31u)
        return tt_k_float(sign | 0x7f800000u | fraction << 13);
    if (exponent != 0u)
        return tt_k_float(sign | (exponent + 112u) << 23 | fraction << 13);
    /* subnormal: fraction * 2^-24, exact in fp32 */
    return tt_k_float(sign | tt_k_bits((float)fraction * 5.9604644775390625e-08f));
}

static __device__ inline uint32_t tt_k_to_f16(float value)
{
    uint32_t u = tt_k_bits(value), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return 0x7e00u;
    if (a >= 0x477ff000u) /* 65520 and more round to infinity */
        return sign | 0x7c00u;
    if (a < 0x38800000u) /* below 2^-14: adding 0.5 leaves the rounded fraction in the low bits */
        return sign | (tt_k_bits(tt_k_float(a) + 0.5f) - 0x3f000000u);
    return sign | (a - 0x38000000u + 0xfffu + (a >> 13 & 1u)) >> 13;
}

static __device__ inline float tt_k_load_f(const void *in, size_t i, int type)
{
    if (type == TT_K_F32)
        return ((const float *)in)[i];
    uint32_t h = ((const uint16_t *)in)[i];
    return type == TT_K_BF16 ? tt_k_from_bf16(h) : tt_k_from_f16(h);
}

static __device__ inline void tt_k_store_f(void *out, size_t i, int type, float value)
{
    if (type == TT_K_F32)
        ((float *)out)[i] = value;
    else
        ((uint16_t *)out)[i] =
            (uint16_t)(type == TT_K_BF16 ? tt_k_to_bf16(value) : tt_k_to_f16(value));
}

/* Elements 8 * at ... 8 * at + 7. */
static __device__ inline void tt_k_load8_f(float *v, const void *in, size_t at, int type)
{
    if (type == TT_K_F32) {
        for (int half = 0; half < 2; half++) {
            tt_k_vector four = ((const tt_k_vector *)in)[2 * at + (size_t)half];
            for (int k = 0; k < 4; k++)
                v[4 * half + k] = tt_k_float(four.w[k]);
        }
        return;
    }
    tt_k_vector eight = ((const tt_k_vector *)in)[at];
    for (int k = 0; k < 4; k++) {
        uint32_t low = eight.w[k] & 0xffffu, high = eight.w[k] >> 16;
        v[2 * k] = type == TT_K_BF16 ? tt_k_from_bf16(low) : tt_k_from_f16(low);
        v[2 * k + 1] = type == TT_K_BF16 ? tt_k_from_bf16(high) : tt_k_from_f16(high);
    }
}

static __device__ inline void tt_k_store8_f(void *out, size_t at, int type, const float *v)
{
    tt_k_vector eight;
    if (type == TT_K_F32) {
        for (int half = 0; half < 2; half++) {
            tt_k_vector four;
            for (int k = 0; k < 4; k++)
                four.w[k] = tt_k_bits(v[4 * half + k]);
            ((tt_k_vector *)out)[2 * at + (size_t)half] = four;
        }
        return;
    }
    for (int k = 0; k < 4; k++)
        eight.w[k] = type == TT_K_BF16 ? tt_k_to_bf16(v[2 * k]) | tt_k_to_bf16(v[2 * k + 1]) << 16
                                       : tt_k_to_f16(v[2 * k]) | tt_k_to_f16(v[2 * k + 1]) << 16;
    ((tt_k_vector *)out)[at] = eight;
}

static __device__ inline double tt_k_load_d(const void *in, size_t i, int type)
{
    (void)type;
    return ((const double *)in)[i];
}

static __device__ inline void tt_k_store_d(void *out, size_t i, int type, double value)
{
    (void)type;
    ((double *)out)[i] = value;
}

static __device__ inline size_t tt_k_first(void)
{
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ inline size_t tt_k_stride(void)
{
    return (size_t)gridDim.x * blockDim.x;
}

/* out[i] = in[i] * factor, through fp32. `vector`: both pointers are multiples of 16 bytes. */
typedef struct tt_k_cast_args {
    void *out;
    const void *in;
    size_t n;
    int out_type, in_type;
    float factor;
    int vector;
} tt_k_cast_args;

static __device__ inline void tt_k_cast_body(tt_k_cast_args a)
{
    size_t eights = a.vector ? a.n / TT_K_V : 0;
    float v[TT_K_V];
    for (size_t at = tt_k_first(); at < eights; at += tt_k_stride()) {
        tt_k_load8_f(v, a.in, at, a.in_type);
        for (int k = 0; k < TT_K_V; k++)
            v[k] *= a.factor;
        tt_k_store8_f(a.out, at, a.out_type, v);
    }
    for (size_t i = eights * TT_K_V + tt_k_first(); i < a.n; i += tt_k_stride())
        tt_k_store_f(a.out, i, a.out_type, tt_k_load_f(a.in, i, a.in_type) * a.factor);
}

static __device__ inline void tt_k_scale_d_body(double *out, const double *in, size_t n,
                                                double factor)
{
    for (size_t i = tt_k_first(); i < n; i += tt_k_stride())
        out[i] = in[i] * factor;
}

static __device__ inline void tt_k_add_body(float *out, const float *a, const float *b, size_t n,
                                            int vector)
{
    size_t fours = vector ? n / 4 : 0;
    for (size_t at = tt_k_first(); at < fours; at += tt_k_stride()) {
        tt_k_vector x = ((const tt_k_vector *)a)[at], y = ((const tt_k_vector *)b)[at];
        for (int k = 0; k < 4; k++)
            x.w[k] = tt_k_bits(tt_k_float(x.w[k]) + tt_k_float(y.w[k]));
        ((tt_k_vector *)out)[at] = x;
    }
    for (size_t i = fours * 4 + tt_k_first(); i < n; i += tt_k_stride())
        out[i] = a[i] + b[i];
}

static __device__ inline void tt_k_add_d_body(double *out, const double *a, const double *b,
                                              size_t n)
{
    for (size_t i = tt_k_first(); i < n; i += tt_k_stride())
        out[i] = a[i] + b[i];
}

static __device__ inline void tt_k_exact_atomic(int64_t *sum, double x)
{
    int64_t digit[3];
    unsigned first;
    if (!tt_exact_digits(x, digit, &first)) {
        atomicAdd((unsigned long long *)&sum[TT_EXACT_BAD], 1ull);
        return;
    }
    for (unsigned i = 0; i < 3; i++)
        if (digit[i] != 0)
            atomicAdd((unsigned long long *)&sum[first + i], (unsigned long long)digit[i]);
}

/*
 * Adds the squares of in[0 ... n-1] to the exact sum. Eight neighbouring threads walk one block of
 * TT_EXACT_BLOCK elements; `digits` is the thread block's own sum in shared memory, so that a GPU's
 * threads do not meet at three words.
 */
static __device__ inline void tt_k_squares_body(int64_t *sum, const void *in, int type, size_t n,
                                                int64_t *digits)
{
    size_t blocks = (n + TT_EXACT_BLOCK - 1) / TT_EXACT_BLOCK;
    unsigned lane = threadIdx.x % TT_K_LANES;
    size_t groups = tt_k_stride() / TT_K_LANES;
    for (unsigned i = threadIdx.x; i < TT_EXACT_WORDS; i += blockDim.x)
        digits[i] = 0;
    __syncthreads();
    /* all threads take part in the shuffles, so all go round as often */
    size_t rounds = (blocks + groups - 1) / groups;
    for (size_t round = 0; round < rounds; round++) {
        size_t block = round * groups + tt_k_first() / TT_K_LANES;
        size_t end = block < blocks ? (block + 1) * TT_EXACT_BLOCK : 0;
        double part = 0;
        end = end < n ? end : n;
        for (size_t i = block * TT_EXACT_BLOCK + lane; i < end && block < blocks; i += TT_K_LANES) {
            double x =
                type == TT_K_F64 ? ((const double *)in)[i] : (double)tt_k_load_f(in, i, type);
            part += x * x;
        }
        for (int by = 1; by < TT_K_LANES; by *= 2)
            part += __shfl_xor_sync(0xffffffffu, part, by);
        if (lane == 0 && block < blocks)
            tt_k_exact_atomic(digits, part);
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < TT_EXACT_WORDS; i += blockDim.x)
        if (digits[i] != 0)
            atomicAdd((unsigned long long *)&sum[i], (unsigned long long)digits[i]);
}

/* For each of n exact sums; without x only the carry. */
static __device__ inline void tt_k_exact_add_body(int64_t *sums, const float *x, size_t n)
{
    for (size_t i = tt_k_first(); i < n; i += tt_k_stride()) {
        int64_t *sum = sums + i * TT_EXACT_WORDS;
        int64_t digit[3];
        unsigned first;
        if (x != NULL && !tt_exact_digits((double)x[i], digit, &first))
            sum[TT_EXACT_BAD]++;
        else if (x != NULL)
            for (unsigned k = 0; k < 3; k++)
                sum[first + k] += digit[k];
        tt_exact_carry_digits(sum);
    }
}

static __device__ inline void tt_k_exact_get_body(float *x, const int64_t *sums, size_t n,
                                                  double divisor, int root)
{
    for (size_t i = tt_k_first(); i < n; i += tt_k_stride()) {
        double value = tt_exact_value(sums + i * TT_EXACT_WORDS);
        x[i] = (float)(root ? sqrt(value) : value / divisor);
    }
}

/*
 * out[i] = the tree over part[r * stride + i], r < parts, times `scale`: neighbours first, the left
 * side of every node the largest power of two (as a binary counter carries). multiply: products.
 * All in fp32 (fp64 in _d), rounded once.
 */
typedef struct tt_k_tree_args {
    void *out;
    const void *part;
    size_t stride, n;
    int parts, type, multiply;
    double scale;
} tt_k_tree_args;

#define TT_K_TREE_BODY(NAME, TYPE, LOAD, STORE)                                                    \
    static __device__ inline void NAME(tt_k_tree_args a)                                           \
    {                                                                                              \
        for (size_t i = tt_k_first(); i < a.n; i += tt_k_stride()) {                               \
            TYPE stack[TT_K_TREE_DEPTH];                                                           \
            int depth = 0;                                                                         \
            for (int r = 0; r < a.parts; r++) {                                                    \
                TYPE value = LOAD(a.part, (size_t)r * a.stride + i, a.type);                       \
                for (unsigned carry = (unsigned)r; carry & 1u; carry >>= 1) {                      \
                    depth--;                                                                       \
                    value = a.multiply ? stack[depth] * value : stack[depth] + value;              \
                }                                                                                  \
                stack[depth++] = value;                                                            \
            }                                                                                      \
            TYPE value = stack[--depth];                                                           \
            while (depth > 0) {                                                                    \
                depth--;                                                                           \
                value = a.multiply ? stack[depth] * value : stack[depth] + value;                  \
            }                                                                                      \
            STORE(a.out, i, a.type, value *(TYPE)a.scale);                                         \
        }                                                                                          \
    }
TT_K_TREE_BODY(tt_k_tree_body, float, tt_k_load_f, tt_k_store_f)
TT_K_TREE_BODY(tt_k_tree_d_body, double, tt_k_load_d, tt_k_store_d)

/*
 * Cross entropy over shared columns (comm/math.h). A warp takes a row: its lanes read neighbouring
 * columns, and all of them go round as often, for they take part in the shuffles.
 */
typedef struct tt_k_entropy_args {
    float *logits;
    const int32_t *targets;
    float *max, *sums, *loss;
    size_t rows, count;
    int32_t first;
} tt_k_entropy_args;

#define TT_K_ROWS(row, rows)                                                                       \
    for (size_t row = tt_k_first() / TT_K_WARP; row < (rows); row += tt_k_stride() / TT_K_WARP)

/* A NaN wins, so that a row with one has no loss. */
static __device__ inline float tt_k_max(float a, float b)
{
    return b > a || b != b ? b : a;
}

static __device__ inline void tt_k_entropy_max_body(tt_k_entropy_args a)
{
    const unsigned lane = threadIdx.x % TT_K_WARP;
    TT_K_ROWS(row, a.rows)
    {
        const float *x = a.logits + row * a.count;
        float top = tt_k_float(0xff800000u); /* -infinity */
        for (size_t j = lane; j < a.count; j += TT_K_WARP)
            top = tt_k_max(top, x[j]);
        for (int by = 1; by < TT_K_WARP; by *= 2)
            top = tt_k_max(top, __shfl_xor_sync(0xffffffffu, top, by));
        if (lane == 0)
            a.max[row] = top;
    }
}

static __device__ inline void tt_k_entropy_sums_body(tt_k_entropy_args a)
{
    const unsigned lane = threadIdx.x % TT_K_WARP;
    TT_K_ROWS(row, a.rows)
    {
        float *x = a.logits + row * a.count, max = a.max[row], sum = 0;
        const int64_t target = (int64_t)a.targets[row] - a.first;
        const int here = target >= 0 && (uint64_t)target < a.count;
        const float exponent = here ? x[target] - max : 0;
        __syncwarp(); /* all have read it */
        for (size_t j = lane; j < a.count; j += TT_K_WARP) {
            x[j] = expf(x[j] - max);
            sum += x[j];
        }
        for (int by = 1; by < TT_K_WARP; by *= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, by);
        if (lane == 0) {
            a.sums[row] = sum;
            a.sums[a.rows + row] = exponent;
            a.sums[2 * a.rows + row] = (float)here;
        }
    }
}

static __device__ inline void tt_k_entropy_end_body(tt_k_entropy_args a)
{
    const unsigned lane = threadIdx.x % TT_K_WARP;
    TT_K_ROWS(row, a.rows)
    {
        float *x = a.logits + row * a.count;
        const float inverse = 1 / a.sums[row];
        for (size_t j = lane; j < a.count; j += TT_K_WARP)
            x[j] *= inverse;
        if (lane == 0) /* infinite where no rank has that column */
            a.loss[row] = a.sums[2 * a.rows + row] == 0 ? tt_k_float(0x7f800000u)
                                                        : logf(a.sums[row]) - a.sums[a.rows + row];
    }
}

#endif

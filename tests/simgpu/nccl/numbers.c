/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What collectives compute. NCCL promises no order of sums, so there is none here: each slice of
 * each call adds the ranks in an order of its own, drawn from the seed, the communicator's and the
 * call's number; the same seed gives the same bits. 16-bit types are rounded after every addition,
 * as NCCL's rings and trees do on the wire. What a library claims of order or of sums in fp32 can
 * then hold only by its own code.
 */
#include "sim.h"
#include "../half.h"

#include <math.h>
#include <string.h>

static uint64_t call_seed(const sn_task *task)
{
    return sn_mix(sn_mix(sn_seed(), task->comm->clique->where.number), task->seq);
}

void sn_order(const sn_task *task, uint64_t slice, int *order)
{
    int n = task->comm->size;
    uint64_t state = sn_mix(call_seed(task), slice);
    for (int i = 0; i < n; i++) {
        state = sn_mix(state, (uint64_t)i);
        int k = (int)(state % (uint64_t)(i + 1));
        order[i] = order[k];
        order[k] = i;
    }
}

/* ---- one slice ---- */

typedef struct slice {
    const char *in[SN_RANKS]; /* in the order of addition */
    char *out;
    size_t n;
    int ranks;
    ncclRedOp_t op;
} slice;

static inline double combine_float(ncclRedOp_t op, double a, double b)
{
    switch (op) {
    case ncclProd:
        return a * b;
    case ncclMax:
        return fmax(a, b);
    case ncclMin:
        return fmin(a, b);
    default:
        return a + b;
    }
}

static float load_f16(const char *p, size_t i)
{
    uint16_t bits;
    memcpy(&bits, p + 2 * i, 2);
    return sg_f16_to_float(bits);
}

static float load_bf16(const char *p, size_t i)
{
    uint16_t bits;
    memcpy(&bits, p + 2 * i, 2);
    return sg_bf16_to_float(bits);
}

/* The sum of two floats of 16 bits is exact in double for f16 and rounds once in float for bf16:
 * in both, one rounding to 16 bits follows. */
static void slice_16(const slice *s, float (*load)(const char *, size_t), uint16_t (*store)(float))
{
    for (size_t i = 0; i < s->n; i++) {
        char hop[2];
        memcpy(hop, s->in[0] + 2 * i, 2);
        for (int r = 1; r < s->ranks; r++) {
            float sum = (float)combine_float(s->op, load(hop, 0), load(s->in[r], i));
            uint16_t bits = store(sum);
            memcpy(hop, &bits, 2);
        }
        memcpy(s->out + 2 * i, hop, 2);
    }
}

#define SLICE_FLOAT(name, T)                                                                       \
    static void name(const slice *s)                                                               \
    {                                                                                              \
        for (size_t i = 0; i < s->n; i++) {                                                        \
            T acc, x;                                                                              \
            memcpy(&acc, s->in[0] + i * sizeof(T), sizeof(T));                                     \
            for (int r = 1; r < s->ranks; r++) {                                                   \
                memcpy(&x, s->in[r] + i * sizeof(T), sizeof(T));                                   \
                acc = (T)(s->op == ncclProd  ? acc * x                                             \
                          : s->op == ncclMax ? (T)fmax(acc, x)                                     \
                          : s->op == ncclMin ? (T)fmin(acc, x)                                     \
                                             : acc + x);                                           \
            }                                                                                      \
            memcpy(s->out + i * sizeof(T), &acc, sizeof(T));                                       \
        }                                                                                          \
    }
SLICE_FLOAT(slice_f32, float)
SLICE_FLOAT(slice_f64, double)

/* Sums and products wrap; an average of integers divides the sum. U: unsigned and wide. */
#define SLICE_INT(name, T, U)                                                                      \
    static void name(const slice *s)                                                               \
    {                                                                                              \
        for (size_t i = 0; i < s->n; i++) {                                                        \
            T acc, x;                                                                              \
            memcpy(&acc, s->in[0] + i * sizeof(T), sizeof(T));                                     \
            for (int r = 1; r < s->ranks; r++) {                                                   \
                memcpy(&x, s->in[r] + i * sizeof(T), sizeof(T));                                   \
                if (s->op == ncclMax)                                                              \
                    acc = x > acc ? x : acc;                                                       \
                else if (s->op == ncclMin)                                                         \
                    acc = x < acc ? x : acc;                                                       \
                else if (s->op == ncclProd)                                                        \
                    acc = (T)((U)acc * (U)x);                                                      \
                else                                                                               \
                    acc = (T)((U)acc + (U)x);                                                      \
            }                                                                                      \
            if (s->op == ncclAvg)                                                                  \
                acc = (T)(acc / (T)s->ranks);                                                      \
            memcpy(s->out + i * sizeof(T), &acc, sizeof(T));                                       \
        }                                                                                          \
    }
SLICE_INT(slice_i8, int8_t, uint32_t)
SLICE_INT(slice_u8, uint8_t, uint32_t)
SLICE_INT(slice_i32, int32_t, uint32_t)
SLICE_INT(slice_u32, uint32_t, uint32_t)
SLICE_INT(slice_i64, int64_t, uint64_t)
SLICE_INT(slice_u64, uint64_t, uint64_t)

static void slice_run(const slice *s, ncclDataType_t type)
{
    switch (type) {
    case ncclFloat16:
        slice_16(s, load_f16, sg_float_to_f16);
        break;
    case ncclBfloat16:
        slice_16(s, load_bf16, sg_float_to_bf16);
        break;
    case ncclFloat32:
        slice_f32(s);
        break;
    case ncclFloat64:
        slice_f64(s);
        break;
    case ncclInt8:
        slice_i8(s);
        break;
    case ncclUint8:
        slice_u8(s);
        break;
    case ncclInt32:
        slice_i32(s);
        break;
    case ncclUint32:
        slice_u32(s);
        break;
    case ncclInt64:
        slice_i64(s);
        break;
    default:
        slice_u64(s);
    }
}

static void reduce(const sn_task *task, const void *const *in, size_t first, void *out)
{
    size_t size = sn_type_size(task->type);
    size_t step = (size_t)32 << (call_seed(task) % 5);
    slice s = {.ranks = task->comm->size, .op = task->op};
    int order[SN_RANKS];
    for (size_t done = 0; done < task->count; done += step) {
        size_t rest = task->count - done;
        sn_order(task, (first + done) / step, order);
        for (int r = 0; r < s.ranks; r++)
            s.in[r] = (const char *)in[order[r]] + (first + done) * size;
        s.out = (char *)out + done * size;
        s.n = rest < step ? rest : step;
        slice_run(&s, task->type);
    }
}

/* ---- a call ---- */

void sn_compute(const sn_task *task, int rank, const void *const *in, void *out)
{
    size_t block = task->count * sn_type_size(task->type);
    char *to = out;
    if (block == 0)
        return;
    switch (task->kind) {
    case SN_ALL_REDUCE:
    case SN_REDUCE:
        reduce(task, in, 0, out);
        break;
    case SN_REDUCE_SCATTER:
        reduce(task, in, (size_t)rank * task->count, out);
        break;
    case SN_BROADCAST:
        memcpy(to, in[task->peer], block);
        break;
    case SN_SCATTER:
        memcpy(to, (const char *)in[task->peer] + (size_t)rank * block, block);
        break;
    case SN_ALL_TO_ALL:
        for (int r = 0; r < task->comm->size; r++)
            memcpy(to + (size_t)r * block, (const char *)in[r] + (size_t)rank * block, block);
        break;
    default:
        for (int r = 0; r < task->comm->size; r++)
            memcpy(to + (size_t)r * block, in[r], block);
    }
}

/* ---- pre-multiplied sums, and averages of floats, which NCCL makes of them ---- */

static double scalar_of(const sn_task *task)
{
    unsigned char bits[8];
    float f;
    double d;
    if (task->op == ncclAvg)
        return 1.0 / task->comm->size;
    memcpy(bits, task->scalar, sizeof(bits));
    if (task->scalar_on_device)
        memcpy(bits, sg_view(task->scalar_ptr), sn_type_size(task->type));
    switch (task->type) {
    case ncclFloat16:
        return load_f16((const char *)bits, 0);
    case ncclBfloat16:
        return load_bf16((const char *)bits, 0);
    case ncclFloat32:
        memcpy(&f, bits, sizeof(f));
        return f;
    default:
        memcpy(&d, bits, sizeof(d));
        return d;
    }
}

static void scale(const sn_task *task, char *data, size_t n)
{
    double by = scalar_of(task);
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        float f;
        double d;
        switch (task->type) {
        case ncclFloat16:
            half = sg_float_to_f16(load_f16(data, i) * (float)by);
            memcpy(data + 2 * i, &half, 2);
            break;
        case ncclBfloat16:
            half = sg_float_to_bf16(load_bf16(data, i) * (float)by);
            memcpy(data + 2 * i, &half, 2);
            break;
        case ncclFloat32:
            memcpy(&f, data + 4 * i, 4);
            f *= (float)by;
            memcpy(data + 4 * i, &f, 4);
            break;
        default:
            memcpy(&d, data + 8 * i, 8);
            d *= by;
            memcpy(data + 8 * i, &d, 8);
        }
    }
}

static bool is_float(ncclDataType_t type)
{
    return type == ncclFloat16 || type == ncclBfloat16 || type == ncclFloat32 ||
           type == ncclFloat64;
}

static bool is_reduction(sn_kind kind)
{
    return kind == SN_ALL_REDUCE || kind == SN_REDUCE || kind == SN_REDUCE_SCATTER;
}

void sn_prepare(const sn_task *task, void *out)
{
    size_t bytes = sn_sends(task);
    memcpy(out, sg_view(task->in), bytes);
    if (!is_reduction(task->kind) || (task->op != ncclAvg && (int)task->op < ncclNumOps))
        return;
    if (is_float(task->type))
        scale(task, out, bytes / sn_type_size(task->type));
    else if (task->op != ncclAvg)
        sg_finding("nccl-op", "pre-multiplied sums of %s are not simulated",
                   sn_type_name(task->type));
}

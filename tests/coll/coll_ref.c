/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference: scalar, written from the documentation (coll.h) and not from the library's code.
 *
 * A value is kept as float for f32 and the 16-bit types, as double for f64, as 64 bits for
 * integers (wrapped to the type's width when it is stored). The order of a sum is a recursion over
 * lists: a balanced tree over the members of each node, then over the nodes; or, reproducible, over
 * all members.
 */
#include "coll_ref.h"

typedef struct number {
    float f;
    double d;
    uint64_t u;
} number;

uint64_t ref_mix(uint64_t a, uint64_t b)
{
    tt_rng rng = {a * 0x9e3779b97f4a7c15u + b};
    return tt_rand(&rng);
}

void ref_nodes(const char *nodes, int n, int *node_out)
{
    int count, each, rank = 0, node = 0;
    if (nodes != NULL && sscanf(nodes, "%dx%d", &count, &each) == 2) {
        for (int i = 0; i < n; i++)
            node_out[i] = i / each;
        return;
    }
    for (const char *at = nodes != NULL ? nodes : ""; *at != '\0'; node++) {
        char *end;
        for (long left = strtol(at, &end, 10); left > 0 && rank < n; left--)
            node_out[rank++] = node;
        at = *end == ',' ? end + 1 : end;
    }
    while (rank < n)
        node_out[rank++] = node;
}

static bool is_float(tutti_dtype dtype)
{
    return dtype == TUTTI_FLOAT32 || dtype == TUTTI_FLOAT16 || dtype == TUTTI_BFLOAT16;
}

static bool is_signed(tutti_dtype dtype)
{
    return dtype == TUTTI_INT8 || dtype == TUTTI_INT32 || dtype == TUTTI_INT64;
}

static uint16_t to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value)
        return (uint16_t)((bits >> 16) | 0x40);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static float from_bf16(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint16_t to_f16(float value)
{
    __extension__ _Float16 half = (_Float16)value;
    uint16_t bits;
    memcpy(&bits, &half, sizeof bits);
    return bits;
}

static float from_f16(uint16_t bits)
{
    __extension__ _Float16 half;
    memcpy(&half, &bits, sizeof bits);
    return (float)half;
}

/* An integer of the type's width, sign extended. */
static uint64_t narrow(uint64_t value, tutti_dtype dtype)
{
    int bits = 8 * (int)tutti_dtype_size(dtype);
    if (bits == 64)
        return value;
    value &= (1ull << bits) - 1;
    if (is_signed(dtype) && (value >> (bits - 1)) != 0)
        value |= ~((1ull << bits) - 1);
    return value;
}

static void store(number v, tutti_dtype dtype, void *out)
{
    uint16_t half;
    if (dtype == TUTTI_FLOAT64) {
        memcpy(out, &v.d, sizeof v.d);
    } else if (dtype == TUTTI_FLOAT32) {
        memcpy(out, &v.f, sizeof v.f);
    } else if (is_float(dtype)) {
        half = dtype == TUTTI_FLOAT16 ? to_f16(v.f) : to_bf16(v.f);
        memcpy(out, &half, sizeof half);
    } else {
        memcpy(out, &v.u, tutti_dtype_size(dtype)); /* little endian */
    }
}

static number load(tutti_dtype dtype, const void *in)
{
    number v = {0, 0, 0};
    uint16_t half;
    if (dtype == TUTTI_FLOAT64) {
        memcpy(&v.d, in, sizeof v.d);
    } else if (dtype == TUTTI_FLOAT32) {
        memcpy(&v.f, in, sizeof v.f);
    } else if (is_float(dtype)) {
        memcpy(&half, in, sizeof half);
        v.f = dtype == TUTTI_FLOAT16 ? from_f16(half) : from_bf16(half);
    } else {
        memcpy(&v.u, in, tutti_dtype_size(dtype));
        v.u = narrow(v.u, dtype);
    }
    return v;
}

void ref_value(uint64_t seed, int rank, size_t index, tutti_dtype dtype, ref_values values,
               void *element_out)
{
    uint64_t bits = ref_mix(ref_mix(seed, (uint64_t)rank), index);
    number v;
    if (dtype != TUTTI_FLOAT64 && !is_float(dtype)) {
        v.u = bits;
    } else if (values == REF_EXACT) {
        v.d = (double)(bits % 9) - 4;
    } else if (values == REF_POWERS) {
        v.d = (bits & 1 ? 1 : -1) * (bits & 2 ? 1 : 0.5);
    } else if (values == REF_PRODUCT) {
        v.d = (bits & 1 ? 1 : -1) * (0.75 + (double)(bits >> 40) / (1 << 25));
    } else {
        v.d = ((double)(bits >> 11) / (1ull << 53) - 0.5) * (double)(1u << (bits % 12)) + 1e-3;
    }
    if (dtype == TUTTI_FLOAT64 || is_float(dtype))
        v.f = (float)v.d;
    store(v, dtype, element_out);
}

static double pick(double a, double b, tutti_op op)
{
    if (a != a || b != b)
        return a != a ? a : b;
    return (op == TUTTI_MIN) == (a < b) ? a : b;
}

static uint64_t pick_int(uint64_t a, uint64_t b, tutti_op op, bool with_sign)
{
    bool less = with_sign ? (int64_t)a < (int64_t)b : a < b;
    return (op == TUTTI_MIN) == less ? a : b;
}

static number combine(number a, number b, tutti_dtype dtype, tutti_op op)
{
    number v = {0, 0, 0};
    bool sums = op == TUTTI_SUM || op == TUTTI_AVG;
    if (op == TUTTI_MIN || op == TUTTI_MAX) {
        v.f = (float)pick(a.f, b.f, op);
        v.d = pick(a.d, b.d, op);
        v.u = pick_int(a.u, b.u, op, is_signed(dtype));
        return v;
    }
    v.f = sums ? a.f + b.f : a.f * b.f;
    v.d = sums ? a.d + b.d : a.d * b.d;
    v.u = narrow(sums ? a.u + b.u : a.u * b.u, dtype);
    return v;
}

static number fold(const number *list, int n, tutti_dtype dtype, tutti_op op)
{
    int left = 1;
    if (n == 1)
        return list[0];
    while (left * 2 < n)
        left *= 2;
    return combine(fold(list, left, dtype, op), fold(list + left, n - left, dtype, op), dtype, op);
}

/* The members' values summed node by node, nodes in the order of their first member. */
static number fold_nodes(const team *t, const number *value, tutti_dtype dtype, tutti_op op)
{
    number sum[MAX_TEAM], list[MAX_TEAM];
    unsigned char stored[8];
    bool done[MAX_TEAM] = {false};
    int nodes = 0;
    for (int first = 0; first < t->size; first++) {
        int n = 0;
        for (int i = first; i < t->size && !done[first]; i++)
            if (t->node[i] == t->node[first])
                list[n++] = value[i];
        if (n == 0)
            continue;
        for (int i = t->size - 1; i >= first; i--)
            done[i] = done[i] || t->node[i] == t->node[first];
        sum[nodes++] = fold(list, n, dtype, op);
    }
    for (int i = 0; i < nodes && nodes > 1 && tutti_dtype_size(dtype) == 2; i++) {
        store(sum[i], dtype, stored); /* node sums travel in 16 bits */
        sum[i] = load(dtype, stored);
    }
    return fold(sum, nodes, dtype, op);
}

static number average(number v, int n, tutti_dtype dtype)
{
    v.f = v.f * (1.0f / (float)n);
    v.d = v.d * (1.0 / (double)n);
    if (is_signed(dtype))
        v.u = (uint64_t)((int64_t)v.u / n);
    else
        v.u = v.u / (uint64_t)n;
    return v;
}

void ref_reduced(const team *t, uint64_t seed, size_t index, tutti_dtype dtype, tutti_op op,
                 ref_values values, void *element_out)
{
    number value[MAX_TEAM];
    unsigned char stored[8];
    for (int i = 0; i < t->size; i++) {
        ref_value(seed, t->world[i], index, dtype, values, stored);
        value[i] = load(dtype, stored);
    }
    number v = t->reproducible ? fold(value, t->size, dtype, op) : fold_nodes(t, value, dtype, op);
    if (op == TUTTI_AVG && t->size > 1)
        v = average(v, t->size, dtype);
    store(v, dtype, element_out);
}

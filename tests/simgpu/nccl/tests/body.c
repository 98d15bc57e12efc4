/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The values are small whole numbers, so that sums are exact in every type and order; what order
 * and rounding do to others is t_nccl_numbers.c's.
 */
#include "body.h"

#include "../../half.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 37, CAP = 16 * COUNT * 8 };

static size_t type_size(ncclDataType_t type)
{
    static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return sizes[type];
}

static void store(void *at, size_t i, ncclDataType_t type, double value)
{
    char *p = (char *)at + i * type_size(type);
    float f = (float)value;
    int64_t whole = (int64_t)value;
    uint16_t half = type == ncclFloat16 ? sg_float_to_f16(f) : sg_float_to_bf16(f);
    switch (type) {
    case ncclFloat16:
    case ncclBfloat16:
        memcpy(p, &half, 2);
        break;
    case ncclFloat32:
        memcpy(p, &f, 4);
        break;
    case ncclFloat64:
        memcpy(p, &value, 8);
        break;
    default:
        memcpy(p, &whole, type_size(type)); /* little-endian */
    }
}

static double element(int rank, size_t i)
{
    return (double)((rank + 1) * (int)(i % 3 + 1) % 5);
}

/* What `kind` leaves at element i of rank's result. */
typedef double (*expected_fn)(const world_rank *r, size_t i, int root);

static double expect_sum(const world_rank *r, size_t i, int root)
{
    double sum = 0;
    (void)root;
    for (int k = 0; k < r->size; k++)
        sum += element(k, i);
    return sum;
}

static double expect_scattered(const world_rank *r, size_t i, int root)
{
    return expect_sum(r, (size_t)r->rank * COUNT + i, root);
}

static double expect_gathered(const world_rank *r, size_t i, int root)
{
    (void)r;
    (void)root;
    return element((int)(i / COUNT), i % COUNT);
}

static double expect_exchanged(const world_rank *r, size_t i, int root)
{
    (void)root;
    return element((int)(i / COUNT), (size_t)r->rank * COUNT + i % COUNT);
}

static double expect_root(const world_rank *r, size_t i, int root)
{
    (void)r;
    return element(root, i);
}

static double expect_part(const world_rank *r, size_t i, int root)
{
    return element(root, (size_t)r->rank * COUNT + i);
}

typedef struct shape {
    const char *name;
    int in, out; /* in blocks: 1 or -1 for one per rank */
    bool rooted, root_in, root_out; /* root_in: only the root gives, root_out: only it gets */
    expected_fn expected;
} shape;

enum {
    ALL_REDUCE,
    REDUCE,
    BROADCAST,
    REDUCE_SCATTER,
    ALL_GATHER,
    ALL_TO_ALL,
    GATHER,
    SCATTER,
    KINDS
};
static const shape shapes[KINDS] = {
    {"all-reduce", 1, 1, false, false, false, expect_sum},
    {"reduce", 1, 1, true, false, true, expect_sum},
    {"broadcast", 1, 1, true, true, false, expect_root},
    {"reduce-scatter", -1, 1, false, false, false, expect_scattered},
    {"all-gather", 1, -1, false, false, false, expect_gathered},
    {"all-to-all", -1, -1, false, false, false, expect_exchanged},
    {"gather", 1, -1, true, false, true, expect_gathered},
    {"scatter", -1, 1, true, true, false, expect_part},
};

static ncclResult_t call(const world_rank *r, int kind, const void *in, void *out,
                         ncclDataType_t type, int root)
{
    switch (kind) {
    case ALL_REDUCE:
        return ncclAllReduce(in, out, COUNT, type, ncclSum, r->comm, r->stream);
    case REDUCE:
        return ncclReduce(in, out, COUNT, type, ncclSum, root, r->comm, r->stream);
    case BROADCAST:
        return ncclBroadcast(in, out, COUNT, type, root, r->comm, r->stream);
    case REDUCE_SCATTER:
        return ncclReduceScatter(in, out, COUNT, type, ncclSum, r->comm, r->stream);
    case ALL_GATHER:
        return ncclAllGather(in, out, COUNT, type, r->comm, r->stream);
    case ALL_TO_ALL:
        return ncclAlltoAll(in, out, COUNT, type, r->comm, r->stream);
    case GATHER:
        return ncclGather(in, out, COUNT, type, root, r->comm, r->stream);
    default:
        return ncclScatter(in, out, COUNT, type, root, r->comm, r->stream);
    }
}

static char *in_place(const world_rank *r, int kind, char *both, size_t block, char **out)
{
    size_t mine = block * (size_t)r->rank;
    *out = kind == REDUCE_SCATTER || kind == SCATTER ? both + mine : both;
    return kind == ALL_GATHER || kind == GATHER ? both + mine : both;
}

static void one(world_rank *r, int kind, ncclDataType_t type, int root, char *a, char *b)
{
    const shape *s = &shapes[kind];
    static __thread char host[CAP], wanted[CAP];
    size_t blocks_in = (size_t)(s->in < 0 ? r->size : 1),
           blocks_out = (size_t)(s->out < 0 ? r->size : 1);
    size_t block = COUNT * type_size(type);
    bool gives = !s->root_in || r->rank == root, gets = !s->root_out || r->rank == root;
    char *in = a, *out = b;
    if (b == NULL)
        in = in_place(r, kind, a, block, &out);
    for (size_t i = 0; i < blocks_in * COUNT; i++)
        store(host, i, type, element(r->rank, i));
    if (gives)
        world_put(r, in, host, blocks_in * block);
    EXPECT(r, call(r, kind, gives ? in : NULL, gets ? out : NULL, type, root) == ncclSuccess);
    if (!gets)
        return;
    for (size_t i = 0; i < blocks_out * COUNT; i++)
        store(wanted, i, type, s->expected(r, i, root));
    world_get(r, host, out, blocks_out * block);
    if (memcmp(host, wanted, blocks_out * block) != 0)
        world_say(r, "%s of type %d, root %d, %s: wrong values", s->name, (int)type, root,
                  b == NULL ? "in place" : "apart");
}

void body_collectives(world_rank *r)
{
    char *a, *b;
    CUDA_OK(r, cudaMalloc((void **)&a, CAP));
    CUDA_OK(r, cudaMalloc((void **)&b, CAP));
    for (int kind = 0; kind < KINDS; kind++)
        for (int type = 0; type <= ncclBfloat16; type++) {
            int root = (kind + type) % r->size;
            one(r, kind, (ncclDataType_t)type, root, a, b);
            if (kind != ALL_TO_ALL && type == ncclFloat32)
                one(r, kind, ncclFloat32, root, a, NULL);
            if (r->failed)
                return;
        }
    CUDA_OK(r, cudaFree(a));
    CUDA_OK(r, cudaFree(b));
}

/* ---- messages ---- */

void body_messages(world_rank *r)
{
    enum { N = 1000, LAPS = 7 };
    static __thread float host[N];
    float *mine, *theirs;
    int next = (r->rank + 1) % r->size, before = (r->rank + r->size - 1) % r->size;
    CUDA_OK(r, cudaMalloc((void **)&mine, sizeof(host)));
    CUDA_OK(r, cudaMalloc((void **)&theirs, sizeof(host)));
    for (int i = 0; i < N; i++)
        host[i] = (float)(r->rank * N + i);
    world_put(r, mine, host, sizeof(host));
    for (int lap = 0; lap < LAPS; lap++) {
        NCCL_OK(r, ncclGroupStart());
        NCCL_OK(r, ncclSend(mine, N, ncclFloat, next, r->comm, r->stream));
        NCCL_OK(r, ncclRecv(theirs, N, ncclFloat, before, r->comm, r->stream));
        NCCL_OK(r, ncclGroupEnd());
        float *swap = mine;
        mine = theirs;
        theirs = swap;
    }
    world_get(r, host, mine, sizeof(host));
    int from = ((r->rank - LAPS) % r->size + r->size) % r->size;
    for (int i = 0; i < N; i++)
        EXPECT(r, host[i] == (float)(from * N + i));
    CUDA_OK(r, cudaFree(mine));
    CUDA_OK(r, cudaFree(theirs));
}

/* ---- split ---- */

void body_split(world_rank *r)
{
    ncclComm_t part = NULL, none = NULL;
    float *value, host = (float)r->rank;
    int size, rank;
    /* Odd and even ranks, in reversed order; the last rank of all stays outside of the second. */
    NCCL_OK(r, ncclCommSplit(r->comm, r->rank % 2, -r->rank, &part, NULL));
    NCCL_OK(
        r, ncclCommSplit(r->comm, r->rank == r->size - 1 ? NCCL_SPLIT_NOCOLOR : 0, 0, &none, NULL));
    EXPECT(r, (none == NULL) == (r->rank == r->size - 1));
    NCCL_OK(r, ncclCommCount(part, &size));
    NCCL_OK(r, ncclCommUserRank(part, &rank));
    EXPECT(r, size == (r->size + 1 - r->rank % 2) / 2 && rank == size - 1 - r->rank / 2);
    CUDA_OK(r, cudaMalloc((void **)&value, sizeof(*value)));
    world_put(r, value, &host, sizeof(host));
    NCCL_OK(r, ncclAllReduce(value, value, 1, ncclFloat, ncclSum, part, r->stream));
    world_get(r, &host, value, sizeof(host));
    float sum = 0;
    for (int k = r->rank % 2; k < r->size; k += 2)
        sum += (float)k;
    EXPECT(r, host == sum);
    CUDA_OK(r, cudaFree(value));
    NCCL_OK(r, ncclCommDestroy(part));
    if (none != NULL)
        NCCL_OK(r, ncclCommDestroy(none));
}

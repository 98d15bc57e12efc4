/* SPDX-License-Identifier: Apache-2.0 */
/* The reducer's own way of doing this is tutti_reducer_opts.wire; here it shows what a hook is. */
#include <stdlib.h>
#include <string.h>

#include "hooks.h"

typedef struct part {
    uint16_t *half;
    float *grad;
    size_t count;
} part;

struct bfloat {
    tutti_ctx *ctx;
    part part[PARTS_MAX];
    int parts;
    uint64_t bytes;
};

bfloat *bfloat_create(tutti_ctx *ctx)
{
    bfloat *b = calloc(1, sizeof *b);

    if (b != NULL)
        b->ctx = ctx;
    return b;
}

void bfloat_destroy(bfloat *b)
{
    for (int i = 0; b != NULL && i < b->parts; i++)
        free(b->part[i].half);
    free(b);
}

uint64_t bfloat_bytes(const bfloat *b)
{
    return b->bytes;
}

static part *find_part(bfloat *b, const tutti_bucket *bucket)
{
    part *p = b->part;

    while (p < b->part + b->parts && p->grad != bucket->data)
        p++;
    if (p < b->part + b->parts || b->parts == PARTS_MAX)
        return b->parts == PARTS_MAX && p == b->part + b->parts ? NULL : p;
    p->half = calloc(bucket->count, sizeof *p->half);
    p->grad = bucket->data;
    p->count = bucket->count;
    if (p->half == NULL)
        return NULL;
    b->parts++;
    return p;
}

/* Round to nearest even; a NaN stays one. */
static void pack(void *arg)
{
    part *p = arg;

    for (size_t i = 0; i < p->count; i++) {
        uint32_t bits;
        memcpy(&bits, &p->grad[i], sizeof bits);
        if ((bits & 0x7fffffff) > 0x7f800000)
            p->half[i] = 0x7fc0;
        else
            p->half[i] = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    }
}

static void unpack(void *arg)
{
    part *p = arg;

    for (size_t i = 0; i < p->count; i++) {
        uint32_t bits = (uint32_t)p->half[i] << 16;
        memcpy(&p->grad[i], &bits, sizeof bits);
    }
}

tutti_status bfloat_hook(void *arg, const tutti_bucket *bucket)
{
    bfloat *b = arg;
    part *p = find_part(b, bucket);
    tutti_status status;

    if (p == NULL || bucket->dtype != TUTTI_FLOAT32)
        return TUTTI_ERR_UNSUPPORTED;
    b->bytes += p->count * sizeof *p->half;
    status = tutti_stream_call(b->ctx, bucket->stream, pack, p);
    if (status == TUTTI_OK)
        status = tutti_all_reduce(bucket->comm, p->half, p->half, p->count, TUTTI_BFLOAT16,
                                  TUTTI_AVG, bucket->stream);
    if (status == TUTTI_OK)
        status = tutti_stream_call(b->ctx, bucket->stream, unpack, p);
    return status;
}

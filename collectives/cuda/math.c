/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic on device memory (comm/math.h) by the kernels. */
#include "comm/math.h"
#include "cuda/kernels.h"
#include "device/cuda_device.h"

/* A kernel is launched on the current device. */
typedef struct place {
    cudaStream_t stream;
    int before;
} place;

static tutti_status enter(tt_device *dev, tutti_stream stream, place *p)
{
    int wanted = tt_cuda_of(dev)->ordinal;
    TT_TRY(tt_cuda_stream(stream, &p->stream));
    TT_TRY(TT_CUDA(cudaGetDevice(&p->before)));
    return p->before == wanted ? TUTTI_OK : TT_CUDA(cudaSetDevice(wanted));
}

static tutti_status leave(const tt_device *dev, const place *p, tutti_status status)
{
    if (p->before != ((const tt_cuda *)dev)->ordinal)
        (void)cudaSetDevice(p->before);
    return status;
}

static tutti_status cuda_add(tt_device *dev, void *dst, const void *a, const void *b, size_t n,
                             tutti_dtype dtype, tutti_stream stream)
{
    place p;
    TT_TRY(enter(dev, stream, &p));
    return leave(dev, &p, tt_cuda_add(dst, a, b, n, dtype, p.stream));
}

static tutti_status cuda_cast(tt_device *dev, const tt_math_cast *cast, tutti_stream stream)
{
    const tt_cuda_cast_job job = {.dst = cast->dst,
                                  .src = cast->src,
                                  .to = cast->to,
                                  .from = cast->from,
                                  .n = cast->n,
                                  .divisor = cast->divisor};
    place p;
    TT_TRY(enter(dev, stream, &p));
    return leave(dev, &p, tt_cuda_cast(&job, p.stream));
}

static tutti_status cuda_squares(tt_device *dev, int64_t *sum, const void *x, size_t n,
                                 tutti_dtype dtype, tutti_stream stream)
{
    place p;
    TT_TRY(enter(dev, stream, &p));
    return leave(dev, &p, tt_cuda_squares(sum, x, n, dtype, p.stream));
}

static tutti_status cuda_exact_add(tt_device *dev, int64_t *sums, const float *x, size_t n,
                                   tutti_stream stream)
{
    place p;
    TT_TRY(enter(dev, stream, &p));
    return leave(dev, &p, tt_cuda_exact_add(sums, x, n, p.stream));
}

static tutti_status cuda_exact_get(tt_device *dev, float *x, const int64_t *sums, size_t n,
                                   double divisor, bool root, tutti_stream stream)
{
    place p;
    TT_TRY(enter(dev, stream, &p));
    return leave(dev, &p, tt_cuda_exact_get(x, sums, n, divisor, root, p.stream));
}

static tt_cuda_entropy_job entropy_job(const tt_math_entropy *e)
{
    return (tt_cuda_entropy_job){.logits = e->logits,
                                 .targets = e->targets,
                                 .max = e->max,
                                 .sums = e->sums,
                                 .loss = e->loss,
                                 .rows = e->rows,
                                 .count = e->count,
                                 .first = e->first};
}

static tutti_status cuda_entropy_max(tt_device *dev, const tt_math_entropy *e, tutti_stream stream)
{
    const tt_cuda_entropy_job job = entropy_job(e);
    place p;
    TT_TRY(enter(dev, stream, &p));
    return leave(dev, &p, tt_cuda_entropy_max(&job, p.stream));
}

static tutti_status cuda_entropy_sums(tt_device *dev, const tt_math_entropy *e, tutti_stream stream)
{
    const tt_cuda_entropy_job job = entropy_job(e);
    place p;
    TT_TRY(enter(dev, stream, &p));
    return leave(dev, &p, tt_cuda_entropy_sums(&job, p.stream));
}

static tutti_status cuda_entropy_end(tt_device *dev, const tt_math_entropy *e, tutti_stream stream)
{
    const tt_cuda_entropy_job job = entropy_job(e);
    place p;
    TT_TRY(enter(dev, stream, &p));
    return leave(dev, &p, tt_cuda_entropy_end(&job, p.stream));
}

const tt_math_ops tt_math_cuda = {
    .size = sizeof(tt_math_ops),
    .add = cuda_add,
    .cast = cuda_cast,
    .squares = cuda_squares,
    .exact_add = cuda_exact_add,
    .exact_get = cuda_exact_get,
    .entropy_max = cuda_entropy_max,
    .entropy_sums = cuda_entropy_sums,
    .entropy_end = cuda_entropy_end,
};

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of the CUDA backend, called from C. Each queues its work on `stream` of the current
 * device and returns DEVICE if the launch is refused; none allocates or waits, so all may be
 * captured. What the types may be is said in comm/math.h; others are ARG.
 */
#ifndef TT_CUDA_KERNELS_H
#define TT_CUDA_KERNELS_H

#ifdef __cplusplus
extern "C" {
#endif

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

typedef struct CUstream_st *tt_cuda_stream_t; /* cudaStream_t */

tutti_status tt_cuda_add(void *dst, const void *a, const void *b, size_t n, tutti_dtype type,
                         tt_cuda_stream_t stream);
/* dst[i] = src[i] * (1 / divisor): a cast, a scale in place, or both. */
typedef struct tt_cuda_cast_job {
    void *dst;
    const void *src;
    tutti_dtype to, from;
    size_t n;
    int divisor;
} tt_cuda_cast_job;
tutti_status tt_cuda_cast(const tt_cuda_cast_job *job, tt_cuda_stream_t stream);
/* The squares of x to one exact sum; it counts what is not finite. */
tutti_status tt_cuda_squares(int64_t *sum, const void *x, size_t n, tutti_dtype type,
                             tt_cuda_stream_t stream);
tutti_status tt_cuda_exact_add(int64_t *sums, const float *x, size_t n, tt_cuda_stream_t stream);
tutti_status tt_cuda_exact_get(float *x, const int64_t *sums, size_t n, double divisor, bool root,
                               tt_cuda_stream_t stream);

/* The passes of a cross entropy: comm/math.h. */
typedef struct tt_cuda_entropy_job {
    float *logits;
    const int32_t *targets;
    float *max, *sums, *loss;
    size_t rows, count;
    int32_t first;
} tt_cuda_entropy_job;
tutti_status tt_cuda_entropy_max(const tt_cuda_entropy_job *job, tt_cuda_stream_t stream);
tutti_status tt_cuda_entropy_sums(const tt_cuda_entropy_job *job, tt_cuda_stream_t stream);
tutti_status tt_cuda_entropy_end(const tt_cuda_entropy_job *job, tt_cuda_stream_t stream);

/* out[i] = the balanced tree over part[r * stride + i], r < parts, i < n, summed (or multiplied) in
 * fp32, times scale, rounded once. */
typedef struct tt_cuda_tree_job {
    void *out;
    const void *part;
    size_t stride; /* elements */
    int parts;
    size_t n;
    tutti_dtype type;
    bool multiply;
    double scale;
} tt_cuda_tree_job;
tutti_status tt_cuda_tree(const tt_cuda_tree_job *job, tt_cuda_stream_t stream);

#ifdef __cplusplus
}
#endif
#endif

// SPDX-License-Identifier: Apache-2.0
// Launches of the kernels whose bodies are in kernels_body.h.
#include <cuda_runtime.h>

#include "cuda/kernels.h"
#include "cuda/kernels_body.h"

extern "C" {

__global__ void tt_k_cast(tt_k_cast_args args)
{
    tt_k_cast_body(args);
}

__global__ void tt_k_scale_d(double *out, const double *in, size_t n, double factor)
{
    tt_k_scale_d_body(out, in, n, factor);
}

__global__ void tt_k_add(float *out, const float *a, const float *b, size_t n, int vector)
{
    tt_k_add_body(out, a, b, n, vector);
}

__global__ void tt_k_add_d(double *out, const double *a, const double *b, size_t n)
{
    tt_k_add_d_body(out, a, b, n);
}

__global__ void tt_k_squares(int64_t *sum, const void *in, int type, size_t n)
{
    __shared__ int64_t digits[TT_EXACT_WORDS];
    tt_k_squares_body(sum, in, type, n, digits);
}

__global__ void tt_k_exact_add(int64_t *sums, const float *x, size_t n)
{
    tt_k_exact_add_body(sums, x, n);
}

__global__ void tt_k_exact_get(float *x, const int64_t *sums, size_t n, double divisor, int root)
{
    tt_k_exact_get_body(x, sums, n, divisor, root);
}

__global__ void tt_k_tree(tt_k_tree_args args)
{
    tt_k_tree_body(args);
}

__global__ void tt_k_tree_d(tt_k_tree_args args)
{
    tt_k_tree_d_body(args);
}

__global__ void tt_k_entropy_max(tt_k_entropy_args args)
{
    tt_k_entropy_max_body(args);
}

__global__ void tt_k_entropy_sums(tt_k_entropy_args args)
{
    tt_k_entropy_sums_body(args);
}

__global__ void tt_k_entropy_end(tt_k_entropy_args args)
{
    tt_k_entropy_end_body(args);
}

} // extern "C"

static_assert((int)TT_K_F32 == (int)TUTTI_FLOAT32 && (int)TT_K_BF16 == (int)TUTTI_BFLOAT16 &&
                  (int)TT_K_F64 == (int)TUTTI_FLOAT64 && (int)TT_K_F16 == (int)TUTTI_FLOAT16,
              "kernels_body.h and the library agree");

static const unsigned max_blocks = 1024; // several waves on any GPU; grid-stride loops do the rest

static unsigned blocks_for(size_t items)
{
    size_t blocks = (items + TT_K_THREADS - 1) / TT_K_THREADS;
    return blocks > max_blocks ? max_blocks : blocks < 1 ? 1u : (unsigned)blocks;
}

static bool aligned(const void *ptr)
{
    return (uintptr_t)ptr % 16 == 0;
}

static bool is_float(tutti_dtype type)
{
    return type == TUTTI_FLOAT32 || type == TUTTI_BFLOAT16 || type == TUTTI_FLOAT16;
}

static tutti_status launched(const char *kernel)
{
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess)
        return TUTTI_OK;
    return tt_fail(TUTTI_ERR_DEVICE, "launch of %s: %s (%s)", kernel, cudaGetErrorString(error),
                   cudaGetErrorName(error));
}

static tutti_status no_kernel(const char *what, tutti_dtype type)
{
    return tt_fail(TUTTI_ERR_ARG, "%s: no kernel for %s", what, tutti_dtype_name(type));
}

tutti_status tt_cuda_add(void *dst, const void *a, const void *b, size_t n, tutti_dtype type,
                         tt_cuda_stream_t stream)
{
    if (n == 0)
        return TUTTI_OK;
    int vector = aligned(dst) && aligned(a) && aligned(b);
    if (type == TUTTI_FLOAT32)
        tt_k_add<<<blocks_for(vector ? n / 4 + 1 : n), TT_K_THREADS, 0, stream>>>(
            (float *)dst, (const float *)a, (const float *)b, n, vector);
    else if (type == TUTTI_FLOAT64)
        tt_k_add_d<<<blocks_for(n), TT_K_THREADS, 0, stream>>>(
            (double *)dst, (const double *)a, (const double *)b, n);
    else
        return no_kernel("add", type);
    return launched("add");
}

tutti_status tt_cuda_cast(const tt_cuda_cast_job *job, tt_cuda_stream_t stream)
{
    double factor = 1.0 / job->divisor;
    if (job->n == 0)
        return TUTTI_OK;
    int vector = aligned(job->dst) && aligned(job->src);
    if (job->to == TUTTI_FLOAT64 && job->from == TUTTI_FLOAT64)
        tt_k_scale_d<<<blocks_for(job->n), TT_K_THREADS, 0, stream>>>(
            (double *)job->dst, (const double *)job->src, job->n, factor);
    else if (is_float(job->to) && is_float(job->from))
        tt_k_cast<<<blocks_for(vector ? job->n / TT_K_V + 1 : job->n), TT_K_THREADS, 0, stream>>>(
            tt_k_cast_args{job->dst, job->src, job->n, job->to, job->from, (float)factor, vector});
    else
        return no_kernel("cast", is_float(job->to) ? job->from : job->to);
    return launched("cast");
}

tutti_status tt_cuda_squares(int64_t *sum, const void *x, size_t n, tutti_dtype type,
                             tt_cuda_stream_t stream)
{
    if (!is_float(type) && type != TUTTI_FLOAT64)
        return no_kernel("squares", type);
    if (n > 0)
        tt_k_squares<<<blocks_for(n / TT_K_LANES + 1), TT_K_THREADS, 0, stream>>>(sum, x, type, n);
    tt_k_exact_add<<<1, 1, 0, stream>>>(sum, NULL, 1);
    return launched("squares");
}

tutti_status tt_cuda_exact_add(int64_t *sums, const float *x, size_t n, tt_cuda_stream_t stream)
{
    if (n == 0)
        return TUTTI_OK;
    tt_k_exact_add<<<blocks_for(n), TT_K_THREADS, 0, stream>>>(sums, x, n);
    return launched("exact sums");
}

tutti_status tt_cuda_exact_get(float *x, const int64_t *sums, size_t n, double divisor, bool root,
                               tt_cuda_stream_t stream)
{
    if (n == 0)
        return TUTTI_OK;
    tt_k_exact_get<<<blocks_for(n), TT_K_THREADS, 0, stream>>>(x, sums, n, divisor, root);
    return launched("exact sums' values");
}

tutti_status tt_cuda_tree(const tt_cuda_tree_job *job, tt_cuda_stream_t stream)
{
    const tt_k_tree_args args = {job->out,   job->part,  job->stride,    job->n,
                                 job->parts, job->type, job->multiply, job->scale};
    if (job->n == 0 || job->parts < 1)
        return TUTTI_OK;
    if (job->type == TUTTI_FLOAT64)
        tt_k_tree_d<<<blocks_for(job->n), TT_K_THREADS, 0, stream>>>(args);
    else if (is_float(job->type))
        tt_k_tree<<<blocks_for(job->n), TT_K_THREADS, 0, stream>>>(args);
    else
        return no_kernel("tree sum", job->type);
    return launched("tree sum");
}

static tt_k_entropy_args entropy_args(const tt_cuda_entropy_job *job)
{
    return {job->logits, job->targets, job->max,   job->sums,
            job->loss,   job->rows,    job->count, job->first};
}

static unsigned row_blocks(size_t rows)
{
    return blocks_for(rows * TT_K_WARP);
}

tutti_status tt_cuda_entropy_max(const tt_cuda_entropy_job *job, tt_cuda_stream_t stream)
{
    tt_k_entropy_max<<<row_blocks(job->rows), TT_K_THREADS, 0, stream>>>(entropy_args(job));
    return launched("a cross entropy's maxima");
}

tutti_status tt_cuda_entropy_sums(const tt_cuda_entropy_job *job, tt_cuda_stream_t stream)
{
    tt_k_entropy_sums<<<row_blocks(job->rows), TT_K_THREADS, 0, stream>>>(entropy_args(job));
    return launched("a cross entropy's sums");
}

tutti_status tt_cuda_entropy_end(const tt_cuda_entropy_job *job, tt_cuda_stream_t stream)
{
    tt_k_entropy_end<<<row_blocks(job->rows), TT_K_THREADS, 0, stream>>>(entropy_args(job));
    return launched("a cross entropy's losses");
}

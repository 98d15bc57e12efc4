/* SPDX-License-Identifier: Apache-2.0 */
/* The cases' kernels and their launches. */
#include "kernels.h"
#include "kernels_body.h"

namespace cases
{
__global__ void scale(float *x, float factor, size_t n)
{
    scale_body(x, factor, n);
}
} // namespace cases

extern "C" __global__ void sum(float *out, const float *in, size_t n)
{
    sum_body(out, in, n);
}

__global__ void poke(float *x, size_t at)
{
    poke_body(x, at);
}

__global__ void diverge(float *x)
{
    diverge_body(x);
}

__global__ void unregistered(float *x)
{
    *x = 1;
}

void launch_scale(float *x, float factor, size_t n, unsigned blocks, cudaStream_t stream)
{
    cases::scale<<<blocks, CASE_THREADS, 0, stream>>>(x, factor, n);
}

void launch_sum(float *out, const float *in, size_t n, cudaStream_t stream)
{
    sum<<<1, CASE_THREADS, 0, stream>>>(out, in, n);
}

void launch_poke(float *x, size_t at, cudaStream_t stream)
{
    poke<<<1, 1, 0, stream>>>(x, at);
}

void launch_diverge(float *x, cudaStream_t stream)
{
    diverge<<<1, CASE_THREADS, 0, stream>>>(x);
}

void launch_unregistered(float *x, cudaStream_t stream)
{
    unregistered<<<1, 1, 0, stream>>>(x);
}

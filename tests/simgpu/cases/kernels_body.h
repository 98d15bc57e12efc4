/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of the cases' kernels, for nvcc and gcc (see device_code.h). */
#ifndef SIMGPU_CASES_KERNELS_BODY_H
#define SIMGPU_CASES_KERNELS_BODY_H

#ifndef __CUDACC__
#include "../device_code.h"
#endif
#include <stddef.h>

enum { CASE_THREADS = 96 };

static __device__ inline void scale_body(float *x, float factor, size_t n)
{
    size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        x[i] *= factor;
    }
}

/* One block; in warps by shuffles, across warps by shared memory. */
static __device__ inline void sum_body(float *out, const float *in, size_t n)
{
    __shared__ float warps[32];
    float sum = 0;
    for (size_t i = threadIdx.x; i < n; i += blockDim.x) {
        sum += in[i];
    }
    for (unsigned bit = 16; bit > 0; bit /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, bit);
    }
    if (threadIdx.x % 32 == 0) {
        warps[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        float total = 0;
        for (unsigned w = 0; w < blockDim.x / 32; w++) {
            total += warps[w];
        }
        *out = total;
    }
}

static __device__ inline void poke_body(float *x, size_t at)
{
    x[at] = 1;
}

static __device__ inline void diverge_body(float *x)
{
    if (threadIdx.x < 32) {
        __syncthreads();
    }
    *x = 1;
}

#endif

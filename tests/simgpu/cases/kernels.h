/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIMGPU_CASES_KERNELS_H
#define SIMGPU_CASES_KERNELS_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

void launch_scale(float *x, float factor, size_t n, unsigned blocks, cudaStream_t stream);
void launch_sum(float *out, const float *in, size_t n, cudaStream_t stream); /* one block */
void launch_poke(float *x, size_t at, cudaStream_t stream); /* states x[0] alone */
void launch_diverge(float *x, cudaStream_t stream);
void launch_unregistered(float *x, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

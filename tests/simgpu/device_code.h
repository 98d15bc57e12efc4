/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What device code sees when gcc compiles it for the simulated GPUs. A header with kernel bodies
 * includes the CUDA headers under nvcc and this one otherwise:
 *
 *     #ifdef __CUDACC__
 *     #include <cuda_bf16.h>
 *     #else
 *     #include "device_code.h"
 *     #endif
 *
 * A kernel body is a `static __device__ inline` function that takes the kernel's arguments; the .cu
 * wraps it in a `__global__`, the plug-in wraps it in a function that takes `void *const *args` and
 * registers that (engine.h, "kernels"). One block runs at a time, so a `__shared__` array is a
 * static one. Threads of kernels flagged SG_KERNEL_SYNCS are fibers, switched only in the calls
 * below; every live thread of the block (of the warp's mask) must reach the same one, or the
 * finding `divergent-sync` is made.
 *
 * 16-bit floats are the host's business: include your own conversions; here they are uint16_t.
 */
#ifndef SIMGPU_DEVICE_CODE_H
#define SIMGPU_DEVICE_CODE_H

#include "engine.h"

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline __attribute__((always_inline))
#define __restrict__ __restrict
#define __shared__ static
#define __launch_bounds__(...)

typedef struct sg_index3 {
    unsigned x, y, z;
} sg_index3;

typedef struct sg_thread_state {
    sg_index3 thread, block, block_dim, grid_dim;
} sg_thread_state;

/* Of the device thread that runs now on this host thread. */
SG_API extern __thread sg_thread_state sg_thread;

#define threadIdx (sg_thread.thread)
#define blockIdx (sg_thread.block)
#define blockDim (sg_thread.block_dim)
#define gridDim (sg_thread.grid_dim)
#define warpSize 32

#ifdef __cplusplus
extern "C" {
#endif

SG_API void sg_syncthreads(void);
SG_API void sg_syncwarp(unsigned mask);
/* lane: absolute within the warp; returns the 8 bytes that this lane gave. */
SG_API uint64_t sg_shuffle(unsigned mask, uint64_t bits, unsigned lane);
SG_API unsigned sg_ballot(unsigned mask, bool predicate);
SG_API unsigned sg_lane(void);
SG_API void *sg_dynamic_shared(void); /* `extern __shared__` */

#ifdef __cplusplus
}
#endif

#define __syncthreads() sg_syncthreads()
#define __syncwarp(...) sg_syncwarp(0xffffffffu)
#define __ballot_sync(mask, p) sg_ballot((mask), (p))
#define __any_sync(mask, p) (sg_ballot((mask), (p)) != 0)
#define __all_sync(mask, p) (sg_ballot((mask), !(p)) == 0)

/* The shuffles for any type of at most 8 bytes. */
#define SG_SHUFFLE(mask, value, lane)                                                              \
    __extension__({                                                                                \
        __typeof__(value) sg_in = (value);                                                         \
        uint64_t sg_bits = 0;                                                                      \
        __builtin_memcpy(&sg_bits, &sg_in, sizeof(sg_in));                                         \
        sg_bits = sg_shuffle((mask), sg_bits, (lane));                                             \
        __builtin_memcpy(&sg_in, &sg_bits, sizeof(sg_in));                                         \
        sg_in;                                                                                     \
    })
#define __shfl_sync(mask, v, lane) SG_SHUFFLE(mask, v, (unsigned)(lane)&31u)
#define __shfl_xor_sync(mask, v, bits) SG_SHUFFLE(mask, v, sg_lane() ^ (unsigned)(bits))
#define __shfl_down_sync(mask, v, by)                                                              \
    SG_SHUFFLE(mask, v, sg_lane() + (unsigned)(by) < 32u ? sg_lane() + (unsigned)(by) : sg_lane())
#define __shfl_up_sync(mask, v, by)                                                                \
    SG_SHUFFLE(mask, v, sg_lane() >= (unsigned)(by) ? sg_lane() - (unsigned)(by) : sg_lane())

/* One block at a time and fibers that do not pre-empt: plain updates are atomic. */
#define atomicAdd(p, v)                                                                            \
    __extension__({                                                                                \
        __typeof__(*(p)) sg_old = *(p);                                                            \
        *(p) = sg_old + (v);                                                                       \
        sg_old;                                                                                    \
    })
#define atomicOr(p, v)                                                                             \
    __extension__({                                                                                \
        __typeof__(*(p)) sg_old = *(p);                                                            \
        *(p) = sg_old | (v);                                                                       \
        sg_old;                                                                                    \
    })
#define atomicMax(p, v)                                                                            \
    __extension__({                                                                                \
        __typeof__(*(p)) sg_old = *(p);                                                            \
        if ((v) > sg_old)                                                                          \
            *(p) = (v);                                                                            \
        sg_old;                                                                                    \
    })
#define atomicExch(p, v)                                                                           \
    __extension__({                                                                                \
        __typeof__(*(p)) sg_old = *(p);                                                            \
        *(p) = (v);                                                                                \
        sg_old;                                                                                    \
    })
#define __threadfence() ((void)0)
#define __ldg(p) (*(p))

#endif

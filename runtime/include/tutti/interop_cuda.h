/* SPDX-License-Identifier: Apache-2.0 */
/* Header-only bridge between the program's cudaStream_t and tutti's streams. Nothing in the library
 * includes this. */
#ifndef TUTTI_INTEROP_CUDA_H
#define TUTTI_INTEROP_CUDA_H

#include <cuda_runtime_api.h>

#include "tutti/stream.h"

/* The program's own stream, for any call that takes one. It stays the program's: tutti never
 * destroys it. NULL is the default stream of the thread's current device. */
static inline tutti_stream tutti_stream_cuda(cudaStream_t stream)
{
    tutti_stream s;
    s.handle = (void *)stream;
    s.kind = TUTTI_STREAM_CUDA;
    return s;
}

/* What tutti_stream_create gave on the CUDA backend, for kernels and CUDA calls of the program. */
static inline cudaStream_t tutti_stream_to_cuda(tutti_stream stream)
{
    return (cudaStream_t)stream.handle;
}

#endif

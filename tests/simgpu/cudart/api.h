/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the libcudart stand-in share. */
#ifndef SIMGPU_CUDART_API_H
#define SIMGPU_CUDART_API_H

#include <cuda_runtime_api.h>

#include "../engine.h"

/* This thread's last error is set; the argument comes back. */
cudaError_t rt_done(cudaError_t error);
/* True: the call returns *out at once. `device`: the current device's lasting error ends it too. */
bool rt_stop(cudaError_t *out, sg_verdict verdict, int error, bool device);
/* NULL: rt_done was called with what to return in *error_out. */
sg_stream *rt_stream(cudaStream_t stream, const char *call, cudaError_t *error_out);

/* A pointer for the log; nothing is looked up while nothing is logged. */
static inline const char *log_pointer(const void *ptr, char *buf, size_t cap)
{
    return sg_logging() ? sg_name_pointer(ptr, buf, cap) : "";
}

/* The start of a call: ENTER("format", arguments). */
#define ENTER_AS(device, ...)                                                                      \
    do {                                                                                           \
        int rt_error = -1;                                                                         \
        cudaError_t rt_out;                                                                        \
        sg_verdict rt_verdict = sg_call(&rt_error, __func__, __VA_ARGS__);                         \
        if (rt_stop(&rt_out, rt_verdict, rt_error, device)) {                                      \
            return rt_out;                                                                         \
        }                                                                                          \
    } while (0)
#define ENTER(...) ENTER_AS(true, __VA_ARGS__)
/* For calls that CUDA lets through on a broken device: queries of properties. */
#define ENTER_ALWAYS(...) ENTER_AS(false, __VA_ARGS__)
/* For calls on the hot path. */
#define ENTER_HOT(...)                                                                             \
    do {                                                                                           \
        if (sg_noop) {                                                                             \
            return cudaSuccess;                                                                    \
        }                                                                                          \
        ENTER_AS(true, __VA_ARGS__);                                                               \
    } while (0)
/* A call that may not be made while something is captured. */
#define NOT_WHILE_CAPTURING(stream)                                                                \
    do {                                                                                           \
        int rt_forbidden = sg_capture_forbids((stream), __func__);                                 \
        if (rt_forbidden != SG_OK) {                                                               \
            return rt_done((cudaError_t)rt_forbidden);                                             \
        }                                                                                          \
    } while (0)
#define CALLER __builtin_return_address(0)

#endif

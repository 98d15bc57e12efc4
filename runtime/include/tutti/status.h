/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Status codes, the last error's text, element types and reduction operators.
 *
 * Every fallible call returns a tutti_status. Outputs are written only on success. Codes are
 * grouped by what is lost: -1..-19 the call had no effect and everything is still usable; -20..-39
 * the communicator (and with it the context) is failed on all its ranks; -40 and below the process
 * should end.
 */
#ifndef TUTTI_STATUS_H
#define TUTTI_STATUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TUTTI_API __attribute__((visibility("default")))
#define TUTTI_NODISCARD __attribute__((warn_unused_result))
#define TUTTI_NORETURN __attribute__((noreturn))
#else
#error "tutti needs GCC or Clang"
#endif

typedef enum tutti_status {
    TUTTI_OK = 0,
    TUTTI_IN_PROGRESS = 1,
    /* the call had no effect */
    TUTTI_ERR_ARG = -1, /* an argument is wrong */
    TUTTI_ERR_NOT_FOUND = -2, /* no such thing; for a checkpoint: start afresh */
    TUTTI_ERR_CORRUPT = -3, /* data on disk is not what was written */
    TUTTI_ERR_UNSUPPORTED = -4, /* not in this build, on this machine or in this mode */
    TUTTI_ERR_STATE = -5, /* called out of order */
    TUTTI_ERR_NO_MEMORY = -6, /* host, device or shared memory is too small */
    TUTTI_ERR_IO = -7, /* the operating system refused a read or a write */
    TUTTI_ERR_NO_SPACE = -8, /* the file system is full */
    TUTTI_ERR_SHAPE = -9, /* shape or type differs from what is stored */
    /* the communicator is failed on all its ranks */
    TUTTI_ERR_TIMEOUT = -20, /* a rank did not arrive before the deadline; the text names it */
    TUTTI_ERR_MISMATCH = -21, /* ranks called with different arguments or in a different order */
    TUTTI_ERR_MISSING = -22, /* gradients were not made ready before wait */
    /* the process should end */
    TUTTI_ERR_REMOTE = -40, /* another rank failed; the text says which and why */
    TUTTI_ERR_DEVICE = -41, /* the device failed */
    TUTTI_ERR_MPI = -42, /* MPI failed */
    TUTTI_ERR_INTERNAL = -43 /* a defect of tutti: please report it */
} tutti_status;

/* Element types. 0 means unset. Sizes in bytes: tutti_dtype_size(). 16-bit types travel as 16 bits
 * and are summed in fp32. 8-bit floats (OCP 8-bit Floating Point Specification 1.0: E4M3 has one
 * NaN of each sign and no infinity) are kept in checkpoints; no collective takes them. */
typedef enum tutti_dtype {
    TUTTI_FLOAT32 = 1,
    TUTTI_BFLOAT16 = 2,
    TUTTI_UINT8 = 3,
    TUTTI_INT64 = 4,
    TUTTI_FLOAT64 = 5,
    TUTTI_FLOAT16 = 6,
    TUTTI_INT8 = 7,
    TUTTI_INT32 = 8,
    TUTTI_UINT32 = 9,
    TUTTI_UINT64 = 10,
    TUTTI_FLOAT8_E4M3 = 11,
    TUTTI_FLOAT8_E5M2 = 12
} tutti_dtype;

/*
 * Reduction operators. AVG is the sum, then one multiplication by 1/n (floating point) or one
 * division by n that truncates toward zero (integers). Integer sums and products wrap. MIN and MAX
 * return NaN if any operand is NaN on the host backend and in tutti_all_reduce_host. On CUDA they
 * are NCCL's, whose kernels leave NaN out (fminf, fmaxf; src/device/reduce_kernel.h): NaN only if
 * every operand is. A program that looks for NaN takes tutti_reducer_grad_norm, or a sum.
 */
typedef enum tutti_op {
    TUTTI_SUM = 1,
    TUTTI_AVG = 2,
    TUTTI_MAX = 3,
    TUTTI_MIN = 4,
    TUTTI_PROD = 5
} tutti_op;

/*
 * The text of this thread's last failed call: who, what, where. Never NULL; "" when no call has
 * failed yet. The pointer is valid until this thread's next failing call.
 * Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API const char *tutti_last_error(void);

/*
 * The name of a status, such as "TUTTI_ERR_ARG"; "unknown status" for a value that is none. Never
 * NULL.
 * Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API const char *tutti_status_name(tutti_status status);

/*
 * Bytes of one element; 0 for a value that is no dtype.
 * Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API size_t tutti_dtype_size(tutti_dtype dtype);

/*
 * The short name of a dtype, such as "f32" or "bf16"; "?" for a value that is none. Never NULL.
 * Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API const char *tutti_dtype_name(tutti_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif

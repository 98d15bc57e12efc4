/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams: ordered queues of work. They go by value and say their kind. {0} is the inline stream:
 * on the host backend the call is carried out before it returns, in the caller's thread; on the
 * CUDA backend it is an argument error.
 */
#ifndef TUTTI_STREAM_H
#define TUTTI_STREAM_H

#include "tutti/context.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tutti_stream {
    void *handle;
    uint32_t kind;
} tutti_stream;
enum { TUTTI_STREAM_INLINE = 0, TUTTI_STREAM_HOST = 1, TUTTI_STREAM_CUDA = 2 };

/* Work for tutti_stream_call: runs on the stream's worker thread, exactly once, also when work
 * before it has failed; must not make collective calls on that same stream. */
typedef void (*tutti_stream_fn)(void *arg);

/*
 * A stream of the context's backend: a worker thread on the host, a cudaStream_t on CUDA. `name`
 * appears in traces and messages (may be NULL). priority: 0 normal, negative more urgent, as CUDA
 * counts. Destroyed by tutti_stream_destroy or at tutti_finalize. Errors: ARG, NO_MEMORY, DEVICE.
 * Collective: no. Blocks: no. Stream: new. Threads: any. Graph-capture: refused. After a failure:
 * allowed.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_stream_create(tutti_ctx *ctx, const char *name,
                                                           int priority, tutti_stream *stream_out);

/*
 * Finishes the stream's work, then destroys it. The inline stream is ignored.
 * Collective: no. Blocks: host. Stream: drained. Threads: any but the stream's own. Graph-capture:
 * refused. After a failure: allowed.
 */
TUTTI_API void tutti_stream_destroy(tutti_ctx *ctx, tutti_stream stream);

/*
 * Work given to `stream` from now on starts after the work given to `until` before now. The inline
 * stream as `stream` blocks the caller; as `until` it does nothing. Errors: ARG, DEVICE.
 * Collective: no. Blocks: host only when `stream` is inline. Stream: orders. Threads: any.
 * Graph-capture: allowed. After a failure: allowed.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_stream_wait(tutti_ctx *ctx, tutti_stream stream,
                                                         tutti_stream until);

/*
 * Waits until the work given to the stream is done. Bounded: a failed communicator ends it. Errors:
 * those of the work on the stream, sticky in the context; DEVICE.
 * Collective: no. Blocks: host. Stream: drained. Threads: any but the stream's own. Graph-capture:
 * refused. After a failure: returns it.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_stream_sync(tutti_ctx *ctx, tutti_stream stream);

/*
 * Runs fn(arg) in stream order: on a host stream in its worker thread, on the inline stream at
 * once. Errors: ARG, NO_MEMORY, UNSUPPORTED (CUDA).
 * Collective: no. Blocks: no (inline: while fn runs). Stream: ordered. Threads: any. Graph-capture:
 * refused. After a failure: allowed.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_stream_call(tutti_ctx *ctx, tutti_stream stream,
                                                         tutti_stream_fn fn, void *arg);

#ifdef __cplusplus
}
#endif
#endif

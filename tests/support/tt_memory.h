/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers where the context's backend wants them, so that one suite runs on the host and on GPUs:
 * a body fills host memory, puts it, calls, gets it back and looks. With the host backend the
 * functions are malloc and memcpy.
 */
#ifndef TT_MEMORY_H
#define TT_MEMORY_H

#include "tt_test.h"

bool tt_on_gpu(tutti_ctx *ctx);
/* Memory that no communicator knows (registered memory is tutti_alloc's). NULL: none. */
void *tt_plain_alloc(tutti_ctx *ctx, size_t bytes);
void tt_plain_free(tutti_ctx *ctx, void *ptr);
/* Between host memory and the backend's, done on return. Work that uses it must have been waited
 * for. */
tutti_status tt_put(tutti_ctx *ctx, void *to, const void *host, size_t bytes);
tutti_status tt_get(tutti_ctx *ctx, void *host, const void *from, size_t bytes);
/* Host memory for copies and for host functions of streams: page-locked where there are GPUs. */
void *tt_staging_alloc(tutti_ctx *ctx, size_t bytes);
void tt_staging_free(tutti_ctx *ctx, void *ptr);
/* In stream order. */
tutti_status tt_copy(tutti_ctx *ctx, void *to, const void *from, size_t bytes, tutti_stream stream);
/* A host function in stream order; on GPUs it may make no call of CUDA. */
tutti_status tt_call_host(tutti_ctx *ctx, tutti_stream stream, tutti_stream_fn fn, void *arg);
/* The inline stream where the backend has one, else a stream; tutti_stream_destroy takes both. */
tutti_status tt_first_stream(tutti_ctx *ctx, tutti_stream *out);

#endif

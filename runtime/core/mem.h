/* SPDX-License-Identifier: Apache-2.0 */
/* Checked sizes, allocation and growing byte buffers. */
#ifndef TT_CORE_MEM_H
#define TT_CORE_MEM_H

#include <stddef.h>

#include "core/status.h"

/* n * size, zero filled; NO_MEMORY with the size in the text. n or size 0 gives a pointer that can
 * be freed. */
tutti_status tt_calloc(size_t n, size_t size, void *ptr_out);
tutti_status tt_strdup(const char *text, char **copy_out);

/* *array_out holds `cap` elements of `size`; makes room for `need`. */
tutti_status tt_grow(void *array_inout, size_t *cap_inout, size_t need, size_t size);

static inline size_t tt_round_up(size_t value, size_t to)
{
    return (value + to - 1) / to * to;
}
static inline size_t tt_min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* A growing byte buffer for messages: append fixed-size values and blobs, read them back with
 * bounds checked. */
typedef struct tt_buf {
    unsigned char *data;
    size_t size, cap;
    size_t at; /* read position */
    bool failed; /* an append ran out of memory or a read out of data; sticky */
} tt_buf;
void tt_buf_free(tt_buf *buf);
void tt_buf_put(tt_buf *buf, const void *data, size_t bytes);
void tt_buf_put_u32(tt_buf *buf, uint32_t value);
void tt_buf_put_u64(tt_buf *buf, uint64_t value);
void tt_buf_put_str(tt_buf *buf, const char *text); /* length and bytes */
void tt_buf_get(tt_buf *buf, void *data, size_t bytes);
uint32_t tt_buf_get_u32(tt_buf *buf);
uint64_t tt_buf_get_u64(tt_buf *buf);
const char *tt_buf_get_str(tt_buf *buf); /* borrowed, zero terminated; "" after a failure */
/* A reader over memory that is not owned (do not free). */
static inline tt_buf tt_buf_view(const void *data, size_t bytes)
{
    tt_buf buf = {(unsigned char *)(size_t)data, bytes, 0, 0, false};
    return buf;
}

#endif

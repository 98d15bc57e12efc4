/* SPDX-License-Identifier: Apache-2.0 */
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

/* Pointers leave through memcpy: `ptr_out` is the address of a pointer of any type, and storing
 * through void ** would break the aliasing rules. */
tutti_status tt_calloc(size_t n, size_t size, void *ptr_out)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes))
        return tt_fail(TUTTI_ERR_NO_MEMORY, "out of memory: %zu elements of %zu bytes", n, size);
    void *ptr = calloc(1, bytes > 0 ? bytes : 1);
    if (ptr == NULL)
        return tt_fail(TUTTI_ERR_NO_MEMORY, "out of memory: %zu bytes", bytes);
    memcpy(ptr_out, &ptr, sizeof ptr);
    return TUTTI_OK;
}

tutti_status tt_strdup(const char *text, char **copy_out)
{
    char *copy = strdup(text);
    if (copy == NULL)
        return tt_fail(TUTTI_ERR_NO_MEMORY, "out of memory: %zu bytes", strlen(text) + 1);
    *copy_out = copy;
    return TUTTI_OK;
}

tutti_status tt_grow(void *array_inout, size_t *cap_inout, size_t need, size_t size)
{
    size_t cap = *cap_inout, bytes;
    void *array;
    if (need <= cap)
        return TUTTI_OK;
    cap = cap > SIZE_MAX / 2 || cap * 2 < need ? need : cap * 2;
    if (cap < 8)
        cap = 8;
    memcpy(&array, array_inout, sizeof array);
    void *grown = __builtin_mul_overflow(cap, size, &bytes) ? NULL : realloc(array, bytes);
    if (grown == NULL)
        return tt_fail(TUTTI_ERR_NO_MEMORY, "out of memory: %zu elements of %zu bytes", cap, size);
    memcpy(array_inout, &grown, sizeof grown);
    *cap_inout = cap;
    return TUTTI_OK;
}

void tt_buf_free(tt_buf *buf)
{
    free(buf->data);
    *buf = (tt_buf){0};
}

void tt_buf_put(tt_buf *buf, const void *data, size_t bytes)
{
    if (buf->failed || bytes == 0)
        return;
    if (bytes > SIZE_MAX - buf->size ||
        tt_grow(&buf->data, &buf->cap, buf->size + bytes, 1) != TUTTI_OK) {
        buf->failed = true;
        return;
    }
    memcpy(buf->data + buf->size, data, bytes);
    buf->size += bytes;
}

void tt_buf_put_u32(tt_buf *buf, uint32_t value)
{
    tt_buf_put(buf, &value, sizeof value);
}

void tt_buf_put_u64(tt_buf *buf, uint64_t value)
{
    tt_buf_put(buf, &value, sizeof value);
}

void tt_buf_put_str(tt_buf *buf, const char *text)
{
    size_t bytes = strlen(text) + 1;
    if (bytes > UINT32_MAX) {
        buf->failed = true;
        return;
    }
    tt_buf_put_u32(buf, (uint32_t)bytes);
    tt_buf_put(buf, text, bytes);
}

void tt_buf_get(tt_buf *buf, void *data, size_t bytes)
{
    if (buf->failed || bytes > buf->size - buf->at) {
        buf->failed = true;
        memset(data, 0, bytes);
        return;
    }
    if (bytes > 0)
        memcpy(data, buf->data + buf->at, bytes);
    buf->at += bytes;
}

uint32_t tt_buf_get_u32(tt_buf *buf)
{
    uint32_t value;
    tt_buf_get(buf, &value, sizeof value);
    return value;
}

uint64_t tt_buf_get_u64(tt_buf *buf)
{
    uint64_t value;
    tt_buf_get(buf, &value, sizeof value);
    return value;
}

const char *tt_buf_get_str(tt_buf *buf)
{
    uint32_t bytes = tt_buf_get_u32(buf);
    if (buf->failed || bytes == 0 || bytes > buf->size - buf->at ||
        buf->data[buf->at + bytes - 1] != '\0') {
        buf->failed = true;
        return "";
    }
    const char *text = (const char *)buf->data + buf->at;
    buf->at += bytes;
    return text;
}

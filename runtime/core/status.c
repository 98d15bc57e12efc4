/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Failures and names.
 *
 * An error is a status and one text, kept by the thread whose call failed: a call can then be made
 * from any thread without a lock, and what it says is there until that thread's next failure. Texts
 * have a fixed size, so that running out of memory can be told too; a longer one is cut. The dtypes
 * are one table: what has no row is no dtype.
 */
#include "core/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "tutti/version.h"

static _Thread_local char last_error[TT_ERROR_TEXT_MAX];

const char *tutti_last_error(void)
{
    return last_error;
}

/* Texts are built aside: an argument may be the last error itself. */
static void record(const char *text)
{
    if (text != last_error)
        snprintf(last_error, sizeof last_error, "%s", text);
}

/* Names in parentheses: for the analyzer these two are macros as well (status.h). */
tutti_status(tt_fail)(tutti_status status, const char *fmt, ...)
{
    int saved = errno;
    char text[TT_ERROR_TEXT_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    record(text);
    errno = saved;
    return status;
}

tutti_status(tt_fail_errno)(tutti_status status, int err, const char *fmt, ...)
{
    int saved = errno;
    char text[TT_ERROR_TEXT_MAX];
    va_list args;
    va_start(args, fmt);
    int used = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (used >= 0 && (size_t)used < sizeof text)
        snprintf(text + used, sizeof text - (size_t)used, ": %s",
                 strerrordesc_np(err) != NULL ? strerrordesc_np(err) : "unknown error");
    record(text);
    errno = saved;
    if (status == TUTTI_ERR_IO && (err == ENOSPC || err == EDQUOT))
        return TUTTI_ERR_NO_SPACE;
    if (status == TUTTI_ERR_IO && err == ENOMEM)
        return TUTTI_ERR_NO_MEMORY;
    return status;
}

tutti_status tt_fail_more(tutti_status status, const char *fmt, ...)
{
    int saved = errno;
    char text[TT_ERROR_TEXT_MAX];
    va_list args;
    va_start(args, fmt);
    int used = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (used >= 0 && (size_t)used < sizeof text)
        snprintf(text + used, sizeof text - (size_t)used, ": %s", last_error);
    record(text);
    errno = saved;
    return status;
}

tutti_status tt_fail_text(tutti_status status, const char *text)
{
    record(text);
    return status;
}

void tt_assert_failed(const char *file, int line, const char *cond, const char *fmt, ...)
{
    char values[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(values, sizeof values, fmt, args);
    va_end(args);
    tt_log_error(TT_CORE, "%s:%d: broken invariant: %s %s", file, line, cond, values);
    abort();
}

const char *tutti_status_name(tutti_status status)
{
    switch (status) {
#define NAME(status)                                                                               \
    case status:                                                                                   \
        return #status
        NAME(TUTTI_OK);
        NAME(TUTTI_IN_PROGRESS);
        NAME(TUTTI_ERR_ARG);
        NAME(TUTTI_ERR_NOT_FOUND);
        NAME(TUTTI_ERR_CORRUPT);
        NAME(TUTTI_ERR_UNSUPPORTED);
        NAME(TUTTI_ERR_STATE);
        NAME(TUTTI_ERR_NO_MEMORY);
        NAME(TUTTI_ERR_IO);
        NAME(TUTTI_ERR_NO_SPACE);
        NAME(TUTTI_ERR_SHAPE);
        NAME(TUTTI_ERR_TIMEOUT);
        NAME(TUTTI_ERR_MISMATCH);
        NAME(TUTTI_ERR_MISSING);
        NAME(TUTTI_ERR_REMOTE);
        NAME(TUTTI_ERR_DEVICE);
        NAME(TUTTI_ERR_MPI);
        NAME(TUTTI_ERR_INTERNAL);
#undef NAME
    }
    return "unknown status";
}

static const struct {
    const char *name;
    size_t size;
} dtypes[] = {
    [TUTTI_FLOAT32] = {"f32", 4},
    [TUTTI_BFLOAT16] = {"bf16", 2},
    [TUTTI_UINT8] = {"u8", 1},
    [TUTTI_INT64] = {"i64", 8},
    [TUTTI_FLOAT64] = {"f64", 8},
    [TUTTI_FLOAT16] = {"f16", 2},
    [TUTTI_INT8] = {"i8", 1},
    [TUTTI_INT32] = {"i32", 4},
    [TUTTI_UINT32] = {"u32", 4},
    [TUTTI_UINT64] = {"u64", 8},
    [TUTTI_FLOAT8_E4M3] = {"f8_e4m3", 1},
    [TUTTI_FLOAT8_E5M2] = {"f8_e5m2", 1},
};

static bool is_dtype(tutti_dtype dtype)
{
    return (int)dtype > 0 && (size_t)dtype < sizeof dtypes / sizeof dtypes[0];
}

size_t tutti_dtype_size(tutti_dtype dtype)
{
    return is_dtype(dtype) ? dtypes[dtype].size : 0;
}

const char *tutti_dtype_name(tutti_dtype dtype)
{
    return is_dtype(dtype) ? dtypes[dtype].name : "?";
}

tutti_status tt_dtype_check(tutti_dtype dtype, const char *who, const char *comm)
{
    const char *on = comm == NULL ? "" : " on comm ";
    comm = comm == NULL ? "" : comm;
    if (!is_dtype(dtype))
        return tt_fail(TUTTI_ERR_ARG, "%s%s%s: %d is no dtype", who, on, comm, (int)dtype);
    if (dtype == TUTTI_FLOAT8_E4M3 || dtype == TUTTI_FLOAT8_E5M2)
        return tt_fail(TUTTI_ERR_ARG,
                       "%s%s%s: %s is for checkpoints only; send its bytes as TUTTI_UINT8, reduce "
                       "values as TUTTI_BFLOAT16 or TUTTI_FLOAT32",
                       who, on, comm, tutti_dtype_name(dtype));
    return TUTTI_OK;
}

const char *tutti_version(void)
{
    return TUTTI_VERSION_STRING;
}

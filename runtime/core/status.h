/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recording and passing on failures. Whoever decides that something is an error calls tt_fail once,
 * with the whole story; callers above return the status and do not log again (tt_fail_more may put
 * the context of the caller in front).
 */
#ifndef TT_CORE_STATUS_H
#define TT_CORE_STATUS_H

#include "tutti/status.h"

#define TT_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define TT_ERROR_TEXT_MAX 2048 /* bytes kept of an error's text, with the terminating zero */

/* Records the text as this thread's last error and returns `status`. Keeps errno. */
tutti_status tt_fail(tutti_status status, const char *fmt, ...) TT_PRINTF(2, 3);

/* As tt_fail, with ": " and strerror(err) behind the text; ENOSPC and EDQUOT turn IO into NO_SPACE,
 * ENOMEM into NO_MEMORY. */
tutti_status tt_fail_errno(tutti_status status, int err, const char *fmt, ...) TT_PRINTF(3, 4);

/* Puts "text: " in front of this thread's last error; returns `status`. */
tutti_status tt_fail_more(tutti_status status, const char *fmt, ...) TT_PRINTF(2, 3);

/* Replaces this thread's last error by `text` unchanged (an error that came from another thread or
 * rank); returns `status`. */
tutti_status tt_fail_text(tutti_status status, const char *text);

/* ARG unless it is a type that is sent and computed with: an 8-bit float is only stored. comm: NULL
 * where there is none to name. */
tutti_status tt_dtype_check(tutti_dtype dtype, const char *who, const char *comm);

#ifdef __clang_analyzer__
/* The analyzer does not see into status.c: these return what they are given, never TUTTI_OK. */
#define tt_fail(status, ...) ((void)tt_fail(status, __VA_ARGS__), (status))
#define tt_fail_errno(status, ...) ((void)tt_fail_errno(status, __VA_ARGS__), (status))
#endif

/* Legal only while nothing is held. */
#define TT_TRY(expr)                                                                               \
    do {                                                                                           \
        tutti_status tt_try_status = (expr);                                                       \
        if (tt_try_status != TUTTI_OK)                                                             \
            return tt_try_status;                                                                  \
    } while (0)

/* An invariant of ours: prints rank-independent text and the values, then aborts. */
#define TT_ASSERT(cond, ...)                                                                       \
    do {                                                                                           \
        if (__builtin_expect(!(cond), 0))                                                          \
            tt_assert_failed(__FILE__, __LINE__, #cond, "" __VA_ARGS__);                           \
    } while (0)
__attribute__((noreturn)) void tt_assert_failed(const char *file, int line, const char *cond,
                                                const char *fmt, ...) TT_PRINTF(4, 5);

#endif

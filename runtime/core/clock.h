/* SPDX-License-Identifier: Apache-2.0 */
/* Monotonic time and deadlines. */
#ifndef TT_CORE_CLOCK_H
#define TT_CORE_CLOCK_H

#include <stdint.h>

#define TT_NEVER INT64_MAX

int64_t tt_now_ns(void); /* CLOCK_MONOTONIC */

/* A point in time `seconds` from now; TT_NEVER for 0 or less. */
int64_t tt_deadline(double seconds);
/* The same, but now for 0 or less: the end of a wait that may be none. */
int64_t tt_end_of(double seconds);

void tt_sleep_ns(int64_t ns);

/* A counter that runs evenly and costs next to nothing to read, in units of its own; never 0. */
static inline uint64_t tt_ticks(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc() | 1;
#elif defined(__aarch64__)
    uint64_t ticks;
    __asm__ __volatile__("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks | 1;
#else
    return (uint64_t)tt_now_ns() | 1;
#endif
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Monotonic time and deadlines. */
#ifndef TT_CORE_CLOCK_H
#define TT_CORE_CLOCK_H

#include <stdint.h>

#define TT_NEVER INT64_MAX

int64_t tt_now_ns(void); /* CLOCK_MONOTONIC */

/* A point in time `seconds` from now; TT_NEVER for 0 or less. */
int64_t tt_deadline(double seconds);

void tt_sleep_ns(int64_t ns);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "core/clock.h"

#include <errno.h>
#include <time.h>

#define NS 1000000000

int64_t tt_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * NS + now.tv_nsec;
}

int64_t tt_deadline(double seconds)
{
    if (!(seconds > 0) || seconds > 1e9)
        return TT_NEVER;
    return tt_now_ns() + (int64_t)(seconds * NS);
}

int64_t tt_end_of(double seconds)
{
    return seconds > 0 ? tt_deadline(seconds) : tt_now_ns();
}

void tt_sleep_ns(int64_t ns)
{
    struct timespec left = {ns / NS, ns % NS};
    if (ns <= 0)
        return;
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR)
        ;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What computes in a made-up step.
 *
 * A core does an amount of arithmetic within its first-level cache, not for an amount of time: a
 * core that communication takes away shows. A device takes the time that it takes whatever the
 * core does, one piece after the other; the core sleeps meanwhile.
 */
#include <math.h>
#include <time.h>

#include "core/clock.h"
#include "synthetic.h"

static volatile float sink;

static void work(double rounds)
{
    static float a[1024];

    for (double r = 0; r < rounds; r += 1) {
        for (int i = 0; i < 1024; i++)
            a[i] = a[i] * 0.999F + 0.001F;
        sink = a[0];
    }
}

static double cpu_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

tutti_status synth_engine_make(tutti_comm *comm, const synth_options *o, synth_engine *out)
{
    double rounds = 1000, best = 1e9;

    *out = (synth_engine){0};
    if (o->device)
        return TUTTI_OK;
    for (int tries = 0; tries < 8; tries++) {
        double from = cpu_seconds(), took;

        work(rounds);
        took = cpu_seconds() - from;
        if (took < 0.02)
            rounds *= 0.025 / fmax(took, 1e-6);
        else
            best = fmin(best, took / rounds);
    }
    out->rounds = 1 / best;
    return tutti_all_reduce_host(comm, &out->rounds, 1, TUTTI_MIN);
}

void synth_engine_rest(synth_engine *e)
{
    e->busy_until_ns = tt_now_ns();
}

void synth_compute(synth_engine *e, double seconds)
{
    struct timespec until;

    if (e->rounds > 0) {
        work(e->rounds * seconds);
        return;
    }
    e->busy_until_ns += (int64_t)(seconds * 1e9);
    until.tv_sec = (time_t)(e->busy_until_ns / 1000000000);
    until.tv_nsec = (long)(e->busy_until_ns % 1000000000);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0)
        continue;
}

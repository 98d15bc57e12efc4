/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small call whose peers are there already reads no clock and takes no lock. That the peer is
 * there cannot be seen from outside, so rank 1 gives it time, more with every try, and one try
 * without either is enough: a call that always needs one never has such a try.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "tt_test.h"

enum { TRIES = 60, N_MOST = 256 };

static _Thread_local int clocks, locks;
int __real_clock_gettime(clockid_t id, struct timespec *out);
int __wrap_clock_gettime(clockid_t id, struct timespec *out);
int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);

int __wrap_clock_gettime(clockid_t id, struct timespec *out)
{
    clocks++;
    return __real_clock_gettime(id, out);
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    locks++;
    return __real_pthread_mutex_lock(mutex);
}

typedef struct shared {
    _Atomic int round; /* that rank 0 is about to call, or has called */
    _Atomic int right; /* sizes that went without */
} shared;

static const tutti_stream inline_stream;

static tutti_status sum(tt_rank *r, size_t n)
{
    static _Thread_local float data[N_MOST];
    return tutti_all_reduce(r->comm, data, data, n, TUTTI_FLOAT32, TUTTI_MAX, inline_stream);
}

static void call_last(tt_rank *r)
{
    static const size_t sizes[] = {2, 14, N_MOST};
    const int count = sizeof sizes / sizeof sizes[0];
    shared *s = r->arg;
    for (int i = 0; i < count * TRIES; i++) {
        const size_t n = sizes[i / TRIES];
        TT_EXPECT_OK(r, tutti_barrier(r->comm)); /* what was seen to be right is known to both */
        if (atomic_load(&s->right) > i / TRIES)
            continue;
        if (r->rank == 0) {
            atomic_store(&s->round, i + 1);
        } else {
            while (atomic_load(&s->round) <= i)
                usleep(100);
            usleep(100u + 300u * (unsigned)(i % TRIES));
        }
        clocks = locks = 0;
        TT_EXPECT_OK(r, sum(r, n));
        if (r->rank == 1 && clocks + locks == 0)
            atomic_store(&s->right, i / TRIES + 1);
        TT_EXPECT_OK(r, tutti_barrier(r->comm));
    }
}

static void no_clock_and_no_lock(void **state)
{
    shared s = {0};
    (void)state;
    if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
        skip();
    TT_ASSERT_RANKS(2, NULL, call_last, &s);
    assert_int_equal(atomic_load(&s.right), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_clock_and_no_lock)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

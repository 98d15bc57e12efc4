/* SPDX-License-Identifier: Apache-2.0 */
#include "tt_locks.h"

#include "tt_alloc.h"

_Atomic long tt_locks, tt_locks_contended, tt_locks_watched_contended;
pthread_mutex_t *_Atomic tt_locks_watched[TT_LOCKS_WATCHED];

int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    if (!tt_alloc_here)
        return __real_pthread_mutex_lock(mutex);
    tt_locks++;
    if (pthread_mutex_trylock(mutex) == 0)
        return 0;
    tt_locks_contended++;
    for (int i = 0; i < TT_LOCKS_WATCHED; i++)
        if (mutex == tt_locks_watched[i])
            tt_locks_watched_contended++;
    return __real_pthread_mutex_lock(mutex);
}

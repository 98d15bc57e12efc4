/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the mutexes that threads lock while their tt_alloc_here is set, and those that another
 * thread held. A program that links tt_locks has them counted: the linker puts the counter in front
 * of pthread_mutex_lock (--wrap). */
#ifndef TT_LOCKS_H
#define TT_LOCKS_H

#include <pthread.h>
#include <stdatomic.h>

enum { TT_LOCKS_WATCHED = 2 };

extern _Atomic long tt_locks, tt_locks_contended;
extern pthread_mutex_t *_Atomic tt_locks_watched[TT_LOCKS_WATCHED]; /* also counted apart: */
extern _Atomic long tt_locks_watched_contended;

#endif

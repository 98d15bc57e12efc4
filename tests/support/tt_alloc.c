/* SPDX-License-Identifier: Apache-2.0 */
#include "tt_alloc.h"

#include <stddef.h>

_Thread_local bool tt_alloc_here;
_Atomic bool tt_alloc_everywhere;
_Atomic long tt_allocations;

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__real_realloc(void *ptr, size_t size);
void *__wrap_realloc(void *ptr, size_t size);

static void count(void)
{
    if (tt_alloc_here || atomic_load(&tt_alloc_everywhere))
        atomic_fetch_add(&tt_allocations, 1);
}

void *__wrap_malloc(size_t size)
{
    count();
    return __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    count();
    return __real_calloc(n, size);
}

void *__wrap_realloc(void *ptr, size_t size)
{
    count();
    return __real_realloc(ptr, size);
}

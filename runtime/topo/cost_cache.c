/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "topo/cost.h"

/* A job has a handful of kinds of communicators; searching for one costs tens of milliseconds. */
enum { KEPT_MAX = 256 };

typedef struct kept {
    struct kept *next;
    tt_cost cost; /* nodes and local are part of the key */
    int gpus[];
} kept;

struct tt_cost_cache {
    pthread_mutex_t lock;
    kept *list;
    int n;
};

tutti_status tt_cost_cache_create(tt_cost_cache **cache_out)
{
    tt_cost_cache *cache;
    TT_TRY(tt_calloc(1, sizeof *cache, &cache));
    pthread_mutex_init(&cache->lock, NULL);
    *cache_out = cache;
    return TUTTI_OK;
}

void tt_cost_cache_free(tt_cost_cache *cache)
{
    if (cache == NULL)
        return;
    while (cache->list != NULL) {
        kept *next = cache->list->next;
        free(cache->list);
        cache->list = next;
    }
    pthread_mutex_destroy(&cache->lock);
    free(cache);
}

bool tt_cost_cache_find(tt_cost_cache *cache, const int *gpus, int n, int nodes, tt_cost *cost_out)
{
    const kept *k;
    if (cache == NULL)
        return false;
    pthread_mutex_lock(&cache->lock);
    for (k = cache->list; k != NULL; k = k->next)
        if (k->cost.local == n && k->cost.nodes == nodes &&
            memcmp(k->gpus, gpus, (size_t)n * sizeof *gpus) == 0)
            break;
    if (k != NULL)
        *cost_out = k->cost;
    pthread_mutex_unlock(&cache->lock);
    return k != NULL;
}

/* Two threads that made the same one keep it twice. Without memory it is not kept. */
void tt_cost_cache_keep(tt_cost_cache *cache, const int *gpus, const tt_cost *cost)
{
    if (cache == NULL)
        return;
    size_t bytes = (size_t)cost->local * sizeof *gpus;
    kept *k = malloc(sizeof *k + bytes);
    if (k == NULL)
        return;
    k->cost = *cost;
    memcpy(k->gpus, gpus, bytes);
    pthread_mutex_lock(&cache->lock);
    bool full = cache->n == KEPT_MAX;
    if (!full) {
        k->next = cache->list;
        cache->list = k;
        cache->n++;
    }
    pthread_mutex_unlock(&cache->lock);
    if (full)
        free(k);
}

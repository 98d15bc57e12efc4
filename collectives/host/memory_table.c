/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of registrations: two arrays of the same pointers, sorted by address and by id, under a
 * read-write lock. They are short (buckets, a few buffers) and change rarely; lookups are on the
 * path of every collective, several threads at a time.
 *
 * The table is found through tt_upper.mem, which is written once, by whichever thread registers
 * first, while others may already look: hence the atomic access. It goes with the context's hooks;
 * by then the communicators have ended, but the program's own work on streams may still use the
 * memory, so the device is drained first.
 */
#include "host/memory_table.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/mem.h"

struct tt_mem_table {
    tutti_ctx *ctx;
    pthread_rwlock_t lock;
    tt_mem_reg **by_base, **by_id;
    size_t n, base_cap, id_cap;
    _Atomic uint64_t generation; /* entries that went */
    size_t reserved; /* room kept for registrations in the making */
    tt_mem_reg *retired;
};

void tt_mem_reg_free(tt_mem_reg *reg)
{
    if (reg->table != NULL && !reg->listed) {
        pthread_rwlock_wrlock(&reg->table->lock);
        reg->table->reserved--;
        pthread_rwlock_unlock(&reg->table->lock);
    }
    free(reg->peer);
    free(reg->member);
    free(reg);
}

/* Registered pages that were never given back stay as they are: the program may have unmapped them
 * meanwhile. */
static void free_reg(tt_mem_reg *reg)
{
    for (int i = 0; i < reg->peers; i++)
        tt_shm_close(&reg->peer[i]);
    tt_shm_close(&reg->own);
    reg->table = NULL;
    tt_mem_reg_free(reg);
}

static void destroy(void *arg)
{
    tt_mem_table *table = arg;

    if (table->ctx->dev != NULL && !table->ctx->dev_ops->drain(table->ctx->dev)) {
        tt_log_error(TT_COLL, "work on streams does not end; registered memory is left to it");
        return;
    }
    if (table->n > 0)
        tt_log_debug(TT_COLL, "%zu registrations were not released", table->n);
    for (size_t i = 0; i < table->n; i++)
        free_reg(table->by_base[i]);
    while (table->retired != NULL) {
        tt_mem_reg *reg = table->retired;
        table->retired = reg->retired;
        free_reg(reg);
    }
    pthread_rwlock_destroy(&table->lock);
    free(table->by_base);
    free(table->by_id);
    free(table);
}

static tutti_status nothing_at_steps(tutti_ctx *ctx, void *arg, int64_t step)
{
    (void)ctx;
    (void)arg;
    (void)step;
    return TUTTI_OK;
}

static tutti_status table_new(tutti_ctx *ctx, tt_mem_table **table_out)
{
    tt_mem_table *table;
    tutti_status status;

    TT_TRY(tt_calloc(1, sizeof *table, &table));
    table->ctx = ctx;
    pthread_rwlock_init(&table->lock, NULL);
    status = tt_ctx_hook_add(ctx, "host.memory", nothing_at_steps, destroy, table);
    if (status != TUTTI_OK) {
        pthread_rwlock_destroy(&table->lock);
        free(table);
        return status;
    }
    *table_out = table;
    return TUTTI_OK;
}

tt_mem_table *tt_mem_table_of(tt_upper *upper)
{
    return __atomic_load_n(&upper->mem, __ATOMIC_ACQUIRE);
}

tutti_status tt_mem_table_get(tutti_ctx *ctx, tt_mem_table **table_out)
{
    tt_upper *upper = ctx->upper;
    tt_mem_table *table;
    tutti_status status = TUTTI_OK;

    pthread_mutex_lock(&upper->lock);
    table = tt_mem_table_of(upper);
    if (table == NULL) {
        status = table_new(ctx, &table);
        if (status == TUTTI_OK)
            __atomic_store_n(&upper->mem, table, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&upper->lock);
    if (status == TUTTI_OK)
        *table_out = table;
    return status;
}

tutti_status tt_mem_table_reserve(tt_mem_table *table, tt_mem_reg *reg)
{
    size_t need;
    tutti_status status;

    pthread_rwlock_wrlock(&table->lock);
    need = table->n + table->reserved + 1;
    status = tt_grow(&table->by_base, &table->base_cap, need, sizeof(tt_mem_reg *));
    if (status == TUTTI_OK)
        status = tt_grow(&table->by_id, &table->id_cap, need, sizeof(tt_mem_reg *));
    if (status == TUTTI_OK) {
        table->reserved++;
        reg->table = table;
    }
    pthread_rwlock_unlock(&table->lock);
    return status;
}

/* How many of the registrations begin at `base` or below. */
static size_t up_to_base(const tt_mem_table *table, uintptr_t base)
{
    size_t low = 0, high = table->n;

    while (low < high) {
        size_t middle = (low + high) / 2;
        if ((uintptr_t)table->by_base[middle]->base <= base)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static size_t up_to_id(const tt_mem_table *table, uint64_t id)
{
    size_t low = 0, high = table->n;

    while (low < high) {
        size_t middle = (low + high) / 2;
        if (table->by_id[middle]->id <= id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void put(tt_mem_reg **array, size_t n, size_t at, tt_mem_reg *reg)
{
    memmove(array + at + 1, array + at, (n - at) * sizeof(tt_mem_reg *));
    array[at] = reg;
}

static void drop(tt_mem_reg **array, size_t n, size_t at)
{
    memmove(array + at, array + at + 1, (n - at - 1) * sizeof(tt_mem_reg *));
}

void tt_mem_table_insert(tt_mem_reg *reg)
{
    tt_mem_table *table = reg->table;

    pthread_rwlock_wrlock(&table->lock);
    put(table->by_base, table->n, up_to_base(table, (uintptr_t)reg->base), reg);
    put(table->by_id, table->n, up_to_id(table, reg->id), reg);
    table->n++;
    table->reserved--;
    reg->listed = true;
    pthread_rwlock_unlock(&table->lock);
}

static void unlist(tt_mem_table *table, tt_mem_reg *reg)
{
    drop(table->by_base, table->n, up_to_base(table, (uintptr_t)reg->base) - 1);
    drop(table->by_id, table->n, up_to_id(table, reg->id) - 1);
    table->n--;
    atomic_fetch_add_explicit(&table->generation, 1, memory_order_release);
    reg->listed = false;
}

void tt_mem_table_remove(tt_mem_reg *reg)
{
    tt_mem_table *table = reg->table;

    pthread_rwlock_wrlock(&table->lock);
    unlist(table, reg);
    reg->table = NULL;
    pthread_rwlock_unlock(&table->lock);
}

void tt_mem_table_retire(tt_mem_reg *reg)
{
    tt_mem_table *table = reg->table;

    pthread_rwlock_wrlock(&table->lock);
    unlist(table, reg);
    reg->retired = table->retired;
    table->retired = reg;
    pthread_rwlock_unlock(&table->lock);
}

bool tt_mem_table_overlaps(tt_mem_table *table, const void *ptr, size_t bytes)
{
    uintptr_t begin = (uintptr_t)ptr, end = begin + bytes;
    bool overlaps = false;
    size_t at;

    pthread_rwlock_rdlock(&table->lock);
    at = up_to_base(table, end - 1); /* those before it begin before the end */
    if (at > 0) {
        const tt_mem_reg *last = table->by_base[at - 1];
        overlaps = (uintptr_t)last->base + last->own.bytes > begin;
    }
    pthread_rwlock_unlock(&table->lock);
    return overlaps;
}

tt_mem_reg *tt_mem_table_at(tutti_ctx *ctx, const void *base)
{
    tt_mem_table *table = tt_mem_table_of(ctx->upper);
    tt_mem_reg *reg = NULL;
    size_t at;

    if (table == NULL)
        return NULL;
    pthread_rwlock_rdlock(&table->lock);
    at = up_to_base(table, (uintptr_t)base);
    if (at > 0 && table->by_base[at - 1]->base == base)
        reg = table->by_base[at - 1];
    pthread_rwlock_unlock(&table->lock);
    return reg;
}

static bool covers(tt_mem_reg *reg, const tt_group *group)
{
    uint64_t key = (uint64_t)group->id + 1;

    if (group->id == reg->group || atomic_load_explicit(&reg->covers, memory_order_relaxed) == key)
        return true;
    for (int i = 0; i < group->size; i++)
        if (!reg->member[group->world[i]])
            return false;
    atomic_store_explicit(&reg->covers, key, memory_order_relaxed);
    return true;
}

const tt_mem_reg *tt_mem_table_find(tt_mem_table *table, const tt_group *group, const void *ptr,
                                    size_t bytes)
{
    tt_mem_reg *reg = NULL;
    size_t at;

    pthread_rwlock_rdlock(&table->lock);
    at = up_to_base(table, (uintptr_t)ptr);
    if (at > 0) {
        reg = table->by_base[at - 1];
        size_t offset = (uintptr_t)ptr - (uintptr_t)reg->base;
        if (offset > reg->bytes || bytes > reg->bytes - offset || !covers(reg, group))
            reg = NULL;
    }
    pthread_rwlock_unlock(&table->lock);
    return reg;
}

uint64_t tt_mem_table_generation(const tt_mem_table *table)
{
    return atomic_load_explicit(&table->generation, memory_order_acquire) + 1;
}

unsigned char *tt_mem_table_base(const tt_mem_table *table, const tt_mem_reg *reg, int world_rank)
{
    const tutti_ctx *ctx = table->ctx;

    if (world_rank < 0 || world_rank >= ctx->world.size)
        return NULL;
    if (world_rank == ctx->world.rank)
        return reg->base;
    if (ctx->place[world_rank].node != ctx->place[ctx->world.rank].node)
        return NULL;
    return reg->peer[ctx->place[world_rank].local_rank].base;
}

void *tt_mem_table_resolve(tt_mem_table *table, tt_mem_place place, int world_rank, size_t bytes)
{
    unsigned char *base = NULL;
    size_t at;

    pthread_rwlock_rdlock(&table->lock);
    at = up_to_id(table, place.id);
    if (at > 0 && table->by_id[at - 1]->id == place.id) {
        const tt_mem_reg *reg = table->by_id[at - 1];
        if (place.offset <= reg->bytes && bytes <= reg->bytes - place.offset)
            base = tt_mem_table_base(table, reg, world_rank);
    }
    pthread_rwlock_unlock(&table->lock);
    return base == NULL ? NULL : base + place.offset;
}

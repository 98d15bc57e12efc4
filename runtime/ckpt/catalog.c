/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/catalog.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

enum { CHUNK_BYTES = 256 * 1024 };

struct tt_arena_chunk {
    tt_arena_chunk *next;
    uint64_t data[];
};

tutti_status tt_arena_alloc(tt_arena *arena, size_t bytes, void *ptr_out)
{
    bytes = tt_round_up(bytes, sizeof(uint64_t));
    if (arena->chunk == NULL || arena->cap - arena->used < bytes) {
        size_t cap = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
        tt_arena_chunk *chunk;
        TT_TRY(tt_calloc(1, sizeof *chunk + cap, &chunk));
        chunk->next = arena->chunk;
        arena->chunk = chunk;
        arena->used = 0;
        arena->cap = cap;
    }
    void *ptr = (char *)arena->chunk->data + arena->used;
    memcpy(ptr_out, &ptr, sizeof ptr);
    arena->used += bytes;
    return TUTTI_OK;
}

tutti_status tt_arena_text(tt_arena *arena, const char *text, size_t bytes, const char **copy_out)
{
    char *copy;
    TT_TRY(tt_arena_alloc(arena, bytes + 1, &copy));
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    *copy_out = copy;
    return TUTTI_OK;
}

void tt_arena_free(tt_arena *arena)
{
    while (arena->chunk != NULL) {
        tt_arena_chunk *next = arena->chunk->next;
        free(arena->chunk);
        arena->chunk = next;
    }
    arena->used = arena->cap = 0;
}

void tt_catalog_free(tt_catalog *cat)
{
    for (size_t i = 0; i < cat->nfile; i++)
        free(cat->file[i].hash);
    free(cat->file);
    free(cat->tensor);
    free(cat->box);
    tt_arena_free(&cat->arena);
    memset(cat, 0, sizeof *cat);
}

static int compare_name(const void *key, const void *item)
{
    return strcmp(key, ((const tt_ctensor *)item)->name);
}

const tt_ctensor *tt_catalog_find(const tt_catalog *cat, const char *name)
{
    if (cat->ntensor == 0)
        return NULL;
    return bsearch(name, cat->tensor, cat->ntensor, sizeof *cat->tensor, compare_name);
}

static bool part_ok(const char *part, size_t bytes)
{
    return bytes > 0 && !(bytes == 1 && part[0] == '.') &&
           !(bytes == 2 && part[0] == '.' && part[1] == '.');
}

bool tt_name_ok(const char *name, size_t max)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t bytes = strnlen(name, max + 1), at = 0;
    if (bytes > max)
        return false;
    for (;;) {
        size_t part = strspn(name + at, plain);
        if (!part_ok(name + at, part))
            return false;
        at += part;
        if (name[at] == '\0')
            return true;
        if (name[at++] != '/')
            return false;
    }
}

const char *tt_catalog_name_clash(const tt_catalog *cat, const char **longer_out)
{
    char head[TT_CKPT_FULL_NAME_MAX + 1];
    for (size_t i = 0; i < cat->ntensor; i++) {
        const char *name = cat->tensor[i].name;
        for (const char *slash = strchr(name, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
            size_t bytes = (size_t)(slash - name);
            memcpy(head, name, bytes);
            head[bytes] = '\0';
            const tt_ctensor *shorter = tt_catalog_find(cat, head);
            if (shorter != NULL) {
                *longer_out = name;
                return shorter->name;
            }
        }
    }
    return NULL;
}

bool tt_dtype_ok(tutti_dtype dtype)
{
    return tutti_dtype_size(dtype) != 0;
}

bool tt_dtype_is_f8(tutti_dtype dtype)
{
    return dtype == TUTTI_FLOAT8_E4M3 || dtype == TUTTI_FLOAT8_E5M2;
}

bool tt_dtype_is_float(tutti_dtype dtype)
{
    return dtype == TUTTI_FLOAT32 || dtype == TUTTI_FLOAT64 || dtype == TUTTI_FLOAT16 ||
           dtype == TUTTI_BFLOAT16 || tt_dtype_is_f8(dtype);
}

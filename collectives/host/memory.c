/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered memory: segments that the ranks of a node share (device/shm.h), and the table to find
 * them by.
 *
 * Making one is: compare the sizes, make the segment (local), agree, exchange the handles, attach
 * the peers of the node (local), agree, close the descriptors. A rank whose /dev/shm is too small
 * fails all of them, and each puts back what it had. Nothing can fail after the last agreement: the
 * table's room is reserved before.
 *
 * Ids come from the group's id space, so one id means one registration on all its ranks. A lookup
 * takes a read lock and a binary search; whether a communicator lies within the registration's is
 * remembered for the last one that asked.
 *
 * Releasing waits for this rank's pending work, meets the others (so no peer reads any more), and
 * unmaps. In a failed context nobody can be met, and a worker of this process may still be inside a
 * peer's memory: what would be unmapped is then kept in the table until the context goes, after the
 * streams have ended.
 */
#include "host/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"
#include "core/mem.h"
#include "device/shm.h"
#include "host/memory_table.h"

static const char *action(bool allocated)
{
    return allocated ? "alloc" : "register";
}

/* Making one. */

/* Equal on all ranks, or MISMATCH on all of them. */
static tutti_status same_on_all(tutti_comm *comm, const char *what, const char *noun,
                                uint64_t value)
{
    char first[TT_HOST_MAX + 64], other[TT_HOST_MAX + 64];
    const int *world = comm->group.world;
    uint64_t here, there;
    tt_blobs all;
    int i;

    TT_TRY(tt_all_gather_blobs(&comm->group, what, &value, sizeof value, &all));
    memcpy(&here, tt_blob(&all, 0), sizeof here);
    for (i = 1, there = here; i < all.n && there == here; i++)
        memcpy(&there, tt_blob(&all, i), sizeof there);
    tt_blobs_free(&all);
    if (there == here)
        return TUTTI_OK;
    return tt_ctx_fail(comm->ctx,
                       tt_fail(TUTTI_ERR_MISMATCH,
                               "%s on comm %s: %s differs: %" PRIu64 " on %s, %" PRIu64 " on %s",
                               what, comm->name, noun, here,
                               tt_ctx_rank_name(comm->ctx, world[0], first, sizeof first), there,
                               tt_ctx_rank_name(comm->ctx, world[i - 1], other, sizeof other)));
}

/* One line of /proc/self/maps: true if it is private anonymous memory that may be written. */
static bool parse_map(const char *line, uintptr_t *begin, uintptr_t *end, bool *plain_out)
{
    char access[8] = "", name[16] = "";
    unsigned long inode = 0;
    int fields = sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %7s %*s %*s %lu %15s", begin, end, access,
                        &inode, name);

    *plain_out = strncmp(access, "rw", 2) == 0 && access[3] == 'p' && inode == 0 &&
                 strcmp(name, "[stack]") != 0;
    return fields >= 4;
}

static tutti_status check_map(FILE *maps, void *ptr, size_t span)
{
    uintptr_t at = (uintptr_t)ptr, end = at + span, from, to;
    char line[4352];
    bool plain;

    while (at < end && fgets(line, sizeof line, maps) != NULL) {
        if (!parse_map(line, &from, &to, &plain) || to <= at)
            continue;
        if (from > at)
            break;
        if (!plain)
            return tt_fail(TUTTI_ERR_ARG,
                           "register: the memory at %p is not private, writable and without a "
                           "file: %.*s",
                           (void *)at, (int)strcspn(line, "\n"), line);
        at = to;
    }
    if (at < end)
        return tt_fail(TUTTI_ERR_ARG, "register: nothing is mapped at %p, inside %zu bytes at %p",
                       (void *)at, span, ptr);
    return TUTTI_OK;
}

/* Whether the program's memory can be shared in place. */
static tutti_status check_own(tt_mem_table *table, void *ptr, size_t span)
{
    tutti_status status;
    FILE *maps;

    if ((uintptr_t)ptr % (uintptr_t)sysconf(_SC_PAGESIZE) != 0)
        return tt_fail(TUTTI_ERR_ARG,
                       "register: %p is not page aligned (use posix_memalign, mmap or tutti_alloc)",
                       ptr);
    if (tt_mem_table_overlaps(table, ptr, span))
        return tt_fail(TUTTI_ERR_ARG, "register: %zu bytes at %p are registered already, in part",
                       span, ptr);
    maps = fopen("/proc/self/maps", "re");
    if (maps == NULL)
        return tt_fail(TUTTI_ERR_UNSUPPORTED, "register: /proc/self/maps cannot be read");
    status = check_map(maps, ptr, span);
    fclose(maps);
    return status;
}

static tutti_status new_reg(tutti_comm *comm, size_t bytes, bool allocated, tt_mem_reg **reg_out)
{
    const tutti_ctx *ctx = comm->ctx;
    tt_mem_reg *reg;
    tutti_status status;

    TT_TRY(tt_calloc(1, sizeof *reg, &reg));
    reg->group = comm->group.id;
    reg->bytes = bytes;
    reg->allocated = allocated;
    reg->peers = ctx->local_size;
    status = tt_calloc((size_t)ctx->local_size, sizeof *reg->peer, &reg->peer);
    if (status == TUTTI_OK)
        status = tt_calloc((size_t)ctx->world.size, sizeof *reg->member, &reg->member);
    if (status != TUTTI_OK) {
        tt_mem_reg_free(reg);
        return status;
    }
    for (int i = 0; i < comm->group.size; i++)
        reg->member[comm->group.world[i]] = true;
    *reg_out = reg;
    return TUTTI_OK;
}

/* The local part. *reg_out is set whenever there is something to take back. */
static tutti_status make(tutti_comm *comm, void *ptr, size_t bytes, tt_mem_reg **reg_out,
                         tt_shm_handle *handle_out)
{
    size_t span = tt_round_up(bytes, (size_t)sysconf(_SC_PAGESIZE));
    tt_mem_table *table;
    tt_mem_reg *reg;

    TT_TRY(tt_mem_table_get(comm->ctx, &table));
    if (ptr != NULL)
        TT_TRY(check_own(table, ptr, span));
    TT_TRY(new_reg(comm, bytes, ptr == NULL, &reg));
    *reg_out = reg;
    TT_TRY(tt_mem_table_reserve(table, reg));
    TT_TRY(tt_shm_create(bytes, ptr, &reg->own, handle_out));
    reg->base = reg->own.base;
    return TUTTI_OK;
}

static tutti_status attach(tutti_comm *comm, tt_mem_reg *reg, const tt_blobs *handles)
{
    const tutti_ctx *ctx = comm->ctx;
    const tt_place *place = ctx->place, *here = &place[ctx->world.rank];
    char name[TT_HOST_MAX + 64];

    for (int i = 0; i < handles->n; i++) {
        int world = comm->group.world[i];
        tt_shm_handle handle;
        if (place[world].node != here->node || world == ctx->world.rank)
            continue;
        memcpy(&handle, tt_blob(handles, i), sizeof handle);
        tutti_status status = tt_shm_attach(&handle, &reg->peer[place[world].local_rank]);
        if (status != TUTTI_OK)
            return tt_fail_more(status, "%s: memory of %s", action(reg->allocated),
                                tt_ctx_rank_name(ctx, world, name, sizeof name));
    }
    return TUTTI_OK;
}

/* The collective part: all ranks have made theirs. */
static tutti_status exchange(tutti_comm *comm, tt_mem_reg *reg, const tt_shm_handle *handle)
{
    const char *what = action(reg->allocated);
    tt_blobs handles;
    uint32_t id;

    TT_TRY(tt_group_new_ids(&comm->group, 1, &id));
    TT_TRY(tt_all_gather_blobs(&comm->group, what, handle, sizeof *handle, &handles));
    reg->id = id;
    tutti_status status = attach(comm, reg, &handles);
    tt_blobs_free(&handles);
    return tt_agree(&comm->group, what, status);
}

/* Unmaps the peers' memory and takes back what was made of the own. */
static tutti_status take_back(tt_mem_reg *reg)
{
    tutti_status status = TUTTI_OK;

    for (int i = 0; i < reg->peers; i++)
        tt_shm_close(&reg->peer[i]);
    if (!reg->allocated && reg->base != NULL)
        status = tt_shm_unshare(reg->base, reg->own.bytes);
    tt_shm_close(&reg->own);
    return status;
}

static tutti_status create(tutti_comm *comm, void *ptr, size_t bytes, void **ptr_out)
{
    const char *what = action(ptr == NULL);
    tt_shm_handle handle;
    tt_mem_reg *reg = NULL;
    tutti_status status;

    TT_TRY(same_on_all(comm, what, "the number of bytes", bytes));
    status = make(comm, ptr, bytes, &reg, &handle);
    status = tt_agree(&comm->group, what, status);
    if (status != TUTTI_OK)
        goto take_back;
    status = exchange(comm, reg, &handle);
    if (status != TUTTI_OK)
        goto take_back;
    tt_shm_seal(&reg->own);
    tt_mem_table_insert(reg);
    tt_log_debug(TT_COLL, "%s: %zu bytes at %p on comm %s", what, bytes, (void *)reg->base,
                 comm->name);
    if (ptr_out != NULL)
        *ptr_out = reg->base;
    return TUTTI_OK;

take_back:
    if (reg != NULL) {
        char text[TT_ERROR_TEXT_MAX];
        snprintf(text, sizeof text, "%s", tutti_last_error());
        if (take_back(reg) != TUTTI_OK)
            tt_log_warn(TT_COLL, "%s: memory at %p stays shared: %s", what, ptr,
                        tutti_last_error());
        tt_mem_reg_free(reg);
        tt_fail_text(status, text);
    }
    return status;
}

tutti_status tt_mem_alloc(tutti_comm *comm, size_t bytes, void **ptr_out)
{
    return create(comm, NULL, bytes, ptr_out);
}

tutti_status tt_mem_register(tutti_comm *comm, void *ptr, size_t bytes)
{
    return create(comm, ptr, bytes, NULL);
}

/* Releasing one. */

static tutti_status locate(tutti_comm *comm, void *ptr, bool allocated, tt_mem_reg **reg_out)
{
    const char *what = allocated ? "free" : "deregister";
    tt_mem_reg *reg = tt_mem_table_at(comm->ctx, ptr);

    if (reg == NULL)
        return tt_fail(TUTTI_ERR_ARG, "%s: nothing was %s at %p", what,
                       allocated ? "allocated" : "registered", ptr);
    if (reg->allocated != allocated)
        return tt_fail(TUTTI_ERR_ARG, "%s: the memory at %p was %s", what, ptr,
                       reg->allocated ? "allocated: use tutti_free"
                                      : "registered: use tutti_deregister");
    if (reg->group != comm->group.id)
        return tt_fail(TUTTI_ERR_ARG,
                       "%s: the memory at %p belongs to another communicator than %s", what, ptr,
                       comm->name);
    *reg_out = reg;
    return TUTTI_OK;
}

/* In a failed context: out of the table at once, unmapped with it. */
static tutti_status retire(tt_mem_reg *reg)
{
    tt_mem_table_retire(reg);
    return reg->allocated ? TUTTI_OK : tt_shm_unshare(reg->base, reg->own.bytes);
}

/* This rank's calls are carried out, and the others' are too. */
static tutti_status meet_idle(tutti_comm *comm, const char *what)
{
    tutti_status status = tt_comm_drain(comm);

    return tt_agree(&comm->group, what, status);
}

tutti_status tt_mem_release(tutti_comm *comm, void *ptr, bool allocated)
{
    const char *what = allocated ? "free" : "deregister";
    bool failed = tt_ctx_check(comm->ctx) != TUTTI_OK;
    tt_mem_reg *reg = NULL;
    tutti_status status = locate(comm, ptr, allocated, &reg);

    if (!failed) {
        TT_TRY(tt_agree(&comm->group, what, status));
        TT_TRY(same_on_all(comm, what, "the registration", reg->id));
        status = meet_idle(comm, what);
        failed = status != TUTTI_OK;
    }
    if (reg == NULL)
        return status;
    if (failed) {
        tutti_status kept = retire(reg);
        return status != TUTTI_OK ? status : kept;
    }
    tt_mem_table_remove(reg);
    status = take_back(reg);
    tt_mem_reg_free(reg);
    return tt_agree(&comm->group, what, status);
}

/* Finding one. */

const tt_mem_reg *tt_mem_find(tt_upper *upper, tutti_comm *comm, const void *ptr, size_t bytes)
{
    tt_mem_table *table = tt_mem_table_of(upper);

    return table == NULL ? NULL : tt_mem_table_find(table, &comm->group, ptr, bytes);
}

tt_mem_place tt_mem_describe(const tt_mem_reg *reg, const void *ptr)
{
    tt_mem_place place = {reg->id, (uint64_t)((const unsigned char *)ptr - reg->base)};

    return place;
}

void *tt_mem_resolve(tt_upper *upper, tt_mem_place place, int world_rank, size_t bytes)
{
    tt_mem_table *table = tt_mem_table_of(upper);

    return table == NULL ? NULL : tt_mem_table_resolve(table, place, world_rank, bytes);
}

static bool is_fresh(const tt_mem_table *table, const tt_mem_hint *hint)
{
    return hint->reg != NULL && hint->generation == tt_mem_table_generation(table);
}

const tt_mem_reg *tt_mem_find_again(tt_upper *upper, tutti_comm *comm, const void *ptr,
                                    size_t bytes, tt_mem_hint *hint)
{
    tt_mem_table *table = tt_mem_table_of(upper);
    size_t offset = (uintptr_t)ptr - hint->base;

    if (table == NULL)
        return NULL;
    if (is_fresh(table, hint) && offset <= hint->bytes && bytes <= hint->bytes - offset)
        return hint->reg;
    uint64_t generation = tt_mem_table_generation(table); /* before looking */
    const tt_mem_reg *reg = tt_mem_table_find(table, &comm->group, ptr, bytes);
    if (reg != NULL)
        *hint = (tt_mem_hint){generation, reg, reg->id, (uintptr_t)reg->base, reg->bytes};
    return reg;
}

void *tt_mem_resolve_again(tt_upper *upper, tt_mem_place place, int world_rank, size_t bytes,
                           const tt_mem_hint *hint)
{
    const tt_mem_table *table = tt_mem_table_of(upper);
    unsigned char *base;

    if (table == NULL || place.id != hint->id || !is_fresh(table, hint) ||
        place.offset > hint->bytes || bytes > hint->bytes - place.offset)
        return tt_mem_resolve(upper, place, world_rank, bytes);
    base = tt_mem_table_base(table, hint->reg, world_rank);
    return base == NULL ? NULL : base + place.offset;
}

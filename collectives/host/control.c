/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control segment of a communicator on a node: shared memory that its ranks there map. It holds
 * a block of lines per rank (meet.c), the counts of an all_to_allv, the inputs that travel with
 * small calls, and slots.
 *
 * The slots stage plain memory and messages; who may write one when is a matter of the collectives.
 * All slots of a node together are bounded, whatever the number of its ranks: more ranks have
 * smaller slots, which stay in the cache all the same.
 */
#include "host/host.h"

#include <stdlib.h>
#include <string.h>

#include "host/control.h"

enum { PAGE = 4096, RING_MOST = 4096 /* bytes of an input in the ring */ };

static size_t counts_offset(int locals)
{
    return sizeof(tt_control) + (size_t)locals * sizeof(tt_block);
}

static size_t counts_words(int locals)
{
    return TT_COUNTS_ROWS * (size_t)locals;
}

/* Per rank: the inputs of small calls. */
static size_t payloads_offset(int locals)
{
    size_t counts = (size_t)locals * 2 * counts_words(locals) * sizeof(uint64_t);
    return tt_round_up(counts_offset(locals) + counts, TT_LINE);
}

size_t tt_control_ring_bytes(const tt_host *host)
{
    return tt_min_size(host->tune.small_bytes, RING_MOST);
}

/* One for each line, and two for larger inputs. */
static size_t payload_bytes(const tt_host *host)
{
    return TT_LINES * tt_control_ring_bytes(host) + 2 * host->tune.carry_bytes;
}

static size_t slots_offset(const tt_host *host)
{
    size_t payloads = (size_t)host->locals * payload_bytes(host);
    return tt_round_up(payloads_offset(host->locals) + payloads, PAGE);
}

char *tt_control_payload_of(const tt_host *host, int local, uint32_t number, size_t most)
{
    const size_t ring = tt_control_ring_bytes(host);
    char *own =
        (char *)host->control + payloads_offset(host->locals) + (size_t)local * payload_bytes(host);
    if (most <= ring)
        return own + number % TT_LINES * ring;
    return own + TT_LINES * ring + number % 2 * host->tune.carry_bytes;
}

_Atomic uint64_t *tt_control_counts(const tt_host *host, int local, uint32_t number, int row)
{
    _Atomic uint64_t *all =
        (_Atomic uint64_t *)(void *)((char *)host->control + counts_offset(host->locals));
    return all + (2 * (size_t)local + number % 2) * counts_words(host->locals) +
           (size_t)row * (size_t)host->locals;
}

char *tt_control_slot(const tt_host *host, int local, int slot)
{
    size_t index = (size_t)local * TT_SLOTS + (size_t)slot;
    return (char *)host->control + slots_offset(host) + index * host->tune.slot_bytes;
}

/* A rank alone on its node hands nothing over. */
static size_t segment_bytes(const tt_host *host)
{
    size_t slots = host->locals > 1 ? (size_t)host->locals * TT_SLOTS : 0;
    return slots_offset(host) + slots * host->tune.slot_bytes;
}

/* A rank alone on its node shares with nobody. */
static tutti_status make_private(tt_host *host)
{
    void *memory = NULL;
    if (posix_memalign(&memory, PAGE, segment_bytes(host)) != 0)
        return tt_fail(TUTTI_ERR_NO_MEMORY, "comm %s: no memory for %zu bytes of staging",
                       host->comm->name, segment_bytes(host));
    memset(memory, 0, segment_bytes(host));
    host->control = memory;
    return TUTTI_OK;
}

/* What a rank tells the others while a communicator is made. */
typedef struct hello {
    tt_shm_handle shm;
    tt_reach_offered reach;
} hello;

static tutti_status attach(tt_host *host, const hello *all)
{
    bool able = host->locals > 1;
    if (host->locals > 1 && host->local > 0)
        TT_TRY(tt_shm_attach(&all[host->ranks[0]].shm, &host->shm));
    if (host->locals > 1)
        host->control = host->shm.base;
    host->counted = atomic_load(&host->control->counted) != 0;
    for (int i = 0; i < host->locals && able; i++)
        able = tt_reach_try(host, i, &all[host->ranks[i]].reach);
    if (!able)
        atomic_fetch_add(&host->control->unreachable, 1);
    return TUTTI_OK;
}

/* Ranks that have a core each look at each other's lines; ranks that share cores, or are many,
 * count. The node's first rank decides, since all must do the same. */
static void choose_barrier(tt_host *host)
{
    const tt_patience *patience = &host->comm->ctx->caller_patience;
    tt_control *control = host->shm.base;
    atomic_store(&control->counted, patience->spin_ns == 0 || host->locals > TT_FLAGS_MOST);
}

/* Whether slots are needed anywhere: chunks that pass them are small, on all nodes. all: room for a
 * byte of each rank. */
static tutti_status find_slots(tt_host *host, uint8_t *all)
{
    tt_group *group = &host->comm->group;
    uint8_t mine;
    host->reaches = atomic_load(&host->control->unreachable) == 0;
    host->slots_pass = host->locals > 1 && !host->reaches;
    mine = host->slots_pass;
    if (host->nodes == 1 || host->most_locals == 1)
        return TUTTI_OK;
    TT_TRY(tt_all_gather_fixed(group, "making a communicator", &mine, sizeof mine, all));
    for (int i = 0; i < group->size; i++)
        host->slots_pass = host->slots_pass || all[i] != 0;
    return TUTTI_OK;
}

tutti_status tt_control_create(tt_host *host)
{
    tt_group *group = &host->comm->group;
    hello mine = {0}, *all = NULL;
    tutti_status status = TUTTI_OK;

    if (host->locals == 1)
        status = make_private(host);
    else if (host->local == 0)
        status = tt_shm_create(segment_bytes(host), NULL, &host->shm, &mine.shm);
    if (status == TUTTI_OK)
        status = tt_reach_offer(host, &mine.reach);
    if (status == TUTTI_OK && host->locals > 1 && host->local == 0)
        choose_barrier(host);
    if (status == TUTTI_OK)
        status = tt_calloc((size_t)group->size, sizeof *all, &all);
    status = tt_agree(group, "making a communicator", status);
    if (status == TUTTI_OK)
        status = tt_all_gather_fixed(group, "making a communicator", &mine, sizeof mine, all);
    if (status == TUTTI_OK)
        status = tt_agree(group, "making a communicator", attach(host, all));
    if (status == TUTTI_OK)
        status = find_slots(host, (uint8_t *)all); /* the hellos have been read */
    tt_shm_seal(&host->shm);
    free(all);
    return status;
}

void tt_control_destroy(tt_host *host)
{
    if (host->locals == 1)
        free(host->control);
    else
        tt_shm_close(&host->shm);
    host->control = NULL;
}

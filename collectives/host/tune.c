/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The switch points. They were measured (docs/performance.md), two ranks on two cores:
 *
 *   small    up to here every rank gets all inputs and sums them itself: one hand-over. Beyond,
 *            registered memory is faster by slices, which takes two but moves less.
 *   carry    the same for plain memory, which has to be copied anyway. With p ranks each reads p -
 * 1 inputs where slices read 2 (p - 1) / p, so the limit falls with p. nt       outputs that do not
 * fit the core's own cache are written around it when they are not read first: an ordinary store
 * would fetch the line only to overwrite it.
 */
#include "host/tune.h"

#include <unistd.h>

#include "core/env.h"
#include "core/mem.h"

enum {
    PART = 64,
    SMALL = 1024,
    CARRY = 128 << 10, /* of all ranks' inputs together */
    CARRY_LEAST = 4096,
    SLOTS_MOST = 16 << 20, /* bytes of all slots of a node */
    CACHE = 1 << 20 /* where the system does not tell */
};

static size_t core_cache(void)
{
    long bytes = -1;
#ifdef _SC_LEVEL2_CACHE_SIZE
    bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    return bytes > 0 ? (size_t)bytes : CACHE;
}

static tutti_status override(tt_env_id id, size_t *value)
{
    size_t given;
    TT_TRY(tt_env_get_bytes(id, &given));
    if (given > 0)
        *value = given;
    return TUTTI_OK;
}

tutti_status tt_tune_find(int locals, size_t chunk_bytes, size_t slots, tt_tune *out)
{
    const size_t ranks = (size_t)locals;
    tt_tune tune = {.small_bytes = SMALL, .nt_bytes = 2 * core_cache()};
    size_t carry = CARRY / ranks, limit = SLOTS_MOST / slots / ranks / PART * PART;
    tune.carry_bytes = carry < CARRY_LEAST ? CARRY_LEAST : carry;
    tune.slot_bytes = tt_min_size(tt_round_up(chunk_bytes, PART), limit);
    TT_TRY(override(TT_ENV_SMALL_BYTES, &tune.small_bytes));
    TT_TRY(override(TT_ENV_CARRY_BYTES, &tune.carry_bytes));
    TT_TRY(override(TT_ENV_NT_BYTES, &tune.nt_bytes));
    if (tune.small_bytes > SLOTS_MOST || tune.carry_bytes > SLOTS_MOST)
        return tt_fail(TUTTI_ERR_ARG, "TUTTI_SMALL_BYTES and TUTTI_CARRY_BYTES are at most 16M");
    tune.small_bytes = tt_round_up(tune.small_bytes, PART);
    tune.carry_bytes = tt_round_up(tune.carry_bytes, PART);
    if (tune.carry_bytes < tune.small_bytes)
        tune.carry_bytes = tune.small_bytes;
    *out = tune;
    return TUTTI_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The switch points. They were measured (docs/performance.md), two ranks on two cores:
 *
 *   small    up to here every rank gets all inputs and sums them itself: one hand-over. Beyond,
 *            registered memory is faster by slices, which takes two but moves less.
 *   carry    the same for plain memory, which has to be copied anyway. With p ranks each reads p -
 *            1 inputs where slices read 2 (p - 1) / p, so the limit falls with p.
 *   reached  where the kernel copies plain memory from rank to rank, carrying pays only as long as
 *            it costs less than the system calls.
 *   nt       outputs that do not fit the core's own cache are written around it when they are not
 *            read first: an ordinary store would fetch the line only to overwrite it.
 *   leader   between nodes, up to here messages cost more than bytes: one rank of each node, every
 *            stage the whole vector.
 *   direct   up to so many nodes every two exchange their parts at once: few stages. Each node sums
 *            its part only. Two nodes exchange everything up to `double`: as many bytes, a stage
 *            less, and twice the sums.
 *   piece    of a message that TCP carries without asking first (Open MPI: below 64 KiB), so many
 *            that the link never waits. Larger ones are received without a copy, so a chunk grows
 *            with the call; in all a window's bytes are under way.
 */
#include "host/tune.h"

#include <string.h>
#include <unistd.h>

#include "core/env.h"
#include "core/mem.h"

enum {
    PART = 64,
    SMALL = 1024,
    CARRY = 128 << 10, /* of all ranks' inputs together */
    CARRY_LEAST = 4096,
    REACHED = 8 << 10,
    SLOTS_MOST = 16 << 20, /* bytes of all slots of a node */
    CACHE = 1 << 20, /* where the system does not tell */
    LEADER = 8 << 10,
    DIRECT_MOST = 4, /* nodes */
    NARROW_DIRECT_MOST = 16, /* the same for sums that grow on their way */
    DOUBLE = 2 << 20, /* of a slice */
    PIECE = 60 << 10,
    PIECE_LAG = 32,
    CHUNKS = 8, /* of a slice, at least */
    UNITS_MOST = 4, /* of TUTTI_CHUNK_BYTES in a chunk */
    WINDOW = 8 << 20,
    WINDOWS = 32 << 20, /* of a node */
    LAG = 4,
    LAG_MOST = 1024
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

static tutti_status find_way(tt_way *way_out)
{
    static const char *const names[TT_WAYS] = {
        [TT_DIRECT] = "direct", [TT_HALVING] = "halving", [TT_DOUBLING] = "doubling"};
    const char *text;
    int way = 0;
    TT_TRY(tt_env_get_string(TT_ENV_NODE_WAY, &text));
    while (way < TT_WAYS && strcmp(text, names[way]) != 0)
        way++;
    *way_out = (tt_way)way; /* auto: TT_WAYS */
    return TUTTI_OK;
}

static tt_way choose_way(const tt_tune *tune, const tt_between *at)
{
    const int direct_most = at->narrow ? NARROW_DIRECT_MOST : DIRECT_MOST;
    if (!at->pairs)
        return TT_DIRECT;
    if (tune->way != TT_WAYS)
        return tune->way;
    if (at->bytes <= tune->leader_bytes ||
        (at->nodes == 2 && at->bytes <= (size_t)at->locals * DOUBLE))
        return TT_DOUBLING;
    return at->nodes <= direct_most ? TT_DIRECT : TT_HALVING;
}

/* Bytes of a slice under way in a stage of the direct way. */
static size_t window(const tt_between *at)
{
    return tt_min_size(WINDOW, WINDOWS / (size_t)at->locals);
}

/* Of one slice. */
static size_t choose_chunk(const tt_tune *tune, const tt_between *at, tt_way way)
{
    const size_t locals = (size_t)at->locals, least = 2 * PIECE;
    const size_t bytes = at->bytes / locals / CHUNKS;
    if (tune->node_chunk > 0)
        return tune->node_chunk;
    if (way == TT_HALVING)
        return tune->slot_bytes / locals;
    if (way == TT_DOUBLING)
        return tt_min_size(PIECE, tune->unit);
    return tt_min_size(bytes < least ? least : bytes,
                       tt_min_size(UNITS_MOST * tune->unit, window(at) / LAG));
}

tt_message tt_tune_message(const tt_tune *tune, const tt_between *at)
{
    const tt_way way = choose_way(tune, at);
    const size_t locals = (size_t)at->locals;
    tt_message message = {.way = way,
                          .leader = at->pairs && at->locals > 1 && at->bytes <= tune->leader_bytes,
                          .chunk_bytes = locals * choose_chunk(tune, at, way),
                          .lag = tune->lag};
    if (at->slots)
        message.chunk_bytes = tt_min_size(message.chunk_bytes, tune->slot_bytes);
    if (message.lag > 0)
        return message;
    const size_t fit = window(at) / (message.chunk_bytes / locals + 1);
    message.lag = LAG;
    if (way == TT_DOUBLING)
        message.lag = PIECE_LAG;
    else if (way == TT_DIRECT && fit > LAG)
        message.lag = tt_min_size(fit, PIECE_LAG);
    return message;
}

tutti_status tt_tune_find(int locals, size_t chunk_bytes, size_t slots, tt_tune *out)
{
    const size_t ranks = (size_t)locals;
    tt_tune tune = {.small_bytes = SMALL, .nt_bytes = 2 * core_cache(), .leader_bytes = LEADER};
    size_t carry = CARRY / ranks, limit = SLOTS_MOST / slots / ranks / PART * PART, given = 0;
    tune.carry_bytes = carry < CARRY_LEAST ? CARRY_LEAST : carry;
    tune.reached_bytes = tt_min_size(tune.carry_bytes, REACHED);
    tune.unit = tt_round_up(chunk_bytes, PART);
    tune.slot_bytes = tt_min_size(tt_round_up(chunk_bytes, PART), limit);
    long long lag;
    TT_TRY(override(TT_ENV_SMALL_BYTES, &tune.small_bytes));
    TT_TRY(override(TT_ENV_LEADER_BYTES, &tune.leader_bytes));
    TT_TRY(override(TT_ENV_NODE_CHUNK, &tune.node_chunk));
    TT_TRY(find_way(&tune.way));
    TT_TRY(tt_env_get_int(TT_ENV_NODE_LAG, &lag));
    if (lag < 0 || lag > LAG_MOST)
        return tt_fail(TUTTI_ERR_ARG, "TUTTI_NODE_LAG is 0 to %d", LAG_MOST);
    tune.lag = (size_t)lag;
    TT_TRY(override(TT_ENV_CARRY_BYTES, &given));
    if (given > 0)
        tune.carry_bytes = tune.reached_bytes = given;
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

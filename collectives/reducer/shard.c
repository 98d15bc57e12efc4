/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rank updates what (ZeRO-1).
 *
 * A bucket's concatenation is cut into equal parts, one per rank, at multiples of 64 elements. The
 * arena of owned gradients has room for all of them, so that a bucket is one reduce-scatter of
 * equal counts; the last parts may reach beyond the last tensor (padding: zeros). Scattered
 * gradients of the program's own have no such room: within a run in memory the parts follow one
 * another in the order of ranks, so each run is a reduce-scatter with a count per rank, some of
 * them 0. Nothing is packed either way. The same holds for parameters and all-gather.
 *
 * A piece is the part of one tensor within this rank's part of its bucket. Optimizer state follows
 * the parts, padding included, so that it has the same size on every rank: 1/n of the parameters,
 * plus at most 64 elements for each tensor and bucket.
 */
#include <stdlib.h>

#include "core/mem.h"
#include "reducer/reducer.h"

void tt_red_shard_plan(tutti_reducer *red)
{
    size_t ranks = (size_t)red->ranks;

    if (!tt_red_sharded(red))
        return;
    for (int b = 0; b < red->nbuckets; b++) {
        tt_red_bucket *bucket = &red->buckets[b];
        bucket->shard = tt_round_up((bucket->elements + ranks - 1) / ranks, TT_EXACT_BLOCK);
        bucket->elements = bucket->shard * ranks;
        bucket->state = red->shard_count;
        red->shard_count += bucket->shard;
    }
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* The part of a tensor that rank r updates, counted in the tensor's elements. */
static size_t part_of(const tt_red_bucket *bucket, const tt_red_param *param, size_t r,
                      size_t *from_out)
{
    size_t from = max_size(r * bucket->shard, param->index);
    size_t to = tt_min_size((r + 1) * bucket->shard, param->index + param->count);

    if (from >= to)
        return 0;
    *from_out = from - param->index;
    return to - from;
}

bool tt_red_run_counts(const tutti_reducer *red, const tt_red_bucket *bucket, const tt_red_run *run)
{
    size_t ranks = (size_t)red->ranks;
    bool differ = false;

    if (bucket->owned && run == bucket->runs) { /* the whole of it, gaps and all */
        for (size_t r = 0; r < ranks; r++)
            red->counts[r] = bucket->shard;
        return false;
    }
    for (size_t r = 0; r < ranks; r++)
        red->counts[r] = 0;
    for (int i = run->first; i < run->first + run->n; i++) {
        const tt_red_param *param = &red->params[bucket->ids[i]];
        size_t from = 0;
        for (size_t r = param->index / bucket->shard;
             r < ranks && r * bucket->shard < param->index + param->count; r++)
            red->counts[r] += part_of(bucket, param, r, &from);
    }
    for (size_t r = 1; r < ranks; r++)
        differ = differ || red->counts[r] != red->counts[0];
    return differ;
}

static tutti_piece piece_of(const tutti_reducer *red, int id, size_t from, size_t count)
{
    const tt_red_param *param = &red->params[id];
    size_t size = tutti_dtype_size(param->dtype);

    return (tutti_piece){
        .id = id,
        .group = param->group,
        .tensor_offset = (int64_t)from,
        .count = (int64_t)count,
        .grad = (char *)param->grad + from * size,
        .param = param->param == NULL ? NULL : (char *)param->param + from * size,
    };
}

static void sharded_pieces(tutti_reducer *red)
{
    size_t used = 0;

    for (int id = 0; id < (int)red->nparams; id++) {
        const tt_red_param *param = &red->params[id];
        const tt_red_bucket *bucket = &red->buckets[param->bucket];
        size_t from = 0, count = part_of(bucket, param, (size_t)red->rank, &from);
        tutti_piece *piece = &red->pieces[red->npieces];
        if (count == 0)
            continue;
        *piece = piece_of(red, id, from, count);
        piece->state_offset =
            (int64_t)(bucket->state + param->index + from - (size_t)red->rank * bucket->shard);
        red->npieces++;
        used += count;
    }
    red->padding = red->shard_count - used;
}

static void whole_pieces(tutti_reducer *red)
{
    for (int id = 0; id < (int)red->nparams; id++) {
        if (red->params[id].tied > 0)
            continue;
        red->pieces[red->npieces] = piece_of(red, id, 0, red->params[id].count);
        red->pieces[red->npieces++].state_offset = (int64_t)red->shard_count;
        red->shard_count += red->params[id].count;
    }
}

tutti_status tt_red_pieces_create(tutti_reducer *red)
{
    TT_TRY(tt_calloc(red->nparams, sizeof *red->pieces, &red->pieces));
    if (tt_red_sharded(red))
        sharded_pieces(red);
    else
        whole_pieces(red);
    return TUTTI_OK;
}

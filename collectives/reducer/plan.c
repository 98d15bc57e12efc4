/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan: which gradients travel together, and where they lie.
 *
 * Parameters are walked in reverse order of registration, the order in which a backward pass makes
 * gradients final, and put into the open bucket of their kind (dtype, and whether the reducer owns
 * the memory) until it reaches its cap. Until the first bucket is full all caps are the small
 * one, so that whichever bucket is issued first is small and communication starts early. Buckets
 * are numbered by the member expected last: their order of issue until another is learnt.
 *
 * A bucket is thought of as the concatenation of its members, each beginning at a multiple of 64
 * bytes (64 elements where the bucket is sharded: the parts then end at the blocks of exact sums).
 * Owned gradients lie so in one arena, bucket after bucket; the gaps are reduced with the rest
 * (zeros) so that a bucket is one collective. Gradients of the program's own are never copied:
 * neighbours in memory are merged into runs, the runs of a bucket are issued as one group. A merge
 * needs the same neighbourhood on every rank (`follows`, combined over the ranks by the caller),
 * for addresses differ between ranks.
 *
 * The plan is a function of what the ranks were found to have in common, so it needs no agreement
 * of its own.
 */
#include <stdio.h>
#include <stdlib.h>

#include "core/log.h"
#include "core/mem.h"
#include "reducer/reducer.h"

enum { DTYPES = TUTTI_UINT64 + 1 };

typedef struct filling {
    tt_red_bucket *open[DTYPES][2]; /* by dtype and ownership */
    bool first_full;
} filling;

/* Elements that a member takes in the concatenation. */
static size_t slot(const tutti_reducer *red, const tt_red_param *param)
{
    size_t align =
        tt_red_sharded(red) ? TT_EXACT_BLOCK : TT_RED_ALIGN / tutti_dtype_size(param->dtype);
    return tt_round_up(param->count, align);
}

static size_t padded(const tutti_reducer *red, const tt_red_param *param)
{
    return param->owned ? slot(red, param) * tutti_dtype_size(param->dtype) : param->bytes;
}

static void put_param(tutti_reducer *red, filling *fill, int id)
{
    tt_red_param *param = &red->params[id];
    tt_red_bucket **open = &fill->open[param->dtype][param->owned];
    size_t cap = fill->first_full ? red->bucket_bytes : red->first_bucket_bytes;

    if (*open != NULL && (*open)->bytes + padded(red, param) > cap) {
        *open = NULL;
        fill->first_full = true;
    }
    if (*open == NULL) {
        *open = &red->buckets[red->nbuckets++];
        (*open)->dtype = param->dtype;
        (*open)->owned = param->owned;
    }
    param->bucket = (int)(*open - red->buckets);
    (*open)->bytes += padded(red, param);
    (*open)->last_id = id;
    (*open)->n++;
}

static int by_last_id(const void *a, const void *b)
{
    int x = ((const tt_red_bucket *)a)->last_id, y = ((const tt_red_bucket *)b)->last_id;
    return (x < y) - (x > y);
}

static void sort_buckets(tutti_reducer *red)
{
    int *ids = red->members;

    qsort(red->buckets, (size_t)red->nbuckets, sizeof *red->buckets, by_last_id);
    /* A bucket is known by its last member: the others follow it to its new number. */
    for (int id = 0; id < (int)red->nparams; id++)
        ids[id] = red->params[id].tied == 0 ? red->params[id].bucket : -1;
    for (int b = 0; b < red->nbuckets; b++) {
        int old = ids[red->buckets[b].last_id];
        for (int id = red->buckets[b].last_id, left = red->buckets[b].n; left > 0; id++)
            if (ids[id] == old) {
                red->params[id].bucket = b;
                left--;
            }
    }
}

/* Owned members in the order of the backward pass, the program's own in that of registration. */
static void list_members(tutti_reducer *red)
{
    int *at = red->members, n = (int)red->nparams;

    for (int b = 0; b < red->nbuckets; b++) {
        tt_red_bucket *bucket = &red->buckets[b];
        bucket->ids = at;
        at += bucket->n;
        bucket->n = 0;
        snprintf(bucket->label, sizeof bucket->label, "tutti reducer bucket %d", b);
    }
    for (int i = 0; i < n; i++) {
        tt_red_bucket *own = &red->buckets[red->params[n - 1 - i].bucket];
        if (own->owned && red->params[n - 1 - i].tied == 0)
            own->ids[own->n++] = n - 1 - i;
        tt_red_bucket *given = &red->buckets[red->params[i].bucket];
        if (!given->owned && red->params[i].tied == 0)
            given->ids[given->n++] = i;
    }
}

/* Another name of a parameter is waited for with it. */
static void join_ties(tutti_reducer *red)
{
    for (size_t id = 0; id < red->nparams; id++) {
        tt_red_param *param = &red->params[id];
        if (param->tied == 0)
            continue;
        param->bucket = red->params[param->tied - 1].bucket;
        red->buckets[param->bucket].ties++;
    }
}

static void lay_out(tutti_reducer *red)
{
    for (int b = 0; b < red->nbuckets; b++) {
        tt_red_bucket *bucket = &red->buckets[b];
        for (int i = 0; i < bucket->n; i++) {
            red->params[bucket->ids[i]].index = bucket->elements;
            bucket->elements += slot(red, &red->params[bucket->ids[i]]);
        }
    }
    tt_red_shard_plan(red);
    for (int b = 0; b < red->nbuckets; b++) {
        const tt_red_bucket *bucket = &red->buckets[b];
        size_t size = tutti_dtype_size(bucket->dtype);
        for (int i = 0; bucket->owned && i < bucket->n; i++)
            red->params[bucket->ids[i]].offset =
                red->arena_bytes + red->params[bucket->ids[i]].index * size;
        if (bucket->owned)
            red->arena_bytes += tt_round_up(bucket->elements * size, TT_RED_ALIGN);
    }
}

/* Each parameter alone is small enough, which add has seen to. */
static tutti_status check_total(const tutti_reducer *red)
{
    size_t total = 0;

    for (size_t id = 0; id < red->nparams; id++)
        if (__builtin_add_overflow(total, padded(red, &red->params[id]), &total) ||
            total > PTRDIFF_MAX)
            return tt_fail(TUTTI_ERR_ARG, "reducer \"%s\": parameters up to \"%s\" are too large",
                           red->name, red->params[id].name);
    return TUTTI_OK;
}

tutti_status tt_red_plan_buckets(tutti_reducer *red)
{
    filling fill = {0};

    TT_TRY(check_total(red));
    TT_TRY(tt_calloc(red->nparams, sizeof *red->buckets, &red->buckets));
    TT_TRY(tt_calloc(red->nparams, sizeof *red->members, &red->members));
    TT_TRY(tt_calloc(red->nparams, sizeof *red->runs, &red->runs));
    TT_TRY(tt_calloc(red->nparams, sizeof *red->param_runs, &red->param_runs));
    for (int id = (int)red->nparams - 1; id >= 0; id--)
        if (red->params[id].tied == 0)
            put_param(red, &fill, id);
    sort_buckets(red);
    list_members(red);
    join_ties(red);
    lay_out(red);
    return TUTTI_OK;
}

static bool is_next(const void *before, size_t bytes, const void *ptr)
{
    return before != NULL && ptr != NULL && (const char *)before + bytes == (const char *)ptr;
}

void tt_red_plan_follows(const tutti_reducer *red, uint8_t *follows_out)
{
    for (int b = 0; b < red->nbuckets; b++) {
        const tt_red_bucket *bucket = &red->buckets[b];
        for (int i = 1; i < bucket->n; i++) {
            const tt_red_param *before = &red->params[bucket->ids[i - 1]];
            const tt_red_param *param = &red->params[bucket->ids[i]];
            if (!bucket->owned && is_next(before->grad, before->bytes, param->grad))
                follows_out[bucket->ids[i]] |= TT_RED_GRAD_FOLLOWS;
            if (is_next(before->param, before->bytes, param->param))
                follows_out[bucket->ids[i]] |= TT_RED_PARAM_FOLLOWS;
        }
    }
}

/* Merges a bucket's members into runs where `follows` has the bit; returns how many. */
static int merge(const tutti_reducer *red, const tt_red_bucket *bucket, const uint8_t *follows,
                 uint8_t bit, tt_red_run *runs)
{
    int n = 0;

    for (int i = 0; i < bucket->n; i++) {
        const tt_red_param *param = &red->params[bucket->ids[i]];
        if (n == 0 || (follows[bucket->ids[i]] & bit) == 0)
            runs[n++] = (tt_red_run){.ptr = bit == TT_RED_GRAD_FOLLOWS ? param->grad : param->param,
                                     .first = i};
        runs[n - 1].count += param->count;
        runs[n - 1].n++;
    }
    return n;
}

/* Between the first and the last byte of its members; where it is sharded, all equal parts. */
static void one_run(tutti_reducer *red, tt_red_bucket *bucket)
{
    const tt_red_param *first = &red->params[bucket->ids[0]];
    const tt_red_param *last = &red->params[bucket->ids[bucket->n - 1]];
    size_t size = tutti_dtype_size(bucket->dtype);

    bucket->bytes =
        tt_red_sharded(red) ? bucket->elements * size : last->offset + last->bytes - first->offset;
    bucket->runs[0] = (tt_red_run){
        .ptr = red->arena + first->offset, .count = bucket->bytes / size, .n = bucket->n};
    bucket->nruns = 1;
}

void tt_red_plan_runs(tutti_reducer *red, const uint8_t *follows)
{
    tt_red_run *at = red->runs, *param_at = red->param_runs;

    for (int b = 0; b < red->nbuckets; b++) {
        tt_red_bucket *bucket = &red->buckets[b];
        bucket->runs = at;
        bucket->param_runs = param_at;
        if (bucket->owned)
            one_run(red, bucket);
        else
            bucket->nruns = merge(red, bucket, follows, TT_RED_GRAD_FOLLOWS, at);
        if (tt_red_sharded(red))
            bucket->nparam_runs = merge(red, bucket, follows, TT_RED_PARAM_FOLLOWS, param_at);
        for (int i = 0; i < bucket->nruns; i++) {
            at[i].at = red->run_bytes;
            red->run_bytes +=
                tt_round_up(at[i].count * tutti_dtype_size(bucket->dtype), TT_RED_ALIGN);
        }
        for (int i = 0; i < bucket->nruns; i++)
            at[i].work = red->shadow != NULL ? red->shadow + at[i].at : at[i].ptr;
        at += bucket->nruns;
        param_at += bucket->nparam_runs;
        red->step_bytes += bucket->bytes;
    }
    for (size_t id = 0; id < red->nparams; id++) {
        tt_red_param *param = &red->params[id];
        if (param->owned && param->tied == 0)
            param->grad = red->arena + param->offset;
        if (param->tied > 0) /* an earlier one */
            param->grad = red->params[param->tied - 1].grad;
    }
}

void tt_red_memory_free(tutti_reducer *red, char **memory)
{
    if (*memory != NULL && tutti_free(red->comm, *memory) != TUTTI_OK)
        tt_log_warn(TT_RED, "\"%s\": memory not freed: %s", red->name, tutti_last_error());
    *memory = NULL;
}

void tt_red_plan_free(tutti_reducer *red)
{
    const tt_device_ops *ops = red->ctx->dev_ops;

    for (int b = 0; b < red->nbuckets; b++) {
        tt_red_sources_free(red, &red->buckets[b].sources);
        ops->event_destroy(red->ctx->dev, red->buckets[b].gathered);
    }
    tt_red_times_free(red);
    ops->event_destroy(red->ctx->dev, red->zeroed);
    ops->event_destroy(red->ctx->dev, red->done);
    ops->event_destroy(red->ctx->dev, red->folded);
    ops->event_destroy(red->ctx->dev, red->updated);
    tt_red_fold_free(red);
    tt_red_memory_free(red, &red->arena);
    tt_red_memory_free(red, (char **)&red->sums);
    tt_red_memory_free(red, &red->staging);
    tt_red_memory_free(red, &red->shadow);
    for (size_t id = 0; id < red->nparams; id++)
        if (red->params[id].owned)
            red->params[id].grad = NULL;
    free(red->buckets);
    free(red->members);
    free(red->runs);
    free(red->param_runs);
    free(red->counts);
    tt_red_micros_free(red);
    free(red->used);
    free(red->used_by_all);
    free(red->pieces);
    free(red->order);
    free(red->completed);
    free(red->hashes);
    ops->mem_free(red->ctx->dev, red->scratch);
    red->scratch = NULL;
    red->zeroed = red->done = red->folded = red->updated = NULL;
    red->buckets = NULL;
    red->members = red->order = red->completed = NULL;
    red->runs = red->param_runs = NULL;
    red->counts = NULL;
    red->used = red->used_by_all = NULL;
    red->pieces = NULL;
    red->hashes = NULL;
    red->nbuckets = 0;
    red->arena_bytes = red->step_bytes = red->run_bytes = red->staging_bytes = 0;
    red->npieces = red->shard_count = red->padding = 0;
}

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
 * Owned gradients lie in one arena, bucket after bucket, each tensor at a multiple of 64 bytes; the
 * gaps are reduced with the rest (zeros) so that a bucket is one all-reduce. Gradients of the
 * program's own are never copied: neighbours in memory are merged into runs, the runs of a bucket
 * are issued as one group. A merge needs the same neighbourhood on every rank (`follows`, combined
 * over the ranks by the caller), for addresses differ between ranks.
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

static size_t padded(const tt_red_param *param)
{
    return param->owned ? tt_round_up(param->bytes, TT_RED_ALIGN) : param->bytes;
}

static void put_param(tutti_reducer *red, filling *fill, int id)
{
    tt_red_param *param = &red->params[id];
    tt_red_bucket **open = &fill->open[param->dtype][param->owned];
    size_t cap = fill->first_full ? red->bucket_bytes : red->first_bucket_bytes;

    if (*open != NULL && (*open)->bytes + padded(param) > cap) {
        *open = NULL;
        fill->first_full = true;
    }
    if (*open == NULL) {
        *open = &red->buckets[red->nbuckets++];
        (*open)->dtype = param->dtype;
        (*open)->owned = param->owned;
    }
    param->bucket = (int)(*open - red->buckets);
    (*open)->bytes += padded(param);
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
        ids[id] = red->params[id].bucket;
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
        if (own->owned)
            own->ids[own->n++] = n - 1 - i;
        tt_red_bucket *given = &red->buckets[red->params[i].bucket];
        if (!given->owned)
            given->ids[given->n++] = i;
    }
}

static void lay_out(tutti_reducer *red)
{
    for (int b = 0; b < red->nbuckets; b++) {
        const tt_red_bucket *bucket = &red->buckets[b];
        for (int i = 0; bucket->owned && i < bucket->n; i++) {
            red->params[bucket->ids[i]].offset = red->arena_bytes;
            red->arena_bytes += padded(&red->params[bucket->ids[i]]);
        }
    }
}

/* Each parameter alone is small enough, which add has seen to. */
static tutti_status check_total(const tutti_reducer *red)
{
    size_t total = 0;

    for (size_t id = 0; id < red->nparams; id++)
        if (__builtin_add_overflow(total, padded(&red->params[id]), &total) || total > PTRDIFF_MAX)
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
    for (int id = (int)red->nparams - 1; id >= 0; id--)
        put_param(red, &fill, id);
    sort_buckets(red);
    list_members(red);
    lay_out(red);
    return TUTTI_OK;
}

void tt_red_plan_follows(const tutti_reducer *red, uint8_t *follows_out)
{
    for (int b = 0; b < red->nbuckets; b++) {
        const tt_red_bucket *bucket = &red->buckets[b];
        for (int i = 0; i < bucket->n; i++) {
            const tt_red_param *before = i > 0 ? &red->params[bucket->ids[i - 1]] : NULL;
            follows_out[bucket->ids[i]] =
                before != NULL && !bucket->owned &&
                (char *)before->grad + before->bytes == red->params[bucket->ids[i]].grad;
        }
    }
}

static void given_runs(tutti_reducer *red, tt_red_bucket *bucket, const uint8_t *follows)
{
    for (int i = 0; i < bucket->n; i++) {
        const tt_red_param *param = &red->params[bucket->ids[i]];
        if (bucket->nruns == 0 || follows[bucket->ids[i]] == 0)
            bucket->runs[bucket->nruns++] = (tt_red_run){param->grad, 0};
        bucket->runs[bucket->nruns - 1].count += param->count;
    }
}

void tt_red_plan_runs(tutti_reducer *red, const uint8_t *follows)
{
    tt_red_run *at = red->runs;

    for (int b = 0; b < red->nbuckets; b++) {
        tt_red_bucket *bucket = &red->buckets[b];
        const tt_red_param *first = &red->params[bucket->ids[0]];
        const tt_red_param *last = &red->params[bucket->ids[bucket->n - 1]];
        bucket->runs = at;
        if (bucket->owned) {
            bucket->bytes = last->offset + last->bytes - first->offset;
            bucket->runs[0] = (tt_red_run){red->arena + first->offset,
                                           bucket->bytes / tutti_dtype_size(bucket->dtype)};
            bucket->nruns = 1;
        } else {
            given_runs(red, bucket, follows);
        }
        at += bucket->nruns;
        red->step_bytes += bucket->bytes;
    }
    for (size_t id = 0; id < red->nparams; id++)
        if (red->params[id].owned)
            red->params[id].grad = red->arena + red->params[id].offset;
}

void tt_red_plan_free(tutti_reducer *red)
{
    const tt_device_ops *ops = red->ctx->dev_ops;

    for (int b = 0; b < red->nbuckets; b++)
        tt_red_sources_free(red, &red->buckets[b].sources);
    tt_red_times_free(red);
    ops->event_destroy(red->ctx->dev, red->zeroed);
    ops->event_destroy(red->ctx->dev, red->done);
    if (red->arena != NULL && tutti_free(red->comm, red->arena) != TUTTI_OK)
        tt_log_warn(TT_RED, "\"%s\": gradients not freed: %s", red->name, tutti_last_error());
    for (size_t id = 0; id < red->nparams; id++)
        if (red->params[id].owned)
            red->params[id].grad = NULL;
    free(red->buckets);
    free(red->members);
    free(red->runs);
    free(red->pieces);
    free(red->order);
    free(red->completed);
    free(red->hashes);
    red->zeroed = red->done = NULL;
    red->arena = NULL;
    red->buckets = NULL;
    red->members = red->order = red->completed = NULL;
    red->runs = NULL;
    red->pieces = NULL;
    red->hashes = NULL;
    red->nbuckets = 0;
    red->arena_bytes = red->step_bytes = red->shard_count = 0;
}

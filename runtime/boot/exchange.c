/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The blocking exchanges, all made of the non-blocking one (xchg.c). A broadcast is an exchange to
 * which only the root brings something: that costs small messages up the tree, and in return every
 * member knows that all came and that they meant the same call.
 *
 * What the members agree on (a worst status, blobs of equal size, fresh ids) is computed by each
 * from the same gathered data, so they cannot differ. What goes wrong on one member alone (no
 * memory for the data) cannot be agreed on any more: it fails the context, and the others hear it.
 */
#include "boot/exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "boot/circle.h"
#include "boot/internal.h"
#include "core/clock.h"

void tt_blobs_free(tt_blobs *blobs)
{
    free(blobs->offset);
    free(blobs->data);
    *blobs = (tt_blobs){0};
}

/* Codes from -20 on say that the communicator is lost; then the context must say so too. What all
 * ranks of the job find in the same data needs no telling: each marks its own context, with the
 * same text. What a part of them finds, the others must hear. */
static tutti_status settle(tt_group *group, tutti_status status)
{
    if (status > TUTTI_ERR_TIMEOUT)
        return status;
    if (group->size < group->ctx->world.size)
        return tt_ctx_fail(group->ctx, status);
    tt_ctx_mark_failed(group->ctx, status);
    return status;
}

static tutti_status wait_until_done(tutti_ctx *ctx, tt_xchg *x)
{
    _Atomic uint32_t *bell = ctx->boot->bell;
    tt_wait wait;
    tt_wait_begin(&wait, &ctx->caller_patience);
    for (;;) {
        bool done = false;
        uint32_t seen = bell != NULL ? atomic_load(bell) : 0;
        TT_TRY(tt_xchg_test(x, &done));
        if (done)
            return TUTTI_OK;
        TT_TRY(tt_ctx_check(ctx));
        tt_ctx_poll(ctx);
        tt_wait_once(&wait, bell, seen);
    }
}

static tutti_status wait_for(tt_group *group, const char *what, uint32_t round, tt_xchg *x)
{
    const tt_spot spot = tt_spot_exchange(group, TT_CH_CONTROL, round);
    tt_stay stay = {
        .what = tt_stay_named(what), .world = group->world, .n = group->size, .spot = &spot};
    tt_stay_begin(group->ctx, &stay);
    tutti_status status = wait_until_done(group->ctx, x);
    tt_stay_end(group->ctx, &stay);
    return status;
}

/* A time-out also says where the late ranks were last seen. */
static tutti_status end_failed(tutti_ctx *ctx, tutti_status status)
{
    char text[TT_ERROR_TEXT_MAX], seen[768];
    if (status == TUTTI_ERR_TIMEOUT && atomic_load(&ctx->failed) == 0) {
        snprintf(text, sizeof text, "%s", tutti_last_error());
        tt_progress_ask(ctx, seen, sizeof seen);
        tt_fail(status, "%s%s", text, seen);
    }
    return tt_ctx_fail(ctx, status);
}

static tutti_status exchange(tt_group *group, const char *what, const void *mine, size_t bytes,
                             tt_blobs *out)
{
    tt_xchg *x = NULL;
    TT_TRY(tt_ctx_check(group->ctx));
    if (group->size > 1)
        TT_TRY(tt_ctx_check_thread(group->ctx, what));
    tt_ctx_is_in(group->ctx, what);
    const uint32_t round = group->round[TT_CH_CONTROL];
    tutti_status status =
        tt_xchg_start(group, TT_CH_CONTROL, what, mine, bytes, group->ctx->timeout_s, &x);
    if (status == TUTTI_OK)
        status = wait_for(group, what, round, x);
    if (status != TUTTI_OK) {
        tt_xchg_cancel(x);
        status = end_failed(group->ctx, status);
    }
    tt_ctx_is_in(group->ctx, NULL);
    if (status != TUTTI_OK)
        return status;
    status = tt_xchg_finish(x, out);
    return status == TUTTI_ERR_MISMATCH ? settle(group, status) : tt_ctx_fail(group->ctx, status);
}

tutti_status tt_all_gather_blobs(tt_group *group, const char *what, const void *mine, size_t bytes,
                                 tt_blobs *out)
{
    return exchange(group, what, mine, bytes, out);
}

tutti_status tt_all_gather_fixed(tt_group *group, const char *what, const void *mine, size_t bytes,
                                 void *all_out)
{
    tt_blobs blobs = {0};
    TT_TRY(exchange(group, what, mine, bytes, &blobs));
    tutti_status status = TUTTI_OK;
    for (int i = 1; i < blobs.n && status == TUTTI_OK; i++)
        if (tt_blob_bytes(&blobs, i) != tt_blob_bytes(&blobs, 0))
            status = tt_fail(TUTTI_ERR_MISMATCH, "%s: rank %d brought %zu bytes, rank %d %zu", what,
                             group->world[0], tt_blob_bytes(&blobs, 0), group->world[i],
                             tt_blob_bytes(&blobs, i));
    if (status == TUTTI_OK && bytes > 0)
        memcpy(all_out, blobs.data, bytes * (size_t)group->size);
    tt_blobs_free(&blobs);
    return settle(group, status);
}

tutti_status tt_bcast_blob(tt_group *group, const char *what, int root, const void *mine,
                           size_t bytes, tt_buf *out)
{
    tt_blobs blobs = {0};
    tt_buf copy = {0};
    bool is_root = group->rank == root;
    TT_TRY(exchange(group, what, is_root ? mine : NULL, is_root ? bytes : 0, &blobs));
    tt_buf_put(&copy, tt_blob(&blobs, root), tt_blob_bytes(&blobs, root));
    tt_blobs_free(&blobs);
    if (copy.failed) {
        tt_buf_free(&copy);
        return tt_ctx_fail(group->ctx, tt_fail_more(TUTTI_ERR_NO_MEMORY, "%s", what));
    }
    *out = copy;
    return TUTTI_OK;
}

tutti_status tt_barrier(tt_group *group, const char *what)
{
    return exchange(group, what, NULL, 0, NULL);
}

/* The blob of a rank that is well is empty: the usual case costs next to nothing. */
static tutti_status worst_of(tt_group *group, const tt_blobs *blobs)
{
    tutti_status worst = TUTTI_OK;
    const char *text = "";
    int who = -1;
    for (int i = 0; i < blobs->n; i++) {
        tt_buf view = tt_buf_view(tt_blob(blobs, i), tt_blob_bytes(blobs, i));
        if (view.size == 0)
            continue;
        tutti_status status = (tutti_status)(int32_t)tt_buf_get_u32(&view);
        if (status < worst) {
            worst = status;
            text = tt_buf_get_str(&view);
            who = i;
        }
    }
    if (worst == TUTTI_OK)
        return TUTTI_OK;
    char name[TT_HOST_MAX + 64];
    return tt_fail(worst, "%s: %s",
                   tt_ctx_rank_name(group->ctx, group->world[who], name, sizeof name), text);
}

tutti_status(tt_agree)(tt_group *group, const char *what, tutti_status mine)
{
    tt_buf blob = {0};
    tt_blobs blobs = {0};
    if (group->size == 1)
        return settle(group, mine);
    if (mine != TUTTI_OK) {
        tt_buf_put_u32(&blob, (uint32_t)mine);
        tt_buf_put_str(&blob, tutti_last_error());
    }
    tutti_status status = exchange(group, what, blob.data, blob.size, &blobs);
    tt_buf_free(&blob);
    if (status != TUTTI_OK)
        return status;
    status = worst_of(group, &blobs);
    tt_blobs_free(&blobs);
    return settle(group, status);
}

/* What the members propose: the highest, and whether all propose that. */
static tutti_status compare_proposals(tt_group *group, uint32_t mine, uint32_t *highest_out,
                                      bool *equal_out)
{
    tt_blobs blobs = {0};
    TT_TRY(exchange(group, "choice of a group id", &mine, sizeof mine, &blobs));
    *highest_out = mine;
    *equal_out = true;
    for (int i = 0; i < blobs.n; i++) {
        tt_buf view = tt_buf_view(tt_blob(&blobs, i), tt_blob_bytes(&blobs, i));
        uint32_t theirs = tt_buf_get_u32(&view);
        *equal_out = *equal_out && theirs == mine;
        *highest_out = theirs > *highest_out ? theirs : *highest_out;
    }
    tt_blobs_free(&blobs);
    return TUTTI_OK;
}

/* A rank proposes ids that it takes from its counter at once, so no other thread of it can propose
 * the same; they are chosen when all members propose them. Else all go on from the highest, and the
 * second round agrees, unless other threads of the ranks choose over other groups meanwhile: then
 * each group pauses for a time of its own, the same on all its members. */
tutti_status tt_group_new_ids(tt_group *group, uint32_t n, uint32_t *first_out)
{
    enum { ROUNDS = 64, STEPS_MAX = 10 };
    const int64_t pause_ns = 200000;
    tutti_ctx *ctx = group->ctx;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t mine = atomic_fetch_add(&ctx->next_group_id, n), highest = 0;
        bool equal = false;
        TT_TRY(compare_proposals(group, mine, &highest, &equal));
        if (((uint64_t)highest + n) * TT_TAGS_PER_GROUP >= ctx->boot->tag_limit)
            return tt_fail(TUTTI_ERR_UNSUPPORTED,
                           "more than %u communicators and registrations in one job",
                           ctx->boot->tag_limit / TT_TAGS_PER_GROUP);
        if (equal) {
            *first_out = mine;
            return TUTTI_OK;
        }
        for (uint32_t next = atomic_load(&ctx->next_group_id);
             next < highest + n &&
             !atomic_compare_exchange_weak(&ctx->next_group_id, &next, highest + n);)
            ;
        if (round > 0)
            tt_sleep_ns(pause_ns * (int64_t)((group->id * 2654435761u >> round % 16) %
                                             (1u << tt_min_size(round, STEPS_MAX))));
    }
    return tt_fail(TUTTI_ERR_INTERNAL, "the ranks of a group do not find an id for another one");
}

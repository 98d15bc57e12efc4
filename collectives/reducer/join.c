/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that run out of samples at different steps.
 *
 * Every step of an uneven reducer begins with a meeting: each rank says how many micro-steps it is
 * about to make, or that it has joined. So a rank that has joined knows whether there is another
 * step, and gives zeros in it: its buckets are issued at once, in the agreed order. It brings its
 * parameters up to date as the others do, which keeps replicas equal and, with a sharded optimizer,
 * is not optional: a part of the parameters is this rank's.
 */
#include "comm/issue.h"
#include "reducer/reducer.h"

tutti_status tt_red_meet(tutti_reducer *red, int *micros_inout)
{
    const tt_group *group = &red->comm->group;
    uint64_t mine = (uint64_t)*micros_inout;
    int micros = 0, first = 0, present = 0;

    if ((red->flags & TUTTI_REDUCER_UNEVEN) == 0)
        return TUTTI_OK;
    TT_TRY(tt_red_failed(red, tt_all_gather_fixed(&red->comm->group, "a step of an uneven reducer",
                                                  &mine, sizeof mine, red->rank_hashes)));
    for (int r = 0; r < group->size; r++) {
        int theirs = (int)red->rank_hashes[r];
        present += theirs > 0;
        if (theirs > 0 && micros == 0) {
            micros = theirs;
            first = r;
        }
        if (theirs > 0 && theirs != micros)
            return tt_ctx_fail(
                red->ctx, tt_fail(TUTTI_ERR_MISMATCH,
                                  "reducer \"%s\": %d micro-steps on rank %d, %d on rank %d",
                                  red->name, theirs, group->world[r], micros, group->world[first]));
    }
    red->present = present;
    *micros_inout = micros;
    return TUTTI_OK;
}

static tutti_status give_zeros(tutti_reducer *red, int micros, tutti_stream stream)
{
    TT_TRY(tt_red_begin_step(red, micros, stream));
    tt_red_begin_micro(red, micros - 1);
    red->dropping = true;
    atomic_store(&red->remaining, 0);
    for (int k = 0; k < red->nbuckets; k++) {
        red->buckets[k].complete = true;
        red->completed[k] = red->order[k];
    }
    red->ncompleted = red->nbuckets;
    while (red->next < red->nbuckets)
        TT_TRY(tt_red_issue(red, false));
    return tt_red_end_step(red, stream);
}

/* One step of the others; *more_out: there was one. */
static tutti_status join_once(tutti_reducer *red, tutti_stream stream, bool *more_out)
{
    int micros = 0;
    tutti_status status;

    pthread_mutex_lock(&red->lock);
    status = tt_red_meet(red, &micros);
    if (status == TUTTI_OK && micros > 0)
        status = give_zeros(red, micros, stream);
    pthread_mutex_unlock(&red->lock);
    *more_out = micros > 0;
    return status;
}

static tutti_status check_join(const tutti_reducer *red, tutti_join_fn update)
{
    if (red == NULL || update == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_reducer_join: %s is NULL",
                       red == NULL ? "the reducer" : "update");
    TT_TRY(tt_ctx_check(red->ctx));
    TT_TRY(tt_group_forbid("tutti_reducer_join"));
    if ((red->flags & TUTTI_REDUCER_UNEVEN) == 0)
        return tt_fail(TUTTI_ERR_STATE,
                       "reducer \"%s\": join of a reducer made without TUTTI_REDUCER_UNEVEN",
                       red->name);
    if (!red->committed || red->in_step)
        return tt_fail(TUTTI_ERR_STATE, "reducer \"%s\": join %s", red->name,
                       red->committed ? "within a step: wait comes first" : "before commit");
    return TUTTI_OK;
}

tutti_status tutti_reducer_join(tutti_reducer *red, tutti_stream stream, tutti_join_fn update,
                                void *arg)
{
    bool more = true;

    TT_TRY(check_join(red, update));
    TT_TRY(tt_red_check_stream(red, stream, "join"));
    while (more) {
        TT_TRY(join_once(red, stream, &more));
        if (more)
            TT_TRY(update(arg));
    }
    red->present = red->ranks;
    return TUTTI_OK;
}

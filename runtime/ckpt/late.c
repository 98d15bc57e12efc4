/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A save whose disk does not answer.
 *
 * A thread that hangs in a write cannot be ended, so the save ends without it: when the time limit
 * is over by any rank's clock, all ranks give the save up in the same exchange, with the ranks
 * named whose disks are waited for. The program goes on; what the thread works with stays as it is,
 * and no other save begins, until it has come back, which the ranks ask each other at each step.
 * Then the leftovers are removed. A commit that the disk carries out after all is a whole
 * checkpoint and counts as one.
 *
 * Failing the context instead would end a job that could train on while a file server starts anew.
 */
#include <stdio.h>

#include "ckpt/ranks.h"
#include "ckpt/saver.h"
#include "core/clock.h"
#include "core/log.h"

/* For threads that are between two writes; a context that ends waits longer, for its save may be
 * going well. */
static const int64_t grace_ns = 1000000000, end_ns = 60000000000;

void tt_late_start(tt_saver *s, double timeout_s)
{
    uint64_t most = 0;
    for (size_t i = 0; i < s->plan.nshard; i++)
        most = s->plan.shard[i].stage_bytes > most ? s->plan.shard[i].stage_bytes : most;
    if (timeout_s == 0 && s->ctx->timeout_s > 0)
        timeout_s = s->ctx->timeout_s + tt_ranks_disk_s(most);
    s->timeout_s = timeout_s;
    s->deadline_ns = tt_deadline(timeout_s);
}

bool tt_late(const tt_saver *s)
{
    return s->phase != TT_SAVE_GIVEN_UP && tt_now_ns() > s->deadline_ns;
}

static const char *doing(tt_save_phase phase)
{
    return phase == TT_SAVE_WRITING   ? "writing its data"
           : phase == TT_SAVE_PRUNING ? "removing what is old; the checkpoint itself is there"
                                      : "committing it";
}

tutti_status tt_late_give_up(tt_saver *s)
{
    char who[512] = "", name[TT_HOST_MAX + 64];
    size_t at = 0;
    int n = 0;
    for (int r = 0; r < s->ctx->world.size; r++) {
        if (s->notes[r].done != 0)
            continue;
        if (at < sizeof who)
            at += (size_t)snprintf(who + at, sizeof who - at, "%s%s", n > 0 ? ", " : "",
                                   tt_ctx_rank_name(s->ctx, r, name, sizeof name));
        n++;
    }
    s->given_up_in = s->phase;
    s->phase = TT_SAVE_GIVEN_UP;
    atomic_store(&s->worker.cancel, true);
    tt_worker_done(&s->worker, grace_ns);
    return tt_fail(TUTTI_ERR_TIMEOUT,
                   "checkpoint of step %lld in %s: not done after %g s, and given up: the disk of "
                   "%s has not answered (%s)",
                   (long long)s->step, s->path, s->timeout_s, who, doing(s->given_up_in));
}

bool tt_late_committed(const tt_saver *s)
{
    return s->given_up_in == TT_SAVE_PRUNING ||
           (s->given_up_in == TT_SAVE_SEALING && !s->node_local && s->notes[0].status == TUTTI_OK);
}

bool tt_late_ended(tt_saver *s)
{
    bool given_up = s->phase == TT_SAVE_GIVEN_UP;
    if (tt_worker_done(&s->worker, given_up ? grace_ns : end_ns))
        return true;
    tt_log_error(TT_CKPT,
                 "the thread that writes the checkpoint of step %lld hangs in the disk and is left "
                 "behind, with its memory",
                 (long long)s->step);
    return false;
}

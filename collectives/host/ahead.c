/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small calls of a group, on one node: a rank publishes several before it waits for the first, so
 * that the hand-overs of their lines overlap. To the other ranks each is a call as ever; they need
 * not have a group, or the same one.
 *
 * Lines, and the inputs beside them, are used again after TT_LINES calls. A rank publishes call c
 * when it has finished c - TT_AHEAD. Then all have published that one, and so finished
 * c - 2 * TT_AHEAD, whose line c takes. A call that is not small is published when all before it
 * are finished, and nothing is published beyond it until it is: it may use what takes turns by two.
 *
 * A call whose input an earlier one of the group has yet to write waits for it.
 */
#include "host/control.h"
#include "trace/recorder.h"

typedef struct published {
    tt_run run;
    uint32_t key;
} published;

static bool is_small(const tt_call *call)
{
    tt_run run = {.host = call->comm->backend, .call = call};
    if (tt_is_p2p(call->kind))
        return false;
    tt_small_choose(&run);
    return run.form == TT_TINY ||
           (run.form == TT_SMALL && tt_small_most(call) <= tt_control_ring_bytes(run.host));
}

size_t tt_ahead_count(const tt_call *calls, size_t n)
{
    const tt_host *host = calls[0].comm->backend;
    size_t count = 1;
    if (n == 1 || host->counted || !is_small(&calls[0]))
        return 1;
    while (count < n && calls[count].comm == calls[0].comm &&
           calls[count].seq == calls[0].seq + count && is_small(&calls[count]))
        count++;
    return count;
}

/* Bytes of a small call's output here. */
static size_t out_bytes(const tt_call *call)
{
    const size_t element = tutti_dtype_size(call->dtype);
    const bool gathers =
        call->kind == TT_ALL_GATHER || call->kind == TT_GATHER || call->kind == TT_ALL_TO_ALL;
    if (call->out == NULL)
        return 0;
    if (call->counts != NULL) /* n is their sum */
        return call->n * element;
    return call->n * element * (gathers ? (size_t)call->comm->group.size : 1);
}

static bool reads_what_is_due(const tt_call *calls, size_t done, size_t at)
{
    const uintptr_t in = (uintptr_t)calls[at].in, end = in + tt_small_most(&calls[at]);
    for (size_t i = done; i < at; i++) {
        const uintptr_t out = (uintptr_t)calls[i].out;
        if (in < out + out_bytes(&calls[i]) && out < end)
            return true;
    }
    return false;
}

static tutti_status publish(published *p, const tt_call *call, const tt_patience *patience)
{
    p->run = (tt_run){.host = call->comm->backend, .call = call, .patience = patience};
    tt_small_choose(&p->run);
    TT_TRY(tt_meet_room(&p->run));
    p->key = tt_meet_publish(&p->run);
    return TUTTI_OK;
}

static tutti_status finish(published *p)
{
    const tt_call *call = p->run.call;
    tt_lane_begin(call->comm->lane, tt_kind_name(call->kind), call->seq, call->n);
    TT_TRY(tt_meet_published(&p->run, p->key));
    tt_small_finish(&p->run);
    tt_lane_end(call->comm->lane);
    tt_turn_pass(&p->run, &call->comm->done_seq);
    return TUTTI_OK;
}

tutti_status tt_ahead_run(const tt_call *calls, size_t n, const tt_patience *patience)
{
    published out[TT_AHEAD];
    tt_run first = {.host = calls[0].comm->backend, .call = &calls[0], .patience = patience};
    TT_TRY(tt_turn_await(&first, &calls[0].comm->done_seq));
    for (size_t done = 0, sent = 0; done < n; done++) {
        for (; sent < n && sent - done < TT_AHEAD; sent++) {
            if (reads_what_is_due(calls, done, sent))
                break;
            TT_TRY(publish(&out[sent % TT_AHEAD], &calls[sent], patience));
        }
        TT_TRY(finish(&out[done % TT_AHEAD]));
    }
    return TUTTI_OK;
}

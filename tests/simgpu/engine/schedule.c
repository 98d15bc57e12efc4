/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What runs, and when. An operation can run when it is at the head of its stream and the marks it
 * waits for have passed. `late` runs only what somebody waits for, by the shortest way: the head of
 * the stream waited for, or first what that head depends on. `eager` runs all that can run at every
 * enqueue. `random` runs a few, drawn by the seed, at every call. Whoever is stuck (the operation
 * waited for meets others that are not there yet) runs anything else that can run.
 *
 * A host function runs without the lock: the stream is marked busy meanwhile.
 */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>

uint64_t sg_stamp = 1;
static int unlocked;

bool sg_unlocked_running(void)
{
    return unlocked > 0;
}

static sg_mark *open_dep(const sg_op *op)
{
    for (size_t i = 0; i < op->n_deps; i++) {
        if (!op->deps[i]->done) {
            return op->deps[i];
        }
    }
    return NULL;
}

/* The operation's clock: its stream's so far, what the host had seen, and what it waited for. */
static void start(sg_op *op)
{
    sg_stream *s = op->stream;
    op->started = true;
    sg_clock_join(s->clock, op->seen);
    for (size_t i = 0; i < op->n_deps; i++) {
        sg_clock_join(s->clock, op->deps[i]->clock);
    }
    s->epoch = op->epoch = sg_slot_next(s->slot);
    s->clock[s->slot] = s->epoch;
    if (op->run != NULL) {
        s->data_epoch = s->epoch;
        s->queued_data--;
        sg_race_check(op);
    }
}

static void complete(sg_op *op)
{
    sg_stream *s = op->stream;
    if (op->mark != NULL) {
        op->mark->done = true;
        op->mark->clock = sg_clock_copy(s->clock);
        op->mark->when = sg_now();
    }
    s->head = op->next;
    if (s->head == NULL) {
        s->tail = NULL;
    }
    s->queued--;
    sg_op_free(op);
    sg_stream_finish(s);
    sg_changed();
}

static sg_step run_unlocked(sg_op *op)
{
    op->running = true;
    unlocked++;
    sg_host_sees_raw(op->stream->clock); /* the host runs it, so it knows what came before */
    sg_unlock();
    sg_step step = op->run(op->arg, op);
    sg_lock();
    unlocked--;
    op->running = false;
    return step;
}

static sg_step run(sg_op *op)
{
    if (op->run == NULL) {
        return SG_DONE;
    }
    if ((op->flags & SG_OP_UNLOCKED) != 0) {
        return run_unlocked(op);
    }
    op->running = true; /* what it calls must not run it again */
    if ((op->flags & SG_OP_KERNEL) != 0) {
        sg_memory_open(op->ranges, op->n_ranges);
        sg_guard_running(op->label->s);
    }
    sg_step step = op->run(op->arg, op);
    if ((op->flags & SG_OP_KERNEL) != 0) {
        sg_guard_running(NULL);
        sg_memory_close(op->ranges, op->n_ranges);
    }
    op->running = false;
    return step;
}

bool sg_step_stream(sg_stream *stream)
{
    sg_op *op = stream->head;
    if (op == NULL || op->running || open_dep(op) != NULL) {
        return false;
    }
    if (!op->started) {
        start(op);
    }
    sg_step step = run(op);
    op->blocked = step == SG_BLOCKED;
    if (step == SG_BLOCKED) {
        return false;
    }
    sg_log("run %s on %s", op->label->s, stream->name);
    complete(op);
    return true;
}

bool sg_advance(sg_stream *stream, sg_mark *until)
{
    bool progress = false;
    if (stream->visiting) {
        return false;
    }
    stream->visiting = true;
    if (until != NULL) {
        sg_mark_retain(until); /* whoever waits for it may be done with it meanwhile */
    }
    while (stream->head != NULL && (until == NULL || !until->done)) {
        sg_mark *dep = open_dep(stream->head);
        bool moved = dep != NULL ? sg_advance(dep->stream, dep) : sg_step_stream(stream);
        if (!moved) {
            break;
        }
        progress = true;
        if (sg_set.schedule == SG_RANDOM && sg_random("advance") % 4 == 0) {
            sg_run_any();
        }
    }
    stream->visiting = false;
    sg_mark_release(until);
    return progress;
}

bool sg_run_any(void)
{
    size_t n = 0;
    for (sg_stream *s = sg_streams; s != NULL; s = s->next) {
        n += s->head != NULL;
    }
    size_t skip = n > 1 && sg_set.schedule == SG_RANDOM ? sg_random("any") % n : 0;
    for (int round = 0; round < 2; round++) {
        for (sg_stream *s = sg_streams; s != NULL; s = s->next) {
            if (s->head == NULL) {
                continue;
            }
            if (round == 0 && skip > 0) {
                skip--;
            } else if (sg_step_stream(s)) {
                return true;
            }
        }
    }
    return false;
}

void sg_schedule_enqueued(sg_stream *stream)
{
    (void)stream;
    sg_changed();
    sg_ticker_start();
    if (sg_set.schedule == SG_EAGER) {
        while (sg_run_any()) {
        }
    }
}

void sg_schedule_called(void)
{
    if (sg_set.schedule != SG_RANDOM) {
        return;
    }
    for (uint64_t n = sg_random("called") % 3; n > 0 && sg_run_any(); n--) {
    }
}

bool sg_remote_blocked(void)
{
    for (const sg_stream *s = sg_streams; s != NULL; s = s->next) {
        if (s->head != NULL && s->head->blocked && (s->head->flags & SG_OP_REMOTE) != 0) {
            return true;
        }
    }
    return false;
}

const char *sg_op_blocked_text(const sg_op *op, char *buf, size_t cap)
{
    char why[256] = "it has not been able to run";
    const sg_mark *dep = open_dep(op);
    if (dep != NULL) {
        snprintf(why, sizeof(why), "it waits for %s", dep->stream->name);
    } else if (op->blocked && op->explain != NULL) {
        op->explain(op->arg, why, sizeof(why));
    } else if (op->running) {
        snprintf(why, sizeof(why), "it is running");
    }
    snprintf(buf, cap, "%s on %s: %s", op->label->s, op->stream->name, why);
    return buf;
}

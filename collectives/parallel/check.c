/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plays given steps of all stages as strictly as any transport may take them: a rank does its steps
 * one after the other; a group of transfers (those that follow each other with one slot) begins
 * when the rank comes to it and ends when all its transfers have met their other ends; a send meets
 * the oldest receive that its peer has begun and not yet matched from this rank. What is stuck then
 * is stuck on some machine.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "parallel/schedule.h"

typedef struct play {
    tt_schedule s; /* shape only; slot is used as "done": -1 no, 0 yes */
    const tutti_pipe_step *const *steps;
    const size_t *counts;
    size_t *at, *end; /* of each stage: where it is; where the group that it has begun ends */
    bool **met; /* transfers that have met their other ends */
    signed char *arrived; /* [2][stages][chunks][micros]: input has come */
} play;

static bool moves(const tutti_pipe_step *step)
{
    return step->kind == TUTTI_PIPE_SEND || step->kind == TUTTI_PIPE_RECV;
}

static const char *describe(const tutti_pipe_step *step, char *buf, size_t cap)
{
    static const char *const names[] = {"?", "forward", "backward", "send", "receive"};

    if (moves(step))
        snprintf(buf, cap, "%s of the %s of micro-batch %d, chunk %d, %s stage %d",
                 names[step->kind], step->gradient ? "gradient" : "activation", step->micro,
                 step->chunk, step->kind == TUTTI_PIPE_SEND ? "to" : "from", step->peer);
    else
        snprintf(buf, cap, "%s pass of micro-batch %d, chunk %d", names[step->kind], step->micro,
                 step->chunk);
    return buf;
}

static tutti_status check_step(const play *p, int stage, size_t i)
{
    const tutti_pipe_step *step = &p->steps[stage][i];
    bool known = step->kind >= TUTTI_PIPE_FORWARD && step->kind <= TUTTI_PIPE_RECV;

    if (!known || step->micro < 0 || step->micro >= p->s.micros || step->chunk < 0 ||
        step->chunk >= p->s.chunks)
        return tt_fail(
            TUTTI_ERR_ARG,
            "pipe_check: step %zu of stage %d (kind %d, micro-batch %d, chunk %d) is none "
            "of this shape",
            i, stage, (int)step->kind, step->micro, step->chunk);
    if (moves(step) && (step->peer < 0 || step->peer >= p->s.stages || step->peer == stage))
        return tt_fail(TUTTI_ERR_ARG, "pipe_check: step %zu of stage %d has peer %d", i, stage,
                       step->peer);
    return TUTTI_OK;
}

static bool is_done(const play *p, bool backward, int stage, int chunk, int micro)
{
    return tt_schedule_slot(&p->s, backward, stage, chunk, micro) == 0;
}

/* A pass needs its input, and a backward pass its own forward pass. */
static tutti_status do_pass(play *p, int stage, const tutti_pipe_step *step)
{
    bool backward = step->kind == TUTTI_PIPE_BACKWARD, fed = true;
    size_t at = tt_schedule_at(&p->s, backward, stage, step->chunk, step->micro);
    int from, chunk;
    char text[128];

    if (tt_pipe_source(&p->s, backward, stage, step->chunk, &from, &chunk))
        fed = from == stage ? is_done(p, backward, stage, chunk, step->micro) : p->arrived[at] != 0;
    if (backward)
        fed = fed && is_done(p, false, stage, step->chunk, step->micro);
    if (!fed)
        return tt_fail(TUTTI_ERR_STATE, "pipe_check: stage %d: %s before what it needs", stage,
                       describe(step, text, sizeof text));
    if (p->s.slot[at] == 0)
        return tt_fail(TUTTI_ERR_STATE, "pipe_check: stage %d: %s twice", stage,
                       describe(step, text, sizeof text));
    p->s.slot[at] = 0;
    return TUTTI_OK;
}

/* What is sent must have been made by the sender: the pass before the one that will read it. */
static tutti_status check_send(const play *p, int stage, const tutti_pipe_step *step)
{
    int from, chunk;
    char text[128];

    if (!tt_pipe_source(&p->s, step->gradient, step->peer, step->chunk, &from, &chunk) ||
        from != stage || !is_done(p, step->gradient, stage, chunk, step->micro))
        return tt_fail(TUTTI_ERR_STATE, "pipe_check: stage %d: %s, which it has not made", stage,
                       describe(step, text, sizeof text));
    return TUTTI_OK;
}

/* The peer's oldest transfer of its open group that is the other end of direction `kind`. */
static bool find_other(const play *p, int stage, int peer, tutti_pipe_kind kind, size_t *out)
{
    size_t i;

    for (i = p->at[peer]; i < p->end[peer]; i++) {
        const tutti_pipe_step *step = &p->steps[peer][i];

        if (step->kind == kind && step->peer == stage && !p->met[peer][i]) {
            *out = i;
            return true;
        }
    }
    return false;
}

/* Meets the sends of a stage's open group with what their peers have begun. */
static tutti_status meet(play *p, int stage, bool *moved)
{
    char mine[128], theirs[128];
    size_t i, other;

    for (i = p->at[stage]; i < p->end[stage]; i++) {
        const tutti_pipe_step *step = &p->steps[stage][i], *peer;

        if (step->kind != TUTTI_PIPE_SEND || p->met[stage][i])
            continue;
        if (!find_other(p, stage, step->peer, TUTTI_PIPE_RECV, &other))
            continue;
        peer = &p->steps[step->peer][other];
        if (peer->micro != step->micro || peer->chunk != step->chunk ||
            peer->gradient != step->gradient)
            return tt_fail(TUTTI_ERR_STATE, "pipe_check: stage %d: %s meets stage %d: %s", stage,
                           describe(step, mine, sizeof mine), step->peer,
                           describe(peer, theirs, sizeof theirs));
        p->met[stage][i] = p->met[step->peer][other] = true;
        p->arrived[tt_schedule_at(&p->s, step->gradient, step->peer, step->chunk, step->micro)] = 1;
        *moved = true;
    }
    return TUTTI_OK;
}

/* Begins the group at a stage's place. */
static tutti_status begin_group(play *p, int stage)
{
    const tutti_pipe_step *steps = p->steps[stage];
    size_t i = p->at[stage];
    int slot = steps[i].slot;

    for (; i < p->counts[stage] && moves(&steps[i]) && steps[i].slot == slot; i++)
        if (steps[i].kind == TUTTI_PIPE_SEND)
            TT_TRY(check_send(p, stage, &steps[i]));
    p->end[stage] = i;
    return TUTTI_OK;
}

/* Does what a stage can do now. */
static tutti_status advance(play *p, int stage, bool *moved)
{
    while (p->at[stage] < p->counts[stage]) {
        size_t i;

        if (!moves(&p->steps[stage][p->at[stage]])) {
            TT_TRY(do_pass(p, stage, &p->steps[stage][p->at[stage]]));
            p->at[stage]++;
            *moved = true;
            continue;
        }
        if (p->end[stage] <= p->at[stage]) {
            TT_TRY(begin_group(p, stage));
            *moved = true;
        }
        TT_TRY(meet(p, stage, moved));
        for (i = p->at[stage]; i < p->end[stage]; i++)
            if (!p->met[stage][i])
                return TUTTI_OK;
        p->at[stage] = p->end[stage];
        *moved = true;
    }
    return TUTTI_OK;
}

static tutti_status stuck(const play *p)
{
    char text[1024] = "", one[128];
    size_t used = 0;
    int stage, told = 0;

    for (stage = 0; stage < p->s.stages && told < 8; stage++) {
        size_t i = p->at[stage];

        while (i < p->end[stage] && p->met[stage][i])
            i++;
        if (i >= p->counts[stage] || used >= sizeof text)
            continue;
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "%sstage %d waits in step %zu, %s", told++ > 0 ? "; " : "", stage,
                                 i, describe(&p->steps[stage][i], one, sizeof one));
    }
    if (told > 0)
        return tt_fail(TUTTI_ERR_STATE, "pipe_check: deadlock: %s", text);
    return TUTTI_OK;
}

static tutti_status complete(const play *p)
{
    size_t n = 2 * (size_t)p->s.stages * (size_t)p->s.chunks * (size_t)p->s.micros, i;

    for (i = 0; i < n; i++)
        if (p->s.slot[i] != 0) {
            size_t micro = i % (size_t)p->s.micros, rest = i / (size_t)p->s.micros;
            size_t chunk = rest % (size_t)p->s.chunks;
            size_t stage = rest / (size_t)p->s.chunks % (size_t)p->s.stages;

            return tt_fail(TUTTI_ERR_STATE,
                           "pipe_check: stage %zu: the %s pass of micro-batch %zu, chunk %zu is "
                           "missing",
                           stage, i < n / 2 ? "forward" : "backward", micro, chunk);
        }
    return TUTTI_OK;
}

static tutti_status run(play *p)
{
    bool moved = true;
    size_t i;
    int stage;

    for (stage = 0; stage < p->s.stages; stage++)
        for (i = 0; i < p->counts[stage]; i++)
            TT_TRY(check_step(p, stage, i));
    while (moved) {
        moved = false;
        for (stage = 0; stage < p->s.stages; stage++)
            TT_TRY(advance(p, stage, &moved));
    }
    TT_TRY(stuck(p));
    return complete(p);
}

static void free_play(play *p)
{
    if (p->met != NULL)
        for (int stage = 0; stage < p->s.stages; stage++)
            free(p->met[stage]);
    free(p->met);
    free(p->at);
    free(p->end);
    free(p->arrived);
    free(p->s.slot);
}

static tutti_status make_play(play *p)
{
    size_t n = 2 * (size_t)p->s.stages * (size_t)p->s.chunks * (size_t)p->s.micros;
    int stage;

    TT_TRY(tt_calloc(n, sizeof *p->s.slot, &p->s.slot));
    memset(p->s.slot, 0xff, n * sizeof *p->s.slot);
    TT_TRY(tt_calloc(n, 1, &p->arrived));
    TT_TRY(tt_calloc((size_t)p->s.stages, sizeof *p->at, &p->at));
    TT_TRY(tt_calloc((size_t)p->s.stages, sizeof *p->end, &p->end));
    TT_TRY(tt_calloc((size_t)p->s.stages, sizeof *p->met, &p->met));
    for (stage = 0; stage < p->s.stages; stage++)
        TT_TRY(tt_calloc(p->counts[stage], sizeof **p->met, &p->met[stage]));
    return TUTTI_OK;
}

tutti_status tutti_pipe_check(const tutti_pipe_shape *shape, const tutti_pipe_step *const *steps,
                              const size_t *counts)
{
    play p = {.steps = steps, .counts = counts};
    tutti_status status;

    TT_TRY(tt_pipe_shape_check(shape));
    if (steps == NULL || counts == NULL)
        return tt_fail(TUTTI_ERR_ARG, "pipe_check: %s is NULL", steps == NULL ? "steps" : "counts");
    p.s.stages = shape->stages;
    p.s.micros = shape->micros;
    p.s.chunks = shape->chunks == 0 ? 1 : shape->chunks;
    status = make_play(&p);
    if (status == TUTTI_OK)
        status = run(&p);
    free_play(&p);
    return status;
}

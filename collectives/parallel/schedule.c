/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pipeline schedules.
 *
 * First the order of the passes on each stage, by formula; then slots, by playing the pipeline: in
 * a slot each stage does its next pass if what it needs was made in an earlier slot, one slot
 * earlier still with overlap, since the transfer takes that slot. A transfer belongs to the slot
 * that its pass was made in and is issued behind that slot's passes by both ends, all transfers of
 * a slot in one group. Slots are the same for all ranks, so by induction over them every group
 * finds its other end: the order of passes decides about memory and idle time, never about
 * deadlock.
 *
 * Without overlap stage s does stages - 1 - s forward passes before it alternates (1F1B). With
 * overlap an activation takes two slots from stage to stage, so the first gradient is back after
 * twice as many. Interleaved orders go round the chunks in groups of `stages` micro-batches
 * (Narayanan et al., 2021, section 2.2), with overlap of twice as many where that divides them.
 */
#include "parallel/schedule.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

enum { STAGES_MAX = 1024, MICROS_MAX = 65536, CHUNKS_MAX = 256, PASSES_MAX = 1 << 26 };

tutti_status tt_pipe_shape_check(const tutti_pipe_shape *shape)
{
    int chunks;

    if (shape == NULL)
        return tt_fail(TUTTI_ERR_ARG, "pipeline: the shape is NULL");
    if (shape->size != sizeof *shape)
        return tt_fail(TUTTI_ERR_ARG,
                       "pipeline: tutti_pipe_shape.size is %zu, not %zu (begin with "
                       "TUTTI_PIPE_SHAPE_INIT)",
                       shape->size, sizeof *shape);
    chunks = shape->chunks == 0 ? 1 : shape->chunks;
    if (shape->stages < 1 || shape->stages > STAGES_MAX)
        return tt_fail(TUTTI_ERR_ARG, "pipeline: %d stages: 1 to %d expected", shape->stages,
                       STAGES_MAX);
    if (shape->micros < 1 || shape->micros > MICROS_MAX)
        return tt_fail(TUTTI_ERR_ARG, "pipeline: %d micro-batches: 1 to %d expected", shape->micros,
                       MICROS_MAX);
    if (chunks < 1 || chunks > CHUNKS_MAX)
        return tt_fail(TUTTI_ERR_ARG, "pipeline: %d chunks: 1 to %d expected", chunks, CHUNKS_MAX);
    if (chunks > 1 && shape->micros % shape->stages != 0)
        return tt_fail(
            TUTTI_ERR_ARG,
            "pipeline: %d micro-batches in %d chunks a stage: the micro-batches must be a "
            "multiple of the %d stages",
            shape->micros, chunks, shape->stages);
    if ((int64_t)shape->stages * shape->micros * chunks > PASSES_MAX)
        return tt_fail(TUTTI_ERR_ARG,
                       "pipeline: %d stages x %d micro-batches x %d chunks are more "
                       "than %d passes",
                       shape->stages, shape->micros, chunks, PASSES_MAX);
    if ((shape->flags & ~(uint32_t)TUTTI_PIPE_OVERLAP) != 0)
        return tt_fail(TUTTI_ERR_ARG, "pipeline: flags 0x%x: no such flag", shape->flags);
    return TUTTI_OK;
}

bool tt_pipe_source(const tt_schedule *s, bool backward, int stage, int chunk, int *stage_out,
                    int *chunk_out)
{
    int part = chunk * s->stages + stage + (backward ? 1 : -1);

    if (part < 0 || part >= s->stages * s->chunks)
        return false;
    *stage_out = part % s->stages;
    *chunk_out = part / s->stages;
    return true;
}

/* Micro-batches that pass a chunk before the next chunk's turn. As many as it takes until the first
 * of them is back at the first stage; with overlap that is twice the stages. */
static int group_size(const tt_schedule *s)
{
    return s->overlap && s->micros % (2 * s->stages) == 0 ? 2 * s->stages : s->stages;
}

/* Forward pass number k of a stage: which micro-batch and chunk. Backward passes go the other way
 * round the chunks. */
static void numbered(const tt_schedule *s, int k, bool backward, tt_pass *out)
{
    int group = group_size(s), round = group * s->chunks;

    out->backward = backward;
    if (s->chunks == 1) {
        out->chunk = 0;
        out->micro = k;
        return;
    }
    out->chunk = k % round / group;
    if (backward)
        out->chunk = s->chunks - 1 - out->chunk;
    out->micro = k / round * group + k % group;
}

/* Forward passes before the first backward pass, beyond the one that goes with it. */
static int warm_up(const tt_schedule *s, int stage)
{
    int behind = s->stages - 1 - stage, count;

    if (s->chunks == 1)
        count = s->overlap ? 2 * behind : behind;
    else
        count = 2 * behind + (s->chunks - 1) * group_size(s);
    return count < s->micros * s->chunks ? count : s->micros * s->chunks;
}

static void order(tt_schedule *s, int stage)
{
    tt_pass *pass = s->pass + (size_t)stage * s->passes;
    int total = s->micros * s->chunks, forward = 0, backward = 0;
    int warm = warm_up(s, stage);

    while (forward < warm)
        numbered(s, forward++, false, pass++);
    while (forward < total) {
        numbered(s, forward++, false, pass++);
        numbered(s, backward++, true, pass++);
    }
    while (backward < total)
        numbered(s, backward++, true, pass++);
}

/* Whether everything that the pass reads has been made, and moved, before `slot`. */
static bool can_do(const tt_schedule *s, int stage, const tt_pass *pass, int slot)
{
    int from, chunk, made, delay;

    if (tt_pipe_source(s, pass->backward, stage, pass->chunk, &from, &chunk)) {
        made = tt_schedule_slot(s, pass->backward, from, chunk, pass->micro);
        delay = from != stage && s->overlap ? 2 : 1;
        return made >= 0 && made + delay <= slot;
    }
    if (!pass->backward)
        return true;
    made = tt_schedule_slot(s, false, stage, pass->chunk, pass->micro);
    return made >= 0 && made < slot;
}

/* Gives every pass its slot. */
static tutti_status play(tt_schedule *s)
{
    size_t left = s->passes * (size_t)s->stages, *next;
    int stage, slot, idle = 0;

    TT_TRY(tt_calloc((size_t)s->stages, sizeof *next, &next));
    for (slot = 0; left > 0 && idle < 3; slot++) {
        size_t before = left;

        for (stage = 0; stage < s->stages; stage++) {
            tt_pass *pass = s->pass + (size_t)stage * s->passes + next[stage];

            if (next[stage] == s->passes || !can_do(s, stage, pass, slot))
                continue;
            pass->slot = slot;
            s->slot[tt_schedule_at(s, pass->backward, stage, pass->chunk, pass->micro)] = slot;
            next[stage]++;
            left--;
        }
        idle = left < before ? 0 : idle + 1; /* a transfer takes one slot without any pass */
    }
    free(next);
    TT_ASSERT(left == 0, "%zu passes can never be done", left);
    return TUTTI_OK;
}

tutti_status tt_schedule_create(const tutti_pipe_shape *shape, tt_schedule *out)
{
    tt_schedule s = {0};
    size_t slots;
    tutti_status status;
    int stage;

    TT_TRY(tt_pipe_shape_check(shape));
    s.stages = shape->stages;
    s.micros = shape->micros;
    s.chunks = shape->chunks == 0 ? 1 : shape->chunks;
    s.overlap = (shape->flags & TUTTI_PIPE_OVERLAP) != 0 && s.stages > 1;
    s.passes = 2 * (size_t)s.micros * (size_t)s.chunks;
    slots = s.passes * (size_t)s.stages;
    TT_TRY(tt_calloc(slots, sizeof *s.pass, &s.pass));
    status = tt_calloc(slots, sizeof *s.slot, &s.slot);
    if (status == TUTTI_OK) {
        memset(s.slot, 0xff, slots * sizeof *s.slot); /* -1: not done yet */
        for (stage = 0; stage < s.stages; stage++)
            order(&s, stage);
        status = play(&s);
    }
    if (status != TUTTI_OK) {
        tt_schedule_free(&s);
        return status;
    }
    *out = s;
    return TUTTI_OK;
}

void tt_schedule_free(tt_schedule *s)
{
    free(s->pass);
    free(s->slot);
    memset(s, 0, sizeof *s);
}

/* What comes in for a pass: when it was made, and by whom. */
static bool arrival(const tt_schedule *s, int stage, const tt_pass *pass, tutti_pipe_step *out)
{
    int from, chunk;

    if (!tt_pipe_source(s, pass->backward, stage, pass->chunk, &from, &chunk) || from == stage)
        return false;
    *out = (tutti_pipe_step){TUTTI_PIPE_RECV,
                             tt_schedule_slot(s, pass->backward, from, chunk, pass->micro),
                             pass->micro,
                             pass->chunk,
                             from,
                             pass->backward};
    return true;
}

/* What a pass's result is sent for. */
static bool departure(const tt_schedule *s, int stage, const tt_pass *pass, tutti_pipe_step *out)
{
    int to, chunk;

    if (!tt_pipe_source(s, !pass->backward, stage, pass->chunk, &to, &chunk) || to == stage)
        return false;
    *out = (tutti_pipe_step){TUTTI_PIPE_SEND, pass->slot, pass->micro, chunk, to, pass->backward};
    return true;
}

/* Passes come before the transfers of their slot; transfers between two ranks in one slot stand in
 * the same order at both ends, since the order does not ask which end it is. */
static int in_order(const void *a, const void *b)
{
    const tutti_pipe_step *x = a, *y = b;
    bool x_moves = x->kind >= TUTTI_PIPE_SEND, y_moves = y->kind >= TUTTI_PIPE_SEND;

    if (x->slot != y->slot)
        return x->slot - y->slot;
    if (x_moves != y_moves)
        return x_moves - y_moves;
    if (x->gradient != y->gradient)
        return x->gradient - y->gradient;
    if (x->chunk != y->chunk)
        return x->chunk - y->chunk;
    if (x->micro != y->micro)
        return x->micro - y->micro;
    return (int)x->kind - (int)y->kind;
}

tutti_status tt_schedule_steps(const tt_schedule *s, int stage, tutti_pipe_step **steps_out,
                               size_t *count_out)
{
    const tt_pass *pass = s->pass + (size_t)stage * s->passes;
    tutti_pipe_step *steps;
    size_t n = 0, i;

    TT_TRY(tt_calloc(3 * s->passes, sizeof *steps, &steps));
    for (i = 0; i < s->passes; i++, pass++) {
        steps[n++] = (tutti_pipe_step){pass->backward ? TUTTI_PIPE_BACKWARD : TUTTI_PIPE_FORWARD,
                                       pass->slot,
                                       pass->micro,
                                       pass->chunk,
                                       -1,
                                       false};
        n += arrival(s, stage, pass, &steps[n]);
        n += departure(s, stage, pass, &steps[n]);
    }
    qsort(steps, n, sizeof *steps, in_order);
    *steps_out = steps;
    *count_out = n;
    return TUTTI_OK;
}

tutti_status tutti_pipe_steps(const tutti_pipe_shape *shape, int stage, tutti_pipe_step *steps,
                              size_t cap, size_t *count_out)
{
    tutti_pipe_step *all;
    tt_schedule s;
    tutti_status status;
    size_t count;

    TT_TRY(tt_pipe_shape_check(shape));
    if (stage < 0 || stage >= shape->stages)
        return tt_fail(TUTTI_ERR_ARG, "pipe_steps: stage %d of %d", stage, shape->stages);
    if (count_out == NULL || (steps == NULL && cap > 0))
        return tt_fail(TUTTI_ERR_ARG, "pipe_steps: %s is NULL",
                       count_out == NULL ? "count_out" : "steps");
    TT_TRY(tt_schedule_create(shape, &s));
    status = tt_schedule_steps(&s, stage, &all, &count);
    tt_schedule_free(&s);
    TT_TRY(status);
    if (cap > 0)
        memcpy(steps, all, tt_min_size(cap, count) * sizeof *steps);
    *count_out = count;
    free(all);
    return TUTTI_OK;
}

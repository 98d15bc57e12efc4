/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stage's steps made ready to run, once, at create.
 *
 * They are cut into units, each a pass or a group of transfers. What moves or is kept (an
 * activation, a gradient) lives from the unit that makes it to the unit that last reads it, and
 * gets a buffer that nothing else has in between: intervals in order of birth, each given the first
 * free buffer, which needs no more buffers than the most that live at once. A datum that a group
 * reads is not free before the next unit, so what a group sends and what it receives never share
 * memory.
 */
#include "parallel/pipe.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

static bool is_pass(const tutti_pipe_step *step)
{
    return step->kind == TUTTI_PIPE_FORWARD || step->kind == TUTTI_PIPE_BACKWARD;
}

/* Cuts the steps into passes and groups. */
static tutti_status cut(tutti_pipe *pipe)
{
    size_t i, n = 0;

    TT_TRY(tt_calloc(pipe->step_count, sizeof *pipe->units, &pipe->units));
    for (i = 0; i < pipe->step_count; n++) {
        tt_unit *u = &pipe->units[n];
        const tutti_pipe_step *first = &pipe->steps[i];

        u->first = i++;
        u->group = !is_pass(first);
        u->wait = TT_PIPE_NONE;
        while (u->group && i < pipe->step_count && !is_pass(&pipe->steps[i]) &&
               pipe->steps[i].slot == first->slot)
            i++;
        u->count = i - u->first;
    }
    pipe->unit_count = n;
    return TUTTI_OK;
}

/* The datum that a step reads from or writes to, seen from its own rank. */
tt_datum *tt_pipe_moved(tutti_pipe *pipe, const tutti_pipe_step *step)
{
    int stage, chunk = step->chunk;
    bool known;

    if (step->kind == TUTTI_PIPE_RECV)
        return (step->gradient ? pipe->d_out : pipe->in) + tt_pipe_at(pipe, chunk, step->micro);
    known = tt_pipe_source(&pipe->s, step->gradient, step->peer, step->chunk, &stage, &chunk);
    TT_ASSERT(known && stage == pipe->stage, "step to stage %d", step->peer);
    return (step->gradient ? pipe->d_in : pipe->out) + tt_pipe_at(pipe, chunk, step->micro);
}

/* The chunk of this rank that comes before (backward: behind) `chunk`, TT_PIPE_NONE if another
 * rank's. */
int tt_pipe_own_source(const tutti_pipe *pipe, bool backward, int chunk)
{
    int stage, from;

    if (!tt_pipe_source(&pipe->s, backward, pipe->stage, chunk, &stage, &from) ||
        stage != pipe->stage)
        return TT_PIPE_NONE;
    return from;
}

static void live(tt_datum *d, int u)
{
    if (d->first == TT_PIPE_NONE)
        d->first = u;
    d->last = u;
}

/* From which unit to which everything lives; a pipeline of one stage hands results on in place. */
static void find_lives(tutti_pipe *pipe)
{
    for (int u = 0; u < (int)pipe->unit_count; u++)
        for (size_t i = pipe->units[u].first; i < pipe->units[u].first + pipe->units[u].count;
             i++) {
            const tutti_pipe_step *step = &pipe->steps[i];
            size_t here = tt_pipe_at(pipe, step->chunk, step->micro);
            bool backward = step->kind == TUTTI_PIPE_BACKWARD;
            int next;

            if (!is_pass(step)) {
                live(tt_pipe_moved(pipe, step), u);
                continue;
            }
            live(&pipe->in[here], u);
            if (backward)
                live(&pipe->d_out[here], u);
            next = tt_pipe_own_source(pipe, !backward, step->chunk);
            if (next != TT_PIPE_NONE)
                live((backward ? pipe->d_out : pipe->in) + tt_pipe_at(pipe, next, step->micro), u);
            else
                live((backward ? pipe->d_in : pipe->out) + here, u);
        }
}

/* One list of data in order of birth; a stable sort keeps equal schedules equal. */
static int by_first(const void *a, const void *b)
{
    const tt_datum *x = *(tt_datum *const *)a, *y = *(tt_datum *const *)b;

    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    return (x > y) - (x < y);
}

/* Gives each datum of `data` a number that no other has while it lives; how many are needed. */
static tutti_status number(tt_datum **data, size_t n, int *used_out)
{
    int *until, used = 0, b;

    TT_TRY(tt_calloc(n, sizeof *until, &until));
    qsort(data, n, sizeof(tt_datum *), by_first);
    for (size_t i = 0; i < n; i++) {
        for (b = 0; b < used && until[b] >= data[i]->first; b++)
            ;
        if (b == used)
            used++;
        until[b] = data[i]->last;
        data[i]->buffer = b;
    }
    free(until);
    *used_out = used;
    return TUTTI_OK;
}

static tutti_status place(tutti_pipe *pipe)
{
    size_t each = (size_t)pipe->s.chunks * (size_t)pipe->s.micros, n = 0, i;
    tt_datum *all[] = {pipe->in, pipe->d_out, pipe->out, pipe->d_in}, **list;
    tutti_status status;

    TT_TRY(tt_calloc(4 * each, sizeof(tt_datum *), &list));
    for (size_t k = 0; k < 4; k++)
        for (i = 0; i < each; i++)
            if (all[k][i].first != TT_PIPE_NONE)
                list[n++] = &all[k][i];
    status = number(list, n, &pipe->buffers);
    free(list);
    return status;
}

/* Caches are numbered the same way, from a micro-batch's forward to its backward pass. */
static tutti_status number_caches(tutti_pipe *pipe)
{
    size_t each = (size_t)pipe->s.chunks * (size_t)pipe->s.micros, i;
    tt_datum *lives, **list;
    tutti_status status;
    int u;

    TT_TRY(tt_calloc(each, sizeof *lives, &lives));
    status = tt_calloc(each, sizeof(tt_datum *), &list);
    if (status != TUTTI_OK)
        goto free_lives;
    for (i = 0; i < each; i++) {
        lives[i].first = TT_PIPE_NONE;
        list[i] = &lives[i];
    }
    for (u = 0; u < (int)pipe->unit_count; u++) {
        const tutti_pipe_step *step = &pipe->steps[pipe->units[u].first];

        if (is_pass(step))
            live(&lives[tt_pipe_at(pipe, step->chunk, step->micro)], u);
    }
    status = number(list, each, &pipe->in_flight);
    for (u = 0; u < (int)pipe->unit_count && status == TUTTI_OK; u++) {
        const tutti_pipe_step *step = &pipe->steps[pipe->units[u].first];

        if (is_pass(step))
            pipe->units[u].cache = lives[tt_pipe_at(pipe, step->chunk, step->micro)].buffer;
    }
    free(list);
free_lives:
    free(lives);
    return status;
}

/* For every pass the last group it must wait for: one that brought what it reads, or one that used
 * a buffer that it writes to. */
static tutti_status find_waits(tutti_pipe *pipe)
{
    int *touched, u;

    TT_TRY(tt_calloc((size_t)pipe->buffers + 1, sizeof *touched, &touched));
    memset(touched, 0xff, ((size_t)pipe->buffers + 1) * sizeof *touched); /* TT_PIPE_NONE */
    for (u = 0; u < (int)pipe->unit_count; u++) {
        tt_unit *un = &pipe->units[u];
        const tutti_pipe_step *step = &pipe->steps[un->first];
        size_t here = tt_pipe_at(pipe, step->chunk, step->micro);
        const tt_datum *data[] = {&pipe->in[here], &pipe->d_out[here], &pipe->out[here],
                                  &pipe->d_in[here]};

        for (size_t i = un->first; un->group && i < un->first + un->count; i++)
            touched[tt_pipe_moved(pipe, &pipe->steps[i])->buffer] = u;
        for (size_t k = 0; !un->group && k < 4; k++)
            if (data[k]->first != TT_PIPE_NONE && data[k]->first <= u && data[k]->last >= u &&
                touched[data[k]->buffer] > un->wait)
                un->wait = touched[data[k]->buffer];
    }
    free(touched);
    return TUTTI_OK;
}

static tutti_status make_data(tutti_pipe *pipe)
{
    size_t each = (size_t)pipe->s.chunks * (size_t)pipe->s.micros;
    tt_datum **lists[] = {&pipe->in, &pipe->d_out, &pipe->out, &pipe->d_in};

    for (size_t k = 0; k < 4; k++) {
        TT_TRY(tt_calloc(each, sizeof(tt_datum), lists[k]));
        for (size_t i = 0; i < each; i++)
            (*lists[k])[i].first = TT_PIPE_NONE;
    }
    find_lives(pipe);
    /* What the first part reads and the last makes is not the pipeline's. */
    for (int m = 0; m < pipe->s.micros; m++) {
        int last = pipe->s.chunks - 1;

        if (pipe->stage == 0)
            pipe->in[tt_pipe_at(pipe, 0, m)].first = pipe->d_in[tt_pipe_at(pipe, 0, m)].first =
                TT_PIPE_NONE;
        if (pipe->stage == pipe->s.stages - 1)
            pipe->out[tt_pipe_at(pipe, last, m)].first =
                pipe->d_out[tt_pipe_at(pipe, last, m)].first = TT_PIPE_NONE;
    }
    return TUTTI_OK;
}

tutti_status tt_pipe_lay_out(tutti_pipe *pipe)
{
    TT_TRY(tt_schedule_steps(&pipe->s, pipe->stage, &pipe->steps, &pipe->step_count));
    TT_TRY(cut(pipe));
    TT_TRY(make_data(pipe));
    TT_TRY(place(pipe));
    TT_TRY(number_caches(pipe));
    return find_waits(pipe);
}

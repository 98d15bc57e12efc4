/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pipeline's life and runs.
 *
 * A run goes over the stage's units, passes and groups of transfers (layout.c): passes are queued
 * on the caller's stream by the program's function, groups on the pipeline's own stream. A group
 * waits for the passes before it; a pass waits for the last group that brought its input or read
 * from a buffer that it writes, not for every group, so that transfers go on beside it.
 *
 * Where MPI lets no other thread send, groups are carried out inline: slower, never stuck, since
 * both ends come to a slot's group in the same order.
 */
#include "parallel/pipe.h"

#include <stdlib.h>
#include <string.h>

#include "comm/issue.h"
#include "core/mem.h"
#include "tutti/coll.h"

static tutti_status make_events(tutti_pipe *pipe)
{
    const tt_device_ops *dev = pipe->ctx->dev_ops;

    for (int i = 0; i < TT_PIPE_EVENTS; i++)
        TT_TRY(dev->event_create(pipe->ctx->dev, false, &pipe->moved[i]));
    TT_TRY(dev->event_create(pipe->ctx->dev, false, &pipe->computed));
    return dev->event_create(pipe->ctx->dev, false, &pipe->ended);
}

static void free_pipe(tutti_pipe *pipe)
{
    tt_schedule_free(&pipe->s);
    free(pipe->steps);
    free(pipe->units);
    free(pipe->in);
    free(pipe->d_out);
    free(pipe->out);
    free(pipe->d_in);
    free(pipe);
}

static void free_device_parts(tutti_pipe *pipe)
{
    const tt_device_ops *dev = pipe->ctx->dev_ops;

    for (int i = 0; i < TT_PIPE_EVENTS; i++)
        dev->event_destroy(pipe->ctx->dev, pipe->moved[i]);
    dev->event_destroy(pipe->ctx->dev, pipe->computed);
    dev->event_destroy(pipe->ctx->dev, pipe->ended);
    tutti_stream_destroy(pipe->ctx, pipe->transfers);
}

static tutti_status check_opts(const tutti_comm *comm, const tutti_pipe_opts *opts,
                               tutti_pipe_shape *shape_out)
{
    tutti_pipe_shape shape = TUTTI_PIPE_SHAPE_INIT;

    if (opts == NULL || opts->size != sizeof *opts)
        return tt_fail(TUTTI_ERR_ARG, "pipe_create: the options are %s",
                       opts == NULL ? "NULL" : "of another size (begin with TUTTI_PIPE_OPTS_INIT)");
    if (opts->bytes == 0 || opts->bytes > PTRDIFF_MAX / 65536)
        return tt_fail(TUTTI_ERR_ARG, "pipe_create: %zu bytes between stages", opts->bytes);
    shape.stages = comm->group.size;
    shape.micros = opts->micros;
    shape.chunks = opts->chunks;
    shape.flags = opts->flags;
    TT_TRY(tt_pipe_shape_check(&shape));
    *shape_out = shape;
    return TUTTI_OK;
}

/* The numbers of all ranks: options that must be equal, and how many buffers each needs. */
static tutti_status compare(tutti_pipe *pipe, const tutti_pipe_opts *opts, int *buffers_out)
{
    int64_t mine[5] = {opts->micros, pipe->s.chunks, (int64_t)opts->bytes, (int64_t)opts->flags,
                       pipe->buffers};
    tt_blobs all;
    tutti_status status = TUTTI_OK;
    int most = 1;

    TT_TRY(tt_all_gather_blobs(&pipe->comm->group, "pipe_create", mine, sizeof mine, &all));
    for (int r = 0; r < all.n && status == TUTTI_OK; r++) {
        int64_t theirs[5];

        memcpy(theirs, tt_blob(&all, r), sizeof theirs);
        if (memcmp(mine, theirs, 4 * sizeof *mine) != 0)
            status = tt_fail(TUTTI_ERR_MISMATCH,
                             "pipe_create on comm %s: %lld micro-batches, %lld chunks, %lld bytes, "
                             "flags %lld here, but %lld, %lld, %lld, %lld on rank %d",
                             pipe->comm->name, (long long)mine[0], (long long)mine[1],
                             (long long)mine[2], (long long)mine[3], (long long)theirs[0],
                             (long long)theirs[1], (long long)theirs[2], (long long)theirs[3], r);
        if (theirs[4] > most)
            most = (int)theirs[4];
    }
    tt_blobs_free(&all);
    *buffers_out = most;
    return tt_agree(&pipe->comm->group, "pipe_create", status);
}

static void destroy_left(void *pipe)
{
    tutti_pipe_destroy(pipe);
}

/* Its memory is gone with the communicator. */
static void drop_left(void *pipe)
{
    free_device_parts(pipe);
    free_pipe(pipe);
}

static const tt_live_ops live_ops = {destroy_left, drop_left};

/* What needs the device, but no other rank. */
static tutti_status make_device_parts(tutti_pipe *pipe)
{
    TT_TRY(make_events(pipe));
    if (pipe->ctx->boot->any_thread || pipe->ctx->dev_ops->kind != TUTTI_BACKEND_HOST)
        TT_TRY(tutti_stream_create(pipe->ctx, "pipeline", -1, &pipe->transfers));
    return TUTTI_OK;
}

tutti_status tutti_pipe_create(tutti_comm *comm, const tutti_pipe_opts *opts, tutti_pipe **pipe_out)
{
    tutti_pipe_shape shape;
    tutti_pipe *pipe = NULL;
    tutti_status status;
    void *memory = NULL;
    int buffers;

    if (comm == NULL || pipe_out == NULL)
        return tt_fail(TUTTI_ERR_ARG, "pipe_create: %s is NULL",
                       comm == NULL ? "comm" : "pipe_out");
    TT_TRY(tt_ctx_check(comm->ctx));
    status = check_opts(comm, opts, &shape);
    if (status == TUTTI_OK)
        status = tt_calloc(1, sizeof *pipe, &pipe);
    if (status == TUTTI_OK) {
        pipe->ctx = comm->ctx;
        pipe->comm = comm;
        pipe->stage = comm->group.rank;
        pipe->bytes = tt_round_up(opts->bytes, 64);
        status = tt_schedule_create(&shape, &pipe->s);
    }
    if (status == TUTTI_OK)
        status = tt_pipe_lay_out(pipe);
    if (status == TUTTI_OK)
        status = make_device_parts(pipe);
    status = tt_agree(&comm->group, "pipe_create", status);
    if (status == TUTTI_OK)
        status = compare(pipe, opts, &buffers);
    if (status == TUTTI_OK)
        status = tutti_alloc(comm, pipe->bytes * (size_t)buffers, &memory);
    if (status != TUTTI_OK) {
        if (pipe != NULL) {
            free_device_parts(pipe);
            free_pipe(pipe);
        }
        return status;
    }
    pipe->memory = memory;
    tt_live_add(&pipe->live, pipe->ctx, &live_ops, pipe);
    *pipe_out = pipe;
    return TUTTI_OK;
}

void tutti_pipe_destroy(tutti_pipe *pipe)
{
    if (pipe == NULL)
        return;
    tt_live_remove(&pipe->live);
    /* A failure is the context's, and told by whatever comes next. */
    (void)!tutti_stream_sync(pipe->ctx, pipe->transfers);
    (void)!tutti_free(pipe->comm, pipe->memory);
    free_device_parts(pipe);
    free_pipe(pipe);
}

int tutti_pipe_in_flight(const tutti_pipe *pipe)
{
    return pipe == NULL ? 0 : pipe->in_flight;
}

static char *buffer_of(const tutti_pipe *pipe, const tt_datum *d)
{
    return d->first == TT_PIPE_NONE ? NULL : pipe->memory + (size_t)d->buffer * pipe->bytes;
}

/* The datum of a pass's result: of its own if it goes to another stage, else the next part's. */
static char *result_of(const tutti_pipe *pipe, bool backward, int chunk, int micro)
{
    int next = tt_pipe_own_source(pipe, !backward, chunk);

    if (next != TT_PIPE_NONE)
        return buffer_of(pipe, (backward ? pipe->d_out : pipe->in) + tt_pipe_at(pipe, next, micro));
    return buffer_of(pipe, (backward ? pipe->d_in : pipe->out) + tt_pipe_at(pipe, chunk, micro));
}

static tutti_status do_pass(tutti_pipe *pipe, const tt_unit *u, tutti_pipe_fn fn, void *arg,
                            tutti_stream stream)
{
    const tutti_pipe_step *step = &pipe->steps[u->first];
    size_t here = tt_pipe_at(pipe, step->chunk, step->micro);
    bool backward = step->kind == TUTTI_PIPE_BACKWARD;
    tutti_pipe_pass pass = {.kind = step->kind,
                            .micro = step->micro,
                            .chunk = step->chunk,
                            .cache = u->cache,
                            .in = buffer_of(pipe, &pipe->in[here])};
    char *result = result_of(pipe, backward, step->chunk, step->micro);

    pass.first = pipe->stage == 0 && step->chunk == 0;
    pass.last = pipe->stage == pipe->s.stages - 1 && step->chunk == pipe->s.chunks - 1;
    if (backward) {
        pass.d_out = buffer_of(pipe, &pipe->d_out[here]);
        pass.d_in = result;
    } else {
        pass.out = result;
    }
    return fn(arg, &pass, stream);
}

static tutti_status transfer(tutti_pipe *pipe, const tutti_pipe_step *step)
{
    char *buffer = buffer_of(pipe, tt_pipe_moved(pipe, step));

    if (step->kind == TUTTI_PIPE_SEND)
        return tutti_send(pipe->comm, buffer, pipe->bytes, TUTTI_UINT8, step->peer,
                          pipe->transfers);
    return tutti_recv(pipe->comm, buffer, pipe->bytes, TUTTI_UINT8, step->peer, pipe->transfers);
}

static tutti_status do_group(tutti_pipe *pipe, const tt_unit *u, tt_event *moved)
{
    const tt_device_ops *dev = pipe->ctx->dev_ops;
    tutti_status status = TUTTI_OK, ended;

    TT_TRY(dev->event_wait(pipe->ctx->dev, pipe->computed, pipe->transfers));
    TT_TRY(tutti_group_begin());
    for (size_t i = u->first; i < u->first + u->count && status == TUTTI_OK; i++)
        status = transfer(pipe, &pipe->steps[i]);
    ended = tutti_group_end();
    TT_TRY(status);
    TT_TRY(ended);
    return dev->event_record(pipe->ctx->dev, moved, pipe->transfers);
}

/* Groups are counted as they are issued: an event that has been recorded again since stands for a
 * later group, which is later than needed and never wrong. */
static tutti_status run_units(tutti_pipe *pipe, tutti_pipe_fn fn, void *arg, tutti_stream stream)
{
    const tt_device_ops *dev = pipe->ctx->dev_ops;
    int waited = TT_PIPE_NONE;

    TT_TRY(dev->event_record(pipe->ctx->dev, pipe->computed, stream));
    for (int u = 0; u < (int)pipe->unit_count; u++) {
        tt_unit *un = &pipe->units[u];

        if (un->group) {
            TT_TRY(do_group(pipe, un, pipe->moved[u % TT_PIPE_EVENTS]));
            continue;
        }
        if (un->wait > waited) {
            TT_TRY(dev->event_wait(pipe->ctx->dev, pipe->moved[un->wait % TT_PIPE_EVENTS], stream));
            waited = un->wait;
        }
        TT_TRY(do_pass(pipe, un, fn, arg, stream));
        TT_TRY(dev->event_record(pipe->ctx->dev, pipe->computed, stream));
    }
    TT_TRY(dev->event_record(pipe->ctx->dev, pipe->ended, pipe->transfers));
    return dev->event_wait(pipe->ctx->dev, pipe->ended, stream);
}

tutti_status tutti_pipe_run(tutti_pipe *pipe, tutti_pipe_fn fn, void *arg, tutti_stream stream)
{
    tutti_status status;

    if (pipe == NULL || fn == NULL)
        return tt_fail(TUTTI_ERR_ARG, "pipe_run: %s is NULL", pipe == NULL ? "pipe" : "fn");
    TT_TRY(tt_ctx_check(pipe->ctx));
    TT_TRY(tt_group_forbid("pipe_run"));
    TT_TRY(pipe->ctx->dev_ops->stream_check(pipe->ctx->dev, stream));
    status = run_units(pipe, fn, arg, stream);
    if (status != TUTTI_OK && pipe->s.stages > 1)
        return tt_ctx_fail(pipe->ctx, status); /* the other stages wait for this one */
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tutti as a variant: registered memory comes from tutti_alloc, plain memory from the heap. On the
 * CUDA backend only registered memory is benched: it is what the library hands out there.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "core/mem.h"

typedef struct tutti_state {
    bench_job *job;
    bench_memory memory;
    tutti_stream stream;
    int group, in_group;
} tutti_state;

static bool can_all(const bench_variant *v, const bench_case *c)
{
    (void)v;
    (void)c;
    return true;
}

static tutti_status tutti_call(bench_variant *v, const bench_case *c, const void *in, void *out)
{
    tutti_state *s = v->state;
    tutti_status status;

    if (s->group == 1)
        return c->op->call(s->job->world, c, in, out, s->stream);
    if (s->in_group == 0)
        TT_TRY(tutti_group_begin());
    status = c->op->call(s->job->world, c, in, out, s->stream);
    if (++s->in_group < s->group && status == TUTTI_OK)
        return TUTTI_OK;
    s->in_group = 0;
    return tutti_group_end();
}

static tutti_status tutti_finish(bench_variant *v)
{
    tutti_state *s = v->state;

    if (s->in_group > 0) {
        s->in_group = 0;
        TT_TRY(tutti_group_end());
    }
    return tutti_stream_sync(s->job->ctx, s->stream);
}

static void tutti_close(bench_variant *v)
{
    tutti_state *s = v->state;

    if (s == NULL)
        return;
    if (s->memory == BENCH_REGISTERED) {
        (void)!tutti_free(s->job->world, v->out);
        (void)!tutti_free(s->job->world, v->in);
    } else {
        free(v->out);
        free(v->in);
    }
    free(s);
    v->state = NULL;
}

static tutti_status plain_arena(size_t bytes, char **out)
{
    void *p;

    if (posix_memalign(&p, 4096, bytes) != 0)
        return tt_fail(TUTTI_ERR_NO_MEMORY, "tutti bench: no memory for a buffer of %zu MiB",
                       bytes >> 20);
    memset(p, 0, bytes);
    *out = p;
    return TUTTI_OK;
}

tutti_status bench_tutti_open(bench_job *job, const bench_options *o, bench_memory memory,
                              size_t bytes, bench_variant *out)
{
    bool inline_calls = job->stream.kind == TUTTI_STREAM_INLINE;
    tutti_status status;
    void *in = NULL, *result = NULL;
    tutti_state *s;

    TT_TRY(tt_calloc(1, sizeof *s, &s));
    *s = (tutti_state){job, memory, job->stream, o->group, 0};
    *out = (bench_variant){.name = "tutti",
                           .state = s,
                           .bytes = bytes,
                           .device = job->ctx->dev_ops->kind != TUTTI_BACKEND_HOST,
                           .can = can_all,
                           .call = tutti_call,
                           .finish = inline_calls && o->group == 1 ? NULL : tutti_finish,
                           .close = tutti_close};
    if (memory == BENCH_REGISTERED) {
        status = tutti_alloc(job->world, bytes, &in);
        if (status == TUTTI_OK)
            status = tutti_alloc(job->world, bytes, &result);
        out->in = in;
        out->out = result;
    } else {
        status = plain_arena(bytes, &out->in);
        if (status == TUTTI_OK)
            status = plain_arena(bytes, &out->out);
    }
    if (status != TUTTI_OK) /* what was had goes with the context: the program ends */
        tutti_close(out);
    return status;
}

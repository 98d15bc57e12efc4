/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reducer's life: create, add, destroy, and the beginning of a micro-step.
 *
 * A reducer works on a duplicate of the caller's communicator and on a stream of its own. Calls on
 * one communicator are carried out in the order of issue; with an order of its own a bucket
 * never waits for what the program issues meanwhile, and ranks may differ in how they interleave
 * the two. The price, a communicator, is paid once.
 *
 * Where a host stream cannot reach other nodes (MPI below MPI_THREAD_MULTIPLE) the reducer's stream
 * is the inline one: all is right, nothing overlaps, and it says so once.
 *
 * Reducers that are left at tutti_finalize are destroyed there; the context finds them in a list
 * that hangs on a hook. A failed context takes its communicators away first: then only memory is
 * left to free.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/env.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/mem.h"
#include "reducer/reducer.h"
#include "trace/nvtx.h"

enum { FIRST_BUCKET_BYTES = 1 << 20 };

enum { AT_FINALIZE = -2 }; /* the step that tutti_finalize gives to hooks */

static const char hook_key[] = "reducers";

/* The context's live reducers; its own thread alone changes the list. */
typedef struct live_list {
    tutti_reducer *first;
} live_list;

/* tutti_finalize runs this while communicators are still there, unless the context has failed. */
static tutti_status destroy_last(tutti_ctx *ctx, void *arg, int64_t step)
{
    live_list *live = arg;

    (void)ctx;
    while (step == AT_FINALIZE && live->first != NULL)
        tutti_reducer_destroy(live->first);
    return TUTTI_OK;
}

static void free_live(void *arg)
{
    live_list *live = arg;

    while (live->first != NULL) {
        tutti_reducer *red = live->first;
        live->first = red->next_live;
        red->comm = NULL; /* gone, and the gradients with it */
        red->arena = NULL;
        red->listed = red->in_step = false;
        tutti_reducer_destroy(red);
    }
    free(live);
}

static tutti_status enlist(tutti_reducer *red)
{
    live_list *live = tt_ctx_hook_find(red->ctx, hook_key);

    if (live == NULL) {
        tutti_status status;
        TT_TRY(tt_calloc(1, sizeof *live, &live));
        status = tt_ctx_hook_add(red->ctx, hook_key, destroy_last, free_live, live);
        if (status != TUTTI_OK) {
            free(live);
            return status;
        }
    }
    red->next_live = live->first;
    if (live->first != NULL)
        live->first->prev_live = red;
    live->first = red;
    red->listed = true;
    return TUTTI_OK;
}

static void delist(tutti_reducer *red)
{
    live_list *live = red->listed ? tt_ctx_hook_find(red->ctx, hook_key) : NULL;

    if (live == NULL)
        return;
    if (red->prev_live != NULL)
        red->prev_live->next_live = red->next_live;
    else
        live->first = red->next_live;
    if (red->next_live != NULL)
        red->next_live->prev_live = red->prev_live;
}

static tutti_status read_opts(tutti_reducer *red, const tutti_reducer_opts *opts)
{
    const uint32_t known = TUTTI_REDUCER_REPRODUCIBLE | TUTTI_REDUCER_COMPARE_PARAMS;

    if (opts != NULL && opts->size != sizeof *opts)
        return tt_fail(TUTTI_ERR_ARG,
                       "tutti_reducer_create: opts->size is %zu, not sizeof(tutti_reducer_opts) = "
                       "%zu: begin with TUTTI_REDUCER_OPTS_INIT",
                       opts->size, sizeof *opts);
    if (opts != NULL && (opts->flags & ~known) != 0)
        return tt_fail(TUTTI_ERR_ARG, "tutti_reducer_create: unknown flags 0x%x",
                       opts->flags & ~known);
    red->flags = opts != NULL ? opts->flags : 0;
    red->bucket_bytes = opts != NULL ? opts->bucket_bytes : 0;
    red->first_bucket_bytes = opts != NULL ? opts->first_bucket_bytes : 0;
    if (red->bucket_bytes == 0)
        TT_TRY(tt_env_get_bytes(TT_ENV_BUCKET_BYTES, &red->bucket_bytes));
    if (red->first_bucket_bytes == 0)
        red->first_bucket_bytes = tt_min_size(FIRST_BUCKET_BYTES, red->bucket_bytes);
    return tt_strdup(opts != NULL && opts->name != NULL ? opts->name : "reducer", &red->name);
}

static tutti_status new_reducer(tutti_comm *comm, const tutti_reducer_opts *opts,
                                tutti_reducer **red_out)
{
    tutti_reducer *red;
    tutti_status status;

    TT_TRY(tt_calloc(1, sizeof *red, &red));
    red->ctx = comm->ctx;
    pthread_mutex_init(&red->lock, NULL);
    *red_out = red; /* half made: destroy takes it */
    status = read_opts(red, opts);
    if (status == TUTTI_OK)
        status = tt_calloc((size_t)comm->group.size, sizeof *red->rank_hashes, &red->rank_hashes);
    return status;
}

/* Options shape the plan: they must not differ. */
static tutti_status same_opts(tutti_reducer *red, tutti_comm *comm)
{
    const tt_group *group = &comm->group;
    uint64_t mine[3] = {red->flags, red->bucket_bytes, red->first_bucket_bytes};
    uint64_t hash = tt_hash64(mine, sizeof mine, 0);
    tutti_status status = TUTTI_OK;

    TT_TRY(tt_all_gather_fixed(&comm->group, "tutti_reducer_create", &hash, sizeof hash,
                               red->rank_hashes));
    for (int r = 0; r < group->size; r++)
        if (red->rank_hashes[r] != red->rank_hashes[0]) {
            status = tt_fail(TUTTI_ERR_MISMATCH,
                             "reducer \"%s\": options differ between rank %d and rank %d; here "
                             "flags are 0x%x, bucket_bytes %zu, first_bucket_bytes %zu",
                             red->name, group->world[0], group->world[r], red->flags,
                             red->bucket_bytes, red->first_bucket_bytes);
            break;
        }
    return tt_red_failed(red, status);
}

static tutti_status make_stream(tutti_reducer *red)
{
    if (red->comm->layout.nodes > 1 && !red->ctx->boot->any_thread) {
        if (red->comm->group.rank == 0)
            tt_log_warn(TT_RED,
                        "\"%s\": gradients are reduced without overlap: MPI gives %s, ask for "
                        "MPI_THREAD_MULTIPLE",
                        red->name, red->ctx->boot->thread_level);
        return TUTTI_OK;
    }
    return tutti_stream_create(red->ctx, red->name, -1, &red->stream);
}

tutti_status tutti_reducer_create(tutti_comm *comm, const tutti_reducer_opts *opts,
                                  tutti_reducer **red_out)
{
    tutti_comm_opts comm_opts = TUTTI_COMM_OPTS_INIT;
    tutti_reducer *red = NULL;
    tutti_status status;

    if (comm == NULL || red_out == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_reducer_create: %s is NULL",
                       comm == NULL ? "comm" : "red_out");
    TT_TRY(tt_ctx_check(comm->ctx));
    status = tt_agree(&comm->group, "tutti_reducer_create", new_reducer(comm, opts, &red));
    if (status == TUTTI_OK)
        status = same_opts(red, comm);
    if (status != TUTTI_OK)
        goto destroy_red;
    comm_opts.name = red->name;
    comm_opts.flags = comm->flags;
    if ((red->flags & TUTTI_REDUCER_REPRODUCIBLE) != 0)
        comm_opts.flags |= TUTTI_COMM_REPRODUCIBLE;
    status = tutti_comm_split(comm, 0, comm->group.rank, &comm_opts, &red->comm);
    if (status != TUTTI_OK)
        goto destroy_red;
    status = make_stream(red);
    if (status == TUTTI_OK)
        status = enlist(red);
    status = tt_agree(&red->comm->group, "tutti_reducer_create", status);
    if (status != TUTTI_OK)
        goto destroy_red;
    *red_out = red;
    return TUTTI_OK;

destroy_red:
    tutti_reducer_destroy(red);
    return status;
}

void tutti_reducer_destroy(tutti_reducer *red)
{
    if (red == NULL)
        return;
    if (red->in_step && tutti_reducer_abandon(red) != TUTTI_OK)
        tt_log_debug(TT_RED, "\"%s\": destroyed within a step: %s", red->name, tutti_last_error());
    if (!tt_red_inline(red->stream))
        tutti_stream_destroy(red->ctx, red->stream);
    delist(red);
    tt_red_plan_free(red);
    tt_red_sources_free(red, &red->scalar_sources);
    tutti_comm_destroy(red->comm);
    for (size_t id = 0; id < red->nparams; id++)
        free(red->params[id].name);
    free(red->params);
    free(red->rank_hashes);
    free(red->name);
    pthread_mutex_destroy(&red->lock);
    free(red);
}

static tutti_status count_elements(const tutti_param *param, size_t *count_out)
{
    size_t n = 1, bytes;
    bool large = false;

    for (int i = 0; i < param->ndim; i++) {
        if (param->shape[i] < 0)
            return tt_fail(TUTTI_ERR_ARG, "parameter \"%s\": dimension %d is %" PRId64, param->name,
                           i, param->shape[i]);
        large = __builtin_mul_overflow(n, (size_t)param->shape[i], &n) || large;
    }
    if (large || __builtin_mul_overflow(n, tutti_dtype_size(param->dtype), &bytes) ||
        bytes > PTRDIFF_MAX)
        return tt_fail(TUTTI_ERR_ARG, "parameter \"%s\" is too large", param->name);
    *count_out = n;
    return TUTTI_OK;
}

static tutti_status check_param(const tutti_reducer *red, const tutti_param *param,
                                size_t *count_out)
{
    uint64_t hash;

    if (param->size != sizeof *param)
        return tt_fail(
            TUTTI_ERR_ARG,
            "tutti_reducer_add: param->size is %zu, not sizeof(tutti_param) = %zu: begin "
            "with TUTTI_PARAM_INIT",
            param->size, sizeof *param);
    if (param->name == NULL || param->name[0] == '\0')
        return tt_fail(TUTTI_ERR_ARG, "tutti_reducer_add: parameter %zu has no name", red->nparams);
    if (param->dtype != TUTTI_FLOAT32 && param->dtype != TUTTI_FLOAT64 &&
        param->dtype != TUTTI_FLOAT16 && param->dtype != TUTTI_BFLOAT16)
        return tt_fail(TUTTI_ERR_ARG, "parameter \"%s\": gradients are floating point, not %s",
                       param->name, tutti_dtype_name(param->dtype));
    if (param->ndim < 0 || param->ndim > TUTTI_MAX_DIMS)
        return tt_fail(TUTTI_ERR_ARG, "parameter \"%s\" has %d dimensions, not 0 to %d",
                       param->name, param->ndim, TUTTI_MAX_DIMS);
    if ((uintptr_t)param->grad % tutti_dtype_size(param->dtype) != 0)
        return tt_fail(TUTTI_ERR_ARG, "parameter \"%s\": the gradient is not aligned to %s",
                       param->name, tutti_dtype_name(param->dtype));
    hash = tt_hash64(param->name, strlen(param->name), 0);
    for (size_t id = 0; id < red->nparams; id++)
        if (red->params[id].name_hash == hash && strcmp(red->params[id].name, param->name) == 0)
            return tt_fail(TUTTI_ERR_ARG, "reducer \"%s\" has a parameter \"%s\" already (id %zu)",
                           red->name, param->name, id);
    return count_elements(param, count_out);
}

tutti_status tutti_reducer_add(tutti_reducer *red, const tutti_param *param, int *id_out)
{
    tt_red_param *mine;
    size_t count = 0;

    if (red == NULL || param == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_reducer_add: %s is NULL",
                       red == NULL ? "the reducer" : "param");
    if (red->committed)
        return tt_fail(TUTTI_ERR_STATE, "reducer \"%s\": add after commit", red->name);
    TT_TRY(check_param(red, param, &count));
    if (red->nparams >= INT32_MAX)
        return tt_fail(TUTTI_ERR_ARG, "reducer \"%s\" has too many parameters", red->name);
    TT_TRY(tt_grow(&red->params, &red->params_cap, red->nparams + 1, sizeof *red->params));
    mine = &red->params[red->nparams];
    *mine = (tt_red_param){
        .name_hash = tt_hash64(param->name, strlen(param->name), 0),
        .dtype = param->dtype,
        .ndim = param->ndim,
        .count = count,
        .bytes = count * tutti_dtype_size(param->dtype),
        .grad = param->grad,
        .param = param->param,
        .owned = param->grad == NULL,
        .group = param->group,
    };
    memcpy(mine->shape, param->shape, sizeof mine->shape[0] * (size_t)param->ndim);
    TT_TRY(tt_strdup(param->name, &mine->name));
    if (id_out != NULL)
        *id_out = (int)red->nparams;
    red->nparams++;
    return TUTTI_OK;
}

void *tutti_reducer_grad(const tutti_reducer *red, int id)
{
    if (red == NULL || !red->committed || id < 0 || (size_t)id >= red->nparams)
        return NULL;
    return red->params[id].grad;
}

size_t tutti_reducer_pieces(const tutti_reducer *red, const tutti_piece **pieces_out)
{
    if (red == NULL || !red->committed)
        return 0;
    if (pieces_out != NULL)
        *pieces_out = red->pieces;
    return red->nparams;
}

size_t tutti_reducer_shard_count(const tutti_reducer *red)
{
    return red != NULL && red->committed ? red->shard_count : 0;
}

static tutti_status check_order(const tutti_reducer *red, int micro, int n)
{
    char text[512];

    if (!red->in_step && micro != 0)
        return tt_fail(TUTTI_ERR_STATE, "reducer \"%s\": begin of micro-step %d before 0",
                       red->name, micro);
    if (!red->in_step)
        return TUTTI_OK;
    if (micro == 0)
        return tt_fail(
            TUTTI_ERR_STATE,
            "reducer \"%s\": begin of a step while micro-step %d of %d of the last one is "
            "neither waited for nor abandoned",
            red->name, red->micro, red->micros);
    if (n != red->micros || micro != red->micro + 1)
        return tt_fail(TUTTI_ERR_STATE,
                       "reducer \"%s\": begin of micro-step %d of %d, but the last was %d of %d",
                       red->name, micro, n, red->micro, red->micros);
    if (red->remaining > 0)
        return tt_fail(TUTTI_ERR_STATE,
                       "reducer \"%s\": begin of micro-step %d, but %s were not made ready in "
                       "micro-step %d",
                       red->name, micro, tt_red_missing_text(red, text, sizeof text), red->micro);
    return TUTTI_OK;
}

static tutti_status check_begin(const tutti_reducer *red, int micro, int n, tutti_stream stream)
{
    TT_TRY(tt_ctx_check(red->ctx));
    if (!red->committed)
        return tt_fail(TUTTI_ERR_STATE, "reducer \"%s\": begin before commit", red->name);
    if (n < 1 || micro < 0 || micro >= n)
        return tt_fail(TUTTI_ERR_ARG, "reducer \"%s\": there is no micro-step %d of %d", red->name,
                       micro, n);
    TT_TRY(red->ctx->dev_ops->stream_check(red->ctx->dev, stream));
    return check_order(red, micro, n);
}

/* After the last step's all-reduces, whatever stream was given to its wait. */
static tutti_status zero_gradients(tutti_reducer *red, tutti_stream stream)
{
    const tt_device_ops *ops = red->ctx->dev_ops;
    tt_device *dev = red->ctx->dev;

    TT_TRY(ops->event_wait(dev, red->done, stream));
    if (red->arena_bytes > 0)
        TT_TRY(ops->zero(dev, red->arena, red->arena_bytes, stream));
    for (int b = 0; b < red->nbuckets; b++) {
        const tt_red_bucket *bucket = &red->buckets[b];
        for (int i = 0; !bucket->owned && i < bucket->nruns; i++)
            TT_TRY(ops->zero(dev, bucket->runs[i].ptr,
                             bucket->runs[i].count * tutti_dtype_size(bucket->dtype), stream));
    }
    red->zero_pending = !tt_red_inline(stream);
    return red->zero_pending ? ops->event_record(dev, red->zeroed, stream) : TUTTI_OK;
}

static void forget_sources(tt_red_sources *sources)
{
    for (size_t i = 0; i < sources->n; i++) {
        sources->list[i].expected = sources->list[i].seen;
        sources->list[i].seen = 0;
        sources->list[i].recorded = false;
    }
}

static void begin_last_micro(tutti_reducer *red)
{
    for (int b = 0; b < red->nbuckets; b++) {
        red->buckets[b].pending = red->buckets[b].n;
        red->buckets[b].complete = false;
        red->buckets[b].issues = 0;
        forget_sources(&red->buckets[b].sources);
    }
    forget_sources(&red->scalar_sources);
    red->nscalars = red->scalar_floats = 0;
    red->ncompleted = red->next = 0;
    tt_red_times_keep(red);
    red->begin_ns = tt_now_ns();
}

static tutti_status begin(tutti_reducer *red, int micro, int n, tutti_stream stream)
{
    TT_TRY(check_begin(red, micro, n, stream));
    if (micro == 0)
        TT_TRY(zero_gradients(red, stream));
    red->in_step = true;
    red->micro = micro;
    red->micros = n;
    red->stamp++;
    red->remaining = red->nparams;
    if (micro == n - 1)
        begin_last_micro(red);
    return TUTTI_OK;
}

tutti_status tutti_reducer_begin(tutti_reducer *red, int micro, int n, tutti_stream stream)
{
    tutti_status status;

    if (red == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_reducer_begin: the reducer is NULL");
    tt_nvtx_push("tutti reducer begin");
    pthread_mutex_lock(&red->lock);
    status = begin(red, micro, n, stream);
    pthread_mutex_unlock(&red->lock);
    tt_nvtx_pop();
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reducer's life: create, add, destroy.
 *
 * A reducer works on a duplicate of the caller's communicator and on a stream of its own. Calls on
 * one communicator are carried out in the order of issue; with an order of its own a bucket
 * never waits for what the program issues meanwhile, and ranks may differ in how they interleave
 * the two. The price, a communicator, is paid once.
 *
 * Where a host stream cannot reach other nodes (MPI below MPI_THREAD_MULTIPLE) the reducer's stream
 * is the inline one: all is right, nothing overlaps, and it says so once.
 *
 * Reducers that are left at tutti_finalize are destroyed there (boot/live.h). A failed context
 * takes its communicators away first: then only memory is left to free.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/env.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/mem.h"
#include "reducer/reducer.h"

static void destroy_left(void *red)
{
    tutti_reducer_destroy(red);
}

static void drop_left(void *object)
{
    tutti_reducer *red = object;

    red->comm = red->norm_comm = NULL; /* gone, and the memory with them */
    red->arena = red->staging = red->shadow = NULL;
    red->sums = NULL;
    memset(red->partial, 0, sizeof red->partial);
    red->in_step = false;
    tutti_reducer_destroy(red);
}

static const tt_live_ops live_ops = {destroy_left, drop_left};

static tutti_status check_opts(const tutti_reducer_opts *opts)
{
    const uint32_t known = TUTTI_REDUCER_REPRODUCIBLE | TUTTI_REDUCER_COMPARE_PARAMS |
                           TUTTI_SHARD_OPTIMIZER | TUTTI_REDUCER_AVERAGE_MICRO |
                           TUTTI_REDUCER_FIND_UNUSED | TUTTI_REDUCER_UNEVEN |
                           TUTTI_REDUCER_AVERAGE_PRESENT;

    if (opts->size != sizeof *opts)
        return tt_fail(TUTTI_ERR_ARG,
                       "tutti_reducer_create: opts->size is %zu, not sizeof(tutti_reducer_opts) = "
                       "%zu: begin with TUTTI_REDUCER_OPTS_INIT",
                       opts->size, sizeof *opts);
    if ((opts->flags & ~known) != 0)
        return tt_fail(TUTTI_ERR_ARG, "tutti_reducer_create: unknown flags 0x%x",
                       opts->flags & ~known);
    if ((opts->flags & (TUTTI_REDUCER_AVERAGE_PRESENT | TUTTI_REDUCER_UNEVEN)) ==
        TUTTI_REDUCER_AVERAGE_PRESENT)
        return tt_fail(TUTTI_ERR_ARG, "tutti_reducer_create: TUTTI_REDUCER_AVERAGE_PRESENT is for "
                                      "TUTTI_REDUCER_UNEVEN");
    if (opts->wire != 0 && opts->wire != TUTTI_BFLOAT16 && opts->wire != TUTTI_FLOAT16)
        return tt_fail(TUTTI_ERR_ARG,
                       "tutti_reducer_create: the wire type is BFLOAT16 or FLOAT16, not %d",
                       (int)opts->wire);
    if (opts->wire != 0 && (opts->flags & TUTTI_REDUCER_REPRODUCIBLE) != 0)
        return tt_fail(TUTTI_ERR_ARG, "tutti_reducer_create: a reproducible sum does not travel in "
                                      "16 bits: leave out the wire type or the flag");
    return TUTTI_OK;
}

static tutti_status read_opts(tutti_reducer *red, const tutti_reducer_opts *given)
{
    const tutti_reducer_opts none = TUTTI_REDUCER_OPTS_INIT;
    const tutti_reducer_opts *opts = given != NULL ? given : &none;

    TT_TRY(check_opts(opts));
    red->flags = opts->flags;
    red->wire = opts->wire;
    red->bucket_bytes = opts->bucket_bytes;
    red->first_bucket_bytes = opts->first_bucket_bytes;
    if (red->bucket_bytes == 0)
        TT_TRY(tt_env_get_bytes(TT_ENV_BUCKET_BYTES, &red->bucket_bytes));
    return tt_strdup(opts->name != NULL ? opts->name : "reducer", &red->name);
}

static tutti_status check_math(const tutti_reducer *red)
{
    const uint32_t needed = TUTTI_REDUCER_AVERAGE_MICRO | TUTTI_REDUCER_UNEVEN;

    if (red->math != NULL || (red->wire == 0 && (red->flags & needed) == 0))
        return TUTTI_OK;
    return tt_fail(TUTTI_ERR_UNSUPPORTED,
                   "tutti_reducer_create: a wire type, uneven ranks and averages over micro-steps "
                   "are not there on the %s backend",
                   red->ctx->dev_ops->name);
}

static tutti_status new_reducer(tutti_comm *comm, const tutti_reducer_opts *opts,
                                tutti_reducer **red_out)
{
    tutti_reducer *red;
    tutti_status status;

    TT_TRY(tt_calloc(1, sizeof *red, &red));
    red->ctx = comm->ctx;
    red->rank = comm->group.rank;
    red->ranks = red->present = comm->group.size;
    red->math = tt_math_select(comm->ctx->dev_ops);
    pthread_mutex_init(&red->lock, NULL);
    *red_out = red; /* half made: destroy takes it */
    status = read_opts(red, opts);
    if (status == TUTTI_OK)
        status = check_math(red);
    if (status == TUTTI_OK)
        status = tt_calloc((size_t)comm->group.size, sizeof *red->rank_hashes, &red->rank_hashes);
    return status;
}

/* Options shape the plan: they must not differ. */
static tutti_status same_opts(tutti_reducer *red, tutti_comm *comm)
{
    const tt_group *group = &comm->group;
    uint64_t mine[4] = {red->flags, red->bucket_bytes, red->first_bucket_bytes, red->wire};
    uint64_t hash = tt_hash64(mine, sizeof mine, 0);
    tutti_status status = TUTTI_OK;

    TT_TRY(tt_all_gather_fixed(&comm->group, "tutti_reducer_create", &hash, sizeof hash,
                               red->rank_hashes));
    for (int r = 0; r < group->size; r++)
        if (red->rank_hashes[r] != red->rank_hashes[0]) {
            status =
                tt_fail(TUTTI_ERR_MISMATCH,
                        "reducer \"%s\": options differ between rank %d and rank %d; here "
                        "flags are 0x%x, bucket_bytes %zu, first_bucket_bytes %zu, wire type %d",
                        red->name, group->world[0], group->world[r], red->flags, red->bucket_bytes,
                        red->first_bucket_bytes, (int)red->wire);
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
    if (status == TUTTI_OK && opts != NULL && opts->norm_comm != NULL)
        status = tutti_comm_split(opts->norm_comm, 0, tutti_rank(opts->norm_comm), &comm_opts,
                                  &red->norm_comm);
    if (status != TUTTI_OK)
        goto destroy_red;
    status = tt_agree(&red->comm->group, "tutti_reducer_create", make_stream(red));
    if (status != TUTTI_OK)
        goto destroy_red;
    tt_live_add(&red->live, red->ctx, &live_ops, red);
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
    tt_live_remove(&red->live);
    tt_red_plan_free(red);
    tt_red_sources_free(red, &red->scalar_sources);
    tutti_comm_destroy(red->norm_comm);
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

/* The box that the tensor is of another one, if any. */
static tutti_status check_box(const tutti_param *param)
{
    bool given = false;

    for (int i = 0; i < TUTTI_MAX_DIMS; i++)
        given = given || param->whole[i] != 0 || param->offset[i] != 0;
    for (int i = 0; given && i < param->ndim; i++)
        if (param->offset[i] < 0 || param->whole[i] < param->shape[i] ||
            param->offset[i] > param->whole[i] - param->shape[i])
            return tt_fail(TUTTI_ERR_ARG,
                           "parameter \"%s\": dimension %d has %" PRId64 " at offset %" PRId64
                           " of a whole of %" PRId64,
                           param->name, i, param->shape[i], param->offset[i], param->whole[i]);
    return TUTTI_OK;
}

static tutti_status check_tie(const tutti_reducer *red, const tutti_param *param)
{
    const tt_red_param *other;

    if (param->tied < 0 || (size_t)param->tied > red->nparams ||
        red->params[param->tied - 1].tied != 0)
        return tt_fail(
            TUTTI_ERR_ARG,
            "parameter \"%s\" is tied to id %d, which is no earlier parameter of its own",
            param->name, param->tied - 1);
    other = &red->params[param->tied - 1];
    if (param->grad != NULL || param->param != NULL)
        return tt_fail(TUTTI_ERR_ARG, "parameter \"%s\" is tied to \"%s\": grad and param are its",
                       param->name, other->name);
    if (param->dtype != other->dtype || param->ndim != other->ndim ||
        memcmp(param->shape, other->shape, sizeof param->shape[0] * (size_t)param->ndim) != 0)
        return tt_fail(TUTTI_ERR_ARG, "parameter \"%s\" is tied to \"%s\" of another type or shape",
                       param->name, other->name);
    return TUTTI_OK;
}

static tutti_status check_name(const tutti_reducer *red, const tutti_param *param)
{
    uint64_t hash = tt_hash64(param->name, strlen(param->name), 0);
    for (size_t id = 0; id < red->nparams; id++)
        if (red->params[id].name_hash == hash && strcmp(red->params[id].name, param->name) == 0)
            return tt_fail(TUTTI_ERR_ARG, "reducer \"%s\" has a parameter \"%s\" already (id %zu)",
                           red->name, param->name, id);
    return TUTTI_OK;
}

static tutti_status check_param(const tutti_reducer *red, const tutti_param *param,
                                size_t *count_out)
{
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
    TT_TRY(check_name(red, param));
    if (tt_red_sharded(red) && param->param == NULL && param->tied == 0)
        return tt_fail(TUTTI_ERR_ARG,
                       "parameter \"%s\": TUTTI_SHARD_OPTIMIZER needs its memory (param)",
                       param->name);
    TT_TRY(check_box(param));
    TT_TRY(count_elements(param, count_out));
    return param->tied == 0 ? TUTTI_OK : check_tie(red, param);
}

tutti_status tutti_reducer_add(tutti_reducer *red, const tutti_param *param, int *id_out)
{
    const int64_t *whole;
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
        .count = param->tied != 0 ? 0 : count,
        .bytes = param->tied != 0 ? 0 : count * tutti_dtype_size(param->dtype),
        .grad = param->grad,
        .param = param->param,
        .owned = param->grad == NULL,
        .tied = param->tied,
        .group = param->group,
        .flags = param->flags,
    };
    memcpy(mine->shape, param->shape, sizeof mine->shape[0] * (size_t)param->ndim);
    whole = param->ndim > 0 && param->whole[0] != 0 ? param->whole : mine->shape;
    memcpy(mine->whole, whole, sizeof mine->whole[0] * (size_t)param->ndim);
    memcpy(mine->box_offset, param->offset, sizeof mine->box_offset[0] * (size_t)param->ndim);
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
    return red->npieces;
}

size_t tutti_reducer_shard_count(const tutti_reducer *red)
{
    return red != NULL && red->committed ? red->shard_count : 0;
}

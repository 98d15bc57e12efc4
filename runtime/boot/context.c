/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The context: made in the order of docs/architecture.md, each step agreed on by all ranks, so that
 * every rank returns the same status and none waits for one that has given up.
 *
 * The failure of a context is sticky: the first one wins, its text is kept, and from then on every
 * wait ends with it. Its text lies under a lock; whether there is one is an atomic that the hot
 * paths read. Who finds a failure also has the progress part tell the other ranks, except for one
 * that came from another rank.
 */
#include "boot/context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "boot/internal.h"
#include "boot/live.h"
#include "core/clock.h"
#include "core/env.h"
#include "core/log.h"

typedef struct hook {
    const char *key;
    tt_step_hook run;
    tt_ctx_free_fn free_arg;
    void *arg;
} hook;

struct tt_hooks {
    pthread_mutex_t lock; /* another thread may register one while tutti_step runs them */
    hook *list;
    size_t n, cap;
};

static const tutti_init_opts default_opts = TUTTI_INIT_OPTS_INIT;

static tutti_status check_opts(const tutti_init_opts *opts)
{
    if (opts->boot < TUTTI_BOOT_AUTO || opts->boot > TUTTI_BOOT_THREADS)
        return tt_fail(TUTTI_ERR_ARG, "tutti_init: opts.boot is %d", (int)opts->boot);
    if (opts->backend < TUTTI_BACKEND_AUTO || opts->backend > TUTTI_BACKEND_CUDA)
        return tt_fail(TUTTI_ERR_ARG, "tutti_init: opts.backend is %d", (int)opts->backend);
    if ((opts->flags & ~(uint32_t)(TUTTI_INIT_REPRODUCIBLE | TUTTI_INIT_NO_SIGNALS)) != 0)
        return tt_fail(TUTTI_ERR_ARG, "tutti_init: unknown bits in opts.flags 0x%x", opts->flags);
    if (opts->threads != NULL && (opts->boot == TUTTI_BOOT_MPI || opts->mpi_comm != NULL))
        return tt_fail(TUTTI_ERR_ARG,
                       "tutti_init: opts.threads is set, but so is the MPI bootstrap");
    return TUTTI_OK;
}

static tutti_status join(const tutti_init_opts *opts, tt_boot **boot_out)
{
    if (opts->threads != NULL || opts->boot == TUTTI_BOOT_THREADS)
        return tt_boot_threads_create(opts->threads, opts->rank, boot_out);
    return tt_boot_mpi_create(opts->mpi_comm, boot_out);
}

static tutti_status make_world(tutti_ctx *ctx)
{
    tt_group *world = &ctx->world;
    world->ctx = ctx;
    world->id = 0;
    world->rank = ctx->boot->rank;
    world->size = ctx->boot->size;
    TT_TRY(tt_calloc((size_t)world->size, sizeof *world->world, &world->world));
    for (int i = 0; i < world->size; i++)
        world->world[i] = i;
    atomic_store(&ctx->next_group_id, 1);
    return TUTTI_OK;
}

/* While the context is made: the limits of init. A malformed one is reported by the first
 * agreement. */
static void settings_of_init(tutti_ctx *ctx)
{
    if (tt_env_get_seconds(TT_ENV_INIT_TIMEOUT, &ctx->timeout_s) != TUTTI_OK)
        ctx->timeout_s = 300;
    if (tt_env_get_seconds(TT_ENV_WARN_AFTER, &ctx->warn_after_s) != TUTTI_OK)
        ctx->warn_after_s = 30;
    ctx->caller_patience = ctx->worker_patience = (tt_patience){0, 50000, 500000};
}

static tutti_status settings(tutti_ctx *ctx)
{
    bool reproducible;
    TT_TRY(tt_env_get_bool(TT_ENV_CHECK, &ctx->check));
    TT_TRY(tt_env_get_bool(TT_ENV_REPRODUCIBLE, &reproducible));
    TT_TRY(tt_env_get_bytes(TT_ENV_CHUNK_BYTES, &ctx->chunk_bytes));
    if (ctx->chunk_bytes < 64 || ctx->chunk_bytes > (size_t)1 << 30)
        return tt_fail(TUTTI_ERR_ARG, "TUTTI_CHUNK_BYTES: %zu is not 64 ... 1G", ctx->chunk_bytes);
    TT_TRY(tt_env_get_bytes(TT_ENV_CKPT_BLOCK_BYTES, &ctx->ckpt_block_bytes));
    if (ctx->ckpt_block_bytes < 4096 || ctx->ckpt_block_bytes > (size_t)1 << 30 ||
        ctx->ckpt_block_bytes % 4096 != 0)
        return tt_fail(TUTTI_ERR_ARG,
                       "TUTTI_CKPT_BLOCK_BYTES: %zu is not a multiple of 4096 up to 1G",
                       ctx->ckpt_block_bytes);
    if (reproducible)
        ctx->flags |= TUTTI_INIT_REPRODUCIBLE;
    return TUTTI_OK;
}

static tutti_status start(tutti_ctx *ctx)
{
    TT_TRY(tt_circles_create(ctx));
    return tt_progress_create(ctx);
}

/* The collective part: the ranks have met. */
static tutti_status build(tutti_ctx *ctx, const tutti_init_opts *opts, tutti_status local)
{
    tt_group *world = &ctx->world;
    TT_TRY(tt_agree(world, "tutti_init", local));
    TT_TRY(tt_env_share(ctx));
    settings_of_init(ctx);
    TT_TRY(tt_parity_check(ctx));
    TT_TRY(tt_places_find(ctx));
    TT_TRY(tt_agree(world, "tutti_init, settings", settings(ctx)));
    TT_TRY(tt_device_pick(ctx, opts->backend));
    TT_TRY(tt_agree(world, "tutti_init, progress", start(ctx)));
    TT_TRY(tt_agree(world, "tutti_init, exit handler", tt_exit_watch(ctx)));
    return tt_env_get_seconds(TT_ENV_TIMEOUT, &ctx->timeout_s);
}

tutti_status tt_context_create(const tutti_init_opts *opts, tutti_ctx **ctx_out)
{
    tutti_ctx *ctx = NULL;
    if (ctx_out == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_init: ctx_out is NULL");
    if (opts == NULL)
        opts = &default_opts;
    if (opts->size != sizeof *opts)
        return tt_fail(TUTTI_ERR_ARG,
                       "tutti_init: opts.size is %zu, not %zu: begin with TUTTI_INIT_OPTS_INIT",
                       opts->size, sizeof *opts);
    tt_log_reload();
    tutti_status local = check_opts(opts);
    if (local == TUTTI_OK)
        local = tt_env_check();
    TT_TRY(tt_calloc(1, sizeof *ctx, &ctx));
    pthread_mutex_init(&ctx->fail_lock, NULL);
    pthread_mutex_init(&ctx->live.lock, NULL);
    ctx->flags = opts->flags;
    atomic_store(&ctx->last_step, -1);
    settings_of_init(ctx);
    tutti_status status = tt_calloc(1, sizeof *ctx->hooks, &ctx->hooks);
    if (status == TUTTI_OK) {
        pthread_mutex_init(&ctx->hooks->lock, NULL);
        status = join(opts, &ctx->boot);
    }
    if (status != TUTTI_OK)
        goto destroy_ctx;
    tt_log_identity(ctx->boot->rank, ctx->boot->size);
    status = make_world(ctx);
    if (status == TUTTI_OK)
        status = build(ctx, opts, local);
    if (status != TUTTI_OK) {
        tt_ctx_fail(ctx, status);
        goto destroy_ctx;
    }
    *ctx_out = ctx;
    return TUTTI_OK;
destroy_ctx:
    tt_context_destroy(ctx);
    return status;
}

void tt_context_destroy(tutti_ctx *ctx)
{
    if (ctx == NULL)
        return;
    tt_live_drop_all(ctx);
    for (size_t i = ctx->hooks != NULL ? ctx->hooks->n : 0; i > 0; i--)
        if (ctx->hooks->list[i - 1].free_arg != NULL)
            ctx->hooks->list[i - 1].free_arg(ctx->hooks->list[i - 1].arg);
    if (ctx->dev != NULL)
        ctx->dev_ops->close(ctx->dev);
    tt_progress_destroy(ctx);
    tt_circles_destroy(ctx);
    tt_exit_unwatch(ctx);
    if (ctx->boot != NULL)
        ctx->boot->ops->destroy(ctx->boot, atomic_load(&ctx->failed) != 0);
    if (ctx->hooks != NULL) {
        pthread_mutex_destroy(&ctx->hooks->lock);
        free(ctx->hooks->list);
    }
    free(ctx->hooks);
    free(ctx->place);
    free(ctx->world.world);
    pthread_mutex_destroy(&ctx->live.lock);
    pthread_mutex_destroy(&ctx->fail_lock);
    free(ctx);
}

tutti_status tt_ctx_check(tutti_ctx *ctx)
{
    tutti_status status = (tutti_status)atomic_load_explicit(&ctx->failed, memory_order_acquire);
    if (__builtin_expect(status == TUTTI_OK, 1))
        return TUTTI_OK;
    return tt_fail_text(status, ctx->fail_text); /* written once, before `failed` */
}

bool tt_ctx_mark_failed(tutti_ctx *ctx, tutti_status status)
{
    bool first = false;
    pthread_mutex_lock(&ctx->fail_lock);
    if (atomic_load(&ctx->failed) == 0) {
        first = true;
        snprintf(ctx->fail_text, sizeof ctx->fail_text, "%s", tutti_last_error());
        atomic_store_explicit(&ctx->failed, status, memory_order_release);
    }
    pthread_mutex_unlock(&ctx->fail_lock);
    return first;
}

tutti_status(tt_ctx_fail)(tutti_ctx *ctx, tutti_status status)
{
    if (status != TUTTI_OK && tt_ctx_mark_failed(ctx, status))
        tt_progress_failed(ctx);
    return status;
}

tutti_status tutti_ctx_error(tutti_ctx *ctx, char *buf, size_t cap)
{
    if (ctx == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_ctx_error: ctx is NULL");
    tutti_status status = (tutti_status)atomic_load_explicit(&ctx->failed, memory_order_acquire);
    if (buf != NULL && cap > 0)
        snprintf(buf, cap, "%s", status != TUTTI_OK ? ctx->fail_text : "");
    return status;
}

const char *tt_ctx_rank_name(const tutti_ctx *ctx, int world_rank, char *buf, size_t cap)
{
    if (ctx->node_count > 0)
        snprintf(buf, cap, "rank %d (%s, local rank %d)", world_rank, ctx->place[world_rank].host,
                 ctx->place[world_rank].local_rank);
    else
        snprintf(buf, cap, "rank %d", world_rank);
    return buf;
}

void *tt_ctx_hook_find(tutti_ctx *ctx, const char *key)
{
    tt_hooks *hooks = ctx->hooks;
    void *arg = NULL;
    pthread_mutex_lock(&hooks->lock);
    for (size_t i = 0; i < hooks->n && arg == NULL; i++)
        if (strcmp(hooks->list[i].key, key) == 0)
            arg = hooks->list[i].arg;
    pthread_mutex_unlock(&hooks->lock);
    return arg;
}

tutti_status tt_ctx_hook_add(tutti_ctx *ctx, const char *key, tt_step_hook run,
                             tt_ctx_free_fn free_fn, void *arg)
{
    tt_hooks *hooks = ctx->hooks;
    pthread_mutex_lock(&hooks->lock);
    tutti_status status = tt_grow(&hooks->list, &hooks->cap, hooks->n + 1, sizeof *hooks->list);
    if (status == TUTTI_OK)
        hooks->list[hooks->n++] = (hook){key, run, free_fn, arg};
    pthread_mutex_unlock(&hooks->lock);
    return status;
}

static bool hook_at(tt_hooks *hooks, size_t i, hook *out)
{
    pthread_mutex_lock(&hooks->lock);
    bool found = i < hooks->n;
    if (found)
        *out = hooks->list[i];
    pthread_mutex_unlock(&hooks->lock);
    return found;
}

/* All run, also after a failure of one: each has its own collective part, and the others must not
 * wait for it. The first failure is returned. */
tutti_status tt_ctx_hooks_run(tutti_ctx *ctx, int64_t step)
{
    tutti_status first = TUTTI_OK;
    char text[TT_ERROR_TEXT_MAX];
    hook h;
    for (size_t i = 0; hook_at(ctx->hooks, i, &h); i++) {
        tutti_status status = h.run(ctx, h.arg, step);
        if (status != TUTTI_OK && first == TUTTI_OK) {
            first = status;
            snprintf(text, sizeof text, "%s", tutti_last_error());
        }
    }
    return first == TUTTI_OK ? TUTTI_OK : tt_fail_text(first, text);
}

int tutti_local_rank(const tutti_ctx *ctx)
{
    return ctx == NULL ? -1 : ctx->place[ctx->world.rank].local_rank;
}

int tutti_local_size(const tutti_ctx *ctx)
{
    return ctx == NULL ? 0 : ctx->local_size;
}

int tutti_node(const tutti_ctx *ctx)
{
    return ctx == NULL ? -1 : ctx->place[ctx->world.rank].node;
}

int tutti_node_count(const tutti_ctx *ctx)
{
    return ctx == NULL ? 0 : ctx->node_count;
}

int tutti_device(const tutti_ctx *ctx)
{
    return ctx == NULL ? -1 : ctx->dev_ops->ordinal(ctx->dev);
}

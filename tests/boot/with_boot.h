/* SPDX-License-Identifier: Apache-2.0 */
/* Thread ranks with a context that has no collectives above it. */
#ifndef TT_WITH_BOOT_H
#define TT_WITH_BOOT_H

#include "tt_test.h"

#include "boot/context.h"

/* Wraps a body: the context made before it and destroyed after it, together unless the body failed
 * it on purpose (r->ctx = NULL). */
static inline void with_boot(tt_rank *r, tt_body body)
{
    tutti_init_opts opts = TUTTI_INIT_OPTS_INIT;
    opts.threads = r->threads;
    opts.rank = r->rank;
    TT_EXPECT_OK(r, tt_context_create(&opts, &r->ctx));
    tutti_ctx *ctx = r->ctx;
    body(r);
    if (!r->failed && r->ctx != NULL && tt_barrier(&ctx->world, "leaving") != TUTTI_OK)
        tt_say(r, "leaving: %s", tutti_last_error());
    tt_context_destroy(ctx);
}

static inline void on_ranks(int n, const char *nodes, tt_body body, void *arg)
{
    assert_string_equal(tt_threads_wrapped(n, nodes, body, arg, with_boot), "");
}

#endif

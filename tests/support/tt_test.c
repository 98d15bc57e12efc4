/* SPDX-License-Identifier: Apache-2.0 */
#include "tt_test.h"

static void with_context(tt_rank *r, tt_body body)
{
    tutti_init_opts opts = TUTTI_INIT_OPTS_INIT;
    tutti_ctx *ctx;
    opts.threads = r->threads;
    opts.rank = r->rank;
    opts.flags = TUTTI_INIT_NO_SIGNALS;
    TT_EXPECT_OK(r, tutti_init(&opts, &r->ctx));
    ctx = r->ctx;
    r->comm = tutti_world(ctx);
    body(r);
    tutti_status status = tutti_finalize(ctx);
    if (status != TUTTI_OK && r->ctx != NULL)
        tt_say(r, "tutti_finalize: %s: %s", tutti_status_name(status), tutti_last_error());
}

const char *tt_ranks_run(int n, const char *nodes, tt_body body, void *arg)
{
    return tt_threads_wrapped(n, nodes, body, arg, with_context);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "boot/internal.h"
#include "core/clock.h"
#include "core/log.h"

void tt_op_wait_begin(tt_op_wait *w, tutti_ctx *ctx, const tt_patience *patience, const char *what,
                      tt_late_fn late, void *late_arg)
{
    *w = (tt_op_wait){.ctx = ctx, .what = what, .late = late, .late_arg = late_arg};
    tt_wait_begin(&w->wait, patience);
}

/* A quiet time that any rank announced starts the clock anew at its end. */
static double waited_s(const tt_op_wait *w, int64_t waited_ns)
{
    int64_t quiet = atomic_load_explicit(&w->ctx->quiet_until_ns, memory_order_relaxed);
    if (quiet > w->wait.started_ns)
        waited_ns -= quiet - w->wait.started_ns;
    return (double)waited_ns / 1e9;
}

static bool late_text(const tt_op_wait *w, char *buf, size_t cap)
{
    buf[0] = '\0';
    if (w->late == NULL) {
        snprintf(buf, cap, "not finished");
        return true;
    }
    return w->late(w->late_arg, buf, cap);
}

static tutti_status time_out(const tt_op_wait *w, const char *late, double waited)
{
    char seen[768];
    tt_progress_ask(w->ctx, seen, sizeof seen);
    return tt_ctx_fail(
        w->ctx, tt_fail(TUTTI_ERR_TIMEOUT, "%s: %s after %.1f s%s", w->what, late, waited, seen));
}

tutti_status tt_op_wait_once(tt_op_wait *w, _Atomic uint32_t *word, uint32_t seen)
{
    tutti_ctx *ctx = w->ctx;
    char text[1024];
    TT_TRY(tt_ctx_check(ctx));
    tt_ctx_poll(ctx);
    int64_t waited_ns = tt_wait_once(&w->wait, word, seen);
    if (waited_ns < 1000000) /* no limit is that short; spares the usual wait the rest */
        return TUTTI_OK;
    double waited = waited_s(w, waited_ns);
    if (ctx->timeout_s > 0 && waited >= ctx->timeout_s && late_text(w, text, sizeof text))
        return time_out(w, text, waited);
    if (!w->warned && ctx->warn_after_s > 0 && waited >= ctx->warn_after_s) {
        w->warned = true;
        if (late_text(w, text, sizeof text))
            tt_log_warn(TT_BOOT, "%s: %s after %.0f s", w->what, text, waited);
    }
    return TUTTI_OK;
}

tutti_status tt_req_wait(tutti_ctx *ctx, tt_req *req, const tt_patience *patience, const char *what,
                         size_t *bytes_out)
{
    tt_boot *boot = ctx->boot;
    tt_op_wait wait;
    tutti_status status;
    tt_op_wait_begin(&wait, ctx, patience, what, NULL, NULL);
    for (;;) {
        bool done = false;
        uint32_t seen = boot->bell != NULL ? atomic_load(boot->bell) : 0;
        status = boot->ops->test(boot, req, &done, bytes_out, NULL);
        if (status != TUTTI_OK || done)
            break;
        status = tt_op_wait_once(&wait, boot->bell, seen);
        if (status != TUTTI_OK)
            break;
    }
    if (status != TUTTI_OK)
        boot->ops->cancel(boot, req);
    return status;
}

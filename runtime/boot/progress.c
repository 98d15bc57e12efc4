/* SPDX-License-Identifier: Apache-2.0 */
#include "boot/internal.h"

tutti_status tt_progress_create(tutti_ctx *ctx)
{
    (void)ctx;
    return TUTTI_OK;
}

void tt_progress_destroy(tutti_ctx *ctx)
{
    (void)ctx;
}

void tt_progress_failed(tutti_ctx *ctx)
{
    (void)ctx;
}

void tt_progress_flush(tutti_ctx *ctx, double seconds)
{
    (void)ctx;
    (void)seconds;
}

void tt_ctx_poll(tutti_ctx *ctx)
{
    (void)ctx;
}

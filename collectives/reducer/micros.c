/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that take different numbers of micro-steps would add up different things and never notice:
 * each of them issues the same collectives. So the number travels ahead of the first bucket and is
 * compared on the communication stream, before any gradient is touched. Host memory alone;
 * elsewhere the first step and TUTTI_CHECK=1 compare it (learn.c).
 *
 * A number is sent from memory that never changes, for the host may be steps ahead of the stream.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "core/mem.h"
#include "reducer/reducer.h"

struct tt_red_micros {
    tt_red_micros *next;
    int32_t n;
};

static tutti_status known(tutti_reducer *red, int32_t n, const tt_red_micros **out)
{
    tt_red_micros *known = red->known_micros;

    while (known != NULL && known->n != n)
        known = known->next;
    if (known == NULL) {
        TT_TRY(tt_calloc(1, sizeof *known, &known));
        known->n = n;
        known->next = red->known_micros;
        red->known_micros = known;
    }
    *out = known;
    return TUTTI_OK;
}

static tutti_status compare(void *arg)
{
    const tutti_reducer *red = arg;
    const int *world = red->comm->group.world;

    for (int r = 1; r < red->ranks; r++)
        if (red->told_micros[r] != red->told_micros[0])
            return tt_fail(TUTTI_ERR_MISMATCH,
                           "reducer \"%s\": number of micro-steps in one step: %" PRId32
                           " on rank %d, %" PRId32 " on rank %d",
                           red->name, red->told_micros[r], world[r], red->told_micros[0], world[0]);
    return TUTTI_OK;
}

tutti_status tt_red_micros_compare(tutti_reducer *red)
{
    const tt_device_ops *ops = red->ctx->dev_ops;
    const tt_red_micros *mine;

    if (red->ranks == 1 || ops->kind != TUTTI_BACKEND_HOST ||
        (red->flags & TUTTI_REDUCER_UNEVEN) != 0) /* whose begin has agreed on it */
        return TUTTI_OK;
    TT_TRY(known(red, red->micros, &mine));
    TT_TRY(tutti_all_gather(red->comm, &mine->n, red->told_micros, 1, TUTTI_INT32, red->stream));
    return ops->stream_call(red->ctx->dev, red->stream, compare, red, 0);
}

void tt_red_micros_free(tutti_reducer *red)
{
    while (red->known_micros != NULL) {
        tt_red_micros *next = red->known_micros->next;
        free(red->known_micros);
        red->known_micros = next;
    }
    free(red->told_micros);
    red->told_micros = NULL;
}

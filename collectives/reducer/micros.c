/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that take different numbers of micro-steps would add up different things and never notice:
 * each of them issues the same collectives. So in every step each rank sends its number, 4 bytes.
 *
 * Where memory is the host's, the number travels ahead of the first bucket and is compared on the
 * communication stream, before any gradient is touched. A device runs no code of ours between two
 * calls, and to wait for it would cost what the reducer is there to save: there the numbers go with
 * the last bucket, in its group, are copied to host memory, and the host looks at them when it
 * comes by next, in wait or begin, at those steps that have passed. Then the averages of that step
 * have been used, and the job ends instead of going on.
 *
 * What is sent lies in a table that never changes, for the host may be steps ahead of the stream.
 * Numbers from MOST on count as equal here; the first step, and with TUTTI_CHECK=1 every step,
 * compares them whole (learn.c). So it does for what is captured into a graph.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/mem.h"
#include "reducer/reducer.h"

enum { MOST = 4096, STEPS = 4 /* that the host may be ahead and miss none */ };

struct tt_red_micros {
    int32_t *table; /* i at i; the device's memory, as `told` is */
    int32_t *told; /* by rank */
    int32_t *kept[STEPS]; /* page-locked copies of it; NULL where code can read `told` */
    tt_event *copied[STEPS];
    int64_t step[STEPS]; /* the step that was copied there, from 1; 0: none */
};

static tutti_status fill_table(tutti_reducer *red, int32_t *table)
{
    const tt_device_ops *ops = red->ctx->dev_ops;
    int32_t *number;
    tutti_status status;

    TT_TRY(tt_calloc(MOST, sizeof *number, &number));
    for (int32_t i = 0; i < MOST; i++)
        number[i] = i;
    status = ops->copy(red->ctx->dev, table, number, MOST * sizeof *number, red->stream);
    if (status == TUTTI_OK)
        status = ops->stream_sync(red->ctx->dev, red->stream);
    free(number);
    return status;
}

tutti_status tt_red_micros_create(tutti_reducer *red)
{
    const tt_device_ops *ops = red->ctx->dev_ops;
    tt_device *dev = red->ctx->dev;
    size_t bytes = (size_t)red->ranks * sizeof(int32_t);
    tt_red_micros *m;

    if (red->ranks == 1 || (red->flags & TUTTI_REDUCER_UNEVEN) != 0) /* whose begin compares it */
        return TUTTI_OK;
    TT_TRY(tt_calloc(1, sizeof *m, &red->micros_told));
    m = red->micros_told;
    TT_TRY(ops->mem_alloc(dev, MOST * sizeof *m->table, (void **)&m->table));
    TT_TRY(ops->mem_alloc(dev, bytes, (void **)&m->told));
    for (int i = 0; !ops->host_memory && i < STEPS; i++) {
        TT_TRY(ops->host_alloc(dev, bytes, (void **)&m->kept[i]));
        TT_TRY(ops->event_create(dev, false, &m->copied[i]));
    }
    return fill_table(red, m->table);
}

void tt_red_micros_free(tutti_reducer *red)
{
    const tt_device_ops *ops = red->ctx->dev_ops;
    tt_red_micros *m = red->micros_told;

    if (m == NULL)
        return;
    for (int i = 0; i < STEPS; i++) {
        ops->event_destroy(red->ctx->dev, m->copied[i]);
        ops->host_free(red->ctx->dev, m->kept[i]);
    }
    ops->mem_free(red->ctx->dev, m->told);
    ops->mem_free(red->ctx->dev, m->table);
    free(m);
    red->micros_told = NULL;
}

static tutti_status differ(const tutti_reducer *red, const int32_t *told, const char *when)
{
    const int *world = red->comm->group.world;

    for (int r = 1; r < red->ranks; r++)
        if (told[r] != told[0])
            return tt_fail(TUTTI_ERR_MISMATCH,
                           "reducer \"%s\": number of micro-steps in one step%s: %" PRId32
                           " on rank %d, %" PRId32 " on rank %d",
                           red->name, when, told[r], world[r], told[0], world[0]);
    return TUTTI_OK;
}

static tutti_status compare(void *arg)
{
    const tutti_reducer *red = arg;
    return differ(red, red->micros_told->told, "");
}

/* Every rank sends, whatever it captures or has kept: it is a collective. */
static tutti_status tell(tutti_reducer *red)
{
    tt_red_micros *m = red->micros_told;
    int number = red->micros < MOST ? red->micros : MOST - 1;

    return tutti_all_gather(red->comm, m->table + number, m->told, 1, TUTTI_INT32, red->stream);
}

tutti_status tt_red_micros_ahead(tutti_reducer *red)
{
    const tt_device_ops *ops = red->ctx->dev_ops;

    if (red->micros_told == NULL || !ops->host_memory)
        return TUTTI_OK;
    TT_TRY(tell(red));
    return ops->stream_call(red->ctx->dev, red->stream, compare, red, 0);
}

tutti_status tt_red_micros_beside(tutti_reducer *red)
{
    bool beside = red->micros_told != NULL && !red->ctx->dev_ops->host_memory;
    return beside ? tell(red) : TUTTI_OK;
}

tutti_status tt_red_micros_keep(tutti_reducer *red)
{
    const tt_device_ops *ops = red->ctx->dev_ops;
    tt_red_micros *m = red->micros_told;
    int i = (int)(red->steps % STEPS);

    if (m == NULL || m->kept[i] == NULL || m->step[i] != 0 || red->capture != 0)
        return TUTTI_OK;
    TT_TRY(ops->copy(red->ctx->dev, m->kept[i], m->told, (size_t)red->ranks * sizeof *m->told,
                     red->stream));
    m->step[i] = red->steps + 1;
    return ops->event_record(red->ctx->dev, m->copied[i], red->stream);
}

tutti_status tt_red_micros_check(tutti_reducer *red)
{
    tt_red_micros *m = red->micros_told;
    char when[32];
    bool there = false;

    for (int i = 0; m != NULL && red->capture == 0 && i < STEPS; i++) {
        if (m->step[i] == 0)
            continue;
        TT_TRY(red->ctx->dev_ops->event_query(red->ctx->dev, m->copied[i], &there));
        if (!there)
            continue;
        snprintf(when, sizeof when, ", step %" PRId64, m->step[i] - 1);
        m->step[i] = 0;
        TT_TRY(differ(red, m->kept[i], when));
    }
    return TUTTI_OK;
}

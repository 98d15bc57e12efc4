/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the ranks tell each other at the end of the first step (and, with TUTTI_CHECK=1, of every
 * step): their status, what must be equal (number of micro-steps, scalars), and the order in which
 * buckets completed on rank 0, which becomes the order of issue on all. Ranks may well complete
 * buckets in different orders; any one of these orders serves, as long as it is the same.
 */
#include <inttypes.h>
#include <string.h>

#include "core/log.h"
#include "core/mem.h"
#include "reducer/reducer.h"

static void put_step(const tutti_reducer *red, tt_buf *buf)
{
    tt_buf_put_u64(buf, (uint64_t)red->steps);
    tt_buf_put_u32(buf, (uint32_t)red->micros);
    /* who has joined gives none */
    tt_buf_put_u32(buf, (red->flags & TUTTI_REDUCER_UNEVEN) != 0 ? 0 : (uint32_t)red->nmeans);
    tt_buf_put_u32(buf, (uint32_t)red->nscalars);
    for (int i = 0; i < red->nscalars; i++) {
        tt_buf_put_u32(buf, red->scalar[i].n);
        tt_buf_put_u32(buf, red->scalar[i].op);
    }
    if (red->comm->group.rank == 0)
        for (int k = 0; k < red->nbuckets; k++)
            tt_buf_put_u32(buf, (uint32_t)red->completed[k]);
}

static tutti_status differs(const tutti_reducer *red, int r, const char *what, uint64_t theirs,
                            uint64_t first)
{
    const int *world = red->comm->group.world;

    return tt_fail(TUTTI_ERR_MISMATCH,
                   "reducer \"%s\": %s at step %" PRId64 ": %" PRIu64 " on rank %d, %" PRIu64
                   " on rank %d",
                   red->name, what, red->steps, theirs, world[r], first, world[0]);
}

/* Both views stand behind their last equal value; every rank finds the same difference. */
static tutti_status compare(const tutti_reducer *red, int r, tt_buf *theirs, tt_buf *first)
{
    static const char *const field[] = {"number of the step", "number of micro-steps",
                                        "number of means", "number of scalar calls"};
    uint64_t a, b;
    uint32_t scalars = 0;

    for (int i = 0; i < 4; i++) {
        a = i == 0 ? tt_buf_get_u64(theirs) : tt_buf_get_u32(theirs);
        b = i == 0 ? tt_buf_get_u64(first) : tt_buf_get_u32(first);
        if (a != b)
            return differs(red, r, field[i], a, b);
        scalars = (uint32_t)b;
    }
    for (uint32_t i = 0; i < 2 * scalars; i++) {
        a = tt_buf_get_u32(theirs);
        b = tt_buf_get_u32(first);
        if (a != b)
            return differs(red, r, i % 2 == 0 ? "length of a scalar call" : "op of a scalar call",
                           a, b);
    }
    return TUTTI_OK;
}

static void learn(tutti_reducer *red, tt_buf *first)
{
    bool moved = false;

    for (int k = 0; k < red->nbuckets; k++) {
        int b = (int)tt_buf_get_u32(first);
        moved = moved || b != red->order[k];
        red->order[k] = b;
    }
    red->learnt = true;
    tt_log_debug(TT_RED, "\"%s\": order of buckets %s", red->name,
                 moved ? "learnt from rank 0" : "as expected");
}

static tutti_status compare_steps(tutti_reducer *red, const tt_blobs *all)
{
    tt_buf first = tt_buf_view(tt_blob(all, 0), tt_blob_bytes(all, 0));

    for (int r = 1; r < red->comm->group.size; r++) {
        tt_buf theirs = tt_buf_view(tt_blob(all, r), tt_blob_bytes(all, r));
        first.at = 0;
        TT_TRY(compare(red, r, &theirs, &first));
    }
    first.at = sizeof(uint64_t) + sizeof(uint32_t) * (3 + 2 * (size_t)red->nscalars);
    if (!red->learnt)
        learn(red, &first);
    return TUTTI_OK;
}

tutti_status tt_red_agree_step(tutti_reducer *red, tutti_status mine)
{
    tt_group *group = &red->comm->group;
    tt_buf buf = {0};
    tt_blobs all = {0};
    tutti_status status;

    put_step(red, &buf);
    if (mine == TUTTI_OK && buf.failed)
        mine = tt_fail(TUTTI_ERR_NO_MEMORY, "reducer \"%s\": no memory for the step", red->name);
    status = tt_agree(group, "tutti_reducer_wait", mine);
    if (status == TUTTI_OK)
        status = tt_all_gather_blobs(group, "tutti_reducer_wait", buf.data, buf.size, &all);
    if (status == TUTTI_OK)
        status = compare_steps(red, &all);
    tt_blobs_free(&all);
    tt_buf_free(&buf);
    return status;
}

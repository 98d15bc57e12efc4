/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums over micro-steps in a balanced tree.
 *
 * Backward passes of a reproducible reducer find zeroed gradients in every micro-step: what they
 * leave are the leaves of one tree over all micro-steps of all ranks. Its lower part is added here
 * as a binary counter does: partial[l] holds the sum over 2^l micro-steps whenever bit l of the
 * number of finished ones is set. Micro-step k adds the gradients to partial[0], that to partial[1]
 * ... as long as the bits of k are set, and leaves the sum in the first one whose bit is not; after
 * the last one, k = 2^L - 1, it is in the gradients' place and goes to the ranks. The additions of
 * leaves are thus those of any other sharing of 2^M micro-steps among 2^(M-L) ranks, whose
 * communicator sums in the balanced tree over ranks. L partial sums are the price.
 */
#include "core/log.h"
#include "reducer/reducer.h"

static int levels_of(int micros)
{
    int levels = 0;

    while (1 << levels < micros)
        levels++;
    return levels;
}

tutti_status tt_red_fold_create(tutti_reducer *red, int micros)
{
    int levels = levels_of(micros), have = 0;

    while (have < TT_RED_LEVELS_MAX && red->partial[have] != NULL)
        have++;
    if (have >= levels || red->run_bytes == 0)
        return TUTTI_OK;
    for (int l = have; l < levels; l++)
        TT_TRY(tutti_alloc(red->comm, red->run_bytes, (void **)&red->partial[l]));
    tt_log_info(TT_RED, "\"%s\": %d partial sums over %d micro-steps take %.1f MiB", red->name,
                levels, micros, (double)levels * (double)red->run_bytes / 1048576);
    return TUTTI_OK;
}

size_t tt_red_partial_bytes(const tutti_reducer *red)
{
    size_t have = 0;

    while (have < TT_RED_LEVELS_MAX && red->partial[have] != NULL)
        have++;
    return have * red->run_bytes;
}

void tt_red_fold_free(tutti_reducer *red)
{
    for (int l = 0; l < TT_RED_LEVELS_MAX; l++)
        tt_red_memory_free(red, &red->partial[l]);
}

/* Adds one run up; its gradients are zero afterwards unless this is the last micro-step. */
static tutti_status fold_run(tutti_reducer *red, const tt_red_run *run, tutti_dtype dtype)
{
    tt_device *dev = red->ctx->dev;
    size_t bytes = run->count * tutti_dtype_size(dtype);
    unsigned k = (unsigned)red->micro;
    void *sum = run->ptr;
    int level = 0;

    if (bytes == 0)
        return TUTTI_OK;
    for (; (k >> level & 1) != 0; level++) {
        char *partial = red->partial[level] + run->at;
        bool carries = (k >> (level + 1) & 1) != 0;
        void *to = carries                  ? partial
                   : tt_red_last_micro(red) ? run->ptr
                                            : red->partial[level + 1] + run->at;
        TT_TRY(red->math->add(dev, to, partial, sum, run->count, dtype, red->stream));
        sum = to;
    }
    if (level == 0)
        TT_TRY(red->ctx->dev_ops->copy(dev, red->partial[0] + run->at, sum, bytes, red->stream));
    if (tt_red_last_micro(red))
        return TUTTI_OK;
    return red->ctx->dev_ops->zero(dev, run->ptr, bytes, red->stream);
}

tutti_status tt_red_fold(tutti_reducer *red, const tt_red_bucket *bucket)
{
    for (int i = 0; i < bucket->nruns; i++)
        TT_TRY(fold_run(red, &bucket->runs[i], bucket->dtype));
    return TUTTI_OK;
}

tutti_status tt_red_means_launch(tutti_reducer *red)
{
    bool uneven =
        (red->flags & TUTTI_REDUCER_UNEVEN) != 0; /* who has joined does not know how many */
    size_t n = uneven ? TT_RED_SCALARS_MAX : (size_t)red->nmeans;
    int64_t *sums = red->sums + TT_EXACT_WORDS;

    if (!uneven && !red->mean_given)
        return TUTTI_OK;
    return tutti_all_reduce(red->comm, sums, sums, n * TT_EXACT_WORDS, TUTTI_INT64, TUTTI_SUM,
                            red->stream);
}

tutti_status tt_red_means_finish(tutti_reducer *red)
{
    if (!red->mean_given || red->dropping)
        return TUTTI_OK;
    return red->math->exact_get(red->ctx->dev, red->means, red->sums + TT_EXACT_WORDS,
                                (size_t)red->nmeans, (double)red->present * (double)red->micros,
                                false, red->stream);
}

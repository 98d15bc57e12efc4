/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps that are captured into a graph. The bookkeeping runs once, while the step is captured; a
 * replay runs what it queued. So a captured step must not look at the past: an event that
 * was recorded outside of the capture cannot be waited for within it, nor the other way round, and
 * no event is queried. What orders a graph against the steps around it is the stream it is launched
 * on, which is why those steps are to use the same one. Times are not taken.
 */
#include "reducer/reducer.h"

tutti_status tt_red_capture_begin(tutti_reducer *red, tutti_stream stream)
{
    TT_TRY(tt_device_capture(red->ctx->dev, stream, &red->capture));
    if (red->capture == 0)
        return TUTTI_OK;
    if (!red->learnt)
        return tt_fail(
            TUTTI_ERR_STATE,
            "reducer \"%s\": the first step cannot be captured: in it the ranks agree on "
            "the order of buckets; run one step before",
            red->name);
    if (red->ctx->check)
        return tt_fail(TUTTI_ERR_STATE,
                       "reducer \"%s\": TUTTI_CHECK=1 compares every step over the ranks, which a "
                       "stream that is being captured does not allow",
                       red->name);
    return TUTTI_OK;
}

tutti_status tt_red_capture_same(tutti_reducer *red, tutti_stream stream)
{
    uint64_t capture = 0;
    TT_TRY(tt_device_capture(red->ctx->dev, stream, &capture));
    if (capture != red->capture)
        return tt_fail(TUTTI_ERR_STATE,
                       "reducer \"%s\": a step is captured as a whole, from begin to wait, or not "
                       "at all",
                       red->name);
    return TUTTI_OK;
}

tutti_status tt_red_wait_if(tutti_reducer *red, tt_event *event, uint64_t recorded_in,
                            tutti_stream stream)
{
    uint64_t capture = 0;
    TT_TRY(tt_device_capture(red->ctx->dev, stream, &capture));
    if (capture != recorded_in)
        return TUTTI_OK;
    return red->ctx->dev_ops->event_wait(red->ctx->dev, event, stream);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "core/mem.h"
#include "reducer/reducer.h"

void tt_red_sources_free(tutti_reducer *red, tt_red_sources *sources)
{
    tt_red_source *source = atomic_load(sources);

    while (source != NULL) {
        tt_red_source *next = source->next;
        red->ctx->dev_ops->event_destroy(red->ctx->dev, source->event);
        free(source);
        source = next;
    }
    atomic_store(sources, NULL);
}

void tt_red_sources_forget(tt_red_sources *sources)
{
    for (tt_red_source *source = atomic_load(sources); source != NULL; source = source->next) {
        source->expected = atomic_load_explicit(&source->seen, memory_order_relaxed);
        atomic_store_explicit(&source->seen, 0, memory_order_relaxed);
        atomic_store_explicit(&source->recorded, 0, memory_order_relaxed);
    }
}

tt_red_source *tt_red_source_find(const tt_red_sources *sources, tutti_stream stream)
{
    tt_red_source *source = atomic_load_explicit(sources, memory_order_acquire);

    while (source != NULL &&
           (source->stream.handle != stream.handle || source->stream.kind != stream.kind))
        source = source->next;
    return source;
}

tutti_status tt_red_source_add(tutti_reducer *red, tt_red_sources *sources, tutti_stream stream,
                               int expected)
{
    tt_red_source *source;
    tutti_status status;

    if (tt_red_inline(stream) || tt_red_source_find(sources, stream) != NULL)
        return TUTTI_OK;
    TT_TRY(tt_calloc(1, sizeof *source, &source));
    status = red->ctx->dev_ops->event_create(red->ctx->dev, false, &source->event);
    if (status != TUTTI_OK) {
        free(source);
        return status;
    }
    source->stream = stream;
    source->expected = expected;
    source->next = atomic_load(sources);
    atomic_store_explicit(sources, source, memory_order_release);
    return TUTTI_OK;
}

/* What `seen` counts was on the stream before: a record now covers it. */
static tutti_status record(tutti_reducer *red, tt_red_source *source, int seen)
{
    int before = atomic_load_explicit(&source->recorded, memory_order_relaxed);

    TT_TRY(red->ctx->dev_ops->event_record(red->ctx->dev, source->event, source->stream));
    while (before < seen && !atomic_compare_exchange_weak(&source->recorded, &before, seen))
        ;
    return TUTTI_OK;
}

tutti_status tt_red_source_count(tutti_reducer *red, tt_red_source *source)
{
    int seen = atomic_fetch_add(&source->seen, 1) + 1;

    return seen < source->expected ? TUTTI_OK : record(red, source, seen);
}

tutti_status tt_red_sources_follow(tutti_reducer *red, tt_red_sources *sources)
{
    for (tt_red_source *source = atomic_load(sources); source != NULL; source = source->next) {
        int seen = atomic_load(&source->seen);
        if (seen == 0)
            continue;
        if (atomic_load(&source->recorded) < seen)
            TT_TRY(record(red, source, seen));
        TT_TRY(red->ctx->dev_ops->event_wait(red->ctx->dev, source->event, red->stream));
    }
    return TUTTI_OK;
}

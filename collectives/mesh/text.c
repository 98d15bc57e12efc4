/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>

#include "mesh/mesh.h"

enum { RANKS_SHOWN = 64 };

typedef struct writer {
    char *buf;
    size_t cap, at; /* `at` counts on beyond cap */
} writer;

static void put(writer *w, const char *fmt, ...) TT_PRINTF(2, 3);

static void put(writer *w, const char *fmt, ...)
{
    va_list args;
    int n;

    va_start(args, fmt);
    n = vsnprintf(w->at < w->cap ? w->buf + w->at : NULL, w->at < w->cap ? w->cap - w->at : 0, fmt,
                  args);
    va_end(args);
    w->at += n > 0 ? (size_t)n : 0;
}

/* Groups of the axis whose ranks are not all on one node. */
static int groups_across(const tutti_mesh *mesh, const tt_axis *axis)
{
    int across = 0;

    for (int p = 0; p < mesh->size; p++) {
        bool one_node = true;
        if (p / axis->stride % axis->size != 0)
            continue;
        for (int k = 1; k < axis->size; k++)
            one_node = one_node && mesh->ctx->place[mesh->rank[p + k * axis->stride]].node ==
                                       mesh->ctx->place[mesh->rank[p]].node;
        across += !one_node;
    }
    return across;
}

size_t tutti_mesh_text(const tutti_mesh *mesh, char *buf, size_t cap)
{
    writer w = {buf, cap, 0};

    if (mesh == NULL)
        return 0;
    put(&w, "mesh");
    for (int i = 0; i < mesh->axes.n; i++)
        put(&w, " %s=%d", mesh->axes.axis[i].name, mesh->axes.axis[i].size);
    put(&w, ": %d ranks on %d nodes\n", mesh->size, mesh->ctx->node_count);
    for (int i = 0; i < mesh->axes.n; i++) {
        const tt_axis *axis = &mesh->axes.axis[i];
        int groups = mesh->size / axis->size, across = groups_across(mesh, axis);
        put(&w, "  %s: %d groups of %d, ", axis->name, groups, axis->size);
        put(&w, across > 0 ? "%d across nodes\n" : "within nodes\n", across);
    }
    for (int r = 0; r < mesh->size && r < RANKS_SHOWN; r++) {
        put(&w, "  rank %d, node %d:", r, mesh->ctx->place[r].node);
        for (int i = 0; i < mesh->axes.n; i++)
            put(&w, " %s %d", mesh->axes.axis[i].name,
                mesh->position[r] / mesh->axes.axis[i].stride % mesh->axes.axis[i].size);
        put(&w, "\n");
    }
    if (mesh->size > RANKS_SHOWN)
        put(&w, "  and %d ranks more\n", mesh->size - RANKS_SHOWN);
    return w.at;
}

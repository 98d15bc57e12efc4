/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/layout.h"

#include <stdlib.h>

#include "core/mem.h"

void tt_layout_free(tt_layout *layout)
{
    free(layout->node); /* one block holds all arrays */
    *layout = (tt_layout){0};
}

/* Numbers the nodes by their first rank here; `renamed` is indexed by the context's node. */
static void number_nodes(tt_layout *layout, const tt_place *place, const int *world, int *renamed)
{
    for (int rank = 0; rank < layout->size; rank++) {
        int *name = &renamed[place[world[rank]].node];
        if (*name < 0) {
            *name = layout->nodes++;
            layout->node_size[*name] = 0;
        }
        layout->node[rank] = *name;
        layout->local[rank] = layout->node_size[*name]++;
    }
}

tutti_status tt_layout_create(const tt_place *place, int place_nodes, const int *world, int size,
                              tt_layout *layout_out)
{
    tt_layout layout = {.size = size};
    int *renamed, *block;
    TT_TRY(tt_calloc((size_t)place_nodes, sizeof *renamed, &renamed));
    tutti_status status = tt_calloc((size_t)size * 5, sizeof *block, &block);
    if (status != TUTTI_OK)
        goto free_renamed;
    layout.node = block;
    layout.local = block + size;
    layout.node_size = block + 2 * (size_t)size;
    layout.node_first = block + 3 * (size_t)size;
    layout.node_rank = block + 4 * (size_t)size;
    for (int i = 0; i < place_nodes; i++)
        renamed[i] = -1;
    number_nodes(&layout, place, world, renamed);
    for (int node = 1; node < layout.nodes; node++)
        layout.node_first[node] = layout.node_first[node - 1] + layout.node_size[node - 1];
    for (int rank = 0; rank < size; rank++)
        layout.node_rank[layout.node_first[layout.node[rank]] + layout.local[rank]] = rank;
    *layout_out = layout;

free_renamed:
    free(renamed);
    return status;
}

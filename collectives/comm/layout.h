/* SPDX-License-Identifier: Apache-2.0 */
/* Where the ranks of a communicator are (tt_layout in comm.h). */
#ifndef TT_COMM_LAYOUT_H
#define TT_COMM_LAYOUT_H

#include "comm/comm.h"

/* `place` is indexed by world rank and names nodes 0 ... place_nodes - 1; `world` gives the world
 * rank of each of the `size` members. */
tutti_status tt_layout_create(const tt_place *place, int place_nodes, const int *world, int size,
                              tt_layout *layout_out);
void tt_layout_free(tt_layout *layout); /* takes one that is all zero */

#endif

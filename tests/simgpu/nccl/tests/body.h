/* SPDX-License-Identifier: Apache-2.0 */
/* Every collective, checked against what it should give: for threads and for processes. */
#ifndef SIMGPU_BODY_H
#define SIMGPU_BODY_H

#include "world.h"

void body_collectives(world_rank *r); /* all kinds, types and roots, in place and not */
void body_messages(world_rank *r); /* sends and receives in groups, rings, all to all */
void body_split(world_rank *r);

#endif

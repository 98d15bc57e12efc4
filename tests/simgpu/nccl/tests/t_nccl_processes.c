/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as processes: every collective, messages and splits, through shared memory. */
#include <stdio.h>

#include "body.h"

static void all(world_rank *r)
{
    body_collectives(r);
    if (!r->failed)
        body_messages(r);
    if (!r->failed)
        body_split(r);
}

int main(int argc, char **argv)
{
    return world_mpi(&argc, &argv, all, NULL)[0] != '\0';
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Meetings of operations of this process (engine.h). */
#include "internal.h"

#include <stdlib.h>

struct sg_meet {
    int n, arrived;
    bool fired, abandoned;
    bool join_all;
    void (*fire)(void *arg, sg_op *const *ops);
    void *arg;
    sg_op *ops[];
};

sg_meet *sg_meet_create(int n, void (*fire)(void *arg, sg_op *const *ops), void *arg, bool join_all)
{
    sg_meet *meet = sg_must(calloc(1, sizeof(*meet) + (size_t)n * sizeof(meet->ops[0])));
    meet->n = n;
    meet->fire = fire;
    meet->arg = arg;
    meet->join_all = join_all;
    return meet;
}

static void fire(sg_meet *meet)
{
    meet->fired = true;
    if (meet->fire != NULL) {
        meet->fire(meet->arg, meet->ops);
    }
    if (meet->join_all) {
        for (int i = 0; i < meet->n; i++) {
            sg_op_join(meet->ops[0], meet->ops[i]);
        }
        for (int i = 1; i < meet->n; i++) {
            sg_op_join(meet->ops[i], meet->ops[0]);
        }
    }
}

sg_step sg_meet_arrive(sg_meet *meet, int index, sg_op *op)
{
    if (meet->fired || meet->abandoned) {
        return SG_DONE;
    }
    if (meet->ops[index] == NULL) {
        meet->ops[index] = op;
        meet->arrived++;
        sg_changed();
    }
    if (meet->arrived == meet->n) {
        fire(meet);
        sg_changed();
        return SG_DONE;
    }
    return SG_BLOCKED;
}

int sg_meet_missing(const sg_meet *meet, int index_of_missing[], int cap)
{
    int n = 0;
    for (int i = 0; i < meet->n; i++) {
        if (meet->ops[i] == NULL) {
            if (n < cap) {
                index_of_missing[n] = i;
            }
            n++;
        }
    }
    return n;
}

void sg_meet_abandon(sg_meet *meet)
{
    sg_lock();
    meet->abandoned = true;
    sg_changed();
    sg_unlock();
}

void sg_meet_destroy(sg_meet *meet)
{
    free(meet);
}

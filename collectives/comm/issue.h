/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a public call to the backend: check, group, number, compare (TUTTI_CHECK=1), launch.
 */
#ifndef TT_COMM_ISSUE_H
#define TT_COMM_ISSUE_H

#include "comm/comm.h"

/* The caller's arrays of a v-variant. */
typedef struct tt_counts {
    const size_t *counts, *recv_counts; /* recv_counts for all_to_allv only */
} tt_counts;

/*
 * Checks the call, fills in what v-variants imply (n, owned copies of the counts) and drops
 * pointers that this rank's part does not use. `v` is NULL for the plain variants. Only local
 * knowledge: what differs between ranks is found later.
 */
tutti_status tt_call_check(tt_call *call, const tt_counts *v);

/* The way of every public call: checks it, then adds it to the open group or issues it. A refused
 * call fails the context if other ranks may wait for this one. */
tutti_status tt_submit(tt_call *call, const tt_counts *v);

/* Numbers the calls in their order, compares them over the ranks in checked mode and hands them to
 * the backends, one launch per stream. Takes over what the calls own. scratch: room for n calls if
 * there is more than one. */
tutti_status tt_issue(tt_call *calls, size_t n, tt_call *scratch);

/* This thread's group (group.c). */
extern _Thread_local int tt_group_depth __attribute__((tls_model("initial-exec")));
static inline bool tt_group_open(void)
{
    return tt_group_depth > 0;
}
tutti_status tt_group_add(const tt_call *call); /* takes over what it owns */
void tt_group_refuse(tutti_status status); /* remembers the first error, with its text */
/* STATE inside a group, which is dropped; the context fails if it has calls that others may wait
 * for. */
tutti_status tt_group_forbid(const char *what);
void tt_group_forget(tutti_comm *comm); /* it goes: drops its calls, and with them the group */

#endif

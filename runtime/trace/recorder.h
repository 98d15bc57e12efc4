/* SPDX-License-Identifier: Apache-2.0 */
/* The flight recorder: the last operations of a rank, for the message that says where a late rank
 * was last seen. Writers are many and wait for nobody. */
#ifndef TT_TRACE_RECORDER_H
#define TT_TRACE_RECORDER_H

#include "core/status.h"

typedef struct tt_recorder tt_recorder;

tutti_status tt_recorder_create(tt_recorder **recorder_out);
void tt_recorder_destroy(tt_recorder *recorder); /* takes NULL */

/* An operation begins; `kind` is static text, `comm` is copied (cut at 31 bytes). Returns what end
 * takes. A NULL recorder records nothing. */
uint64_t tt_recorder_begin(tt_recorder *recorder, const char *kind, const char *comm, uint64_t seq,
                           uint64_t count);
void tt_recorder_end(tt_recorder *recorder, uint64_t ticket);

/* "in all_reduce 118 (1024 elements) on comm dp for 30.1 s", "last in ..., which ended 30.1 s ago"
 * or "in no collective yet": of the latest begun one that has not ended, else of the latest. */
void tt_recorder_last(tt_recorder *recorder, char *buf, size_t cap);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The flight recorder: the last operations of a rank, for the message that says where a late rank
 * was last seen. Operations that follow each other, as those of a communicator do, share a lane. */
#ifndef TT_TRACE_RECORDER_H
#define TT_TRACE_RECORDER_H

#include "core/status.h"

typedef struct tt_recorder tt_recorder;
typedef struct tt_lane tt_lane;

tutti_status tt_recorder_create(tt_recorder **recorder_out);
void tt_recorder_destroy(tt_recorder *recorder); /* takes NULL; after its lanes are closed */

tutti_status tt_lane_open(tt_recorder *recorder, const char *name, tt_lane **lane_out);
void tt_lane_close(tt_lane *lane); /* takes NULL */

/* An operation begins or ends; `kind` is static text. Those of a lane do not overlap in time, from
 * whatever threads they come. A NULL lane records nothing. */
void tt_lane_begin(tt_lane *lane, const char *kind, uint64_t seq, uint64_t count);
void tt_lane_end(tt_lane *lane);

/* "in all_reduce 118 (1024 elements) on comm dp for 30.1 s", "last in ..., which ended 30.1 s ago"
 * or "in no collective yet": of the latest begun one that has not ended, else of the latest. Any
 * thread. */
void tt_recorder_last(tt_recorder *recorder, char *buf, size_t cap);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that comes and goes with every call: queued calls, copies of counts, groups. What is given
 * back is kept for the next call of about the same size, so that a steady state allocates nothing.
 * A store lives as long as it is held or something taken from it is out. Any thread.
 */
#ifndef TT_CORE_SPARE_H
#define TT_CORE_SPARE_H

#include "core/status.h"

typedef struct tt_spare tt_spare;

tutti_status tt_spare_create(tt_spare **spare_out);
void tt_spare_drop(tt_spare *spare); /* takes NULL */
/* Zero filled; NO_MEMORY. */
tutti_status tt_spare_take(tt_spare *spare, size_t bytes, void *ptr_out);
void tt_spare_give(void *ptr); /* takes NULL */

#endif

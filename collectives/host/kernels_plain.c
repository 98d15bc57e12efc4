/* SPDX-License-Identifier: Apache-2.0 */
#define TT_LOOPS tt_loops_plain
#define TT_LOOPS_NAME "plain"
#include "host/kernels_body.h"

/* SPDX-License-Identifier: Apache-2.0 */
#define TT_LOOPS tt_loops_avx2
#define TT_LOOPS_NAME "avx2"
#include "host/kernels_body.h"

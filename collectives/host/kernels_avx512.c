/* SPDX-License-Identifier: Apache-2.0 */
#define TT_LOOPS tt_loops_avx512
#define TT_LOOPS_NAME "avx512"
#include "host/kernels_body.h"

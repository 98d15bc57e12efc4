/* SPDX-License-Identifier: Apache-2.0 */
/* What every CPU of the architecture can do; on arm64 that includes NEON. */
#if defined(__aarch64__)
#define TT_LOOPS_NAME "neon"
#else
#define TT_LOOPS_NAME "plain"
#endif
#define TT_LOOPS tt_loops_plain
#include "host/kernels_body.h"

/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges on the calling thread's row of a timeline (Nsight Systems); nothing without NVTX 3. */
#ifndef TT_TRACE_NVTX_H
#define TT_TRACE_NVTX_H

#if defined(__has_include)
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define TT_NVTX 1
#endif
#endif

static inline void tt_nvtx_push(const char *name)
{
#ifdef TT_NVTX
    (void)nvtxRangePushA(name);
#else
    (void)name;
#endif
}

static inline void tt_nvtx_pop(void)
{
#ifdef TT_NVTX
    (void)nvtxRangePop();
#endif
}

#endif

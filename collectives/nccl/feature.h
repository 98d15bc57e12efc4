/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What differs between versions of NCCL, in one place. The headers that tutti is built with may be
 * of any version from 2.19 on; the library that is loaded may be another (NCCL's ABI is compatible
 * upwards and, for what both know, downwards). So: what 2.19 has is called directly; what came
 * later is looked up by name when the library is loaded; fields of ncclConfig_t are set if the
 * headers have them.
 */
#ifndef TT_NCCL_FEATURE_H
#define TT_NCCL_FEATURE_H

#include <nccl.h>

#include "core/status.h"

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 19, 0)
#error "tutti needs NCCL 2.19 or later"
#endif

/* Before 2.24 the headers name this type only where CUDA's C++ header of the type came first; the
 * library has had it since 2.10, under this number. */
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 24, 0) && !defined(__CUDA_BF16_TYPES_EXIST__)
#define ncclBfloat16 ((ncclDataType_t)9)
#endif

typedef struct tt_nccl_feature {
    int version; /* of the loaded library, as NCCL_VERSION_CODE counts */
    /* 2.27.3: symmetric windows. NULL where the library has none. */
    ncclResult_t (*window_register)(ncclComm_t comm, void *ptr, size_t bytes, void **window_out,
                                    int flags);
    ncclResult_t (*window_deregister)(ncclComm_t comm, void *window);
    bool orders_launches; /* 2.26: NCCL_LAUNCH_ORDER_IMPLICIT keeps the order of issue over
                             communicators */
} tt_nccl_feature;

/* Looks at the loaded library; UNSUPPORTED if it is older than 2.19. */
tutti_status tt_nccl_feature_get(tt_nccl_feature *feature_out);

/* "2.28.9" */
void tt_nccl_version_text(int version, char *buf, size_t cap);

/* What is known to be wrong with a version on this kind of machine, or NULL. */
const char *tt_nccl_known_bad(int version, const char *arch);

/* The configuration of a communicator: non-blocking, with its name where NCCL takes one. `name`
 * must live as long as the communicator. */
ncclConfig_t tt_nccl_config(const char *name);

#endif

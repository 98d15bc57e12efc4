/* SPDX-License-Identifier: Apache-2.0 */
/* The collective backends of this build. */
#include "comm/comm.h"
#include "comm/math.h"

static const struct {
    tutti_backend kind;
    const tt_coll_ops *ops;
    const tt_math_ops *math; /* NULL: none yet */
} backends[] = {
    {TUTTI_BACKEND_HOST, &tt_coll_host, &tt_math_host},
#if TUTTI_HAVE_CUDA
    {TUTTI_BACKEND_CUDA, &tt_coll_nccl, &tt_math_cuda},
#endif
};

const tt_coll_ops *tt_coll_select(const tt_device_ops *device)
{
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++)
        if (backends[i].kind == device->kind)
            return backends[i].ops;
    return NULL;
}

const tt_math_ops *tt_math_select(const tt_device_ops *device)
{
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++)
        if (backends[i].kind == device->kind)
            return backends[i].math;
    return NULL;
}

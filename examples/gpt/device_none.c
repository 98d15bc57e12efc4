/* SPDX-License-Identifier: Apache-2.0 */
/* A build without CUDA. */
#include <stddef.h>

#include "device.h"

const gpt_device *gpt_device_cuda(void *stream, gpt_precision precision, const char **problem_out)
{
    (void)stream;
    (void)precision;
    *problem_out = "this gpt was built without CUDA and cuBLAS: --device host works";
    return NULL;
}

void gpt_device_cuda_close(void)
{
}

/* SPDX-License-Identifier: Apache-2.0 */
/* entropy.c's slots of the host's tt_math_ops. */
#ifndef TT_HOST_MATH_H
#define TT_HOST_MATH_H

#include "comm/math.h"

tutti_status tt_host_entropy_max(tt_device *dev, const tt_math_entropy *e, tutti_stream stream);
tutti_status tt_host_entropy_sums(tt_device *dev, const tt_math_entropy *e, tutti_stream stream);
tutti_status tt_host_entropy_end(tt_device *dev, const tt_math_entropy *e, tutti_stream stream);

#endif

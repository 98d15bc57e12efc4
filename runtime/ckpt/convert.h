/* SPDX-License-Identifier: Apache-2.0 */
/* Values of any dtype. */
#ifndef TT_CKPT_CONVERT_H
#define TT_CKPT_CONVERT_H

#include <stddef.h>

#include "tutti/status.h"

double tt_value(tutti_dtype dtype, const void *at); /* 64-bit integers are rounded */

/* Floats into floats of another type, as TUTTI_CKPT_CONVERT says. */
bool tt_convertible(tutti_dtype from, tutti_dtype to);
void tt_convert(tutti_dtype to, void *out, tutti_dtype from, const void *in, size_t n);

#endif

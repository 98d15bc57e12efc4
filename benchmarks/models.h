/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_MODELS_H
#define BENCH_MODELS_H

#include "synthetic.h"

bool synth_model_known(const char *name);
/* The tensors in forward order, their costs adding up to 1; to be freed. */
tutti_status synth_model(const synth_options *o, synth_tensor **out, size_t *n_out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TT_PARALLEL_TENSOR_H
#define TT_PARALLEL_TENSOR_H

#include "tutti/tensor_parallel.h"

tutti_comm *tt_tp_comm(const tutti_tp *tp);

#endif

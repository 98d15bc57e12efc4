/* SPDX-License-Identifier: Apache-2.0 */
/* An open checkpoint of a context. */
#ifndef TT_CKPT_OPEN_H
#define TT_CKPT_OPEN_H

#include "boot/context.h"
#include "ckpt/nodes.h"

struct tutti_ckpt_reader {
    tutti_ctx *ctx;
    tt_source src;
    tt_nodes *nodes; /* NULL: opened as one folder */
    char path[]; /* of that folder, as the program named it */
};

#endif

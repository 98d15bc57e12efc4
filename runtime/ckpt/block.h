/* SPDX-License-Identifier: Apache-2.0 */
/* An open file of a checkpoint and one verified block of it; source.c. */
#ifndef TT_CKPT_BLOCK_H
#define TT_CKPT_BLOCK_H

#include "ckpt/loader.h"

typedef struct tt_block {
    const tt_source *src;
    const tt_cfile *file;
    int fd;
    uint64_t base; /* of the file in fd: not 0 in the spool */
    char *data; /* room for a block, the caller's */
    uint64_t begin, end; /* what data holds */
} tt_block;
tutti_status tt_block_open(tt_block *b, const tt_source *src, const tt_cfile *file);
tutti_status tt_block_read(tt_block *b, uint64_t index);
tutti_status tt_block_read_to(tt_block *b, uint64_t index, char *to); /* all of it, elsewhere */

#endif

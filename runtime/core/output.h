/* SPDX-License-Identifier: Apache-2.0 */
/* A file that a user named to be written: whole, or as it was. */
#ifndef TT_CORE_OUTPUT_H
#define TT_CORE_OUTPUT_H

#include <limits.h>
#include <stdbool.h>

#include "tutti/status.h"

/* It is written under a name of its own beside the place where it belongs and renamed at the end;
 * what writers of it that were killed left there goes when the next one begins.
 * Renaming replaces whatever bears the name, so what a name stands for is looked at first: the
 * file behind a link is replaced, not the link, one that may not be written is refused, and a
 * device or a pipe is written into. */
typedef struct tt_output {
    char path[PATH_MAX];
    char temp[PATH_MAX]; /* empty where `path` itself is open */
    int fd;
    unsigned mode; /* of the file that it replaces; 0: it replaces none */
} tt_output;

/* `fd` may be read and moved in, and only a file will do, unless `stream`: then also what can
 * just be written to. *out may be dropped whether or not this worked. */
tutti_status tt_output_open(const char *path, bool stream, tt_output *out);
tutti_status tt_output_write(tt_output *out, const void *data, size_t bytes);
/* Closes. The file has its name only if this worked. `sync` also puts it onto the disk. */
tutti_status tt_output_commit(tt_output *out, bool sync);
void tt_output_drop(tt_output *out); /* takes one that is committed */

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The process that cleans up after a tuttirun that was killed. */
#ifndef TUTTIRUN_JANITOR_H
#define TUTTIRUN_JANITOR_H

#include <sys/types.h>

#include "scratch.h"

typedef struct janitor {
    pid_t pid; /* 0: there is none */
    int fd; /* its sign of our life */
} janitor;

void janitor_start(scratch *s, janitor *out);
void janitor_dismiss(janitor *j); /* the job is gone, nothing is left to do */

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What tuttirun says, always on standard error and with its name in front; names of signals. */
#ifndef TUTTIRUN_SAY_H
#define TUTTIRUN_SAY_H

#include <stddef.h>

enum { EXIT_USAGE = 2, EXIT_CANNOT_RUN = 126, EXIT_NOT_FOUND = 127, EXIT_STOPPED = 143 };

void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* "SIGKILL", or "signal 77" for one without a name. The text lives until the next call. */
const char *signal_name(int sig);

#endif

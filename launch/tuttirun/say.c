/* SPDX-License-Identifier: Apache-2.0 */
#include "say.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void say(const char *fmt, ...)
{
    char line[2048];
    va_list args;

    va_start(args, fmt);
    vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);
    /* one write, so that it does not mix with what the ranks print */
    fprintf(stderr, "tuttirun: %s\n", line);
}

const char *signal_name(int sig)
{
    static char text[32];
    const char *name = sigabbrev_np(sig);

    if (name != NULL)
        snprintf(text, sizeof(text), "SIG%s", name);
    else
        snprintf(text, sizeof(text), "signal %d", sig);
    return text;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The user's command that says whether this machine is to be taken away. */
#ifndef TUTTIRUN_NOTICE_H
#define TUTTIRUN_NOTICE_H

#include <sys/types.h>

/* Runs the command (by sh) again and again, in a process of its own; once it ends with 0, we get
 * SIGUSR1, as if the user had asked for a stop. 0: no process could be had, which is said. */
pid_t notice_start(const char *command);
void notice_end(pid_t watcher); /* takes 0 */

#endif

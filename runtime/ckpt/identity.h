/* SPDX-License-Identifier: Apache-2.0 */
/* Which process on which machine made a name in a checkpoint directory, and whether it lives. */
#ifndef TT_CKPT_IDENTITY_H
#define TT_CKPT_IDENTITY_H

#include "ckpt/dir.h"

typedef struct tt_identity {
    char host[65], boot[13];
    long long pid;
    unsigned long long start; /* in clock ticks since boot */
} tt_identity;

void tt_identity_self(tt_identity *id);
/* head, then step-N-HOST-BOOT-PID-START-RANDOM: what tt_owner_temp_name makes. */
bool tt_identity_parse(const char *name, const char *head, tt_identity *id, int64_t *step_out);

typedef enum tt_life { TT_DEAD, TT_ALIVE, TT_ELSEWHERE } tt_life;
/* By process and boot alone. ELSEWHERE: another machine, which cannot be judged from here. */
tt_life tt_identity_life(const tt_identity *id);

/* 1 locked, 0 another holds it, -1 the file system has no locks. The lock ends with the open file.
 */
int tt_try_lock(int fd);

#endif

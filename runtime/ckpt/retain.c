/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Retention: after a commit, all but the newest K checkpoints go. Order is by number. Only whole
 * ones count towards K, so that damaged ones cannot push out the last good one; the one just
 * committed stays whatever its number (an older run may have left higher ones). A directory is
 * renamed first and emptied then: what is half removed never looks like a checkpoint. One that
 * holds a file that is not ours is left whole.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/loader.h"
#include "ckpt/saver.h"
#include "core/log.h"

static tutti_status remove_step(int dir, int64_t step)
{
    char name[TT_STEP_NAME_MAX], gone[TT_TEMP_NAME_MAX];
    bool foreign;
    tt_step_name(step, name);
    TT_TRY(tt_dir_has_foreign(dir, name, &foreign));
    if (foreign)
        return tt_fail(TUTTI_ERR_STATE, "%s is kept: it holds files that are not a checkpoint's",
                       name);
    TT_TRY(tt_owner_temp_name(step, TT_GONE_HEAD, gone));
    if (renameat(dir, name, dir, gone) != 0)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot rename %s", name);
    TT_TRY(tt_dir_sync(dir, name)); /* or a power cut brings the name back, but not the files */
    return tt_dir_remove(dir, gone);
}

void tt_retain(int dir, const char *path, int64_t step, int keep)
{
    int64_t *steps;
    size_t n;
    int whole = 0;
    if (tt_dir_steps(dir, &steps, &n) != TUTTI_OK) {
        tt_log_warn(TT_CKPT, "%s: old checkpoints stay: %s", path, tutti_last_error());
        return;
    }
    if (n > 0 && steps[0] > step)
        tt_log_warn(TT_CKPT,
                    "%s holds a checkpoint of step %lld, of an earlier run: it counts as newer "
                    "than step %lld, which was just saved",
                    path, (long long)steps[0], (long long)step);
    for (size_t i = 0; i < n; i++) {
        if (steps[i] == step) {
            whole++;
        } else if (whole < keep) {
            whole += tt_step_looks_whole(dir, steps[i]);
        } else if (remove_step(dir, steps[i]) != TUTTI_OK) {
            tt_log_warn(TT_CKPT, "%s: %s", path, tutti_last_error());
        }
    }
    free(steps);
}

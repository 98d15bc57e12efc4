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

static bool counts(int dir, int64_t step, const tt_retention *keep)
{
    bool known = keep->known == NULL;
    for (size_t i = 0; i < keep->nknown && !known; i++)
        known = keep->known[i] == step;
    if (!known)
        return false;
    return keep->whole == NULL ? tt_step_looks_whole(dir, step) : keep->whole(dir, step);
}

static bool spared(const tt_retention *keep, int64_t step)
{
    for (size_t i = 0; i < keep->nspare; i++)
        if (keep->spare[i] == step)
            return true;
    return false;
}

/* Sorts out of the steps, newest first, those that stay; the number of those that go. */
static size_t choose(int dir, int64_t step, const tt_retention *keep, int64_t *steps, size_t n)
{
    int64_t whole = 0, best = -1;
    size_t gone = 0;
    if (tt_tag_read(dir, TT_BEST_NAME, &best) == TUTTI_ERR_CORRUPT)
        tt_log_warn(TT_CKPT, "%s", tutti_last_error());
    for (size_t i = 0; i < n; i++) {
        int64_t s = steps[i];
        if (s == step)
            whole++;
        else if (whole < keep->last)
            whole += counts(dir, s, keep);
        else if (s != best && !spared(keep, s) && (keep->every == 0 || s % keep->every != 0))
            steps[gone++] = s;
    }
    return gone;
}

tutti_status tt_retain_plan(int dir, int64_t step, const tt_retention *keep, int64_t **steps_out,
                            size_t *n_out)
{
    size_t n;
    TT_TRY(tt_dir_steps(dir, steps_out, &n));
    if (n > 0 && step >= 0 && (*steps_out)[0] > step)
        tt_log_warn(TT_CKPT,
                    "there is a checkpoint of step %lld, of an earlier run: it counts as newer "
                    "than step %lld, which was just saved",
                    (long long)(*steps_out)[0], (long long)step);
    *n_out = choose(dir, step, keep, *steps_out, n);
    return TUTTI_OK;
}

tutti_status tt_retain_remove(int dir, const char *path, const int64_t *steps, size_t n)
{
    tutti_status worst = TUTTI_OK;
    for (size_t i = 0; i < n; i++) {
        tutti_status status = remove_step(dir, steps[i]);
        if (status == TUTTI_OK)
            continue;
        tt_log_warn(TT_CKPT, "%s: %s", path, tutti_last_error());
        worst = status;
    }
    return worst;
}

void tt_retain(int dir, const char *path, int64_t step, const tt_retention *keep)
{
    int64_t *steps;
    size_t n;
    if (tt_retain_plan(dir, step, keep, &steps, &n) != TUTTI_OK) {
        tt_log_warn(TT_CKPT, "%s: old checkpoints stay: %s", path, tutti_last_error());
        return;
    }
    if (tt_retain_remove(dir, path, steps, n) != TUTTI_OK)
        tt_log_warn(TT_CKPT, "%s: old checkpoints stay; the next save tries again", path);
    free(steps);
}

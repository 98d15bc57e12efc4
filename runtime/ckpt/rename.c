/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rename that is the commit, of a directory whose files are complete and synced.
 *
 * Before it the directory itself is synced, and the folder's lock looked at; behind it the parent
 * is synced. Only then does the version that was there before go.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "ckpt/dir.h"
#include "core/log.h"

/* The step is there already: a run that went back to an older one has come here again. The old
 * one keeps its place until the very moment the new one takes it, where the file system can. */
static tutti_status replace(tt_commit *c, const char *name)
{
    char old[TT_TEMP_NAME_MAX];
    if (renameat2(c->dir, c->temp_name, c->dir, name, RENAME_EXCHANGE) == 0)
        return TUTTI_OK;
    if (errno != EINVAL && errno != ENOSYS)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot exchange %s", name);
    TT_TRY(tt_owner_temp_name(c->step, TT_OLD_HEAD, old));
    if (renameat(c->dir, name, c->dir, old) != 0)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot replace %s", name);
    if (renameat(c->dir, c->temp_name, c->dir, name) != 0) {
        tutti_status status = tt_fail_errno(TUTTI_ERR_IO, errno, "cannot replace %s", name);
        if (renameat(c->dir, old, c->dir, name) != 0)
            status = tt_fail_more(status, "%s has become %s", name, old);
        return status;
    }
    snprintf(c->temp_name, TT_TEMP_NAME_MAX, "%s", old);
    return TUTTI_OK;
}

tutti_status tt_commit_rename(tt_commit *c)
{
    char name[TT_STEP_NAME_MAX], old[TT_TEMP_NAME_MAX];
    bool replaced = false;
    tt_step_name(c->step, name);
    TT_TRY(tt_dir_sync(c->temp, c->temp_name));
    TT_TRY(tt_folder_lock_check(c->lock));
    if (renameat(c->dir, c->temp_name, c->dir, name) != 0) {
        if (errno != ENOTEMPTY && errno != EEXIST)
            return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot rename to %s", name);
        TT_TRY(replace(c, name));
        replaced = true;
    }
    /* From here on it is committed: what fails now must not remove it, and the old version goes
     * only when the new one's name is durable. */
    snprintf(old, sizeof old, "%s", c->temp_name);
    c->temp_name[0] = '\0';
    TT_TRY(tt_dir_sync(c->dir, c->path));
    /* The owner's lock is given up only now, for a process of another container cannot tell that
     * this one lives by anything else. */
    unlinkat(c->temp, TT_OWNER_NAME, 0);
    if (replaced && tt_dir_remove(c->dir, old) != TUTTI_OK)
        tt_log_warn(TT_CKPT, "%s: %s", c->path, tutti_last_error());
    return TUTTI_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Save and load by MPI ranks: processes, a directory given by rank 0, another number loads it. */
#include "ckpt_test.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "boot/context.h"

static int gone(const tt_rank *r, const char *what)
{
    fprintf(stderr, "rank %d: %s: %s %s\n", r->rank, what, tutti_last_error(), r->message);
    return 1;
}

/* A limit on the last rank alone: both are told, which it was and why; nothing of it stays. */
static int limited(tt_rank *r, const char *dir)
{
    struct rlimit old, low;
    char who[32];
    getrlimit(RLIMIT_FSIZE, &old);
    low = old;
    low.rlim_cur = 4096;
    snprintf(who, sizeof who, "rank %d ", r->size - 1);
    if (r->size == 1) /* needs no name */
        who[0] = '\0';
    if (r->rank == r->size - 1)
        setrlimit(RLIMIT_FSIZE, &low);
    tutti_status status = small_save(r, dir, 20, NULL);
    if (status == TUTTI_OK)
        status = tutti_ckpt_wait(r->ctx, NULL);
    setrlimit(RLIMIT_FSIZE, &old);
    if (status != TUTTI_ERR_IO || strstr(tutti_last_error(), who) == NULL ||
        strstr(tutti_last_error(), "File too large") == NULL)
        return gone(r, "a limit on the size of files");
    return tutti_ckpt_wait(r->ctx, NULL) == TUTTI_OK ? 0 : gone(r, "wait after a failed save");
}

static int go(tt_rank *r, const char *dir)
{
    tutti_ckpt_save_opts opts = TUTTI_CKPT_SAVE_OPTS_INIT;
    tutti_ckpt_reader *rd;
    tutti_ckpt *ck;
    uint32_t todo;
    int64_t durable;
    opts.keep_last = 2;
    for (int64_t step = 1; step <= 12; step++) {
        if (step % 3 == 0 && small_save(r, dir, step, &opts) != TUTTI_OK)
            return gone(r, "save");
        if (tutti_step(r->ctx, step, &todo) != TUTTI_OK)
            return gone(r, "step");
    }
    if (tutti_ckpt_wait(r->ctx, &durable) != TUTTI_OK || durable != 12 || r->failed)
        return gone(r, "wait");
    if (tutti_ckpt_open(r->ctx, dir, -1, &rd) != TUTTI_OK || tutti_ckpt_step(rd) != 12)
        return gone(r, "open");
    if (small_check(r, rd, 12) != TUTTI_OK)
        return gone(r, "content");
    tutti_ckpt_close(rd);
    if (tutti_ckpt_begin(r->ctx, "/proc/none", 1, &ck) == TUTTI_OK)
        return gone(r, "a directory that cannot be made");
    return limited(r, dir);
}

int main(void)
{
    tt_rank r = {0};
    tt_buf dir = {0};
    char path[PATH_CAP] = "";
    signal(SIGXFSZ, SIG_IGN);
    if (tutti_init(NULL, &r.ctx) != TUTTI_OK)
        return gone(&r, "init");
    r.rank = r.ctx->world.rank;
    r.size = r.ctx->world.size;
    if (r.rank == 0)
        scratch_make_shared(path);
    if (tt_bcast_blob(&r.ctx->world, "test", 0, path, sizeof path, &dir) != TUTTI_OK)
        return gone(&r, "broadcast");
    int rc = go(&r, (const char *)dir.data);
    if (tutti_finalize(r.ctx) != TUTTI_OK)
        rc = gone(&r, "finalize");
    if (r.rank == 0 && rc == 0) {
        tutti_status status;
        int64_t got;
        if (count_entries(path, "") != 2)
            rc = gone(&r, "entries");
        const char *report = small_job_load(3, path, -1, &status, &got, NULL);
        if (report[0] != '\0' || status != TUTTI_OK || got != 12)
            rc = gone(&r, report);
        scratch_remove(path);
    }
    tt_buf_free(&dir);
    return rc;
}

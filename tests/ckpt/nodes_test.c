/* SPDX-License-Identifier: Apache-2.0 */
#include "nodes_test.h"

const char *nodes_dir(const nodes_job *job, int rank, char path[PATH_CAP])
{
    snprintf(path, PATH_CAP, "%s/%c", job->top, job->folders[rank]);
    return path;
}

static void end(tt_rank *r, nodes_job *job, tutti_status status)
{
    job->each[r->rank] = status;
    if (status != TUTTI_OK && r->rank == r->size - 1)
        snprintf(job->text, sizeof job->text, "%s", tutti_last_error());
}

static const char *copy_dir(const nodes_job *job, char path[PATH_CAP])
{
    snprintf(path, PATH_CAP, "%s/%s", job->top, job->copy);
    return job->copy == NULL ? NULL : path;
}

/* And, where there is a second tier, until it is there too. */
static tutti_status wait_saved(tt_rank *r, nodes_job *job)
{
    tutti_ckpt_copy_info info = TUTTI_CKPT_COPY_INFO_INIT;
    tutti_status status = tutti_ckpt_wait(r->ctx, &job->each_got[r->rank]);
    if (status == TUTTI_OK && job->copy != NULL)
        status = tutti_ckpt_copy_wait(r->ctx, 120, &info);
    if (status == TUTTI_OK && info.pending != -1)
        tt_say(r, "the copy does not end");
    if (status == TUTTI_OK && info.status != TUTTI_OK)
        tt_say(r, "the copy: %s", info.text);
    return status;
}

static void save_body(tt_rank *r)
{
    nodes_job *job = r->arg;
    char path[PATH_CAP], copy[PATH_CAP];
    tutti_ckpt_begin_opts begin = TUTTI_CKPT_BEGIN_OPTS_INIT;
    tutti_ckpt_save_opts opts = TUTTI_CKPT_SAVE_OPTS_INIT;
    begin.flags = TUTTI_CKPT_NODE_LOCAL;
    opts.keep_last = job->keep_last;
    opts.copy_to = copy_dir(job, copy);
    tutti_status status =
        small_save_with(r, nodes_dir(job, r->rank, path), job->step, &begin, &opts);
    if (status == TUTTI_OK)
        status = wait_saved(r, job);
    end(r, job, status);
}

static void load_body(tt_rank *r)
{
    nodes_job *job = r->arg;
    char path[PATH_CAP], copy[PATH_CAP];
    tutti_ckpt_reader *rd;
    tutti_ckpt_open_opts opts = TUTTI_CKPT_OPEN_OPTS_INIT;
    opts.flags = TUTTI_CKPT_OPEN_NODE_LOCAL;
    opts.copy = copy_dir(job, copy);
    tutti_status status =
        tutti_ckpt_open_with(r->ctx, nodes_dir(job, r->rank, path), job->step, &opts, &rd);
    if (status == TUTTI_OK)
        status = small_check_opened(r, rd, &job->each_got[r->rank]);
    end(r, job, status);
}

static const char *run(nodes_job *job, tt_body body)
{
    int n = (int)strlen(job->folders);
    memset(job->each, 0, sizeof job->each);
    memset(job->each_got, 0, sizeof job->each_got);
    job->text[0] = '\0';
    const char *report = tt_ranks_run(n, job->nodes, body, job);
    for (int i = 1; i < n && report[0] == '\0'; i++)
        if (job->each[i] != job->each[0] || job->each_got[i] != job->each_got[0])
            return "the ranks disagree";
    job->status = job->each[0];
    job->got = job->each_got[0];
    return report;
}

const char *nodes_save(nodes_job *job)
{
    return run(job, save_body);
}

const char *nodes_load(nodes_job *job)
{
    return run(job, load_body);
}

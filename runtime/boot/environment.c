/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One environment for the whole job: mpirun without -x gives variables to the ranks of its own
 * machine only. Rank 0's TUTTI_* and NCCL_* variables go to ranks that lack them; one that is set
 * is never changed. Then the ranks compare: a hash first, and only where it differs all values.
 *
 * What must agree (library version, the rows marked so) is an error that names both values and the
 * ranks; any other difference is a finding that rank 0 prints. Values are compared as they are in
 * force, so a variable set to its default equals one that is not set.
 *
 * Variables that name the machine are left alone. Thread ranks have one environment and skip all
 * this: setenv would race with their getenv.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "boot/internal.h"
#include "core/env.h"
#include "core/hash.h"
#include "core/log.h"
#include "tutti/version.h"

extern char **environ;

enum { NAME_BYTES = 128, RANKS_SHOWN = 8 };

static bool is_shared(const char *entry)
{
    static const char *const local[] = {"TUTTI_HOST_ID=", "NCCL_HOSTID=", "TUTTI_NODES="};
    if (strncmp(entry, "TUTTI_", 6) != 0 && strncmp(entry, "NCCL_", 5) != 0)
        return false;
    for (size_t i = 0; i < sizeof local / sizeof local[0]; i++)
        if (strncmp(entry, local[i], strlen(local[i])) == 0)
            return false;
    return strcspn(entry, "=") < NAME_BYTES;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The shared variables, sorted; borrowed entries of the environment. */
static tutti_status list_shared(char ***list_out, size_t *n_out)
{
    char **list = NULL;
    size_t n = 0, cap = 0;
    for (char **entry = environ; entry != NULL && *entry != NULL; entry++) {
        if (!is_shared(*entry))
            continue;
        tutti_status status = tt_grow(&list, &cap, n + 1, sizeof *list);
        if (status != TUTTI_OK) {
            free(list);
            return status;
        }
        list[n++] = *entry;
    }
    if (n > 1)
        qsort(list, n, sizeof *list, by_text);
    *list_out = list;
    *n_out = n;
    return TUTTI_OK;
}

static tutti_status put_shared(tt_buf *buf)
{
    char **list = NULL;
    size_t n;
    TT_TRY(list_shared(&list, &n));
    for (size_t i = 0; i < n; i++)
        tt_buf_put_str(buf, list[i]);
    free(list);
    return buf->failed ? tt_fail(TUTTI_ERR_NO_MEMORY, "out of memory for the environment")
                       : TUTTI_OK;
}

static tutti_status take_missing(tt_buf *from)
{
    while (from->at < from->size && !from->failed) {
        char name[NAME_BYTES];
        const char *entry = tt_buf_get_str(from), *value = strchr(entry, '=');
        if (value == NULL)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)(value - entry), entry);
        if (setenv(name, value + 1, 0) != 0)
            return tt_fail(TUTTI_ERR_NO_MEMORY, "out of memory for the environment");
    }
    return TUTTI_OK;
}

tutti_status tt_env_share(tutti_ctx *ctx)
{
    tt_buf mine = {0}, all = {0};
    tutti_status status = TUTTI_OK;
    if (ctx->world.rank == 0)
        tt_env_warn_unknown();
    if (ctx->boot->one_process || ctx->world.size == 1)
        return TUTTI_OK;
    if (ctx->world.rank == 0)
        status = put_shared(&mine);
    status = tt_agree(&ctx->world, "tutti_init, reading the environment", status);
    if (status == TUTTI_OK)
        status = tt_bcast_blob(&ctx->world, "tutti_init, rank 0's environment", 0, mine.data,
                               mine.size, &all);
    tt_buf_free(&mine);
    TT_TRY(status);
    status = take_missing(&all);
    tt_buf_free(&all);
    tt_log_reload();
    return tt_agree(&ctx->world, "tutti_init, taking over the environment", status);
}

/* What the ranks compare: the version under the empty name, every row with the value in force, and
 * the other shared variables. */
static tutti_status put_settings(tt_buf *buf)
{
    char **list = NULL;
    size_t n;
    TT_TRY(list_shared(&list, &n));
    tt_buf_put_str(buf, "");
    tt_buf_put_str(buf, tutti_version());
    for (int id = 0; id < TT_ENV_COUNT; id++) {
        const char *value;
        if (id == TT_ENV_HOST_ID || id == TT_ENV_NODES)
            continue;
        tt_env_get_string((tt_env_id)id, &value);
        tt_buf_put_str(buf, tt_env_rows()[id].name);
        tt_buf_put_str(buf, value);
    }
    for (size_t i = 0; i < n; i++) {
        char name[NAME_BYTES];
        size_t bytes = strcspn(list[i], "=");
        snprintf(name, sizeof name, "%.*s", (int)bytes, list[i]);
        if (tt_env_find(name) == NULL) {
            tt_buf_put_str(buf, name);
            tt_buf_put_str(buf, list[i] + bytes + 1);
        }
    }
    free(list);
    return buf->failed ? tt_fail(TUTTI_ERR_NO_MEMORY, "out of memory for the environment")
                       : TUTTI_OK;
}

static const char *value_in(const tt_settings *rank, const char *name)
{
    for (size_t i = 0; i < rank->n; i++)
        if (strcmp(rank->names[i], name) == 0)
            return rank->values[i];
    return NULL;
}

static bool equal(const char *a, const char *b)
{
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

/* "0, 2, 5" of the ranks whose value equals that of rank `like`. */
static size_t describe_ranks(const tt_settings *ranks, int n, const char *name, int like, char *buf,
                             size_t cap)
{
    const char *value = value_in(&ranks[like], name);
    size_t used = 0;
    int shown = 0;
    for (int k = like; k < n && used < cap; k++)
        if (equal(value_in(&ranks[k], name), value) && shown++ < RANKS_SHOWN)
            used += (size_t)snprintf(buf + used, cap - used, shown > 1 ? ", %d" : "%d", k);
    if (shown > RANKS_SHOWN && used < cap)
        used += (size_t)snprintf(buf + used, cap - used, " and %d more", shown - RANKS_SHOWN);
    return used;
}

static bool said_before(const tt_settings *ranks, int rank, const char *name)
{
    for (int k = 0; k < rank; k++)
        if (equal(value_in(&ranks[k], name), value_in(&ranks[rank], name)))
            return true;
    return false;
}

/* TUTTI_CHECK is "1" on rank 0, 2; "0" on rank 1 */
static void describe(const tt_settings *ranks, int n, const char *name, char *buf, size_t cap)
{
    const char *subject = name[0] != '\0' ? name : "the version of libtutti";
    size_t used = (size_t)snprintf(buf, cap, "%s is ", subject);
    for (int i = 0; i < n && used < cap; i++) {
        const char *value = value_in(&ranks[i], name);
        if (said_before(ranks, i, name))
            continue;
        if (value == NULL)
            used +=
                (size_t)snprintf(buf + used, cap - used, "%snot set on rank ", i > 0 ? "; " : "");
        else
            used += (size_t)snprintf(buf + used, cap - used, "%s\"%.100s\" on rank ",
                                     i > 0 ? "; " : "", value);
        if (used < cap)
            used += describe_ranks(ranks, n, name, i, buf + used, cap - used);
    }
}

static bool differs(const tt_settings *ranks, int n, const char *name)
{
    for (int i = 1; i < n; i++)
        if (!equal(value_in(&ranks[i], name), value_in(&ranks[0], name)))
            return true;
    return false;
}

tutti_status tt_parity_compare(const tt_settings *ranks, int n, tt_finding_fn finding, void *arg)
{
    tutti_status status = TUTTI_OK;
    char line[1024];
    for (int i = 0; i < n; i++)
        for (size_t k = 0; k < ranks[i].n; k++) {
            const char *name = ranks[i].names[k];
            bool seen = false;
            for (int j = 0; j < i && !seen; j++)
                seen = value_in(&ranks[j], name) != NULL;
            if (seen || !differs(ranks, n, name))
                continue;
            const tt_env_row *row = tt_env_find(name);
            describe(ranks, n, name, line, sizeof line);
            if (name[0] != '\0' && (row == NULL || !row->must_agree))
                finding(arg, row != NULL, line);
            else if (status == TUTTI_OK)
                status = tt_fail(TUTTI_ERR_MISMATCH, "tutti_init: %s; all ranks must agree", line);
        }
    return status;
}

static tutti_status read_settings(const tt_blobs *blobs, int rank, tt_settings *out)
{
    tt_buf view = tt_buf_view(tt_blob(blobs, rank), tt_blob_bytes(blobs, rank));
    size_t names_cap = 0, values_cap = 0;
    while (view.at < view.size && !view.failed) {
        TT_TRY(tt_grow(&out->names, &names_cap, out->n + 1, sizeof *out->names));
        TT_TRY(tt_grow(&out->values, &values_cap, out->n + 1, sizeof *out->values));
        out->names[out->n] = tt_buf_get_str(&view);
        out->values[out->n++] = tt_buf_get_str(&view);
    }
    return view.failed ? tt_fail(TUTTI_ERR_INTERNAL, "the settings of rank %d are cut off", rank)
                       : TUTTI_OK;
}

static void log_finding(void *arg, bool of_tutti, const char *line)
{
    const tutti_ctx *ctx = arg;
    if (ctx->world.rank != 0)
        return;
    if (of_tutti) /* set so on purpose: these may differ */
        tt_log_info(TT_BOOT, "ranks differ: %s", line);
    else
        tt_log_warn(TT_BOOT, "ranks differ: %s", line);
}

static tutti_status compare_all(tutti_ctx *ctx, const tt_blobs *blobs)
{
    tt_settings *ranks = NULL;
    TT_TRY(tt_calloc((size_t)blobs->n, sizeof *ranks, &ranks));
    tutti_status status = TUTTI_OK;
    for (int i = 0; i < blobs->n && status == TUTTI_OK; i++)
        status = read_settings(blobs, i, &ranks[i]);
    if (status == TUTTI_OK)
        status = tt_parity_compare(ranks, blobs->n, log_finding, ctx);
    for (int i = 0; i < blobs->n; i++) {
        free(ranks[i].names);
        free(ranks[i].values);
    }
    free(ranks);
    return status;
}

tutti_status tt_parity_check(tutti_ctx *ctx)
{
    tt_buf mine = {0};
    tt_blobs hashes = {0}, blobs = {0};
    bool same = true;
    if (ctx->boot->one_process || ctx->world.size == 1)
        return TUTTI_OK;
    tutti_status status = put_settings(&mine);
    status = tt_agree(&ctx->world, "tutti_init, reading the settings", status);
    uint64_t hash = tt_hash64(mine.data, mine.size, 0);
    if (status == TUTTI_OK)
        status = tt_all_gather_blobs(&ctx->world, "tutti_init, hash of the settings", &hash,
                                     sizeof hash, &hashes);
    if (status != TUTTI_OK)
        goto free_mine;
    for (int i = 0; i < hashes.n; i++)
        same = same && tt_blob_bytes(&hashes, i) == sizeof hash &&
               memcmp(tt_blob(&hashes, i), tt_blob(&hashes, 0), sizeof hash) == 0;
    if (same)
        goto free_mine;
    status = tt_all_gather_blobs(&ctx->world, "tutti_init, settings", mine.data, mine.size, &blobs);
    if (status == TUTTI_OK)
        status = tt_agree(&ctx->world, "tutti_init, equal settings", compare_all(ctx, &blobs));
free_mine:
    tt_blobs_free(&blobs);
    tt_blobs_free(&hashes);
    tt_buf_free(&mine);
    return status;
}

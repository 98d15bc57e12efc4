/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which ranks share a folder, where a save is node-local.
 *
 * The first rank of each node makes an empty directory with a name of its own in the folder that it
 * was given and looks which of the others' it sees. Nodes that see one another's are one part (two
 * containers on one disk, a rack's file server), the others are parts of their own. So the option
 * may be chosen whatever the storage is, and two nodes never commit into one folder as if each had
 * it alone. Where a network file system shows the neighbour's directory too late, the folder's lock
 * refuses the second of them.
 *
 * Parts are numbered by their first rank. The numbers are of one checkpoint: after a restart on
 * other nodes a folder goes on holding what it holds.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/saver.h"

static const char call[] = "tutti_ckpt_begin";

void tt_parts_free(tt_parts *parts)
{
    free(parts->of);
    free(parts->leader);
    *parts = (tt_parts){0};
}

static tutti_status make_probe(tt_saver *s, char probe[TT_TEMP_NAME_MAX])
{
    char name[TT_TEMP_NAME_MAX];
    TT_TRY(tt_dir_make(s->path));
    TT_TRY(tt_dir_open(s->path, &s->dir));
    TT_TRY(tt_owner_temp_name(s->step, TT_TEMP_HEAD, name));
    if (mkdirat(s->dir, name, 0777) != 0)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot make a directory in %s", s->path);
    memcpy(probe, name, sizeof name);
    return TUTTI_OK;
}

/* The first rank whose directory is seen here: this one, if not one before it. */
static int32_t first_seen(const tt_saver *s, const tt_blobs *probes)
{
    char name[TT_TEMP_NAME_MAX];
    int rank = s->ctx->world.rank;
    for (int r = 0; r < rank; r++) {
        size_t bytes = tt_blob_bytes(probes, r);
        if (bytes == 0 || bytes >= sizeof name)
            continue;
        memcpy(name, tt_blob(probes, r), bytes);
        name[bytes] = '\0';
        if (faccessat(s->dir, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
            return r;
    }
    return rank;
}

/* seen: what first_seen said on each node's first rank. */
static tutti_status number_parts(tt_saver *s, const int32_t *seen)
{
    const tutti_ctx *ctx = s->ctx;
    tt_parts parts = {0};
    tutti_status status = tt_calloc((size_t)ctx->world.size, sizeof *parts.of, &parts.of);
    if (status == TUTTI_OK)
        status = tt_calloc((size_t)ctx->world.size, sizeof *parts.leader, &parts.leader);
    if (status != TUTTI_OK) {
        tt_parts_free(&parts);
        return status;
    }
    for (int r = 0; r < ctx->world.size; r++) {
        int on_node = 0;
        while (ctx->place[on_node].node != ctx->place[r].node)
            on_node++;
        int first = seen[on_node];
        if (first == r)
            parts.leader[parts.n++] = r;
        parts.of[r] = first == r ? parts.n - 1 : parts.of[first];
    }
    tt_parts_free(&s->parts);
    s->parts = parts;
    return TUTTI_OK;
}

static tutti_status look_at_probes(tt_saver *s, const char *probe)
{
    tt_group *world = &s->ctx->world;
    tt_blobs probes = {0};
    int32_t *seen = NULL, mine;
    tutti_status status = tt_calloc((size_t)world->size, sizeof *seen, &seen);
    status = tt_agree(world, call, status);
    if (status == TUTTI_OK)
        status = tt_all_gather_blobs(world, call, probe, strlen(probe), &probes);
    if (status == TUTTI_OK) {
        mine = first_seen(s, &probes);
        status = tt_all_gather_fixed(world, call, &mine, sizeof mine, seen);
    }
    if (status == TUTTI_OK)
        status = number_parts(s, seen);
    tt_blobs_free(&probes);
    free(seen);
    return status;
}

tutti_status tt_parts_find(tt_saver *s)
{
    tt_group *world = &s->ctx->world;
    char probe[TT_TEMP_NAME_MAX] = "", text[TT_ERROR_TEXT_MAX];
    bool first = s->ctx->place[world->rank].local_rank == 0;
    tutti_status made = tt_agree(world, call, first ? make_probe(s, probe) : TUTTI_OK);
    tutti_status status = made == TUTTI_OK ? look_at_probes(s, probe) : made;
    snprintf(text, sizeof text, "%s", tutti_last_error());
    if (probe[0] != '\0')
        unlinkat(s->dir, probe, AT_REMOVEDIR);
    if (status != TUTTI_OK)
        tt_fail_text(status, text);
    /* nobody looks for leftovers while a probe is there */
    return made == TUTTI_OK ? tt_agree(world, call, status) : made;
}

tutti_status tt_parts_tell_temp(tt_saver *s)
{
    tt_group *world = &s->ctx->world;
    tt_blobs names = {0};
    int leader = s->parts.leader[s->parts.of[world->rank]];
    tutti_status status = tt_all_gather_blobs(world, call, s->temp_name,
                                              tt_saver_leads(s) ? strlen(s->temp_name) : 0, &names);
    if (status == TUTTI_OK && leader != world->rank)
        snprintf(s->temp_name, sizeof s->temp_name, "%.*s", (int)tt_blob_bytes(&names, leader),
                 (const char *)tt_blob(&names, leader));
    tt_blobs_free(&names);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a checkpoint whose parts lie on the nodes' own disks.
 *
 * The first rank of each node looks for its node; ranks of one node share a folder. It tells all
 * which versions of the step it has (the hash of the manifest is the version's name: a save that
 * was cut off between its renames leaves different ones under one number) and which files of each.
 * From that every rank derives the same: the first version of which the nodes together have all
 * files, or that there is none, and what is lacking. Which node wrote a part does not matter, nor
 * how many nodes there are now. The manifest comes from a node that has it; a node without a disk
 * of its own reads through the others' (fetch.c).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/identity.h"
#include "ckpt/nodes.h"
#include "core/log.h"

static const char call[] = "tutti_ckpt_open";

void tt_nodes_free(tt_nodes *nodes)
{
    if (nodes == NULL)
        return;
    free(nodes->path);
    free(nodes->rank);
    free(nodes->first);
    free(nodes->has);
    free(nodes->block);
    free(nodes->fetched);
    free(nodes);
}

static bool looks(const tutti_ctx *ctx)
{
    return ctx->place[ctx->world.rank].local_rank == 0;
}

static tutti_status list_here(const tutti_ctx *ctx, int dir, int64_t step, int64_t **steps,
                              size_t *n)
{
    *steps = NULL;
    *n = 0;
    if (!looks(ctx) || dir < 0)
        return TUTTI_OK;
    if (step != TUTTI_CKPT_STEP_BEST)
        return tt_dir_steps(dir, steps, n);
    TT_TRY(tt_calloc(1, sizeof **steps, steps));
    tutti_status status = tt_tag_read(dir, TT_BEST_NAME, *steps);
    *n = status == TUTTI_OK;
    return status == TUTTI_ERR_NOT_FOUND ? TUTTI_OK : status;
}

tutti_status tt_nodes_steps(tutti_ctx *ctx, int dir, int64_t step, int64_t **steps_out,
                            size_t *n_out)
{
    int64_t *here = NULL, *all = NULL;
    size_t n = 0, unique = 0;
    tt_blobs lists = {0};
    tutti_status status = tt_agree(&ctx->world, call, list_here(ctx, dir, step, &here, &n));
    if (status == TUTTI_OK)
        status = tt_all_gather_blobs(&ctx->world, call, here, n * sizeof *here, &lists);
    free(here);
    if (status != TUTTI_OK)
        return status;
    size_t bytes = lists.offset[lists.n];
    n = bytes / sizeof *all;
    status = tt_calloc(n + 1, sizeof *all, &all);
    if (status == TUTTI_OK && n > 0) {
        memcpy(all, lists.data, bytes);
        tt_steps_sort(all, n);
    }
    tt_blobs_free(&lists);
    TT_TRY(tt_agree(&ctx->world, call, status));
    for (size_t i = 0; i < n; i++)
        if (unique == 0 || all[unique - 1] != all[i])
            all[unique++] = all[i];
    *steps_out = all;
    *n_out = unique;
    return TUTTI_OK;
}

/* A version of the step: id, the directory's name, whether each file is there. */
typedef struct sighting {
    int rank; /* that has seen it */
    tt_hash128 id;
    const char *name;
    size_t nfile;
    const unsigned char *has;
} sighting;

typedef struct search {
    tutti_ctx *ctx;
    int dir;
    int64_t step;
    tt_buf seen; /* this node's sightings */
    tutti_status status; /* of a version that cannot be opened */
    char text[TT_ERROR_TEXT_MAX];
} search;

static tutti_status see(void *arg, const char *name)
{
    search *s = arg;
    tt_buf text = {0};
    tt_source src = {0};
    tt_identity owner;
    int64_t step;
    if ((!tt_step_parse(name, &step) && !tt_identity_parse(name, TT_OLD_HEAD, &owner, &step)) ||
        step != s->step)
        return TUTTI_OK;
    tutti_status status = tt_source_open_as(s->dir, name, step, &text, &src);
    if (status != TUTTI_OK) {
        s->status = status;
        snprintf(s->text, sizeof s->text, "%s", tutti_last_error());
    } else {
        tt_hash128 id = tt_hash128_of(text.data, text.size);
        tt_buf_put(&s->seen, &id, sizeof id);
        tt_buf_put_str(&s->seen, name);
        tt_buf_put_u64(&s->seen, src.m.cat.nfile);
        for (size_t i = 0; i < src.m.cat.nfile; i++) {
            unsigned char has = src.absent == NULL || !src.absent[i];
            tt_buf_put(&s->seen, &has, 1);
        }
    }
    tt_source_close(&src);
    tt_buf_free(&text);
    return TUTTI_OK;
}

static bool next_sighting(tt_buf *in, int rank, sighting *out)
{
    if (in->at >= in->size || in->failed)
        return false;
    out->rank = rank;
    tt_buf_get(in, &out->id, sizeof out->id);
    out->name = tt_buf_get_str(in);
    out->nfile = tt_buf_get_u64(in);
    if (in->failed || out->nfile > in->size - in->at)
        return false;
    out->has = in->data + in->at;
    in->at += out->nfile;
    return true;
}

static bool same_version(const sighting *a, const sighting *b)
{
    return a->id.low == b->id.low && a->id.high == b->id.high && a->nfile == b->nfile;
}

/* Which files of the version a node has; its sightings are those of its first rank. */
static void add_files(const tt_blobs *all, int rank, const sighting *version, bool *has,
                      char name[TT_TEMP_NAME_MAX])
{
    tt_buf in = tt_buf_view(tt_blob(all, rank), tt_blob_bytes(all, rank));
    sighting s;
    while (next_sighting(&in, rank, &s)) {
        if (!same_version(&s, version))
            continue;
        for (size_t i = 0; i < s.nfile; i++)
            has[i] = has[i] || s.has[i] != 0;
        if (name != NULL)
            snprintf(name, TT_TEMP_NAME_MAX, "%s", s.name);
        return; /* the same version twice in a folder is the same files */
    }
}

/* The first version that is whole, else the first of all; false: there is none. has: room. */
static bool choose(const tt_blobs *all, sighting *chosen, bool **has_out, bool *whole_out,
                   tutti_status *status_out)
{
    bool any = false, *has = NULL;
    *whole_out = false;
    *status_out = TUTTI_OK;
    for (int r = 0; r < all->n && !*whole_out; r++) {
        tt_buf in = tt_buf_view(tt_blob(all, r), tt_blob_bytes(all, r));
        sighting s;
        while (!*whole_out && next_sighting(&in, r, &s)) {
            *status_out = tt_calloc(s.nfile, sizeof *has, &has);
            if (*status_out != TUTTI_OK)
                return any;
            for (int k = 0; k < all->n; k++)
                add_files(all, k, &s, has, NULL);
            *whole_out = memchr(has, 0, s.nfile * sizeof *has) == NULL;
            if (*whole_out || !any) {
                free(*has_out);
                *has_out = has;
                *chosen = s;
            } else {
                free(has);
            }
            any = true;
        }
    }
    return any;
}

/* Nodes are numbered by their first rank, so ranks sorted by node stay in order. */
static tutti_status list_nodes(const tutti_ctx *ctx, tt_nodes *nodes)
{
    int at = 0;
    nodes->n = ctx->node_count;
    TT_TRY(tt_calloc((size_t)ctx->world.size, sizeof *nodes->rank, &nodes->rank));
    TT_TRY(tt_calloc((size_t)nodes->n + 1, sizeof *nodes->first, &nodes->first));
    for (int i = 0; i < nodes->n; i++) {
        nodes->first[i] = at;
        for (int r = 0; r < ctx->world.size; r++)
            if (ctx->place[r].node == i)
                nodes->rank[at++] = r;
    }
    nodes->first[nodes->n] = at;
    return TUTTI_OK;
}

/* name: what the version's directory is called on this node; "": it is not there. */
static tutti_status map_files(const tutti_ctx *ctx, tt_nodes *nodes, const tt_catalog *cat,
                              const tt_blobs *all, const sighting *version,
                              char name[TT_TEMP_NAME_MAX])
{
    const int own = ctx->place[ctx->world.rank].node;
    name[0] = '\0';
    TT_TRY(list_nodes(ctx, nodes));
    nodes->nfile = cat->nfile;
    TT_TRY(tt_calloc((size_t)nodes->n * cat->nfile, sizeof *nodes->has, &nodes->has));
    for (int i = 0; i < nodes->n; i++)
        add_files(all, nodes->rank[nodes->first[i]], version, nodes->has + (size_t)i * cat->nfile,
                  i == own ? name : NULL);
    TT_TRY(tt_calloc(cat->nfile + 1, sizeof *nodes->block, &nodes->block));
    for (size_t k = 0; k < cat->nfile; k++)
        nodes->block[k + 1] = nodes->block[k] + cat->file[k].blocks;
    return tt_calloc(nodes->block[cat->nfile], sizeof *nodes->fetched, &nodes->fetched);
}

static tutti_status absent_of(const bool *has, size_t n, bool **absent_out)
{
    TT_TRY(tt_calloc(n, sizeof **absent_out, absent_out));
    for (size_t i = 0; i < n; i++)
        (*absent_out)[i] = !has[i];
    return TUTTI_OK;
}

/* From the manifest's text; the directory is the one that this node's first rank has seen. */
static tutti_status open_version(search *s, const tt_blobs *all, const sighting *version,
                                 const tt_buf *text, tt_source *src, tt_nodes *nodes)
{
    const tutti_ctx *ctx = s->ctx;
    char name[TT_TEMP_NAME_MAX];
    TT_TRY(tt_manifest_read(text->data, text->size, s->step, &src->m));
    TT_TRY(map_files(ctx, nodes, &src->m.cat, all, version, name));
    int node = ctx->place[ctx->world.rank].node;
    TT_TRY(absent_of(nodes->has + (size_t)node * nodes->nfile, nodes->nfile, &src->absent));
    if (name[0] == '\0')
        return TUTTI_OK;
    if (s->dir < 0)
        return tt_fail(TUTTI_ERR_IO,
                       "the first rank of this node sees %s, this rank does not: ranks of one node "
                       "must share a folder",
                       name);
    return tt_dir_open_at(s->dir, name, &src->dir);
}

/* The text of the chosen version's manifest, from the rank that has seen it, to all. */
static tutti_status share_text(search *s, const sighting *version, tt_buf *text_out)
{
    tt_group *world = &s->ctx->world;
    tt_buf mine = {0};
    tt_source src = {0};
    tutti_status status = TUTTI_OK;
    if (world->rank == version->rank) {
        status = tt_source_open_as(s->dir, version->name, s->step, &mine, &src);
        tt_source_close(&src);
    }
    status = tt_agree(world, call, status);
    if (status == TUTTI_OK)
        status = tt_bcast_blob(world, call, version->rank, mine.data, mine.size, text_out);
    tt_buf_free(&mine);
    return status;
}

static tutti_status say_lacking(search *s, const tt_buf *text, const bool *has, size_t nfile)
{
    tt_source src = {.dir = -1, .spool = -1};
    bool *absent;
    TT_TRY(tt_manifest_read(text->data, text->size, s->step, &src.m));
    tutti_status status = absent_of(has, nfile, &absent);
    if (status == TUTTI_OK) {
        status = tt_source_lacks(&src, absent);
        free(absent);
    }
    tt_manifest_free(&src.m);
    return status;
}

static tutti_status take_version(search *s, const tt_blobs *all, tt_source *src, tt_nodes *nodes)
{
    tt_group *world = &s->ctx->world;
    sighting version = {0};
    bool whole, *has = NULL;
    tt_buf text = {0};
    tutti_status status;
    bool any = choose(all, &version, &has, &whole, &status);
    status = tt_agree(world, call, status);
    if (status == TUTTI_OK && !any)
        status =
            tt_fail(TUTTI_ERR_NOT_FOUND, "no node has a part of step %lld", (long long)s->step);
    if (status == TUTTI_OK)
        status = share_text(s, &version, &text);
    if (status == TUTTI_OK && !whole)
        status = tt_agree(world, call, say_lacking(s, &text, has, version.nfile));
    else if (status == TUTTI_OK)
        status = tt_agree(world, call, open_version(s, all, &version, &text, src, nodes));
    free(has);
    tt_buf_free(&text);
    return status;
}

/* A version that one node could not open is told only when no other is whole. */
static tutti_status blame(search *s, tutti_status status)
{
    char text[TT_ERROR_TEXT_MAX];
    snprintf(text, sizeof text, "%s", tutti_last_error());
    tutti_status worst = s->status;
    if (worst != TUTTI_OK)
        tt_fail_text(worst, s->text);
    worst = tt_agree(&s->ctx->world, call, worst);
    if (worst == TUTTI_OK)
        return tt_fail_text(status, text);
    return status == TUTTI_ERR_NOT_FOUND ? worst : tt_fail_more(worst, "%s", text);
}

tutti_status tt_nodes_open(tutti_ctx *ctx, const char *path, int dir, int64_t step,
                           tt_source *src_out, tt_nodes **nodes_out)
{
    search s = {.ctx = ctx, .dir = dir, .step = step};
    tt_source src = {.dir = -1, .spool = -1};
    tt_nodes *nodes = NULL;
    tt_blobs all = {0};
    tt_step_name(step, src.name);
    tutti_status status = tt_calloc(1, sizeof *nodes, &nodes);
    if (status == TUTTI_OK)
        status = tt_strdup(path, &nodes->path);
    if (status == TUTTI_OK && looks(ctx) && dir >= 0)
        status = tt_dir_each(dir, see, &s);
    if (s.seen.failed)
        status = tt_fail(TUTTI_ERR_NO_MEMORY, "no memory for the list of parts");
    status = tt_agree(&ctx->world, call, status);
    if (status == TUTTI_OK)
        status = tt_all_gather_blobs(&ctx->world, call, s.seen.data, s.seen.size, &all);
    tt_buf_free(&s.seen);
    if (status == TUTTI_OK) {
        status = take_version(&s, &all, &src, nodes);
        if (status == TUTTI_ERR_NOT_FOUND || status == TUTTI_ERR_CORRUPT)
            status = blame(&s, status);
    }
    tt_blobs_free(&all);
    if (status != TUTTI_OK) {
        tt_source_close(&src);
        tt_nodes_free(nodes);
        return status;
    }
    *src_out = src;
    *nodes_out = nodes;
    return TUTTI_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks from the nodes that have them to those that do not.
 *
 * Each rank says which blocks its boxes touch of files that its node lacks; a node's ranks then
 * receive each of them once, into one sparse file that they share, the spool, from which they are
 * read and verified as if the file were here. It lies in the node's folder, in a temporary
 * directory that is removed as soon as all ranks of the node have it open, so that nothing stays
 * of a job that is killed. A rank holds two blocks in memory at a time.
 *
 * Who sends what to whom follows from what all ranks know, in an order that is the same for all:
 * in round s node i receives from node i + s, block by block, so that all disks and links work at
 * once. In a round a rank has at most one send and one receive for each number, and waits for both
 * before it goes on to the next; so nobody waits for one who waits for him.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/block.h"
#include "ckpt/nodes.h"
#include "ckpt/ranks.h"

static const char call[] = "fetch of a checkpoint's blocks";

enum { TAG = 2 }; /* of the group's; exchanges use the first two */

/* One block on its way, as this rank sees it. */
typedef struct passing {
    int round;
    size_t number; /* in the round, between the two nodes */
    size_t file, block; /* of the file */
    int peer;
    bool send;
} passing;

typedef struct fetching {
    tutti_ctx *ctx;
    tt_nodes *nodes;
    tt_source *src;
    int node; /* this rank's */
    bool *need; /* blocks, of one node at a time */
    passing *list;
    size_t n, cap;
    bool *wants; /* nodes that get something */
    tutti_status status; /* the first of this rank's own failures */
    char text[TT_ERROR_TEXT_MAX];
} fetching;

static size_t block_count(const tt_nodes *nodes)
{
    return nodes->block[nodes->nfile];
}

/* The blocks between the first and the last byte of what the box and the want share. */
static void need_part(fetching *f, const tt_want *want, const tt_cbox *box)
{
    const tt_ctensor *t = want->tensor;
    int64_t part[2 * TUTTI_CKPT_MAX_DIMS];
    uint64_t first = 0, last = 0, size = tutti_dtype_size(t->dtype);
    uint64_t block_bytes = f->src->m.block_bytes;
    if (!f->src->absent[box->file] || !tt_box_intersect(want->dim, box->dim, t->ndim, part))
        return;
    for (int d = 0; d < t->ndim; d++) {
        uint64_t low = (uint64_t)(part[d] - box->dim[d]), extent = (uint64_t)box->dim[t->ndim + d];
        first = first * extent + low;
        last = last * extent + low + (uint64_t)part[t->ndim + d] - 1;
    }
    size_t from = (size_t)((box->at + first * size) / block_bytes);
    size_t to = (size_t)((box->at + last * size + size - 1) / block_bytes);
    for (size_t b = from; b <= to; b++)
        f->need[f->nodes->block[box->file] + b] = true;
}

/* Runs of numbers, without those that are here already. */
static void put_needs(const fetching *f, tt_buf *out)
{
    size_t total = block_count(f->nodes);
    for (size_t i = 0, end; i < total; i = end) {
        for (end = i; end < total && f->need[end] && !f->nodes->fetched[end]; end++) {
        }
        if (end > i) {
            tt_buf_put_u64(out, i);
            tt_buf_put_u64(out, end - i);
        } else {
            end = i + 1;
        }
    }
}

static tutti_status tell_needs(fetching *f, const tt_want *want, size_t n, tt_blobs *all)
{
    tt_group *world = &f->ctx->world;
    tt_buf mine = {0};
    uint64_t elems = 0;
    for (size_t i = 0; i < n; i++) {
        const tt_ctensor *t = want[i].tensor;
        tt_dims_elems(want[i].dim + t->ndim, t->ndim, &elems);
        for (size_t k = 0; k < t->nbox && elems > 0; k++)
            need_part(f, &want[i], &t->box[k]);
    }
    put_needs(f, &mine);
    tutti_status status = tt_agree(
        world, call,
        mine.failed ? tt_fail(TUTTI_ERR_NO_MEMORY, "no memory for the list of blocks") : TUTTI_OK);
    if (status == TUTTI_OK)
        status = tt_all_gather_blobs(world, call, mine.data, mine.size, all);
    tt_buf_free(&mine);
    return status;
}

static int ranks_of(const tt_nodes *nodes, int node)
{
    return nodes->first[node + 1] - nodes->first[node];
}

/* The node's ranks take turns. */
static int rank_for(const tt_nodes *nodes, int node, size_t block)
{
    return nodes->rank[nodes->first[node] + (int)(block % (size_t)ranks_of(nodes, node))];
}

/* The next node, counted from `node`, that has the file. */
static int holder_of(const tt_nodes *nodes, int node, size_t file, int *round_out)
{
    for (int s = 1; s < nodes->n; s++) {
        int holder = (node + s) % nodes->n;
        if (nodes->has[(size_t)holder * nodes->nfile + file]) {
            *round_out = s;
            return holder;
        }
    }
    return -1;
}

static tutti_status add_passing(fetching *f, int node, size_t file, size_t block, size_t *number)
{
    const tt_nodes *nodes = f->nodes;
    int round = 0, rank = f->ctx->world.rank, holder = holder_of(nodes, node, file, &round);
    if (holder < 0)
        return tt_fail(TUTTI_ERR_INTERNAL, "no node has %s", f->src->m.cat.file[file].name);
    size_t all = nodes->block[file] + block;
    int from = rank_for(nodes, holder, all), to = rank_for(nodes, node, all);
    passing p = {round, number[round]++, file, block, from == rank ? to : from, from == rank};
    if (from != rank && to != rank)
        return TUTTI_OK;
    TT_TRY(tt_grow(&f->list, &f->cap, f->n + 1, sizeof *f->list));
    f->list[f->n++] = p;
    return TUTTI_OK;
}

/* What one node gets, and this rank's part in it. */
static tutti_status plan_node(fetching *f, const tt_blobs *all, int node, size_t *number)
{
    const tt_nodes *nodes = f->nodes;
    size_t total = block_count(nodes);
    memset(f->need, 0, total * sizeof *f->need);
    memset(number, 0, (size_t)nodes->n * sizeof *number);
    for (int i = nodes->first[node]; i < nodes->first[node + 1]; i++) {
        tt_buf in = tt_buf_view(tt_blob(all, nodes->rank[i]), tt_blob_bytes(all, nodes->rank[i]));
        while (in.at < in.size && !in.failed) {
            uint64_t at = tt_buf_get_u64(&in), n = tt_buf_get_u64(&in);
            if (at > total || n > total - at)
                return tt_fail(TUTTI_ERR_INTERNAL, "rank %d sent a broken list", nodes->rank[i]);
            for (uint64_t b = at; b < at + n; b++)
                f->need[b] = true;
        }
    }
    for (size_t k = 0; k < nodes->nfile; k++)
        for (size_t b = nodes->block[k]; b < nodes->block[k + 1]; b++) {
            if (!f->need[b])
                continue;
            f->wants[node] = true;
            TT_TRY(add_passing(f, node, k, b - nodes->block[k], number));
            if (node == f->node)
                f->nodes->fetched[b] = true;
        }
    return TUTTI_OK;
}

static int compare_passing(const void *a, const void *b)
{
    const passing *x = a, *y = b;
    if (x->round != y->round)
        return x->round - y->round;
    if (x->number != y->number)
        return x->number < y->number ? -1 : 1;
    return (int)y->send - (int)x->send;
}

static tutti_status plan_all(fetching *f, const tt_blobs *all)
{
    size_t *number;
    tutti_status status = tt_calloc((size_t)f->nodes->n, sizeof *number, &number);
    for (int i = 0; i < f->nodes->n && status == TUTTI_OK; i++)
        status = plan_node(f, all, i, number);
    free(number);
    if (status == TUTTI_OK && f->n > 0)
        qsort(f->list, f->n, sizeof *f->list, compare_passing);
    return status;
}

/* The node's first rank: the spool in a directory of its own; dir_name is what removes it. */
static tutti_status make_spool(fetching *f, int *dir, char name[TT_TEMP_NAME_MAX])
{
    int temp = -1, owner = -1, fd = -1;
    TT_TRY(tt_dir_make(f->nodes->path));
    TT_TRY(tt_dir_open(f->nodes->path, dir));
    TT_TRY(tt_owner_temp_name(f->src->m.step, TT_TEMP_HEAD, name));
    if (mkdirat(*dir, name, 0777) != 0)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot make a directory in %s", f->nodes->path);
    tutti_status status = tt_dir_open_at(*dir, name, &temp);
    if (status == TUTTI_OK)
        status = tt_owner_lock(temp, name, &owner);
    if (status == TUTTI_OK)
        status = tt_file_create(temp, TT_SPOOL_NAME, &fd);
    if (fd >= 0)
        close(fd);
    if (temp >= 0)
        close(temp);
    if (owner >= 0)
        close(owner); /* it is removed in a moment, or with this process */
    return status;
}

static tutti_status open_spool(fetching *f, const char *name, size_t bytes)
{
    char path[TT_TEMP_NAME_MAX + sizeof TT_SPOOL_NAME + 1];
    uint64_t at = 0;
    int dir;
    if (bytes == 0 || bytes >= TT_TEMP_NAME_MAX)
        return tt_fail(TUTTI_ERR_INTERNAL, "the node's first rank named no spool");
    snprintf(path, sizeof path, "%.*s/%s", (int)bytes, name, TT_SPOOL_NAME);
    TT_TRY(tt_dir_open(f->nodes->path, &dir));
    f->src->spool = openat(dir, path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    tutti_status status =
        f->src->spool >= 0
            ? TUTTI_OK
            : tt_fail_errno(TUTTI_ERR_IO, errno, "cannot open %s/%s", f->nodes->path, path);
    close(dir);
    TT_TRY(status);
    TT_TRY(tt_calloc(f->nodes->nfile, sizeof *f->src->spool_at, &f->src->spool_at));
    for (size_t k = 0; k < f->nodes->nfile; k++) {
        f->src->spool_at[k] = at;
        at += f->src->m.cat.file[k].blocks * f->src->m.block_bytes;
    }
    return TUTTI_OK;
}

static tutti_status give_spools(fetching *f)
{
    tt_group *world = &f->ctx->world;
    char name[TT_TEMP_NAME_MAX] = "";
    tt_blobs names = {0};
    int dir = -1, first = f->nodes->rank[f->nodes->first[f->node]];
    bool lacks = f->wants[f->node] && f->src->spool < 0;
    tutti_status status =
        tt_agree(world, call, lacks && first == world->rank ? make_spool(f, &dir, name) : TUTTI_OK);
    if (status == TUTTI_OK)
        status = tt_all_gather_blobs(world, call, name, strlen(name), &names);
    if (status == TUTTI_OK)
        status = tt_agree(
            world, call,
            lacks ? open_spool(f, tt_blob(&names, first), tt_blob_bytes(&names, first)) : TUTTI_OK);
    tt_blobs_free(&names);
    if (dir >= 0) {
        char text[TT_ERROR_TEXT_MAX];
        snprintf(text, sizeof text, "%s", tutti_last_error());
        if (tt_dir_remove(dir, name) != TUTTI_OK || status != TUTTI_OK)
            tt_fail_text(status, text);
        close(dir);
    }
    return status;
}

static void note_failure(fetching *f, tutti_status status)
{
    if (status == TUTTI_OK || f->status != TUTTI_OK)
        return;
    f->status = status;
    snprintf(f->text, sizeof f->text, "%s", tutti_last_error());
}

static size_t bytes_of(const fetching *f, const passing *p)
{
    uint64_t size = f->src->m.cat.file[p->file].bytes, at = p->block * f->src->m.block_bytes;
    return size - at < f->src->m.block_bytes ? (size_t)(size - at) : (size_t)f->src->m.block_bytes;
}

/* A block that cannot be read is sent as nothing: the other side must not wait. */
static tutti_status send_block(fetching *f, const passing *p, char *data, tt_req *req)
{
    tutti_ctx *ctx = f->ctx;
    tt_block b = {.data = data};
    size_t bytes = bytes_of(f, p);
    tutti_status status = tt_block_open(&b, f->src, &f->src->m.cat.file[p->file]);
    if (status == TUTTI_OK) {
        status = tt_block_read(&b, p->block);
        close(b.fd);
    }
    note_failure(f, status);
    return ctx->boot->ops->isend(ctx->boot, TT_CH_CONTROL, p->peer,
                                 ctx->world.id * TT_TAGS_PER_GROUP + TAG, data,
                                 status == TUTTI_OK ? bytes : 0, req);
}

static tutti_status receive_block(fetching *f, const passing *p, char *data)
{
    tutti_ctx *ctx = f->ctx;
    tt_req req = {0};
    size_t bytes = bytes_of(f, p), got = 0;
    TT_TRY(ctx->boot->ops->irecv(ctx->boot, TT_CH_CONTROL, p->peer,
                                 ctx->world.id * TT_TAGS_PER_GROUP + TAG, data, bytes, &req));
    TT_TRY(tt_req_wait(ctx, &req, &ctx->caller_patience, call, &got));
    if (got == bytes)
        note_failure(f,
                     tt_file_write(f->src->spool, TT_SPOOL_NAME, data, bytes,
                                   f->src->spool_at[p->file] + p->block * f->src->m.block_bytes));
    return TUTTI_OK;
}

static tutti_status move_blocks(fetching *f, char *out, char *in)
{
    tutti_ctx *ctx = f->ctx;
    for (size_t i = 0; i < f->n; i++) {
        const passing *p = &f->list[i], *next = i + 1 < f->n ? p + 1 : NULL;
        bool both = p->send && next != NULL && !next->send && next->round == p->round &&
                    next->number == p->number;
        tt_req req = {0};
        tutti_status status = TUTTI_OK;
        if (p->send)
            TT_TRY(send_block(f, p, out, &req));
        if (!p->send || both)
            status = receive_block(f, both ? next : p, in);
        if (p->send && status == TUTTI_OK)
            status = tt_req_wait(ctx, &req, &ctx->caller_patience, call, NULL);
        else if (p->send)
            ctx->boot->ops->cancel(ctx->boot, &req);
        TT_TRY(status);
        i += both;
    }
    return TUTTI_OK;
}

static tutti_status pass_blocks(fetching *f)
{
    tt_group *world = &f->ctx->world;
    char *both = NULL;
    tutti_status status = tt_calloc(2, f->src->m.block_bytes, &both);
    status = tt_agree(world, call, status);
    tt_ranks_busy(f->ctx, f->n * f->src->m.block_bytes);
    if (status == TUTTI_OK)
        status = move_blocks(f, both, both + f->src->m.block_bytes);
    free(both);
    if (status != TUTTI_OK)
        return status;
    if (f->status != TUTTI_OK)
        tt_fail_text(f->status, f->text);
    status = tt_agree(world, call, f->status);
    if (status != TUTTI_OK) /* who asks again gets all of it again */
        memset(f->nodes->fetched, 0, block_count(f->nodes) * sizeof *f->nodes->fetched);
    return status;
}

static tutti_status fetch(fetching *f, const tt_want *want, size_t n)
{
    tt_group *world = &f->ctx->world;
    tt_blobs all = {0};
    bool any = false;
    tutti_status status = tell_needs(f, want, n, &all);
    if (status == TUTTI_OK)
        status = tt_agree(world, call, plan_all(f, &all));
    tt_blobs_free(&all);
    TT_TRY(status);
    for (int i = 0; i < f->nodes->n; i++)
        any = any || f->wants[i];
    if (!any)
        return TUTTI_OK;
    TT_TRY(give_spools(f));
    return pass_blocks(f);
}

tutti_status tt_nodes_fetch(tutti_ctx *ctx, tt_nodes *nodes, tt_source *src, const tt_want *want,
                            size_t n)
{
    fetching f = {.ctx = ctx, .nodes = nodes, .src = src};
    f.node = ctx->place[ctx->world.rank].node;
    tutti_status status = tt_calloc(block_count(nodes), sizeof *f.need, &f.need);
    if (status == TUTTI_OK)
        status = tt_calloc((size_t)nodes->n, sizeof *f.wants, &f.wants);
    status = tt_agree(&ctx->world, call, status);
    if (status == TUTTI_OK)
        status = fetch(&f, want, n);
    free(f.need);
    free(f.wants);
    free(f.list);
    return status == TUTTI_OK ? TUTTI_OK : tt_fail_more(status, "%s", src->name);
}

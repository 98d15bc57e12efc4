/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a mesh and its communicators.
 *
 * A mesh is arithmetic on positions: position p has coordinate p / stride % size along each axis.
 * Which world rank stands at a position is the placement's choice (`place`); everything else
 * follows. A set of axes is a bit mask without the axes of size 1, so sets with equal members have
 * equal masks and share a communicator, and the empty mask is the rank alone.
 *
 * Communicators are parts of the world split by the coordinates outside the set. They are made on
 * demand, since a communicator costs memory, on a GPU a lot of it; that makes the first call for a
 * set collective, and the ranks compare what they asked for before they split.
 *
 * What is left at tutti_finalize is destroyed there (boot/live.h).
 */
#include "mesh/mesh.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/issue.h"
#include "core/log.h"
#include "topo/plan.h"

static void free_mesh(tutti_mesh *mesh)
{
    if (mesh == NULL)
        return;
    free(mesh->rank);
    free(mesh->position);
    free(mesh->comms);
    free(mesh);
}

static void destroy_left(void *mesh)
{
    tutti_mesh_destroy(mesh);
}

static void drop_left(void *mesh)
{
    free_mesh(mesh);
}

static const tt_live_ops live_ops = {destroy_left, drop_left};

/* World ranks in the order of positions: the plan's choice, the same on every rank. */
static tutti_status place(tutti_mesh *mesh)
{
    int size[TT_MESH_AXES];

    for (int i = 0; i < mesh->axes.n; i++)
        size[i] = mesh->axes.axis[i].size;
    for (int i = 0; i < mesh->size; i++)
        mesh->position[i] = i; /* for now the ranks in their own order */
    TT_TRY(
        tt_plan_order(mesh->ctx->plan, mesh->position, mesh->size, size, mesh->axes.n, mesh->rank));
    for (int i = 0; i < mesh->size; i++)
        mesh->position[mesh->rank[i]] = i;
    return TUTTI_OK;
}

static tutti_status new_mesh(tutti_ctx *ctx, const char *axes, tutti_mesh **mesh_out)
{
    tutti_mesh *mesh;
    size_t size = (size_t)ctx->world.size;

    TT_TRY(tt_calloc(1, sizeof *mesh, &mesh));
    *mesh_out = mesh; /* half made: free_mesh takes it */
    mesh->ctx = ctx;
    mesh->size = ctx->world.size;
    TT_TRY(tt_mesh_parse(axes, mesh->size, &mesh->axes));
    TT_TRY(tt_calloc(size, sizeof *mesh->rank, &mesh->rank));
    TT_TRY(tt_calloc(size, sizeof *mesh->position, &mesh->position));
    return place(mesh);
}

/* The ranks' values are compared with rank 0's, as texts for the message. */
static tutti_status same_text(tt_group *group, const char *what, const char *text)
{
    tt_blobs all = {0};
    tutti_status status = tt_all_gather_blobs(group, what, text, strlen(text) + 1, &all);

    for (int r = 1; status == TUTTI_OK && r < group->size; r++)
        if (strcmp(tt_blob(&all, r), tt_blob(&all, 0)) != 0)
            status = tt_fail(TUTTI_ERR_MISMATCH, "%s: \"%s\" on rank %d, \"%s\" on rank %d", what,
                             (const char *)tt_blob(&all, r), group->world[r],
                             (const char *)tt_blob(&all, 0), group->world[0]);
    tt_blobs_free(&all);
    return status;
}

tutti_status tutti_mesh_create(tutti_ctx *ctx, const char *axes, tutti_mesh **mesh_out)
{
    tutti_mesh *mesh = NULL;
    tutti_status status;
    tt_group *group;

    if (ctx == NULL || axes == NULL || mesh_out == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_mesh_create: %s is NULL",
                       ctx == NULL    ? "ctx"
                       : axes == NULL ? "axes"
                                      : "mesh_out");
    TT_TRY(tt_ctx_check(ctx));
    TT_TRY(tt_group_forbid("tutti_mesh_create"));
    group = &tutti_world(ctx)->group;
    TT_TRY(same_text(group, "tutti_mesh_create", axes));
    status = tt_agree(group, "tutti_mesh_create", new_mesh(ctx, axes, &mesh));
    if (status != TUTTI_OK) {
        free_mesh(mesh);
        return status;
    }
    tt_live_add(&mesh->live, ctx, &live_ops, mesh);
    *mesh_out = mesh;
    return TUTTI_OK;
}

void tutti_mesh_destroy(tutti_mesh *mesh)
{
    if (mesh == NULL)
        return;
    for (size_t i = mesh->ncomms; i > 0; i--)
        if (mesh->comms[i - 1].made)
            tutti_comm_destroy(mesh->comms[i - 1].comm);
    tt_live_remove(&mesh->live);
    free_mesh(mesh);
}

static bool is_world(const tutti_mesh *mesh, uint32_t set)
{
    if (tt_mesh_set_size(&mesh->axes, set) != mesh->size)
        return false;
    for (int i = 0; i < mesh->size; i++)
        if (mesh->rank[i] != i)
            return false;
    return true;
}

static void name_set(const tutti_mesh *mesh, uint32_t set, char *buf, size_t cap)
{
    size_t at = 0;

    snprintf(buf, cap, "self");
    for (int i = 0; i < mesh->axes.n && at < cap; i++)
        if ((set >> i & 1) != 0)
            at += (size_t)snprintf(buf + at, cap - at, "%s%s", at > 0 ? "+" : "",
                                   mesh->axes.axis[i].name);
}

static tutti_status make_comm(tutti_mesh *mesh, uint32_t set, tt_mesh_comm *made)
{
    tutti_comm *world = tutti_world(mesh->ctx);
    tutti_comm_opts opts = TUTTI_COMM_OPTS_INIT;
    uint32_t others = ~set & ((1u << mesh->axes.n) - 1);
    int position = mesh->position[mesh->ctx->world.rank];
    char name[TT_MESH_AXES * (TT_MESH_NAME + 1)];

    *made = (tt_mesh_comm){.set = set, .comm = world};
    if (is_world(mesh, set))
        return TUTTI_OK;
    name_set(mesh, set, name, sizeof name);
    opts.name = name;
    opts.flags = world->flags;
    made->made = true;
    return tutti_comm_split(world, tt_mesh_index(&mesh->axes, others, position),
                            tt_mesh_index(&mesh->axes, set, position), &opts, &made->comm);
}

tutti_status tutti_mesh_comm(tutti_mesh *mesh, const char *axes, tutti_comm **comm_out)
{
    tt_mesh_comm made;
    uint32_t set = 0;
    tutti_status status;
    tt_group *group;

    if (mesh == NULL || axes == NULL || comm_out == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_mesh_comm: %s is NULL",
                       mesh == NULL   ? "mesh"
                       : axes == NULL ? "axes"
                                      : "comm_out");
    TT_TRY(tt_ctx_check(mesh->ctx));
    TT_TRY(tt_group_forbid("tutti_mesh_comm"));
    status = tt_mesh_set(&mesh->axes, axes, &set);
    for (size_t i = 0; status == TUTTI_OK && i < mesh->ncomms; i++)
        if (mesh->comms[i].set == set) {
            *comm_out = mesh->comms[i].comm;
            return TUTTI_OK;
        }
    group = &tutti_world(mesh->ctx)->group;
    if (status == TUTTI_OK)
        status = tt_grow(&mesh->comms, &mesh->comms_cap, mesh->ncomms + 1, sizeof *mesh->comms);
    TT_TRY(tt_agree(group, "tutti_mesh_comm", status));
    TT_TRY(same_text(group, "tutti_mesh_comm", axes));
    TT_TRY(make_comm(mesh, set, &made));
    mesh->comms[mesh->ncomms++] = made;
    *comm_out = made.comm;
    return TUTTI_OK;
}

int tutti_mesh_size(const tutti_mesh *mesh, const char *axes)
{
    uint32_t set;

    if (mesh == NULL || axes == NULL || tt_mesh_set(&mesh->axes, axes, &set) != TUTTI_OK)
        return 0;
    return tt_mesh_set_size(&mesh->axes, set);
}

int tutti_mesh_coord(const tutti_mesh *mesh, const char *axes)
{
    return mesh == NULL ? -1 : tutti_mesh_coord_of(mesh, mesh->ctx->world.rank, axes);
}

int tutti_mesh_coord_of(const tutti_mesh *mesh, int world_rank, const char *axes)
{
    uint32_t set;

    if (mesh == NULL || axes == NULL || world_rank < 0 || world_rank >= mesh->size ||
        tt_mesh_set(&mesh->axes, axes, &set) != TUTTI_OK)
        return -1;
    return tt_mesh_index(&mesh->axes, set, mesh->position[world_rank]);
}

int tutti_mesh_neighbour(const tutti_mesh *mesh, const char *axis, int shift, bool wrap)
{
    int position;

    if (mesh == NULL || axis == NULL)
        return -1;
    position = mesh->position[mesh->ctx->world.rank];
    for (int i = 0; i < mesh->axes.n; i++) {
        const tt_axis *a = &mesh->axes.axis[i];
        int from = position / a->stride % a->size;
        long to = (long)from + shift;
        if (strcmp(a->name, axis) != 0)
            continue;
        if (wrap)
            to = (to % a->size + a->size) % a->size;
        if (to < 0 || to >= a->size)
            return -1;
        return mesh->rank[position + ((int)to - from) * a->stride];
    }
    return -1;
}

int tutti_mesh_axis_count(const tutti_mesh *mesh)
{
    return mesh == NULL ? 0 : mesh->axes.n;
}

const char *tutti_mesh_axis_name(const tutti_mesh *mesh, int i)
{
    return mesh == NULL || i < 0 || i >= mesh->axes.n ? NULL : mesh->axes.axis[i].name;
}

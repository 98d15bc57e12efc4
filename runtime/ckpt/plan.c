/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Planning a save.
 *
 * The descriptions of all ranks become one list, sorted by name and box. Equal boxes stand side by
 * side then: they are replicas, and one of their holders writes them. Boxes that only one rank
 * holds are given out first, then the replicas from the largest down, each to the holder with the
 * fewest bytes so far. What every rank derives from the same bytes by the same rules is the same
 * everywhere; no owner is ever broadcast. A large replica is cut into slices along its first axis,
 * so that all its holders write a part of it. Boxes smaller than TT_PACK_BYTES go behind one
 * another into one dataset per dtype, for a dataset costs about 13 us and a page.
 */
#include "ckpt/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/dir.h"

typedef struct entry {
    const char *name;
    const int64_t *shape, *dim; /* dim: offset, then extent */
    uint64_t bytes;
    uint32_t item;
    int rank, ndim;
    tutti_dtype dtype;
    bool is_bytes;
} entry;

/* A box once, however many ranks hold it; or a slice of one that several do. */
typedef struct unique {
    size_t first, holders; /* entries */
    const int64_t *dim; /* offset, then extent */
    uint64_t bytes;
    uint64_t from; /* first byte in the holder's box */
    int owner;
} unique;

typedef struct planner {
    tt_plan *plan;
    int ranks, rank;
    entry *entry;
    size_t nentry, entry_cap;
    unique *uniq;
    size_t nuniq, uniq_cap;
    uint64_t *load; /* bytes of each rank */
    uint64_t slice_bytes; /* smaller slices of a replica are not worth a dataset */
} planner;

tutti_status tt_plan_describe(const tt_item *items, size_t n, tt_buf *out)
{
    tt_buf_put_u64(out, n);
    for (size_t i = 0; i < n; i++) {
        const tt_item *item = &items[i];
        tt_buf_put_str(out, item->name);
        tt_buf_put_u32(out, (uint32_t)item->dtype);
        tt_buf_put_u32(out, (uint32_t)item->ndim);
        tt_buf_put_u32(out, item->bytes);
        tt_buf_put(out, item->shape, 3 * (size_t)item->ndim * sizeof *item->shape);
    }
    if (out->failed)
        return tt_fail(TUTTI_ERR_NO_MEMORY, "no memory for the list of %zu tensors", n);
    return TUTTI_OK;
}

static tutti_status read_entry(planner *p, tt_buf *in, int rank, uint32_t item)
{
    const char *name = tt_buf_get_str(in);
    uint64_t elems = 0;
    int64_t *dims;
    entry e = {.rank = rank, .item = item};
    TT_TRY(tt_arena_text(&p->plan->cat.arena, name, strlen(name), &e.name));
    e.dtype = (tutti_dtype)tt_buf_get_u32(in);
    e.ndim = (int)tt_buf_get_u32(in);
    e.is_bytes = tt_buf_get_u32(in) != 0;
    if (in->failed || e.ndim < 0 || e.ndim > TUTTI_CKPT_MAX_DIMS)
        return tt_fail(TUTTI_ERR_INTERNAL, "rank %d sent a list of tensors that is cut off", rank);
    size_t n = (size_t)e.ndim;
    TT_TRY(tt_arena_alloc(&p->plan->cat.arena, 3 * n * sizeof *dims, &dims));
    tt_buf_get(in, dims, 3 * n * sizeof *dims);
    e.shape = dims;
    e.dim = dims + n;
    tt_dims_elems(e.dim + n, e.ndim, &elems);
    e.bytes = elems * tutti_dtype_size(e.dtype);
    TT_TRY(tt_grow(&p->entry, &p->entry_cap, p->nentry + 1, sizeof *p->entry));
    p->entry[p->nentry++] = e;
    return TUTTI_OK;
}

static tutti_status read_entries(planner *p, const tt_blobs *described)
{
    for (int r = 0; r < described->n; r++) {
        tt_buf in = tt_buf_view(tt_blob(described, r), tt_blob_bytes(described, r));
        uint64_t n = tt_buf_get_u64(&in);
        for (uint64_t i = 0; i < n; i++)
            TT_TRY(read_entry(p, &in, r, (uint32_t)i));
    }
    return TUTTI_OK;
}

static int compare_entry(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    if (order == 0)
        order = x->ndim - y->ndim;
    if (order == 0)
        order = tt_box_compare(x->dim, y->dim, x->ndim);
    return order != 0 ? order : x->rank - y->rank;
}

static tutti_status check_same_tensor(const entry *a, const entry *b)
{
    char x[TT_CKPT_BOX_TEXT], y[TT_CKPT_BOX_TEXT];
    if (a->dtype == b->dtype && a->ndim == b->ndim && a->is_bytes == b->is_bytes &&
        memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) == 0)
        return TUTTI_OK;
    return tt_fail(TUTTI_ERR_ARG, "tensor %s is %s %s on rank %d and %s %s on rank %d", a->name,
                   a->is_bytes ? "a value of bytes" : tutti_dtype_name(a->dtype),
                   tt_shape_text(a->shape, a->ndim, x, sizeof x), a->rank,
                   b->is_bytes ? "a value of bytes" : tutti_dtype_name(b->dtype),
                   tt_shape_text(b->shape, b->ndim, y, sizeof y), b->rank);
}

static tutti_status check_twice(const entry *a, const entry *b)
{
    if (a->rank != b->rank)
        return TUTTI_OK;
    return tt_fail(TUTTI_ERR_ARG, "rank %d added %s twice", a->rank, a->name);
}

/* Counts tensors and boxes, and finds what cannot be one tensor. */
static tutti_status group_entries(planner *p, size_t *tensors_out)
{
    size_t tensors = 0, n = 0;
    TT_TRY(tt_grow(&p->uniq, &p->uniq_cap, p->nentry, sizeof *p->uniq));
    for (size_t i = 0; i < p->nentry; i++) {
        const entry *e = &p->entry[i], *before = i > 0 ? e - 1 : NULL;
        bool same_name = before != NULL && strcmp(before->name, e->name) == 0;
        if (same_name)
            TT_TRY(check_same_tensor(before, e));
        tensors += !same_name;
        if (same_name && tt_box_compare(before->dim, e->dim, e->ndim) == 0) {
            TT_TRY(check_twice(before, e));
            p->uniq[n - 1].holders++;
        } else {
            p->uniq[n++] = (unique){i, 1, e->dim, e->bytes, 0, -1};
        }
    }
    p->nuniq = n;
    *tensors_out = tensors;
    return TUTTI_OK;
}

/* How many slices a box is written in, and the axis: the first that has more than one element, so
 * that every slice is one run of bytes in its holders' memory. */
static int64_t slices_of(const planner *p, const unique *u, int *axis_out)
{
    const entry *e = &p->entry[u->first];
    const int64_t *extent = e->dim + e->ndim;
    int axis = 0;
    while (axis < e->ndim && extent[axis] == 1)
        axis++;
    if (u->holders == 1 || axis == e->ndim)
        return 1;
    uint64_t n = u->bytes / p->slice_bytes;
    n = n < u->holders ? n : u->holders;
    n = n < (uint64_t)extent[axis] ? n : (uint64_t)extent[axis];
    *axis_out = axis;
    return n < 1 ? 1 : (int64_t)n;
}

/* Puts the slices behind the others, the first one in the box's own place. */
static tutti_status slice(planner *p, size_t at, int64_t n, int axis)
{
    unique whole = p->uniq[at];
    int ndim = p->entry[whole.first].ndim;
    int64_t extent = whole.dim[ndim + axis];
    uint64_t row = whole.bytes / (uint64_t)extent;
    TT_TRY(tt_grow(&p->uniq, &p->uniq_cap, p->nuniq + (size_t)n - 1, sizeof *p->uniq));
    for (int64_t k = 0; k < n; k++) {
        int64_t low = extent / n * k + extent % n * k / n, *dim;
        int64_t high = extent / n * (k + 1) + extent % n * (k + 1) / n;
        TT_TRY(tt_arena_alloc(&p->plan->cat.arena, 2 * (size_t)ndim * sizeof *dim, &dim));
        memcpy(dim, whole.dim, 2 * (size_t)ndim * sizeof *dim);
        dim[axis] += low;
        dim[ndim + axis] = high - low;
        unique *u = &p->uniq[k == 0 ? at : p->nuniq++];
        *u = whole;
        u->dim = dim;
        u->from = (uint64_t)low * row;
        u->bytes = (uint64_t)(high - low) * row;
    }
    return TUTTI_OK;
}

static int compare_unique(const void *a, const void *b, void *arg)
{
    const unique *x = a, *y = b;
    const entry *all = arg, *e = &all[x->first], *f = &all[y->first];
    int order = strcmp(e->name, f->name);
    return order != 0 ? order : tt_box_compare(x->dim, y->dim, e->ndim);
}

static tutti_status slice_replicas(planner *p)
{
    size_t n = p->nuniq;
    for (size_t i = 0; i < n; i++) {
        int axis = 0;
        int64_t slices = slices_of(p, &p->uniq[i], &axis);
        if (slices > 1)
            TT_TRY(slice(p, i, slices, axis));
    }
    if (p->nuniq > n) /* two boxes side by side, sliced, take turns */
        qsort_r(p->uniq, p->nuniq, sizeof *p->uniq, compare_unique, p->entry);
    return TUTTI_OK;
}

static int largest_first(const void *a, const void *b)
{
    const unique *x = *(unique *const *)a, *y = *(unique *const *)b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    return (x->from > y->from) - (x->from < y->from);
}

static void own_replica(planner *p, unique *u)
{
    u->owner = p->entry[u->first].rank;
    for (size_t i = 1; i < u->holders; i++) {
        int rank = p->entry[u->first + i].rank;
        if (p->load[rank] < p->load[u->owner])
            u->owner = rank;
    }
    p->load[u->owner] += u->bytes;
}

static tutti_status choose_owners(planner *p)
{
    unique **shared;
    size_t n = 0;
    TT_TRY(tt_calloc((size_t)p->ranks, sizeof *p->load, &p->load));
    TT_TRY(tt_calloc(p->nuniq, sizeof *shared, &shared));
    for (size_t i = 0; i < p->nuniq; i++) {
        if (p->uniq[i].holders == 1)
            own_replica(p, &p->uniq[i]);
        else
            shared[n++] = &p->uniq[i];
    }
    if (n > 0)
        qsort(shared, n, sizeof *shared, largest_first);
    for (size_t i = 0; i < n; i++)
        own_replica(p, shared[i]);
    free(shared);
    return TUTTI_OK;
}

static tutti_status make_shards(planner *p)
{
    tt_plan *plan = p->plan;
    tt_catalog *cat = &plan->cat;
    TT_TRY(tt_calloc((size_t)p->ranks, sizeof *plan->shard, &plan->shard));
    TT_TRY(tt_calloc((size_t)p->ranks + 1, sizeof *cat->file, &cat->file));
    for (int r = 0; r < p->ranks; r++) {
        if (p->load[r] == 0)
            continue;
        tt_shard *shard = &plan->shard[plan->nshard];
        shard->rank = r;
        memset(shard->packed, -1, sizeof shard->packed);
        tt_shard_name(r, cat->file[plan->nshard].name, TT_CKPT_FILE_NAME_MAX);
        if (r == p->rank)
            plan->mine = (int)plan->nshard;
        plan->nshard++;
    }
    snprintf(cat->file[plan->nshard].name, TT_CKPT_FILE_NAME_MAX, TT_INDEX_NAME);
    cat->nfile = plan->nshard + 1;
    return TUTTI_OK;
}

static uint32_t shard_of(const tt_plan *plan, int rank)
{
    size_t low = 0, high = plan->nshard;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (plan->shard[middle].rank <= rank)
            low = middle;
        else
            high = middle;
    }
    return (uint32_t)low;
}

/* Gives the box its place in the shard. */
static tutti_status place_box(tt_shard *shard, const tt_ctensor *t, tt_cbox *box, uint64_t bytes)
{
    uint64_t elems = bytes / tutti_dtype_size(t->dtype);
    int64_t *packed = &shard->packed[t->dtype];
    bool small = bytes < TT_PACK_BYTES;
    if (!small || *packed < 0) {
        TT_TRY(tt_grow(&shard->dset, &shard->dset_cap, shard->ndset + 1, sizeof *shard->dset));
        shard->dset[shard->ndset] =
            (tt_dset){.tensor = small ? NULL : t, .box = small ? NULL : box, .dtype = t->dtype};
        if (small)
            *packed = (int64_t)shard->ndset;
        box->dset = (uint32_t)shard->ndset++;
    } else {
        box->dset = (uint32_t)*packed;
    }
    tt_dset *dset = &shard->dset[box->dset];
    box->within = dset->bytes;
    dset->elems += elems;
    dset->bytes += bytes;
    return TUTTI_OK;
}

static tutti_status add_box(planner *p, tt_ctensor *t, const unique *u)
{
    tt_plan *plan = p->plan;
    tt_cbox *box = &t->box[t->nbox++];
    box->dim = u->dim;
    box->file = shard_of(plan, u->owner);
    TT_TRY(place_box(&plan->shard[box->file], t, box, u->bytes));
    if (u->owner != p->rank)
        return TUTTI_OK;
    for (size_t i = 0; i < u->holders; i++) {
        const entry *e = &p->entry[u->first + i];
        if (e->rank != p->rank)
            continue;
        TT_TRY(tt_grow(&plan->copy, &plan->copy_cap, plan->ncopy + 1, sizeof *plan->copy));
        plan->copy[plan->ncopy++] =
            (tt_copy){.box = box, .bytes = u->bytes, .from = u->from, .item = e->item};
    }
    return TUTTI_OK;
}

static tutti_status check_cover(const planner *p, const tt_ctensor *t)
{
    tt_cover_fault fault;
    char a[TT_CKPT_BOX_TEXT], b[TT_CKPT_BOX_TEXT];
    switch (tt_boxes_cover(t, &fault)) {
    case TT_COVER_EXACT:
        return TUTTI_OK;
    case TT_COVER_OVERLAP:
        return tt_fail(TUTTI_ERR_ARG,
                       "tensor %s: the boxes %s of rank %d and %s of rank %d overlap", t->name,
                       tt_box_text(t->box[fault.a].dim, t->ndim, a, sizeof a),
                       p->plan->shard[t->box[fault.a].file].rank,
                       tt_box_text(t->box[fault.b].dim, t->ndim, b, sizeof b),
                       p->plan->shard[t->box[fault.b].file].rank);
    case TT_COVER_HOLE:
        break;
    }
    return tt_fail(TUTTI_ERR_ARG,
                   "tensor %s of shape %s has a hole: no rank added the element at %s", t->name,
                   tt_shape_text(t->shape, t->ndim, a, sizeof a),
                   tt_shape_text(fault.hole, t->ndim, b, sizeof b));
}

static tutti_status make_tensors(planner *p, size_t tensors)
{
    tt_catalog *cat = &p->plan->cat;
    tt_ctensor *t = NULL;
    TT_TRY(tt_calloc(tensors, sizeof *cat->tensor, &cat->tensor));
    TT_TRY(tt_calloc(p->nuniq, sizeof *cat->box, &cat->box));
    for (size_t i = 0; i < p->nuniq; i++) {
        const entry *e = &p->entry[p->uniq[i].first];
        if (t == NULL || strcmp(t->name, e->name) != 0) {
            t = &cat->tensor[cat->ntensor++];
            *t = (tt_ctensor){.name = e->name,
                              .shape = e->shape,
                              .box = cat->box + cat->nbox,
                              .dtype = e->dtype,
                              .ndim = e->ndim,
                              .bytes = e->is_bytes};
            tt_dims_elems(t->shape, t->ndim, &t->elems);
        }
        if (p->uniq[i].bytes == 0)
            continue; /* a rank without a part of the tensor */
        TT_TRY(add_box(p, t, &p->uniq[i]));
        cat->nbox++;
    }
    for (size_t i = 0; i < cat->ntensor; i++)
        TT_TRY(check_cover(p, &cat->tensor[i]));
    return TUTTI_OK;
}

static tutti_status check_names(const tt_catalog *cat)
{
    const char *longer, *shorter = tt_catalog_name_clash(cat, &longer);
    if (shorter == NULL)
        return TUTTI_OK;
    return tt_fail(TUTTI_ERR_ARG, "%s cannot be both a tensor and the group that holds %s", shorter,
                   longer);
}

static void place_stages(tt_plan *plan)
{
    for (size_t s = 0; s < plan->nshard; s++) {
        tt_shard *shard = &plan->shard[s];
        for (size_t d = 0; d < shard->ndset; d++) {
            shard->dset[d].stage = shard->stage_bytes;
            shard->stage_bytes += tt_round_up(shard->dset[d].bytes, TT_FILE_ALIGN);
        }
    }
}

static tutti_status plan_steps(planner *p, const tt_blobs *described)
{
    size_t tensors;
    TT_TRY(read_entries(p, described));
    if (p->nentry == 0)
        return tt_fail(TUTTI_ERR_ARG, "no rank added anything");
    qsort(p->entry, p->nentry, sizeof *p->entry, compare_entry);
    TT_TRY(group_entries(p, &tensors));
    TT_TRY(slice_replicas(p));
    TT_TRY(choose_owners(p));
    TT_TRY(make_shards(p));
    TT_TRY(make_tensors(p, tensors));
    TT_TRY(check_names(&p->plan->cat));
    place_stages(p->plan);
    return TUTTI_OK;
}

tutti_status tt_plan_make(const tt_blobs *described, int rank, uint64_t slice_bytes,
                          tt_plan *plan_out)
{
    tt_plan plan = {.mine = -1};
    planner p = {.plan = &plan, .ranks = described->n, .rank = rank, .slice_bytes = slice_bytes};
    tutti_status status = plan_steps(&p, described);
    free(p.entry);
    free(p.uniq);
    free(p.load);
    if (status != TUTTI_OK) {
        tt_plan_free(&plan);
        return status;
    }
    *plan_out = plan;
    return TUTTI_OK;
}

void tt_plan_free(tt_plan *plan)
{
    for (size_t i = 0; i < plan->nshard; i++)
        free(plan->shard[i].dset);
    free(plan->shard);
    free(plan->copy);
    tt_catalog_free(&plan->cat);
    memset(plan, 0, sizeof *plan);
    plan->mine = -1;
}

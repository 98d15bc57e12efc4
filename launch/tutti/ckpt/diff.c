/* SPDX-License-Identifier: Apache-2.0 */
/*
 * diff: which tensors of two checkpoints differ, and by how much. Tensors that are equal bit for
 * bit are equal, NaNs included; where they are not, values are compared. Of B a run of tensors of
 * 64 MiB is in memory at a time (or one that is larger), A comes past it in pieces.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/convert.h"

#include "ckpt.h"

typedef struct difference {
    const tt_ctensor *a, *b; /* one may be NULL */
    uint64_t elems; /* that differ */
    double greatest; /* absolute difference of two numbers */
    bool shape; /* not comparable */
    uint64_t at; /* of B's, in memory */
} difference;

typedef struct differ {
    const ckpt_file *b;
    difference *all;
    size_t n, at;
    char *data;
    uint64_t cap;
    ckpt_progress progress;
} differ;

static void compare_values(difference *d, const char *x, const char *y, uint64_t bytes)
{
    size_t size = tutti_dtype_size(d->a->dtype);
    if (memcmp(x, y, bytes) == 0)
        return;
    for (uint64_t i = 0; i < bytes; i += size) {
        if (memcmp(x + i, y + i, size) == 0)
            continue;
        double delta = fabs(tt_value(d->a->dtype, x + i) - tt_value(d->a->dtype, y + i));
        d->elems++;
        if (delta > d->greatest)
            d->greatest = delta;
    }
}

static tutti_status compare_piece(void *arg, const tt_piece *piece)
{
    differ *w = arg;
    while (w->all[w->at].a != piece->tensor)
        w->at++;
    difference *d = &w->all[w->at];
    if (piece->bytes > 0)
        compare_values(d, piece->data, w->data + d->at + piece->at, piece->bytes);
    ckpt_progress_add(&w->progress, piece->bytes);
    return TUTTI_OK;
}

static bool comparable(const tt_ctensor *a, const tt_ctensor *b)
{
    return a->dtype == b->dtype && a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) == 0;
}

/* The tensors of B that belong to all[from ... to-1], behind one another in memory. */
static tutti_status load_b(differ *w, size_t from, size_t to)
{
    size_t n = to - from;
    tt_want *want;
    int64_t(*dims)[2 * TUTTI_CKPT_MAX_DIMS] = NULL;
    TT_TRY(tt_calloc(n, sizeof *want, &want));
    tutti_status status = tt_calloc(n, sizeof *dims, &dims);
    for (size_t i = 0; i < n && status == TUTTI_OK; i++) {
        const difference *d = &w->all[from + i];
        memcpy(dims[i] + d->b->ndim, d->b->shape, (size_t)d->b->ndim * sizeof **dims);
        want[i] = (tt_want){d->b, dims[i], w->data + d->at};
    }
    if (status == TUTTI_OK)
        status = tt_source_read(&w->b->src, want, n);
    free(dims);
    free(want);
    return status;
}

/* The end of the run that begins at `from`: pairs to compare that fit into memory together, at
 * least one. */
static size_t next_run(differ *w, size_t from, uint64_t *bytes_out)
{
    uint64_t bytes = 0;
    size_t to = from;
    for (; to < w->n; to++) {
        difference *d = &w->all[to];
        if (d->a == NULL || d->b == NULL || d->shape)
            break;
        uint64_t more = tt_round_up(tt_tensor_bytes(d->b), sizeof(double));
        if (to > from && bytes + more > CKPT_SCAN_BYTES)
            break;
        d->at = bytes;
        bytes += more;
    }
    *bytes_out = bytes;
    return to;
}

static tutti_status compare_run(differ *w, const ckpt_file *a, size_t from, size_t to,
                                uint64_t bytes)
{
    const tt_ctensor **list;
    TT_TRY(tt_grow(&w->data, &w->cap, bytes + 1, 1));
    TT_TRY(load_b(w, from, to));
    TT_TRY(tt_calloc(to - from, sizeof *list, &list));
    for (size_t i = from; i < to; i++)
        list[i - from] = w->all[i].a;
    w->at = from;
    tutti_status status =
        tt_source_scan(&a->src, list, to - from, CKPT_SCAN_BYTES, compare_piece, w);
    free(list);
    return status;
}

static tutti_status compare_all(differ *w, const ckpt_file *a)
{
    for (size_t i = 0; i < w->n;) {
        uint64_t bytes;
        size_t to = next_run(w, i, &bytes);
        if (to > i)
            TT_TRY(compare_run(w, a, i, to, bytes));
        i = to > i ? to : i + 1;
    }
    return TUTTI_OK;
}

/* Pairs by name, from two lists in order of name. */
static tutti_status pair(differ *w, const tt_ctensor *const *a, size_t na,
                         const tt_ctensor *const *b, size_t nb)
{
    size_t i = 0, k = 0;
    TT_TRY(tt_calloc(na + nb, sizeof *w->all, &w->all));
    while (i < na || k < nb) {
        int order = i == na ? 1 : k == nb ? -1 : strcmp(a[i]->name, b[k]->name);
        difference *d = &w->all[w->n++];
        if (order <= 0)
            d->a = a[i++];
        if (order >= 0)
            d->b = b[k++];
        d->shape = order == 0 && !comparable(d->a, d->b);
    }
    return TUTTI_OK;
}

static const char *what(const difference *d)
{
    return d->a == NULL   ? "only in the second"
           : d->b == NULL ? "only in the first"
           : d->shape     ? "of another type or shape"
           : d->elems > 0 ? "differs"
                          : NULL;
}

static json_t *difference_json(const difference *d)
{
    json_t *object = json_object();
    json_object_set_new(object, "name", json_string((d->a != NULL ? d->a : d->b)->name));
    json_object_set_new(object, "what", json_string(what(d)));
    if (d->elems > 0) {
        json_object_set_new(object, "elements", json_integer((json_int_t)d->elems));
        json_object_set_new(object, "of", json_integer((json_int_t)d->a->elems));
        json_object_set_new(object, "max_abs",
                            isfinite(d->greatest) ? json_real(d->greatest) : json_null());
    }
    return object;
}

static int print_differences(const ckpt_args *args, const differ *w)
{
    json_t *array = args->json ? json_array() : NULL;
    size_t count = 0;
    for (size_t i = 0; i < w->n; i++) {
        const difference *d = &w->all[i];
        if (what(d) == NULL)
            continue;
        count++;
        if (array != NULL)
            json_array_append_new(array, difference_json(d));
        else if (d->elems > 0)
            printf("%s: %llu of %llu elements differ, by at most %g\n", d->a->name,
                   (unsigned long long)d->elems, (unsigned long long)d->a->elems, d->greatest);
        else
            printf("%s: %s\n", (d->a != NULL ? d->a : d->b)->name, what(d));
    }
    int printed = array != NULL ? ckpt_print_json(array) : 0;
    if (array == NULL && count == 0)
        printf("%zu tensors, all equal\n", w->n);
    return count > 0 ? EXIT_DAMAGED : printed;
}

static tutti_status compare(const ckpt_args *args, const ckpt_file *a, differ *w)
{
    const tt_ctensor **in_a = NULL, **in_b = NULL;
    size_t na = 0, nb = 0;
    tutti_status status = ckpt_select(args, a, 2, &in_a, &na);
    if (status == TUTTI_OK || status == TUTTI_ERR_NOT_FOUND)
        status = ckpt_select(args, w->b, 2, &in_b, &nb);
    if (status == TUTTI_ERR_NOT_FOUND && na > 0)
        status = TUTTI_OK;
    if (status == TUTTI_OK)
        status = pair(w, in_a, na, in_b, nb);
    w->progress = (ckpt_progress){.what = "comparing", .total = ckpt_bytes(in_a, na)};
    if (status == TUTTI_OK)
        status = compare_all(w, a);
    ckpt_progress_end(&w->progress);
    free(in_a);
    free(in_b);
    return status;
}

int ckpt_diff(const ckpt_args *args)
{
    ckpt_file a, b;
    tutti_status status = ckpt_open(args, args->word[0], &a);
    if (status != TUTTI_OK)
        return ckpt_fail(args, status);
    status = ckpt_open(args, args->word[1], &b);
    if (status != TUTTI_OK) {
        ckpt_close(&a);
        return ckpt_fail(args, status);
    }
    differ w = {.b = &b};
    status = compare(args, &a, &w);
    int result = status == TUTTI_OK ? print_differences(args, &w) : ckpt_fail(args, status);
    free(w.data);
    free(w.all);
    ckpt_close(&b);
    ckpt_close(&a);
    return result;
}

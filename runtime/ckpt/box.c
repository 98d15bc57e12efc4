/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arithmetic on boxes, and the proof that a tensor's boxes hold every element exactly once.
 *
 * The proof takes one look at each box, however many there are (comparing them in pairs is
 * quadratic, and a manifest may be hostile). Give each coordinate x of each axis d a random weight
 * f_d(x), and each element the product of its coordinates' weights, in a field. A box's weight is
 * the product of F_d(end) - F_d(begin), F_d being the sums of f_d from 0. Boxes that hold each
 * element once weigh as much as the whole. Others do so with a chance of ndim / 2^61 (Schwartz and
 * Zippel: the difference is a polynomial in the weights, of that degree, and not zero). The F_d are
 * a hash with a key that is drawn anew in each process.
 *
 * What is wrong is searched only for a message: an overlap by a sweep along the first axis in which
 * the boxes differ, the first hole by cutting one axis after the other at the boxes' edges.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "ckpt/catalog.h"

bool tt_dims_elems(const int64_t *dim, int ndim, uint64_t *elems_out)
{
    uint64_t elems = 1;
    bool zero = false;
    for (int d = 0; d < ndim; d++) {
        if (dim[d] < 0)
            return false;
        if (dim[d] == 0)
            zero = true;
        else if (__builtin_mul_overflow(elems, (uint64_t)dim[d], &elems) || elems > INT64_MAX / 8)
            return false; /* even where a zero follows: no shape that large is meant */
    }
    *elems_out = zero ? 0 : elems;
    return true;
}

bool tt_box_inside(const int64_t *dim, const int64_t *shape, int ndim)
{
    for (int d = 0; d < ndim; d++)
        if (dim[d] < 0 || dim[ndim + d] < 0 || dim[d] > shape[d] ||
            dim[ndim + d] > shape[d] - dim[d])
            return false;
    return true;
}

bool tt_box_intersect(const int64_t *a, const int64_t *b, int ndim, int64_t *dim_out)
{
    for (int d = 0; d < ndim; d++) {
        int64_t low = a[d] > b[d] ? a[d] : b[d];
        int64_t a_end = a[d] + a[ndim + d], b_end = b[d] + b[ndim + d];
        int64_t high = a_end < b_end ? a_end : b_end;
        if (low >= high)
            return false;
        if (dim_out != NULL) {
            dim_out[d] = low;
            dim_out[ndim + d] = high - low;
        }
    }
    return true;
}

int tt_box_compare(const int64_t *a, const int64_t *b, int ndim)
{
    for (int i = 0; i < 2 * ndim; i++)
        if (a[i] != b[i])
            return a[i] < b[i] ? -1 : 1;
    return 0;
}

const char *tt_box_text(const int64_t *dim, int ndim, char *buf, size_t cap)
{
    size_t at = 0;
    buf[0] = '\0';
    for (int d = 0; d < ndim && at < cap; d++)
        at += (size_t)snprintf(buf + at, cap - at, "%s%lld:%lld", d == 0 ? "[" : ", ",
                               (long long)dim[d], (long long)(dim[d] + dim[ndim + d]));
    if (at < cap)
        snprintf(buf + at, cap - at, ndim == 0 ? "[]" : "]");
    return buf;
}

const char *tt_shape_text(const int64_t *shape, int ndim, char *buf, size_t cap)
{
    size_t at = 0;
    buf[0] = '\0';
    for (int d = 0; d < ndim && at < cap; d++)
        at += (size_t)snprintf(buf + at, cap - at, "%s%lld", d == 0 ? "[" : ", ",
                               (long long)shape[d]);
    if (at < cap)
        snprintf(buf + at, cap - at, ndim == 0 ? "[]" : "]");
    return buf;
}

static int sweep_axis(const tt_ctensor *t)
{
    for (int d = 0; d < t->ndim; d++)
        for (size_t i = 1; i < t->nbox; i++)
            if (t->box[i].dim[d] != t->box[0].dim[d] ||
                t->box[i].dim[t->ndim + d] != t->box[0].dim[t->ndim + d])
                return d;
    return 0;
}

static bool find_overlap(const tt_ctensor *t, tt_cover_fault *fault)
{
    int axis = sweep_axis(t), n = t->ndim;
    for (size_t i = 0; i < t->nbox; i++) {
        const int64_t *a = t->box[i].dim;
        for (size_t j = i + 1; j < t->nbox; j++) {
            const int64_t *b = t->box[j].dim;
            if (n > 0 && b[axis] >= a[axis] + a[n + axis])
                break;
            if (tt_box_intersect(a, b, n, NULL)) {
                if (fault != NULL) {
                    fault->a = i;
                    fault->b = j;
                }
                return true;
            }
        }
    }
    return false;
}

static bool holds_prefix(const tt_cbox *box, int ndim, const int64_t *point, int upto)
{
    for (int d = 0; d < upto; d++)
        if (point[d] < box->dim[d] || point[d] >= box->dim[d] + box->dim[ndim + d])
            return false;
    return true;
}

/* The first point with the given first `axis` coordinates that is in no box. */
static bool find_hole(const tt_ctensor *t, int axis, int64_t *point)
{
    if (axis == t->ndim) {
        for (size_t i = 0; i < t->nbox; i++)
            if (holds_prefix(&t->box[i], t->ndim, point, axis))
                return false;
        return true;
    }
    for (int64_t x = 0; x < t->shape[axis];) {
        int64_t next = t->shape[axis];
        point[axis] = x;
        if (find_hole(t, axis + 1, point))
            return true;
        for (size_t i = 0; i < t->nbox; i++) {
            const int64_t *dim = t->box[i].dim;
            int64_t end = dim[axis] + dim[t->ndim + axis];
            if (!holds_prefix(&t->box[i], t->ndim, point, axis))
                continue;
            if (dim[axis] > x && dim[axis] < next)
                next = dim[axis];
            if (end > x && end < next)
                next = end;
        }
        x = next;
    }
    return false;
}

#define PRIME ((UINT64_C(1) << 61) - 1)

static uint64_t times(uint64_t a, uint64_t b)
{
    __uint128_t product = (__uint128_t)a * b;
    uint64_t sum = (uint64_t)(product & PRIME) + (uint64_t)(product >> 61);
    return sum >= PRIME ? sum - PRIME : sum;
}

/* F_d(x): a random number, but 0 for 0. */
static uint64_t prefix(int64_t axis, int64_t x)
{
    static _Atomic uint64_t shared;
    int64_t where[2] = {axis, x};
    uint64_t key = atomic_load_explicit(&shared, memory_order_relaxed);
    if (x == 0)
        return 0;
    if (key == 0) {
        uint64_t none = 0;
        if (getrandom(&key, sizeof key, 0) != (ssize_t)sizeof key)
            key = (uint64_t)(uintptr_t)&where;
        key |= 1;
        if (!atomic_compare_exchange_strong(&shared, &none, key))
            key = none;
    }
    return tt_hash64(where, sizeof where, key) % PRIME;
}

static uint64_t weight(const int64_t *dim, int ndim)
{
    uint64_t product = 1;
    for (int d = 0; d < ndim; d++) {
        uint64_t low = prefix(d, dim[d]), high = prefix(d, dim[d] + dim[ndim + d]);
        product = times(product, high >= low ? high - low : high + PRIME - low);
    }
    return product;
}

static bool covered(const tt_ctensor *t)
{
    int64_t whole[2 * TUTTI_CKPT_MAX_DIMS] = {0};
    uint64_t sum = 0;
    if (t->elems == 0)
        return t->nbox == 0;
    memcpy(whole + t->ndim, t->shape, (size_t)t->ndim * sizeof *whole);
    for (size_t i = 0; i < t->nbox; i++) {
        sum += weight(t->box[i].dim, t->ndim);
        sum = sum >= PRIME ? sum - PRIME : sum;
    }
    return sum == weight(whole, t->ndim);
}

tt_cover tt_boxes_cover(const tt_ctensor *t, tt_cover_fault *fault_out)
{
    if (covered(t))
        return TT_COVER_EXACT;
    if (fault_out == NULL)
        return TT_COVER_HOLE;
    if (find_overlap(t, fault_out))
        return TT_COVER_OVERLAP;
    memset(fault_out->hole, 0, sizeof fault_out->hole);
    find_hole(t, 0, fault_out->hole);
    return TT_COVER_HOLE;
}

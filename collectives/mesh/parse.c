/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Texts of a mesh: "pp=2,dp,tp=4" for its axes, "dp+pp" for a set of them; and the arithmetic that
 * follows from the axes alone.
 *
 * Sizes are inferred and multiplied here, so that every mesh has as many positions as there are
 * ranks. A set's bits leave out axes of size 1: two sets with the same members are the same number.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mesh/mesh.h"

static bool is_name(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        bool letter = (text[i] >= 'a' && text[i] <= 'z') || (text[i] >= 'A' && text[i] <= 'Z') ||
                      text[i] == '_';
        if (!letter && (i == 0 || text[i] < '0' || text[i] > '9'))
            return false;
    }
    return length > 0 && length < TT_MESH_NAME;
}

static int find_axis(const tt_axes *axes, const char *name, size_t length)
{
    for (int i = 0; i < axes->n; i++)
        if (strlen(axes->axis[i].name) == length && memcmp(axes->axis[i].name, name, length) == 0)
            return i;
    return -1;
}

static tutti_status parse_size(const char *text, size_t length, const char *all, int *size_out)
{
    long size = 0;

    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9' || size > INT_MAX / 10 - 1)
            size = -1;
        if (size < 0)
            break;
        size = 10 * size + (text[i] - '0');
    }
    if (size <= 0)
        return tt_fail(TUTTI_ERR_ARG, "mesh \"%s\": \"%.*s\" is no size of an axis", all,
                       (int)tt_min_size(length, TT_MESH_NAME), text);
    *size_out = (int)size;
    return TUTTI_OK;
}

static tutti_status parse_axis(tt_axes *axes, const char *at, size_t length, const char *all)
{
    const char *equals = memchr(at, '=', length);
    size_t name = equals == NULL ? length : (size_t)(equals - at);
    tt_axis *axis = &axes->axis[axes->n];

    if (!is_name(at, name))
        return tt_fail(TUTTI_ERR_ARG,
                       "mesh \"%s\": \"%.*s\" is no name of an axis (letters, digits and "
                       "underscores, at most %d)",
                       all, (int)tt_min_size(name, 2 * TT_MESH_NAME), at, TT_MESH_NAME - 1);
    if (find_axis(axes, at, name) >= 0)
        return tt_fail(TUTTI_ERR_ARG, "mesh \"%s\" has two axes \"%.*s\"", all, (int)name, at);
    if (axes->n == TT_MESH_AXES)
        return tt_fail(TUTTI_ERR_ARG, "mesh \"%s\" has more than %d axes", all, TT_MESH_AXES);
    *axis = (tt_axis){.size = 0};
    memcpy(axis->name, at, name);
    if (equals != NULL)
        TT_TRY(parse_size(equals + 1, length - name - 1, all, &axis->size));
    axes->n++;
    return TUTTI_OK;
}

/* Infers the size left out and checks the product. */
static tutti_status fit(tt_axes *axes, int ranks, const char *all)
{
    tt_axis *open = NULL;
    long product = 1;

    for (int i = 0; i < axes->n; i++) {
        tt_axis *axis = &axes->axis[i];
        if (axis->size == 0 && open != NULL)
            return tt_fail(TUTTI_ERR_ARG, "mesh \"%s\" leaves out the sizes of \"%s\" and \"%s\"",
                           all, open->name, axis->name);
        if (axis->size == 0)
            open = axis;
        else if (product <= ranks)
            product *= axis->size;
    }
    if (open != NULL && product <= ranks && ranks % product == 0)
        open->size = (int)(ranks / product);
    else if (open != NULL)
        return tt_fail(TUTTI_ERR_ARG,
                       "mesh \"%s\": the sizes given make %ld%s, which does not divide the %d "
                       "ranks",
                       all, product, product > ranks ? " or more" : "", ranks);
    else if (product != ranks)
        return tt_fail(TUTTI_ERR_ARG, "mesh \"%s\" makes %ld ranks%s; there are %d", all, product,
                       product > ranks ? " or more" : "", ranks);
    return TUTTI_OK;
}

tutti_status tt_mesh_parse(const char *text, int ranks, tt_axes *axes_out)
{
    tt_axes axes = {0};
    int stride = 1;

    for (const char *at = text;; at++) {
        size_t length = strcspn(at, ",");
        TT_TRY(parse_axis(&axes, at, length, text));
        at += length;
        if (*at == '\0')
            break;
    }
    TT_TRY(fit(&axes, ranks, text));
    for (int i = axes.n - 1; i >= 0; i--) {
        axes.axis[i].stride = stride;
        stride *= axes.axis[i].size;
    }
    *axes_out = axes;
    return TUTTI_OK;
}

tutti_status tt_mesh_set(const tt_axes *axes, const char *text, uint32_t *set_out)
{
    uint32_t set = 0;

    for (const char *at = text; *at != '\0';) {
        size_t length = strcspn(at, "+");
        int i = find_axis(axes, at, length);
        if (i < 0 || (at[length] == '+' && at[length + 1] == '\0'))
            return tt_fail(TUTTI_ERR_ARG, "the mesh has no axis \"%.*s\" (in \"%s\")",
                           i < 0 ? (int)tt_min_size(length, TT_MESH_NAME) : 0, at, text);
        if (axes->axis[i].size > 1)
            set |= 1u << i;
        at += length + (at[length] == '+');
    }
    *set_out = set;
    return TUTTI_OK;
}

int tt_mesh_index(const tt_axes *axes, uint32_t set, int position)
{
    int index = 0;

    for (int i = 0; i < axes->n; i++) {
        const tt_axis *axis = &axes->axis[i];
        if ((set >> i & 1) != 0)
            index = index * axis->size + position / axis->stride % axis->size;
    }
    return index;
}

int tt_mesh_set_size(const tt_axes *axes, uint32_t set)
{
    int size = 1;

    for (int i = 0; i < axes->n; i++)
        if ((set >> i & 1) != 0)
            size *= axes->axis[i].size;
    return size;
}

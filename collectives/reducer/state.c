/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer state in checkpoints: pieces become boxes of the tensors that they are parts of.
 *
 * A piece is a range of a tensor's elements, and a box has an extent in each dimension. A range is
 * cut greedily into boxes that are dense in memory: rows of the outermost dimension that fit, else
 * of the next. For k dimensions that makes at most 2k - 1 boxes. A saved tensor has the parameter's
 * shape whatever the sharing was, and the index within `whole` where the program gave one.
 */
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "reducer/reducer.h"

enum { NAME_MAX_BYTES = 256 };

/* A list of boxes; names are kept apart, one per piece. */
typedef struct boxes {
    tutti_tensor *tensor;
    size_t n, cap;
    char **name;
    size_t names;
} boxes;

static void boxes_free(boxes *list)
{
    for (size_t i = 0; i < list->names; i++)
        free(list->name[i]);
    free(list->name);
    free(list->tensor);
}

static tutti_status name_of(const tutti_reducer *red, const tt_red_param *param,
                            const char *pattern, char **name_out)
{
    const char *percent = strchr(pattern, '%');
    char name[NAME_MAX_BYTES];
    size_t before = percent == NULL ? 0 : (size_t)(percent - pattern);
    size_t length = strlen(param->name), after = percent == NULL ? 0 : strlen(percent + 1);

    if (percent == NULL || strchr(percent + 1, '%') != NULL)
        return tt_fail(TUTTI_ERR_ARG,
                       "reducer \"%s\": the name \"%s\" of a state has not one '%%' for the "
                       "parameter's name",
                       red->name, pattern);
    if (before + length + after >= sizeof name)
        return tt_fail(TUTTI_ERR_ARG, "reducer \"%s\": \"%s\" makes too long a name of \"%s\"",
                       red->name, pattern, param->name);
    memcpy(name, pattern, before);
    memcpy(name + before, param->name, length);
    memcpy(name + before + length, percent + 1, after + 1);
    return tt_strdup(name, name_out);
}

static int64_t volume(const tt_red_param *param, int from)
{
    int64_t n = 1;

    for (int d = from; d < param->ndim; d++)
        n *= param->shape[d];
    return n;
}

/* The largest box that begins at element `at` and holds at most `left`; returns its size. */
static int64_t next_box(const tt_red_param *param, int64_t at, int64_t left, tutti_tensor *t)
{
    int64_t size = 1, inner = 1;
    int axis = 0;

    while (axis < param->ndim) {
        inner = volume(param, axis + 1);
        if (at % inner == 0 && left >= inner)
            break;
        axis++;
    }
    for (int d = 0; d < param->ndim; d++) {
        int64_t stride = volume(param, d + 1), i = at / stride % param->shape[d];
        int64_t extent = 1;
        if (d == axis)
            extent = left / inner < param->shape[d] - i ? left / inner : param->shape[d] - i;
        else if (d > axis)
            extent = param->shape[d];
        t->offset[d] = param->box_offset[d] + i;
        t->extent[d] = extent;
        size *= extent;
    }
    return size;
}

static tutti_status add_boxes(boxes *list, const tt_red_param *param, const tutti_piece *piece,
                              char *data, tutti_dtype dtype)
{
    size_t size = tutti_dtype_size(dtype);

    for (int64_t at = 0; at < piece->count;) {
        tutti_tensor *t;
        int64_t count;
        TT_TRY(tt_grow(&list->tensor, &list->cap, list->n + 1, sizeof *list->tensor));
        t = &list->tensor[list->n];
        *t = (tutti_tensor)TUTTI_TENSOR_INIT;
        t->name = list->name[list->names - 1];
        t->dtype = dtype;
        t->ndim = param->ndim;
        memcpy(t->shape, param->whole, sizeof t->shape);
        count = next_box(param, piece->tensor_offset + at, piece->count - at, t);
        t->data = data + (size_t)(piece->state_offset + at) * size;
        list->n++;
        at += count;
    }
    return TUTTI_OK;
}

static tutti_status make_boxes(const tutti_reducer *red, const char *pattern, const void *state,
                               tutti_dtype dtype, boxes *list)
{
    if (red == NULL || pattern == NULL || state == NULL)
        return tt_fail(TUTTI_ERR_ARG, "a reducer's state: %s is NULL",
                       red == NULL       ? "the reducer"
                       : pattern == NULL ? "the name"
                                         : "the state");
    if (!red->committed)
        return tt_fail(TUTTI_ERR_STATE, "reducer \"%s\": its state before commit", red->name);
    if (tutti_dtype_size(dtype) == 0)
        return tt_fail(TUTTI_ERR_ARG, "reducer \"%s\": state of no type (%d)", red->name,
                       (int)dtype);
    TT_TRY(tt_calloc(red->npieces, sizeof(char *), &list->name));
    for (size_t i = 0; i < red->npieces; i++) {
        const tutti_piece *piece = &red->pieces[i];
        const tt_red_param *param = &red->params[piece->id];
        TT_TRY(name_of(red, param, pattern, &list->name[i]));
        list->names++;
        TT_TRY(add_boxes(list, param, piece, (char *)(size_t)state, dtype));
    }
    return TUTTI_OK;
}

tutti_status tutti_ckpt_add_state(tutti_ckpt *ck, const tutti_reducer *red, const char *name,
                                  const void *state, tutti_dtype dtype)
{
    boxes list = {0};
    tutti_status status = make_boxes(red, name, state, dtype, &list);

    for (size_t i = 0; status == TUTTI_OK && i < list.n; i++)
        status = tutti_ckpt_add(ck, &list.tensor[i]);
    boxes_free(&list);
    return status;
}

tutti_status tutti_ckpt_read_state(tutti_ckpt_reader *rd, const tutti_reducer *red,
                                   const char *name, void *state, tutti_dtype dtype,
                                   tutti_stream stream)
{
    boxes list = {0};
    tutti_status status;

    if (red == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_ckpt_read_state: the reducer is NULL");
    status = tt_agree(&tutti_world(red->ctx)->group, "tutti_ckpt_read_state",
                      make_boxes(red, name, state, dtype, &list));
    if (status == TUTTI_OK)
        status = tutti_ckpt_read(rd, list.tensor, list.n, stream);
    boxes_free(&list);
    return status;
}

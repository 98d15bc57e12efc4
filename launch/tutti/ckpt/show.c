/* SPDX-License-Identifier: Apache-2.0 */
/* show: what a checkpoint holds, and whether its numbers look sane. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/convert.h"

#include "ckpt.h"

typedef struct stats {
    double least, greatest;
    uint64_t nan, infinite, seen;
} stats;

typedef struct shower {
    const tt_ctensor **list;
    stats *of; /* of each in list */
    size_t at;
    ckpt_progress progress;
} shower;

static void take_value(stats *s, double value)
{
    s->seen++;
    if (isnan(value)) {
        s->nan++;
        return;
    }
    if (isinf(value))
        s->infinite++;
    if (s->seen - s->nan == 1 || value < s->least)
        s->least = value;
    if (s->seen - s->nan == 1 || value > s->greatest)
        s->greatest = value;
}

static tutti_status take_piece(void *arg, const tt_piece *piece)
{
    shower *w = arg;
    size_t size = tutti_dtype_size(piece->tensor->dtype);
    while (w->list[w->at] != piece->tensor)
        w->at++;
    for (uint64_t i = 0; i < piece->bytes; i += size)
        take_value(&w->of[w->at], tt_value(piece->tensor->dtype, (const char *)piece->data + i));
    ckpt_progress_add(&w->progress, piece->bytes);
    return TUTTI_OK;
}

static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_string(value > 0 ? "inf" : "-inf");
}

static json_t *tensor_json(const tt_ctensor *t, const stats *s)
{
    json_t *object = json_object();
    json_object_set_new(object, "name", json_string(t->name));
    json_object_set_new(object, "kind", json_string(t->bytes ? "bytes" : "tensor"));
    json_object_set_new(object, "dtype", json_string(tutti_dtype_name(t->dtype)));
    json_object_set_new(object, "shape", ckpt_shape_json(t));
    json_object_set_new(object, "bytes", json_integer((json_int_t)tt_tensor_bytes(t)));
    json_object_set_new(object, "boxes", json_integer((json_int_t)t->nbox));
    if (s == NULL)
        return object;
    if (s->seen > s->nan) {
        json_object_set_new(object, "min", number(s->least));
        json_object_set_new(object, "max", number(s->greatest));
    }
    json_object_set_new(object, "nan", json_integer((json_int_t)s->nan));
    json_object_set_new(object, "inf", json_integer((json_int_t)s->infinite));
    return object;
}

static void print_tensor(const tt_ctensor *t, const stats *s)
{
    char shape[TT_CKPT_BOX_TEXT], size[32];
    printf("%-40s %-5s %-20s %10s", t->name, tutti_dtype_name(t->dtype),
           tt_shape_text(t->shape, t->ndim, shape, sizeof shape),
           ckpt_size_text(tt_tensor_bytes(t), size));
    if (s != NULL && s->seen > s->nan)
        printf("  %g ... %g", s->least, s->greatest);
    if (s != NULL && s->nan > 0)
        printf("  %llu NaN", (unsigned long long)s->nan);
    if (s != NULL && s->infinite > 0)
        printf("  %llu inf", (unsigned long long)s->infinite);
    putchar('\n');
}

static int print_all(const ckpt_args *a, const ckpt_file *file, const shower *w, size_t n)
{
    const tt_manifest *m = &file->src.m;
    char size[32];
    if (!a->json) {
        printf("step %lld, written by %d rank%s, %zu tensors, %s\n", (long long)m->step, m->world,
               m->world == 1 ? "" : "s", n, ckpt_size_text(ckpt_bytes(w->list, n), size));
        for (size_t i = 0; i < n; i++)
            print_tensor(w->list[i], w->of == NULL ? NULL : &w->of[i]);
        return 0;
    }
    json_t *root = json_object(), *tensors = json_array();
    json_object_set_new(root, "step", json_integer(m->step));
    json_object_set_new(root, "mesh", json_string(m->mesh));
    json_object_set_new(root, "world", json_integer(m->world));
    json_object_set_new(root, "time", json_integer(m->time));
    json_object_set_new(root, "tensors", tensors);
    for (size_t i = 0; i < n; i++)
        json_array_append_new(tensors, tensor_json(w->list[i], w->of == NULL ? NULL : &w->of[i]));
    return ckpt_print_json(root);
}

static tutti_status collect(const ckpt_args *a, const ckpt_file *file, shower *w, size_t *n_out)
{
    TT_TRY(ckpt_select(a, file, 1, &w->list, n_out));
    if (a->brief || *n_out == 0)
        return TUTTI_OK;
    TT_TRY(tt_calloc(*n_out, sizeof *w->of, &w->of));
    w->progress = (ckpt_progress){.what = "reading", .total = ckpt_bytes(w->list, *n_out)};
    tutti_status status =
        tt_source_scan(&file->src, w->list, *n_out, CKPT_SCAN_BYTES, take_piece, w);
    ckpt_progress_end(&w->progress);
    return status;
}

int ckpt_show(const ckpt_args *a)
{
    ckpt_file file;
    shower w = {0};
    size_t n = 0;
    tutti_status status = ckpt_open(a, a->word[0], &file);
    if (status != TUTTI_OK)
        return ckpt_fail(a, status);
    status = collect(a, &file, &w, &n);
    int result = status == TUTTI_OK ? print_all(a, &file, &w, n) : ckpt_fail(a, status);
    free(w.of);
    free(w.list);
    ckpt_close(&file);
    return result;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors: 8 bytes of length, that much JSON {name: {dtype, shape, data_offsets}}, the data.
 * Little-endian, row major, without holes. Import trusts nothing: sizes, overlaps and names are
 * checked; tensors are saved straight from the mapped file. Names of other programs may hold
 * characters that a checkpoint's cannot: they are refused by name, not changed.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/output.h"

#include "ckpt.h"

enum { HEADER_MAX = 100 << 20 };

static const struct {
    const char *name;
    tutti_dtype dtype;
} dtypes[] = {{"F32", TUTTI_FLOAT32},
              {"BF16", TUTTI_BFLOAT16},
              {"U8", TUTTI_UINT8},
              {"I64", TUTTI_INT64},
              {"F64", TUTTI_FLOAT64},
              {"F16", TUTTI_FLOAT16},
              {"I8", TUTTI_INT8},
              {"I32", TUTTI_INT32},
              {"U32", TUTTI_UINT32},
              {"U64", TUTTI_UINT64},
              {"BOOL", TUTTI_UINT8},
              {"F8_E4M3", TUTTI_FLOAT8_E4M3},
              {"F8_E5M2", TUTTI_FLOAT8_E5M2}};
enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };

static const char *dtype_text(tutti_dtype dtype)
{
    for (int i = 0; i < DTYPES; i++)
        if (dtypes[i].dtype == dtype)
            return dtypes[i].name;
    return "?";
}

typedef struct exporter {
    tt_output out;
    uint64_t at; /* of the next byte of data */
    ckpt_progress progress;
} exporter;

static tutti_status write_piece(void *arg, const tt_piece *piece)
{
    exporter *x = arg;
    TT_TRY(tt_file_write(x->out.fd, x->out.path, piece->data, piece->bytes, x->at));
    x->at += piece->bytes;
    ckpt_progress_add(&x->progress, piece->bytes);
    return TUTTI_OK;
}

static json_t *header_json(const tt_ctensor *const *list, size_t n, int64_t step)
{
    json_t *root = json_object();
    uint64_t at = 0;
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, step);
    json_object_set_new(root, "__metadata__",
                        json_pack("{s:s, s:s}", "format", "pt", "step", text));
    for (size_t i = 0; i < n; i++) {
        uint64_t end = at + tt_tensor_bytes(list[i]);
        json_object_set_new(root, list[i]->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype_text(list[i]->dtype),
                                      "shape", ckpt_shape_json(list[i]), "data_offsets",
                                      (json_int_t)at, (json_int_t)end));
        at = end;
    }
    return root;
}

/* Padded with blanks, so that the data is aligned. */
static tutti_status write_header(exporter *x, const tt_ctensor *const *list, size_t n, int64_t step)
{
    json_t *root = header_json(list, n, step);
    char *text = json_dumps(root, JSON_COMPACT);
    bool complete = json_object_size(root) == n + 1;
    json_decref(root);
    if (text == NULL || !complete) {
        free(text);
        return tt_fail(TUTTI_ERR_NO_MEMORY, "no memory for the header of %s", x->out.path);
    }
    uint64_t bytes = strlen(text), padded = tt_round_up(bytes, 8);
    tutti_status status = tt_file_write(x->out.fd, x->out.path, &padded, sizeof padded, 0);
    if (status == TUTTI_OK)
        status = tt_file_write(x->out.fd, x->out.path, text, bytes, 8);
    if (status == TUTTI_OK)
        status = tt_file_write(x->out.fd, x->out.path, "        ", padded - bytes, 8 + bytes);
    x->at = 8 + padded;
    free(text);
    return status;
}

tutti_status ckpt_export_safetensors(const ckpt_args *a, const ckpt_file *file, const char *path)
{
    const tt_ctensor **list;
    size_t n;
    exporter x = {.out.fd = -1};
    TT_TRY(ckpt_select(a, file, 2, &list, &n));
    x.progress = (ckpt_progress){.what = "exporting", .total = ckpt_bytes(list, n)};
    tutti_status status = tt_output_open(path, false, &x.out);
    if (status == TUTTI_OK)
        status = write_header(&x, list, n, file->step);
    if (status == TUTTI_OK)
        status = tt_source_scan(&file->src, list, n, CKPT_SCAN_BYTES, write_piece, &x);
    ckpt_progress_end(&x.progress);
    if (status == TUTTI_OK)
        status = tt_output_commit(&x.out, true);
    tt_output_drop(&x.out);
    free(list);
    return status;
}

#define BAD(...) tt_fail(TUTTI_ERR_CORRUPT, "no proper safetensors file: " __VA_ARGS__)

static tutti_status read_shape(const char *name, const json_t *shape, tutti_tensor *t)
{
    uint64_t elems;
    t->ndim = (int)json_array_size(shape);
    if (!json_is_array(shape) || json_array_size(shape) > TUTTI_CKPT_MAX_DIMS)
        return tt_fail(TUTTI_ERR_UNSUPPORTED, "%.200s has no shape of at most %d dimensions", name,
                       TUTTI_CKPT_MAX_DIMS);
    for (int d = 0; d < t->ndim; d++) {
        const json_t *value = json_array_get(shape, (size_t)d);
        if (!json_is_integer(value) || json_integer_value(value) < 0)
            return BAD("the shape of %.200s", name);
        t->shape[d] = json_integer_value(value);
    }
    return tt_dims_elems(t->shape, t->ndim, &elems) ? TUTTI_OK : BAD("the shape of %.200s", name);
}

static tutti_status read_entry(const ckpt_input *in, uint64_t data, const char *name,
                               const json_t *entry, tutti_tensor *t)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const json_t *offsets = json_object_get(entry, "data_offsets");
    int64_t low = json_integer_value(json_array_get(offsets, 0)),
            high = json_integer_value(json_array_get(offsets, 1));
    uint64_t elems;
    *t = (tutti_tensor)TUTTI_TENSOR_INIT;
    t->name = name;
    for (int i = 0; i < DTYPES && dtype != NULL; i++)
        if (strcmp(dtypes[i].name, dtype) == 0)
            t->dtype = dtypes[i].dtype;
    if (t->dtype == 0)
        return tt_fail(TUTTI_ERR_UNSUPPORTED, "%.200s is of a type that tutti has not: %.20s", name,
                       dtype == NULL ? "none" : dtype);
    TT_TRY(read_shape(name, json_object_get(entry, "shape"), t));
    tt_dims_elems(t->shape, t->ndim, &elems);
    if (json_array_size(offsets) != 2 || low < 0 || high < low ||
        (uint64_t)high > in->bytes - data ||
        (uint64_t)(high - low) != elems * tutti_dtype_size(t->dtype))
        return BAD("the place of %.200s", name);
    t->data = (void *)(size_t)(in->data + data + low);
    return TUTTI_OK;
}

static int by_place(const void *a, const void *b)
{
    const tutti_tensor *x = a, *y = b;
    uintptr_t p = (uintptr_t)x->data, q = (uintptr_t)y->data;
    return (p > q) - (p < q);
}

static uint64_t bytes_of(const tutti_tensor *t)
{
    uint64_t elems = 0;
    tt_dims_elems(t->shape, t->ndim, &elems);
    return elems * tutti_dtype_size(t->dtype);
}

/* The data has no holes and no byte twice. */
static tutti_status check_places(const ckpt_input *in, uint64_t data, tutti_tensor *t, size_t n)
{
    const unsigned char *at = in->data + data;
    if (n > 0)
        qsort(t, n, sizeof *t, by_place);
    for (size_t i = 0; i < n; i++) {
        if (bytes_of(&t[i]) > 0 && (const unsigned char *)t[i].data != at)
            return BAD("%.200s overlaps another tensor, or there is a hole before it", t[i].name);
        at += bytes_of(&t[i]);
    }
    return at == in->data + in->bytes ? TUTTI_OK : BAD("bytes at the end that no tensor has");
}

static tutti_status import_entries(const ckpt_args *a, const ckpt_input *in, uint64_t data,
                                   json_t *root, const char *dir)
{
    const char *name;
    json_t *entry;
    tutti_tensor *t;
    size_t n = 0;
    tutti_status status = TUTTI_OK;
    TT_TRY(tt_calloc(json_object_size(root), sizeof *t, &t));
    json_object_foreach(root, name, entry)
    {
        if (strcmp(name, "__metadata__") != 0 && status == TUTTI_OK)
            status = read_entry(in, data, name, entry, &t[n++]);
    }
    if (status == TUTTI_OK && n == 0)
        status = BAD("there is no tensor in it");
    if (status == TUTTI_OK)
        status = check_places(in, data, t, n);
    if (status == TUTTI_OK)
        status = ckpt_save(dir, a->step, t, n, NULL, NULL, 0);
    free(t);
    return status;
}

tutti_status ckpt_import_safetensors(const ckpt_args *a, const ckpt_input *in, const char *dir)
{
    uint64_t header;
    json_error_t error;
    if (in->bytes < 10)
        return BAD("it has %zu bytes", in->bytes);
    memcpy(&header, in->data, sizeof header);
    if (header > in->bytes - 8 || header > HEADER_MAX)
        return BAD("a header of %" PRIu64 " bytes", header);
    json_t *root = json_loadb((const char *)in->data + 8, header, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL || !json_is_object(root)) {
        json_decref(root);
        return BAD("its header is not JSON: %s", error.text);
    }
    tutti_status status = import_entries(a, in, 8 + header, root, dir);
    json_decref(root);
    return status;
}

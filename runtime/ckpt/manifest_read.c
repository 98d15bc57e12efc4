/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a manifest that may be damaged or hostile.
 *
 * Order: the hash over the raw bytes (random damage ends here, before the parser), the JSON, then
 * the schema: exactly the members we write, of the types we write. Then the numbers: shapes that
 * do not overflow, boxes inside their tensor, byte ranges inside their file and disjoint from one
 * another, and every element held exactly once. A shape bomb fails the last test, for all bytes
 * have to be in files whose sizes the caller compares with the disk before it allocates anything
 * by them. The parser limits nesting itself.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/dir.h"
#include "ckpt/manifest.h"

enum { HEAD_BYTES = 9 + 32 + 2 }; /* {"hash":"...", */

#define BAD(...) tt_fail(TUTTI_ERR_CORRUPT, TT_MANIFEST_NAME ": " __VA_ARGS__)

tutti_dtype tt_dtype_by_name(const char *name)
{
    for (int d = TUTTI_FLOAT32; d < TT_DTYPES; d++)
        if (strcmp(tutti_dtype_name((tutti_dtype)d), name) == 0)
            return (tutti_dtype)d;
    return (tutti_dtype)0;
}

bool tt_mesh_ok(const char *mesh)
{
    size_t bytes = strnlen(mesh, TT_MESH_MAX + 1);
    for (size_t i = 0; i < bytes; i++)
        if (mesh[i] < ' ' || mesh[i] > '~')
            return false;
    return bytes <= TT_MESH_MAX;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool tt_hash_parse(const char *text, tt_hash128 *hash_out)
{
    uint64_t half[2] = {0, 0};
    for (int i = 0; i < 32; i++) {
        int digit = hex_digit(text[i]);
        if (digit < 0)
            return false;
        half[i / 16] = half[i / 16] << 4 | (uint64_t)digit;
    }
    hash_out->high = half[0];
    hash_out->low = half[1];
    return true;
}

static bool get_int(const json_t *value, int64_t low, int64_t high, int64_t *out)
{
    if (!json_is_integer(value))
        return false;
    *out = json_integer_value(value);
    return *out >= low && *out <= high;
}

static bool member_int(const json_t *object, const char *key, int64_t low, int64_t high,
                       int64_t *out)
{
    return get_int(json_object_get(object, key), low, high, out);
}

/* NULL unless it is a string without a zero byte in it, of at most max bytes. */
static const char *member_text(const json_t *object, const char *key, size_t max)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_string(value) || json_string_length(value) > max ||
        strlen(json_string_value(value)) != json_string_length(value))
        return NULL;
    return json_string_value(value);
}

static tutti_status read_file(const json_t *object, uint64_t block_bytes, tt_cfile *file)
{
    int64_t bytes;
    const char *name = member_text(object, "name", TT_CKPT_FILE_NAME_MAX - 1);
    const json_t *hex = json_object_get(object, "xxh3_128");
    if (!json_is_object(object) || json_object_size(object) != 3 || name == NULL ||
        !tt_ckpt_file_name_ok(name))
        return BAD("a file's entry or name is not one of ours");
    if (!member_int(object, "bytes", 0, INT64_MAX, &bytes))
        return BAD("%s has no proper size", name);
    snprintf(file->name, sizeof file->name, "%s", name);
    file->bytes = (uint64_t)bytes;
    uint64_t blocks = file->bytes / block_bytes + (file->bytes % block_bytes != 0);
    if (!json_is_string(hex) || json_string_length(hex) / 32 != blocks ||
        json_string_length(hex) % 32 != 0)
        return BAD("%s has no checksum for each of its blocks", name);
    file->blocks = blocks;
    TT_TRY(tt_calloc(blocks, sizeof *file->hash, &file->hash));
    for (size_t i = 0; i < blocks; i++)
        if (!tt_hash_parse(json_string_value(hex) + 32 * i, &file->hash[i]))
            return BAD("a checksum of %s is not hexadecimal", name);
    return TUTTI_OK;
}

static tutti_status read_files(const json_t *root, tt_manifest *m)
{
    const json_t *array = json_object_get(root, "files");
    size_t n = json_array_size(array);
    if (!json_is_array(array))
        return BAD("there is no list of files");
    TT_TRY(tt_calloc(n, sizeof *m->cat.file, &m->cat.file));
    for (size_t i = 0; i < n; i++) {
        m->cat.nfile = i + 1;
        TT_TRY(read_file(json_array_get(array, i), m->block_bytes, &m->cat.file[i]));
        /* sorted but for the index, which comes last */
        if (i > 0 && strcmp(m->cat.file[i].name, TT_INDEX_NAME) != 0 &&
            (strlen(m->cat.file[i].name) < strlen(m->cat.file[i - 1].name) ||
             (strlen(m->cat.file[i].name) == strlen(m->cat.file[i - 1].name) &&
              strcmp(m->cat.file[i].name, m->cat.file[i - 1].name) <= 0)))
            return BAD("%s is listed twice or out of order", m->cat.file[i].name);
    }
    for (size_t i = 0; i < n; i++)
        if ((strcmp(m->cat.file[i].name, TT_INDEX_NAME) == 0) != (i == n - 1))
            return BAD("the list of files does not end with " TT_INDEX_NAME);
    return n > 0 ? TUTTI_OK : BAD("the list of files is empty");
}

/* Which part each shard is in, of a checkpoint that was saved node-local. */
static tutti_status read_parts(const json_t *root, tt_manifest *m)
{
    const json_t *array = json_object_get(root, "parts");
    if (array == NULL)
        return TUTTI_OK;
    if (!json_is_array(array) || json_array_size(array) != m->cat.nfile - 1)
        return BAD("its parts are not one for each shard");
    for (size_t i = 0; i + 1 < m->cat.nfile; i++) {
        int64_t part;
        if (!get_int(json_array_get(array, i), 0, TT_PARTS_MAX - 1, &part))
            return BAD("%s is in no proper part", m->cat.file[i].name);
        m->cat.file[i].part = (uint32_t)part;
    }
    m->in_parts = true;
    return TUTTI_OK;
}

static bool read_dims(const json_t *array, int ndim, int64_t *dim)
{
    if (!json_is_array(array) || json_array_size(array) != (size_t)ndim)
        return false;
    for (int d = 0; d < ndim; d++)
        if (!get_int(json_array_get(array, (size_t)d), 0, INT64_MAX, &dim[d]))
            return false;
    return true;
}

static tutti_status read_box(tt_manifest *m, const json_t *array, const tt_ctensor *t, tt_cbox *box)
{
    int64_t *dim, file, at;
    uint64_t elems;
    TT_TRY(tt_arena_alloc(&m->cat.arena, 2 * (size_t)t->ndim * sizeof *dim, &dim));
    if (!json_is_array(array) || json_array_size(array) != 4 ||
        !get_int(json_array_get(array, 0), 0, (int64_t)m->cat.nfile - 2, &file) ||
        !get_int(json_array_get(array, 1), 0, INT64_MAX, &at) ||
        !read_dims(json_array_get(array, 2), t->ndim, dim) ||
        !read_dims(json_array_get(array, 3), t->ndim, dim + t->ndim))
        return BAD("tensor %s has a malformed box", t->name);
    if (!tt_box_inside(dim, t->shape, t->ndim) || !tt_dims_elems(dim + t->ndim, t->ndim, &elems) ||
        elems == 0)
        return BAD("tensor %s has a box outside its shape", t->name);
    uint64_t bytes = elems * tutti_dtype_size(t->dtype), size = m->cat.file[file].bytes;
    if ((uint64_t)at > size || bytes > size - (uint64_t)at)
        return BAD("tensor %s has bytes beyond the end of %s", t->name, m->cat.file[file].name);
    box->dim = dim;
    box->file = (uint32_t)file;
    box->at = (uint64_t)at;
    return TUTTI_OK;
}

static bool kind_ok(const char *kind, bool *bytes_out)
{
    *bytes_out = kind != NULL && strcmp(kind, "bytes") == 0;
    return kind != NULL && (*bytes_out || strcmp(kind, "tensor") == 0);
}

static tutti_status read_shape(tt_manifest *m, const json_t *shape, tt_ctensor *t)
{
    int64_t *dim;
    if (json_array_size(shape) > TUTTI_CKPT_MAX_DIMS)
        return BAD("tensor %s has too many dimensions", t->name);
    t->ndim = (int)json_array_size(shape);
    TT_TRY(tt_arena_alloc(&m->cat.arena, (size_t)t->ndim * sizeof *dim, &dim));
    t->shape = dim;
    if (!read_dims(shape, t->ndim, dim) || !tt_dims_elems(dim, t->ndim, &t->elems))
        return BAD("tensor %s has an impossible shape", t->name);
    return TUTTI_OK;
}

static tutti_status read_tensor(tt_manifest *m, const json_t *object, tt_ctensor *t)
{
    const char *name = member_text(object, "name", TT_CKPT_FULL_NAME_MAX);
    const char *kind = member_text(object, "kind", 16), *dtype = member_text(object, "dtype", 16);
    if (!json_is_object(object) || json_object_size(object) != 5 || name == NULL ||
        !tt_name_ok(name, TT_CKPT_FULL_NAME_MAX))
        return BAD("a tensor's entry or name is malformed");
    TT_TRY(tt_arena_text(&m->cat.arena, name, strlen(name), &t->name));
    t->dtype = dtype == NULL ? (tutti_dtype)0 : tt_dtype_by_name(dtype);
    if (!kind_ok(kind, &t->bytes) || !tt_dtype_ok(t->dtype))
        return BAD("tensor %s has no proper kind or dtype", name);
    TT_TRY(read_shape(m, json_object_get(object, "shape"), t));
    if (t->bytes && (t->ndim != 1 || t->dtype != TUTTI_UINT8))
        return BAD("value %s is not a row of bytes", name);
    return TUTTI_OK;
}

static tutti_status read_boxes(tt_manifest *m, const json_t *object, tt_ctensor *t)
{
    const json_t *boxes = json_object_get(object, "boxes");
    if (!json_is_array(boxes))
        return BAD("tensor %s has no boxes", t->name);
    t->nbox = json_array_size(boxes);
    t->box = m->cat.box + m->cat.nbox;
    for (size_t i = 0; i < t->nbox; i++) {
        TT_TRY(read_box(m, json_array_get(boxes, i), t, &t->box[i]));
        m->cat.nbox++;
        if (i > 0 && tt_box_compare(t->box[i - 1].dim, t->box[i].dim, t->ndim) >= 0)
            return BAD("the boxes of tensor %s are out of order", t->name);
    }
    if (tt_boxes_cover(t, NULL) != TT_COVER_EXACT)
        return BAD("the boxes of tensor %s overlap or leave holes", t->name);
    return TUTTI_OK;
}

static tutti_status read_tensors(const json_t *root, tt_manifest *m)
{
    const json_t *array = json_object_get(root, "tensors");
    size_t n = json_array_size(array), boxes = 0;
    const char *longer;
    if (!json_is_array(array))
        return BAD("there is no list of tensors");
    for (size_t i = 0; i < n; i++)
        boxes += json_array_size(json_object_get(json_array_get(array, i), "boxes"));
    TT_TRY(tt_calloc(n, sizeof *m->cat.tensor, &m->cat.tensor));
    TT_TRY(tt_calloc(boxes, sizeof *m->cat.box, &m->cat.box));
    for (size_t i = 0; i < n; i++) {
        const json_t *object = json_array_get(array, i);
        TT_TRY(read_tensor(m, object, &m->cat.tensor[i]));
        TT_TRY(read_boxes(m, object, &m->cat.tensor[i]));
        if (i > 0 && strcmp(m->cat.tensor[i - 1].name, m->cat.tensor[i].name) >= 0)
            return BAD("tensor %s is listed twice or out of order", m->cat.tensor[i].name);
        m->cat.ntensor = i + 1;
    }
    if (tt_catalog_name_clash(&m->cat, &longer) != NULL)
        return BAD("tensor %s is inside another tensor", longer);
    return TUTTI_OK;
}

typedef struct range {
    uint64_t at, end;
    uint32_t file;
} range;

static int compare_range(const void *a, const void *b)
{
    const range *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return (x->at > y->at) - (x->at < y->at);
}

static tutti_status check_ranges(const tt_catalog *cat)
{
    range *all;
    tutti_status status = TUTTI_OK;
    size_t n = 0;
    TT_TRY(tt_calloc(cat->nbox, sizeof *all, &all));
    for (size_t i = 0; i < cat->ntensor; i++) {
        const tt_ctensor *t = &cat->tensor[i];
        for (size_t k = 0; k < t->nbox; k++) {
            uint64_t elems = 0;
            tt_dims_elems(t->box[k].dim + t->ndim, t->ndim, &elems);
            all[n++] = (range){t->box[k].at, t->box[k].at + elems * tutti_dtype_size(t->dtype),
                               t->box[k].file};
        }
    }
    if (n > 0)
        qsort(all, n, sizeof *all, compare_range);
    for (size_t i = 1; i < n && status == TUTTI_OK; i++)
        if (all[i].file == all[i - 1].file && all[i].at < all[i - 1].end)
            status = BAD("two boxes share bytes of %s", cat->file[all[i].file].name);
    free(all);
    return status;
}

/* `parts` is there where they lie on the nodes' own disks. */
static size_t member_count(const json_t *root)
{
    return json_object_get(root, "parts") == NULL ? 11 : 12;
}

static tutti_status read_root(const json_t *root, int64_t step, tt_manifest *m)
{
    int64_t version, world, block_bytes;
    const char *save_id = member_text(root, "save_id", sizeof m->save_id - 1);
    const char *mesh = member_text(root, "mesh", TT_MESH_MAX);
    if (!member_int(root, "tutti-checkpoint", 1, INT64_MAX, &version))
        return BAD("it is not a tutti checkpoint");
    if (version != TT_CKPT_VERSION)
        return tt_fail(TUTTI_ERR_UNSUPPORTED,
                       TT_MANIFEST_NAME ": format %lld is newer than this library's %d",
                       (long long)version, TT_CKPT_VERSION);
    if (json_object_size(root) != member_count(root) || member_text(root, "library", 64) == NULL ||
        save_id == NULL || mesh == NULL || !tt_mesh_ok(mesh) ||
        !member_int(root, "step", 0, INT64_MAX, &m->step) ||
        !member_int(root, "world", 1, 1 << 24, &world) ||
        !member_int(root, "time", 0, INT64_MAX, &m->time) ||
        !member_int(root, "block_bytes", 4096, (int64_t)1 << 30, &block_bytes) ||
        block_bytes % 4096 != 0)
        return BAD("a member is missing, unknown or of the wrong kind");
    if (step >= 0 && m->step != step)
        return BAD("it is of step %lld, its directory of step %lld", (long long)m->step,
                   (long long)step);
    snprintf(m->save_id, sizeof m->save_id, "%s", save_id);
    snprintf(m->mesh, sizeof m->mesh, "%s", mesh);
    m->world = (int)world;
    m->block_bytes = (uint64_t)block_bytes;
    TT_TRY(read_files(root, m));
    TT_TRY(read_parts(root, m));
    TT_TRY(read_tensors(root, m));
    return check_ranges(&m->cat);
}

static tutti_status check_hash(const char *text, size_t bytes)
{
    tt_hash128 want, have;
    if (bytes > TT_MANIFEST_MAX_BYTES)
        return BAD("it is %zu MiB large, more than the %zu that are accepted", bytes >> 20,
                   TT_MANIFEST_MAX_BYTES >> 20);
    if (bytes <= HEAD_BYTES || memcmp(text, "{\"hash\":\"", 9) != 0 ||
        memcmp(text + HEAD_BYTES - 2, "\",", 2) != 0 || !tt_hash_parse(text + 9, &want))
        return BAD("it does not begin as a manifest does");
    have = tt_hash128_of(text + HEAD_BYTES, bytes - HEAD_BYTES);
    if (have.low != want.low || have.high != want.high)
        return BAD("it is not what was written: its checksum differs");
    return TUTTI_OK;
}

tutti_status tt_manifest_read(const void *text, size_t bytes, int64_t step, tt_manifest *m_out)
{
    tt_manifest m = {0};
    json_error_t error;
    tutti_status status;
    TT_TRY(check_hash(text, bytes));
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL)
        return BAD("it is not JSON: %s", error.text);
    status = json_is_object(root) ? read_root(root, step, &m) : BAD("it is no object");
    json_decref(root);
    if (status != TUTTI_OK) {
        tt_manifest_free(&m);
        return status;
    }
    *m_out = m;
    return TUTTI_OK;
}

void tt_manifest_free(tt_manifest *m)
{
    tt_catalog_free(&m->cat);
    memset(m, 0, sizeof *m);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing a manifest: head (step, world, files and their checksums), then the list of tensors, then
 * the hash in front of it all.
 *
 * The list is most of the text, and the same in every save of one plan: making it anew took 18 ms
 * for 1,000 tensors. So it is a text of its own, which the saver keeps and which is spliced in.
 */
#include "ckpt/manifest.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tutti/version.h"

void tt_hash_text(tt_hash128 hash, char text[33])
{
    snprintf(text, 33, "%016llx%016llx", (unsigned long long)hash.high,
             (unsigned long long)hash.low);
}

static json_t *numbers(const int64_t *value, int n)
{
    json_t *array = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(array, json_integer(value[i]));
    return array;
}

/* [file, first byte, [offset ...], [extent ...]] */
static json_t *box_json(const tt_cbox *box, int ndim)
{
    json_t *array = json_array();
    json_array_append_new(array, json_integer(box->file));
    json_array_append_new(array, json_integer((json_int_t)box->at));
    json_array_append_new(array, numbers(box->dim, ndim));
    json_array_append_new(array, numbers(box->dim + ndim, ndim));
    return array;
}

static json_t *tensor_json(const tt_ctensor *t)
{
    json_t *object = json_object(), *boxes = json_array();
    for (size_t i = 0; i < t->nbox; i++)
        json_array_append_new(boxes, box_json(&t->box[i], t->ndim));
    json_object_set_new(object, "name", json_string(t->name));
    json_object_set_new(object, "kind", json_string(t->bytes ? "bytes" : "tensor"));
    json_object_set_new(object, "dtype", json_string(tutti_dtype_name(t->dtype)));
    json_object_set_new(object, "shape", numbers(t->shape, t->ndim));
    json_object_set_new(object, "boxes", boxes);
    return object;
}

static tutti_status file_json(const tt_cfile *file, json_t **object_out)
{
    char *hex;
    json_t *object;
    TT_TRY(tt_calloc(file->blocks + 1, 32, &hex));
    for (size_t i = 0; i < file->blocks; i++) {
        char text[33];
        tt_hash_text(file->hash[i], text);
        memcpy(hex + 32 * i, text, 32);
    }
    object = json_object();
    json_object_set_new(object, "name", json_string(file->name));
    json_object_set_new(object, "bytes", json_integer((json_int_t)file->bytes));
    json_object_set_new(object, "xxh3_128", json_stringn(hex, 32 * file->blocks));
    free(hex);
    *object_out = object;
    return TUTTI_OK;
}

/* Of the shards: the index is in every part. */
static json_t *parts_json(const tt_catalog *cat)
{
    json_t *array = json_array();
    for (size_t i = 0; i + 1 < cat->nfile; i++)
        json_array_append_new(array, json_integer(cat->file[i].part));
    return array;
}

static tutti_status head_json(const tt_manifest *m, json_t *object)
{
    json_t *files = json_array();
    json_object_set_new(object, "tutti-checkpoint", json_integer(TT_CKPT_VERSION));
    json_object_set_new(object, "library", json_string(TUTTI_VERSION_STRING));
    json_object_set_new(object, "step", json_integer(m->step));
    json_object_set_new(object, "world", json_integer(m->world));
    json_object_set_new(object, "time", json_integer(m->time));
    json_object_set_new(object, "save_id", json_string(m->save_id));
    json_object_set_new(object, "mesh", json_string(m->mesh));
    json_object_set_new(object, "block_bytes", json_integer((json_int_t)m->block_bytes));
    json_object_set_new(object, "files", files);
    for (size_t i = 0; i < m->cat.nfile; i++) {
        json_t *file;
        TT_TRY(file_json(&m->cat.file[i], &file));
        json_array_append_new(files, file);
    }
    if (m->in_parts)
        json_object_set_new(object, "parts", parts_json(&m->cat));
    if (json_array_size(files) != m->cat.nfile)
        return tt_fail(TUTTI_ERR_NO_MEMORY, "no memory for the checkpoint's manifest");
    return TUTTI_OK;
}

static int append(const char *data, size_t bytes, void *arg)
{
    tt_buf *out = arg;
    tt_buf_put(out, data, bytes);
    return out->failed ? -1 : 0;
}

/* {"hash":"...", spliced in front of the object's text, whose own brace it replaces. */
static tutti_status seal(const tt_buf *body, tt_buf *out)
{
    char head[64], hex[33];
    tt_hash_text(tt_hash128_of(body->data + 1, body->size - 1), hex);
    int n = snprintf(head, sizeof head, "{\"hash\":\"%s\",", hex);
    tt_buf_put(out, head, (size_t)n);
    tt_buf_put(out, body->data + 1, body->size - 1);
    if (out->failed)
        return tt_fail(TUTTI_ERR_NO_MEMORY, "no memory for the checkpoint's manifest");
    if (out->size > TT_MANIFEST_MAX_BYTES)
        return tt_fail(TUTTI_ERR_UNSUPPORTED,
                       "the manifest would be %zu MiB, more than the %zu that a load accepts",
                       out->size >> 20, TT_MANIFEST_MAX_BYTES >> 20);
    return TUTTI_OK;
}

static tutti_status dump(const json_t *value, tt_buf *out)
{
    return json_dump_callback(value, append, out, JSON_COMPACT) == 0
               ? TUTTI_OK
               : tt_fail(TUTTI_ERR_NO_MEMORY, "no memory for the checkpoint's manifest");
}

tutti_status tt_manifest_tensors(const tt_manifest *m, tt_buf *out)
{
    json_t *tensors = json_array();
    tutti_status status = TUTTI_OK;
    for (size_t i = 0; i < m->cat.ntensor; i++)
        json_array_append_new(tensors, tensor_json(&m->cat.tensor[i]));
    if (json_array_size(tensors) != m->cat.ntensor)
        status = tt_fail(TUTTI_ERR_NO_MEMORY, "no memory for the checkpoint's manifest");
    if (status == TUTTI_OK)
        status = dump(tensors, out);
    json_decref(tensors);
    return status;
}

tutti_status tt_manifest_write_with(const tt_manifest *m, const tt_buf *tensors, tt_buf *out)
{
    json_t *object = json_object();
    tt_buf body = {0};
    tutti_status status = head_json(m, object);
    if (status == TUTTI_OK)
        status = dump(object, &body);
    if (status == TUTTI_OK) {
        body.size--; /* its closing brace */
        tt_buf_put(&body, ",\"tensors\":", 11);
        tt_buf_put(&body, tensors->data, tensors->size);
        tt_buf_put(&body, "}", 1);
        status = body.failed
                     ? tt_fail(TUTTI_ERR_NO_MEMORY, "no memory for the checkpoint's manifest")
                     : seal(&body, out);
    }
    tt_buf_free(&body);
    json_decref(object);
    return status;
}

tutti_status tt_manifest_write(const tt_manifest *m, tt_buf *out)
{
    tt_buf tensors = {0};
    tutti_status status = tt_manifest_tensors(m, &tensors);
    if (status == TUTTI_OK)
        status = tt_manifest_write_with(m, &tensors, out);
    tt_buf_free(&tensors);
    return status;
}

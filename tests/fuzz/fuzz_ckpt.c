/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Readers of checkpoints on any bytes: each must return, and what it takes must be what the bytes
 * say, by a second, plainer reading of them here. Nothing of a checkpoint may be handed out whose
 * block does not have its checksum. Programs: libfuzzer.sh with coverage, ckpt_driver.c without.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/loader.h"

#include "ckpt_targets.h"

void tt_must_be(bool good, const char *what)
{
    if (good)
        return;
    (void)fprintf(stderr, "not so: %s (last error: %s)\n", what, tutti_last_error());
    abort();
}

/* Every element of a small tensor is in exactly one box, inside its file. */
static void check_tensor(const tt_manifest *m, const tt_ctensor *t)
{
    uint64_t sum = 0;

    must(tt_name_ok(t->name, TT_CKPT_FULL_NAME_MAX) && tt_dtype_ok(t->dtype));
    for (size_t k = 0; k < t->nbox; k++) {
        uint64_t elems = 0;

        must(tt_box_inside(t->box[k].dim, t->shape, t->ndim));
        must(tt_dims_elems(t->box[k].dim + t->ndim, t->ndim, &elems) && elems > 0);
        must(t->box[k].file + 1 < m->cat.nfile);
        must(t->box[k].at + elems * tutti_dtype_size(t->dtype) <=
             m->cat.file[t->box[k].file].bytes);
        sum += elems;
        for (size_t i = 0; i < k && k < 64; i++) {
            int64_t part[2 * TUTTI_CKPT_MAX_DIMS];
            must(!tt_box_intersect(t->box[i].dim, t->box[k].dim, t->ndim, part));
        }
    }
    must(sum == t->elems);
}

static int read_manifest(const uint8_t *data, size_t bytes)
{
    tt_manifest m = {0}, again = {0};
    tt_buf text = {0}, second = {0};
    char hex[33];
    size_t brace = bytes > 0 && data[0] == '{';

    tt_hash_text(tt_hash128_of(data + brace, bytes - brace), hex);
    tt_buf_put(&text, "{\"hash\":\"", 9);
    tt_buf_put(&text, hex, 32);
    tt_buf_put(&text, "\",", 2);
    tt_buf_put(&text, data + brace, bytes - brace);
    if (tt_manifest_read(text.data, text.size, -1, &m) != TUTTI_OK) {
        must(*tutti_last_error() != 0 && m.cat.tensor == NULL);
        tt_buf_free(&text);
        return 0;
    }
    for (size_t i = 0; i < m.cat.ntensor; i++)
        check_tensor(&m, &m.cat.tensor[i]);
    tt_buf_free(&text);
    must(tt_manifest_write(&m, &text) == TUTTI_OK);
    must(tt_manifest_read(text.data, text.size, m.step, &again) == TUTTI_OK);
    must(tt_manifest_write(&again, &second) == TUTTI_OK);
    must(second.size == text.size && memcmp(second.data, text.data, text.size) == 0);
    tt_buf_free(&second);
    tt_buf_free(&text);
    tt_manifest_free(&again);
    tt_manifest_free(&m);
    return 1;
}

/* The bytes that a file of the manifest has in the archive. */
static const uint8_t *file_data(const tt_arc *made, const char *name, size_t *bytes_out)
{
    int part = strcmp(name, TT_INDEX_NAME) == 0      ? TT_ARC_INDEX
               : strcmp(name, "shard-00001.h5") == 0 ? TT_ARC_SHARD_1
                                                     : TT_ARC_SHARD_0;

    *bytes_out = made->bytes[part];
    return made->data[part];
}

static bool file_hashes_right(const tt_arc *made, const tt_cfile *file, uint64_t block_bytes)
{
    size_t bytes;
    const uint8_t *data = file_data(made, file->name, &bytes);

    must(bytes == file->bytes);
    for (size_t i = 0; i < file->blocks; i++) {
        size_t at = i * block_bytes, left = bytes - at;
        tt_hash128 have = tt_hash128_of(data + at, left < block_bytes ? left : block_bytes);

        if (have.low != file->hash[i].low || have.high != file->hash[i].high)
            return false;
    }
    return true;
}

/* One element by itself: in which box, and where in its file. */
static const uint8_t *element(const tt_manifest *m, const tt_arc *made, const tt_ctensor *t,
                              const int64_t *index)
{
    for (size_t k = 0; k < t->nbox; k++) {
        const int64_t *from = t->box[k].dim, *extent = from + t->ndim;
        uint64_t place = 0;
        bool inside = true;
        size_t bytes;

        for (int d = 0; d < t->ndim; d++) {
            inside = inside && index[d] >= from[d] && index[d] - from[d] < extent[d];
            place = place * (uint64_t)extent[d] + (uint64_t)(index[d] - from[d]);
        }
        if (!inside)
            continue;
        const uint8_t *data = file_data(made, m->cat.file[t->box[k].file].name, &bytes);
        place = t->box[k].at + place * tutti_dtype_size(t->dtype);
        must(place + tutti_dtype_size(t->dtype) <= bytes);
        return data + place;
    }
    must(!"an element is in no box");
    return NULL;
}

/* A box of the tensor against the same elements, one by one. */
void tt_fuzz_compare(const tt_manifest *m, const tt_arc *made, const tt_ctensor *t,
                     const int64_t *dim, const uint8_t *data)
{
    size_t size = tutti_dtype_size(t->dtype);
    int64_t index[TUTTI_CKPT_MAX_DIMS];
    uint64_t elems = 0;

    must(tt_dims_elems(dim + t->ndim, t->ndim, &elems));
    memcpy(index, dim, (size_t)t->ndim * sizeof *dim);
    for (uint64_t i = 0; i < elems; i++) {
        must(memcmp(data + i * size, element(m, made, t, index), size) == 0);
        for (int d = t->ndim - 1; d >= 0; d--) {
            if (++index[d] < dim[d] + dim[t->ndim + d])
                break;
            index[d] = dim[d];
        }
    }
}

/* Some box of it: by the knobs, each axis cut at both ends. */
static void some_box(const tt_ctensor *t, const uint8_t *knob, int64_t *dim)
{
    for (int d = 0; d < t->ndim; d++) {
        int64_t low = t->shape[d] * (knob[1 + d % 4] & 7) / 16;
        int64_t high = t->shape[d] - t->shape[d] * (knob[1 + d % 4] >> 4 & 7) / 16;

        dim[d] = low;
        dim[t->ndim + d] = high - low;
    }
}

static bool read_box(const tt_source *src, const tt_arc *made, const tt_ctensor *t, bool whole)
{
    int64_t dim[2 * TUTTI_CKPT_MAX_DIMS] = {0};
    uint64_t elems = 0;

    memcpy(dim + t->ndim, t->shape, (size_t)t->ndim * sizeof *dim);
    if (!whole)
        some_box(t, made->knob, dim);
    must(tt_dims_elems(dim + t->ndim, t->ndim, &elems));
    size_t bytes = elems * tutti_dtype_size(t->dtype);
    uint8_t *data = malloc(bytes + 1);
    tt_want want = {t, dim, data};
    bool good = data != NULL && tt_source_read(src, &want, 1) == TUTTI_OK;
    if (good)
        tt_fuzz_compare(&src->m, made, t, dim, data);
    free(data);
    return good;
}

static void use_source(const tt_source *src, const tt_arc *made)
{
    bool right = true, whole = tt_source_verify(src, 0, 1) == TUTTI_OK;
    bool thirds = true;

    for (size_t i = 0; i < src->m.cat.nfile; i++)
        right = right && file_hashes_right(made, &src->m.cat.file[i], src->m.block_bytes);
    for (int part = 0; part < 3; part++)
        thirds = tt_source_verify(src, part, 3) == TUTTI_OK && thirds;
    must(whole == right && thirds == right);
    for (size_t i = 0; i < src->m.cat.ntensor && i < 32; i++) {
        const tt_ctensor *t = &src->m.cat.tensor[i];

        must(tt_tensor_bytes(t) <= TT_FUZZ_CKPT_BYTES);
        must(read_box(src, made, t, true) || !right);
        must(read_box(src, made, t, false) || !right);
    }
}

static int read_folder(const tt_arc *arc)
{
    tt_source src = {0};
    tt_buf text = {0};
    tt_arc made;
    int dir = -1;

    if (!tt_arc_make(arc, "step-000000000007", ~0u, &made))
        return 0;
    must(tt_dir_open(tt_fuzz_root(), &dir) == TUTTI_OK);
    tutti_status status = tt_source_open(dir, 7, &text, &src);
    (void)close(dir);
    tt_buf_free(&text);
    if (status != TUTTI_OK) {
        must(*tutti_last_error() != 0 && src.m.cat.tensor == NULL);
        return 0;
    }
    if (src.absent == NULL)
        use_source(&src, &made);
    if ((arc->knob[0] & TT_ARC_EXPORT) != 0)
        tt_fuzz_export(&src);
    tt_source_close(&src);
    return 1;
}

int tt_fuzz_ckpt_one(int reader, const uint8_t *data, size_t bytes)
{
    tt_arc arc;

    if (reader == TT_FUZZ_MANIFEST)
        return read_manifest(data, bytes);
    if (reader == TT_FUZZ_SAFETENSORS || reader == TT_FUZZ_LLMC)
        return tt_fuzz_import(reader == TT_FUZZ_LLMC, data, bytes);
    if (bytes > TT_FUZZ_CKPT_BYTES || !tt_arc_read(data, bytes, &arc))
        return 0;
    return reader == TT_FUZZ_FOLDER   ? read_folder(&arc)
           : reader == TT_FUZZ_VERIFY ? tt_fuzz_verify(&arc)
                                      : tt_fuzz_nodes(&arc);
}

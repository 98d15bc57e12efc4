/* SPDX-License-Identifier: Apache-2.0 */
/*
 * llm.c's model file: 256 int32 (magic 20240326, version 3: fp32 or 5: bf16, context, vocabulary,
 * layers, heads, channels, padded vocabulary), then the parameters of a GPT-2 in a fixed order,
 * layers stacked along the first axis, and nothing else. The checkpoint holds each under llm.c's
 * own name and keeps the header, so that an export of what was imported is the same file.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/output.h"

#include "ckpt.h"

enum { HEADER_INTS = 256, MAGIC = 20240326, VERSION_F32 = 3, VERSION_BF16 = 5, PARAMS = 16 };
enum { CONTEXT = 2, VOCABULARY, LAYERS, HEADS, CHANNELS, PADDED };
#define HEADER_NAME "llmc.header"

/* Factors of a dimension: of the header's entry `of` (0: 1), times `times`. */
typedef struct dim {
    int of, times;
} dim;
static const struct {
    const char *name;
    int ndim;
    dim dim[3];
} params[PARAMS] = {
    {"wte", 2, {{PADDED, 1}, {CHANNELS, 1}}},
    {"wpe", 2, {{CONTEXT, 1}, {CHANNELS, 1}}},
    {"ln1w", 2, {{LAYERS, 1}, {CHANNELS, 1}}},
    {"ln1b", 2, {{LAYERS, 1}, {CHANNELS, 1}}},
    {"qkvw", 3, {{LAYERS, 1}, {CHANNELS, 3}, {CHANNELS, 1}}},
    {"qkvb", 2, {{LAYERS, 1}, {CHANNELS, 3}}},
    {"attprojw", 3, {{LAYERS, 1}, {CHANNELS, 1}, {CHANNELS, 1}}},
    {"attprojb", 2, {{LAYERS, 1}, {CHANNELS, 1}}},
    {"ln2w", 2, {{LAYERS, 1}, {CHANNELS, 1}}},
    {"ln2b", 2, {{LAYERS, 1}, {CHANNELS, 1}}},
    {"fcw", 3, {{LAYERS, 1}, {CHANNELS, 4}, {CHANNELS, 1}}},
    {"fcb", 2, {{LAYERS, 1}, {CHANNELS, 4}}},
    {"fcprojw", 3, {{LAYERS, 1}, {CHANNELS, 1}, {CHANNELS, 4}}},
    {"fcprojb", 2, {{LAYERS, 1}, {CHANNELS, 1}}},
    {"lnfw", 1, {{CHANNELS, 1}}},
    {"lnfb", 1, {{CHANNELS, 1}}},
};

static tutti_status check_header(const int32_t *h)
{
    if (h[0] != MAGIC || (h[1] != VERSION_F32 && h[1] != VERSION_BF16))
        return tt_fail(TUTTI_ERR_CORRUPT,
                       "no model file of llm.c: magic %d and version %d, not %d and %d or %d", h[0],
                       h[1], MAGIC, VERSION_F32, VERSION_BF16);
    for (int i = CONTEXT; i <= PADDED; i++)
        if (h[i] < 1 || h[i] > 1 << 24)
            return tt_fail(TUTTI_ERR_CORRUPT, "no model file of llm.c: header[%d] is %d", i, h[i]);
    return TUTTI_OK;
}

static bool describe(const int32_t *h, int i, tutti_tensor *t, uint64_t *bytes_out)
{
    uint64_t elems;
    *t = (tutti_tensor)TUTTI_TENSOR_INIT;
    t->name = params[i].name;
    t->dtype = h[1] == VERSION_F32 ? TUTTI_FLOAT32 : TUTTI_BFLOAT16;
    t->ndim = params[i].ndim;
    for (int d = 0; d < t->ndim; d++)
        t->shape[d] = (int64_t)h[params[i].dim[d].of] * params[i].dim[d].times;
    if (!tt_dims_elems(t->shape, t->ndim, &elems))
        return false;
    *bytes_out = elems * tutti_dtype_size(t->dtype);
    return true;
}

tutti_status ckpt_import_llmc(const ckpt_args *a, const ckpt_input *in, const char *dir)
{
    int32_t header[HEADER_INTS];
    tutti_tensor t[PARAMS];
    uint64_t at = sizeof header, bytes;
    if (in->bytes < sizeof header)
        return tt_fail(TUTTI_ERR_CORRUPT, "no model file of llm.c: it has %zu bytes", in->bytes);
    memcpy(header, in->data, sizeof header);
    TT_TRY(check_header(header));
    for (int i = 0; i < PARAMS; i++) {
        if (!describe(header, i, &t[i], &bytes) || bytes > in->bytes - at)
            return tt_fail(TUTTI_ERR_CORRUPT, "it ends before %s", params[i].name);
        t[i].data = (void *)(size_t)(in->data + at);
        at += bytes;
    }
    if (at != in->bytes)
        return tt_fail(TUTTI_ERR_CORRUPT, "it has %zu bytes behind the last parameter",
                       (size_t)(in->bytes - at));
    return ckpt_save(dir, a->step, t, PARAMS, HEADER_NAME, header, sizeof header);
}

typedef struct exporter {
    tt_output out;
    uint64_t at;
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

static tutti_status read_header(const ckpt_file *file, int32_t *header)
{
    const tt_ctensor *t = tt_catalog_find(&file->src.m.cat, HEADER_NAME);
    const size_t bytes = HEADER_INTS * sizeof *header;
    int64_t dims[2] = {0, (int64_t)bytes};
    if (t == NULL || !t->bytes || t->elems != bytes)
        return tt_fail(TUTTI_ERR_NOT_FOUND,
                       "the checkpoint has no value %s of %zu bytes, which says the model's shape",
                       HEADER_NAME, bytes);
    tt_want want = {t, dims, header};
    TT_TRY(tt_source_read(&file->src, &want, 1));
    return check_header(header);
}

static tutti_status find_params(const ckpt_file *file, const int32_t *header,
                                const tt_ctensor **list)
{
    for (int i = 0; i < PARAMS; i++) {
        tutti_tensor t;
        uint64_t bytes;
        list[i] = tt_catalog_find(&file->src.m.cat, params[i].name);
        if (list[i] == NULL)
            return tt_fail(TUTTI_ERR_NOT_FOUND, "the checkpoint has no tensor %s", params[i].name);
        if (!describe(header, i, &t, &bytes) || list[i]->dtype != t.dtype ||
            list[i]->ndim != t.ndim ||
            memcmp(list[i]->shape, t.shape, (size_t)t.ndim * sizeof *t.shape) != 0)
            return tt_fail(TUTTI_ERR_SHAPE, "tensor %s is not of the shape and type that %s says",
                           params[i].name, HEADER_NAME);
    }
    return TUTTI_OK;
}

tutti_status ckpt_export_llmc(const ckpt_args *a, const ckpt_file *file, const char *path)
{
    int32_t header[HEADER_INTS];
    const tt_ctensor *list[PARAMS];
    exporter x = {.out.fd = -1, .at = sizeof header};
    (void)a;
    TT_TRY(read_header(file, header));
    TT_TRY(find_params(file, header, list));
    x.progress = (ckpt_progress){.what = "exporting", .total = ckpt_bytes(list, PARAMS)};
    tutti_status status = tt_output_open(path, false, &x.out);
    if (status == TUTTI_OK)
        status = tt_file_write(x.out.fd, path, header, sizeof header, 0);
    if (status == TUTTI_OK)
        status = tt_source_scan(&file->src, list, PARAMS, CKPT_SCAN_BYTES, write_piece, &x);
    ckpt_progress_end(&x.progress);
    if (status == TUTTI_OK)
        status = tt_output_commit(&x.out, true);
    tt_output_drop(&x.out);
    return status;
}

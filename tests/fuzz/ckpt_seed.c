/* SPDX-License-Identifier: Apache-2.0 */
/* Seeds: small checkpoints as the library writes them, and model files of others by hand. */
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/dir.h"

#include "fuzz_ckpt.h"
#include "tt_test.h"

enum { SEED_STEP = 7 };

typedef struct seed_job {
    const char *folder;
    bool nodes;
} seed_job;

static tutti_tensor tensor(const char *name, tutti_dtype dtype, int ndim, const int64_t *shape,
                           void *data)
{
    tutti_tensor t = TUTTI_TENSOR_INIT;

    t.name = name;
    t.dtype = dtype;
    t.ndim = ndim;
    for (int d = 0; d < ndim; d++)
        t.shape[d] = shape[d];
    t.data = data;
    return t;
}

/* A matrix split over the ranks, a replica of four dimensions, a scalar, an empty one, values. */
static tutti_status add_all(const tt_rank *r, tutti_ckpt *ck, void *data)
{
    tutti_tensor w = tensor("m/w", TUTTI_FLOAT32, 2, (int64_t[]){6, 5}, data);
    tutti_tensor v = tensor("m/v", TUTTI_BFLOAT16, 4, (int64_t[]){2, 3, 1, 4}, data);
    tutti_tensor s = tensor("s", TUTTI_FLOAT64, 0, NULL, data);
    tutti_tensor e = tensor("e", TUTTI_INT64, 2, (int64_t[]){0, 3}, NULL);
    tutti_status status;

    if (r->size > 1) {
        w.offset[0] = 3 * r->rank;
        w.extent[0] = 3;
        w.extent[1] = 5;
    }
    status = tutti_ckpt_add(ck, &w);
    if (status == TUTTI_OK)
        status = tutti_ckpt_add(ck, &v);
    if (status == TUTTI_OK)
        status = tutti_ckpt_add(ck, &s);
    if (status == TUTTI_OK)
        status = tutti_ckpt_add(ck, &e);
    if (status == TUTTI_OK)
        status = tutti_ckpt_add_bytes(ck, "rng", "0123456789", 10, TUTTI_CKPT_PER_RANK);
    return status;
}

static void save_body(tt_rank *r)
{
    const seed_job *job = r->arg;
    tutti_ckpt_begin_opts begin = TUTTI_CKPT_BEGIN_OPTS_INIT;
    tutti_ckpt_save_opts opts = TUTTI_CKPT_SAVE_OPTS_INIT;
    char path[512];
    tutti_ckpt *ck;
    uint8_t data[256];

    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 37 + 11);
    (void)snprintf(path, sizeof path, "%s%s", job->folder,
                   !job->nodes    ? ""
                   : r->rank == 0 ? "/a"
                                  : "/b");
    begin.flags = job->nodes ? TUTTI_CKPT_NODE_LOCAL : 0;
    opts.flags = TUTTI_CKPT_SYNC;
    TT_EXPECT_OK(r, tutti_ckpt_begin_with(r->ctx, path, SEED_STEP, &begin, &ck));
    tutti_status status = add_all(r, ck, data);
    tutti_status committed = tutti_ckpt_commit(ck, (tutti_stream){0}, &opts);
    TT_EXPECT(r, status == TUTTI_OK && committed == TUTTI_OK);
}

void tt_fuzz_save(int kind, const char *folder)
{
    seed_job job = {folder, kind == 2};

    (void)setenv("TUTTI_CKPT_BLOCK_BYTES", "4096", 1);
    const char *report = tt_ranks_run(kind == 0 ? 1 : 2, kind == 2 ? "2x1" : NULL, save_body, &job);
    if (*report == 0)
        return;
    (void)fprintf(stderr, "no seed: %s\n", report);
    abort();
}

static uint8_t *load(const char *folder, const char *name, size_t *bytes_out)
{
    char path[600];
    struct stat st;
    uint8_t *data = NULL;

    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &st) == 0 && (data = malloc((size_t)st.st_size + 1)) != NULL &&
        read(fd, data, (size_t)st.st_size) == st.st_size)
        *bytes_out = (size_t)st.st_size;
    else
        *bytes_out = 0;
    if (fd >= 0)
        (void)close(fd);
    return data;
}

/* The part of a manifest that the input is: the object without its hash; and the same in each run,
 * so without what a save puts in of its own. */
static uint8_t *input_of(uint8_t *text, size_t *bytes)
{
    json_t *object = json_loadb((const char *)text, *bytes, 0, NULL);

    json_object_del(object, "hash");
    json_object_set_new(object, "time", json_integer(1700000000));
    json_object_set_new(object, "save_id", json_string("a save"));
    char *body = json_dumps(object, JSON_COMPACT);
    json_decref(object);
    free(text);
    *bytes = body == NULL ? 0 : strlen(body);
    return (uint8_t *)body;
}

static size_t pack(const char *step, const char *other, int kind, uint8_t **data_out)
{
    static const char *const names[TT_ARC_PARTS] = {TT_MANIFEST_NAME, "shard-00000.h5",
                                                    "shard-00001.h5", TT_INDEX_NAME};
    tt_arc arc = {
        .knob = {TT_ARC_FIX_HASHES | TT_ARC_FIX_SIZES | TT_ARC_FIX_H5 | TT_ARC_EXPORT, 0x1b, 0x2d}};
    uint8_t *part[TT_ARC_PARTS];
    size_t bytes = 0;

    arc.knob[0] |= kind == 0 ? TT_ARC_ONE_SHARD : 0;
    for (int i = 0; i < TT_ARC_PARTS; i++) {
        part[i] = load(i == TT_ARC_SHARD_1 ? other : step, names[i], &arc.bytes[i]);
        if (i == TT_ARC_MANIFEST && part[i] != NULL)
            part[i] = input_of(part[i], &arc.bytes[i]);
        arc.data[i] = part[i];
    }
    if ((*data_out = malloc(TT_FUZZ_CKPT_BYTES)) != NULL && arc.bytes[TT_ARC_INDEX] > 0)
        bytes = tt_arc_write(&arc, *data_out, TT_FUZZ_CKPT_BYTES);
    for (int i = 0; i < TT_ARC_PARTS; i++)
        free(part[i]);
    return bytes;
}

static size_t archive_seed(int kind, uint8_t **data_out)
{
    char folder[256], step[320], other[320];

    (void)snprintf(folder, sizeof folder, "%s/seed-%d", tt_fuzz_root(), kind);
    if (access(folder, F_OK) != 0)
        tt_fuzz_save(kind, folder);
    (void)snprintf(step, sizeof step, "%s%s/step-%012d", folder, kind == 2 ? "/a" : "", SEED_STEP);
    (void)snprintf(other, sizeof other, "%s%s/step-%012d", folder, kind == 2 ? "/b" : "",
                   SEED_STEP);
    return pack(step, other, kind, data_out);
}

static size_t manifest_seed(int kind, uint8_t **data_out)
{
    tt_arc arc;
    uint8_t *archive;
    size_t bytes = archive_seed(kind, &archive);

    *data_out = NULL;
    if (bytes == 0 || !tt_arc_read(archive, bytes, &arc) ||
        (*data_out = malloc(arc.bytes[0])) == NULL) {
        free(archive);
        return 0;
    }
    bytes = arc.bytes[0];
    memcpy(*data_out, arc.data[0], bytes);
    free(archive);
    return bytes;
}

static size_t safetensors_seed(int i, uint8_t **data_out)
{
    static const char *const header[] = {
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
        "\"b/c\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[24,26]},"
        "\"e\":{\"dtype\":\"I64\",\"shape\":[0,4],\"data_offsets\":[26,26]}}",
        "{\"__metadata__\":{\"format\":\"pt\"},\"x\":{\"dtype\":\"U8\",\"shape\":[26],"
        "\"data_offsets\":[0,26]}}"};

    if (i >= 2 || (*data_out = calloc(1, 512)) == NULL)
        return 0;
    uint64_t length = strlen(header[i]);
    memcpy(*data_out, &length, 8);
    memcpy(*data_out + 8, header[i], length);
    memset(*data_out + 8 + length, 0x3f, 26);
    return 8 + length + 26;
}

static size_t llmc_seed(int i, uint8_t **data_out)
{
    /* magic, version, context, vocabulary, layers, heads, channels, padded vocabulary */
    const int32_t head[8] = {20240326, i == 0 ? 3 : 5, 2, 3, 1, 1, 2, 4};
    const size_t elems = 4 * 2 + 2 * 2 + 1 * (12 * 4 + 13 * 2) + 2 * 2;
    size_t bytes = 1024 + elems * (i == 0 ? 4 : 2);

    if (i >= 2 || (*data_out = calloc(1, bytes)) == NULL)
        return 0;
    memcpy(*data_out, head, sizeof head);
    return bytes;
}

size_t tt_fuzz_ckpt_seed(int reader, int i, uint8_t **data_out)
{
    *data_out = NULL;
    switch (reader) {
    case TT_FUZZ_MANIFEST:
        return i < 3 ? manifest_seed(i, data_out) : 0;
    case TT_FUZZ_FOLDER:
    case TT_FUZZ_VERIFY:
        return i < 2 ? archive_seed(i, data_out) : 0;
    case TT_FUZZ_NODES:
        return i < 1 ? archive_seed(2, data_out) : 0;
    case TT_FUZZ_SAFETENSORS:
        return safetensors_seed(i, data_out);
    default:
        return llmc_seed(i, data_out);
    }
}

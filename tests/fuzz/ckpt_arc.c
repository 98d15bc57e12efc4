/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Archives of checkpoints. A mutated file is refused at its first checksum, and a fuzzer would see
 * nothing but that: so checksums are made right here, in the input's copy, as an attacker would.
 * The manifest's hash always (its text is the input), its list of the files' hashes and sizes and
 * the checksums inside HDF5's own structures where the knobs say so.
 */
#include <fcntl.h>
#include <ftw.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/dir.h"
#include "ckpt/manifest.h"

#include "fuzz_ckpt.h"

static const char *const names[TT_ARC_PARTS] = {TT_MANIFEST_NAME, "shard-00000.h5",
                                                "shard-00001.h5", TT_INDEX_NAME};

bool tt_arc_read(const uint8_t *data, size_t bytes, tt_arc *arc_out)
{
    const size_t head = TT_ARC_KNOBS + 4 * TT_ARC_PARTS;
    size_t at = head;

    if (bytes < head)
        return false;
    memcpy(arc_out->knob, data, TT_ARC_KNOBS);
    for (int i = 0; i < TT_ARC_PARTS; i++) {
        uint32_t length;

        memcpy(&length, data + TT_ARC_KNOBS + 4 * i, sizeof length);
        arc_out->data[i] = data + at;
        arc_out->bytes[i] = length < bytes - at ? length : bytes - at;
        at += arc_out->bytes[i];
    }
    return true;
}

size_t tt_arc_write(const tt_arc *arc, uint8_t *data, size_t cap)
{
    size_t at = TT_ARC_KNOBS + 4 * TT_ARC_PARTS, total = at;

    for (int i = 0; i < TT_ARC_PARTS; i++)
        total += arc->bytes[i];
    if (total > cap)
        return 0;
    memcpy(data, arc->knob, TT_ARC_KNOBS);
    for (int i = 0; i < TT_ARC_PARTS; i++) {
        uint32_t length = (uint32_t)arc->bytes[i];

        memcpy(data + TT_ARC_KNOBS + 4 * i, &length, sizeof length);
        if (length > 0)
            memcpy(data + at, arc->data[i], length);
        at += length;
    }
    return total;
}

static char root[64];

static int drop(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info, (void)kind, (void)at;
    return remove(path);
}

static void clear(void)
{
    (void)nftw(root, drop, 16, FTW_DEPTH | FTW_PHYS);
}

const char *tt_fuzz_root(void)
{
    if (root[0] != 0)
        return root;
    (void)snprintf(root, sizeof root, "%s/tt-fuzz-XXXXXX",
                   access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (mkdtemp(root) == NULL)
        abort();
    (void)atexit(clear);
    return root;
}

/* The checksum that HDF5 puts behind a structure: of the exported functions of its library. */
uint32_t H5_checksum_metadata(const void *data, size_t bytes, uint32_t start);

static void seal_h5(uint8_t *data, size_t bytes, size_t at, size_t length)
{
    if (length > bytes || at > bytes - length || bytes - length - at < 4)
        return;
    uint32_t sum = H5_checksum_metadata(data + at, length, 0);

    memcpy(data + at + length, &sum, sizeof sum);
}

/* Version 2 of an object's header: what is between its signature and its first chunk depends on
 * its flags. */
static size_t header_length(const uint8_t *header, size_t bytes)
{
    size_t at = 6, width = (size_t)1 << (header[5] & 3);
    uint64_t chunk = 0;

    at += (header[5] & 0x20) != 0 ? 16 : 0;
    at += (header[5] & 0x10) != 0 ? 4 : 0;
    if (at + width > bytes)
        return bytes;
    memcpy(&chunk, header + at, width);
    return chunk < bytes ? at + width + chunk : bytes;
}

/* The superblock, headers of objects, and of the other structures those whose length is where they
 * end: before the next signature, which the files that we write have at once behind. */
static void seal_all_h5(uint8_t *data, size_t bytes)
{
    static const uint8_t signature[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};

    if (bytes >= 48 && memcmp(data, signature, sizeof signature) == 0)
        seal_h5(data, bytes, 0, 44);
    for (size_t at = 0; bytes >= 8 && at < bytes - 8; at++) {
        if (memcmp(data + at, "OHDR", 4) == 0)
            seal_h5(data, bytes, at, header_length(data + at, bytes - at));
        else if (memcmp(data + at, "FRHP", 4) == 0)
            seal_h5(data, bytes, at, 142);
        else if (memcmp(data + at, "BTHD", 4) == 0)
            seal_h5(data, bytes, at, 34);
    }
}

static void fix_file(json_t *file, const tt_arc *made, unsigned knob, uint64_t block_bytes)
{
    const char *name = json_string_value(json_object_get(file, "name"));

    for (int i = TT_ARC_SHARD_0; i < TT_ARC_PARTS; i++) {
        char hex[TT_FUZZ_CKPT_BYTES / 4096 * 32 + 64];
        size_t n = 0;

        if (name == NULL || strcmp(name, names[i]) != 0)
            continue;
        if ((knob & TT_ARC_FIX_SIZES) != 0)
            json_object_set_new(file, "bytes", json_integer((json_int_t)made->bytes[i]));
        for (uint64_t at = 0; at < made->bytes[i]; at += block_bytes, n += 32) {
            size_t left = made->bytes[i] - at;

            tt_hash_text(tt_hash128_of(made->data[i] + at, left < block_bytes ? left : block_bytes),
                         hex + n);
        }
        json_object_set_new(file, "xxh3_128", json_stringn(hex, n));
    }
}

/* The body with the checksums that the files have; NULL: it is no JSON, or not of that shape. */
static char *fix_body(const tt_arc *made)
{
    json_t *root_object = json_loadb((const char *)made->data[TT_ARC_MANIFEST],
                                     made->bytes[TT_ARC_MANIFEST], 0, NULL);
    json_t *files = json_object_get(root_object, "files"), *file;
    json_int_t block_bytes = json_integer_value(json_object_get(root_object, "block_bytes"));
    char *text = NULL;
    size_t i;

    if (block_bytes >= 4096 && json_is_array(files)) {
        json_array_foreach(files, i, file)
        {
            fix_file(file, made, made->knob[0], (uint64_t)block_bytes);
        }
        text = json_dumps(root_object, JSON_COMPACT);
    }
    json_decref(root_object);
    return text;
}

static void put(int dir, const char *name, const void *head, size_t head_bytes, const void *data,
                size_t bytes)
{
    int fd = openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    if (fd < 0 || write(fd, head, head_bytes) != (ssize_t)head_bytes ||
        write(fd, data, bytes) != (ssize_t)bytes)
        abort();
    (void)close(fd);
}

static void put_manifest(int dir, const tt_arc *made)
{
    char *fixed = (made->knob[0] & TT_ARC_FIX_HASHES) != 0 ? fix_body(made) : NULL;
    const char *body = fixed != NULL ? fixed : (const char *)made->data[TT_ARC_MANIFEST];
    size_t bytes = fixed != NULL ? strlen(fixed) : made->bytes[TT_ARC_MANIFEST];
    size_t brace = bytes > 0 && body[0] == '{';
    char head[64], hex[33];

    tt_hash_text(tt_hash128_of(body + brace, bytes - brace), hex);
    int n = snprintf(head, sizeof head, "{\"hash\":\"%s\",", hex);
    put(dir, TT_MANIFEST_NAME, head, (size_t)n, body + brace, bytes - brace);
    free(fixed);
}

static bool has(const tt_arc *arc, int part)
{
    return !(part == TT_ARC_SHARD_1 && (arc->knob[0] & TT_ARC_ONE_SHARD) != 0) &&
           !(part == TT_ARC_INDEX && (arc->knob[0] & TT_ARC_NO_INDEX) != 0);
}

static void empty(const char *path)
{
    if (nftw(path, drop, 16, FTW_DEPTH | FTW_PHYS) != 0 && access(path, F_OK) == 0)
        abort();
}

bool tt_arc_make(const tt_arc *arc, const char *name, unsigned which, tt_arc *made_out)
{
    static uint8_t copy[TT_FUZZ_CKPT_BYTES];
    char path[512];
    size_t at = 0;

    (void)snprintf(path, sizeof path, "%s/%s", tt_fuzz_root(), name);
    empty(path);
    if (mkdir(path, 0700) != 0)
        return false;
    int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    *made_out = *arc;
    for (int i = 0; i < TT_ARC_PARTS; i++) {
        made_out->data[i] = copy + at;
        memcpy(copy + at, arc->data[i], arc->bytes[i]);
        if (i != TT_ARC_MANIFEST && (arc->knob[0] & TT_ARC_FIX_H5) != 0)
            seal_all_h5(copy + at, arc->bytes[i]);
        at += arc->bytes[i];
        if (i != TT_ARC_MANIFEST && (which & 1u << i) != 0 && has(arc, i))
            put(dir, names[i], NULL, 0, made_out->data[i], made_out->bytes[i]);
    }
    if ((which & 1u << TT_ARC_MANIFEST) != 0)
        put_manifest(dir, made_out);
    (void)close(dir);
    return true;
}

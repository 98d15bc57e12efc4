/* SPDX-License-Identifier: Apache-2.0 */
/* Mutations that keep an input's frame, so that what is changed is what is read. */
#include <stdlib.h>
#include <string.h>

#include "fuzz_ckpt.h"

static uint8_t scratch[TT_FUZZ_CKPT_BYTES];

/* One part of an archive, or its knobs. */
static size_t mutate_archive(uint8_t *data, size_t bytes, size_t cap, unsigned seed,
                             tt_fuzz_change change)
{
    tt_arc arc;
    int part = (int)(seed % 6);

    if (!tt_arc_read(data, bytes, &arc))
        return change(data, bytes, cap);
    if (part >= TT_ARC_PARTS) {
        data[seed / 8 % TT_ARC_KNOBS] ^= (uint8_t)(1u << seed / 64 % 8);
        return bytes;
    }
    size_t room = cap < sizeof scratch ? cap : sizeof scratch;
    room = bytes < room ? arc.bytes[part] + (room - bytes) : arc.bytes[part];
    static uint8_t changed[TT_FUZZ_CKPT_BYTES];
    if (arc.bytes[part] > 0)
        memcpy(changed, arc.data[part], arc.bytes[part]);
    arc.bytes[part] = change(changed, arc.bytes[part], room);
    arc.data[part] = changed;
    size_t total = tt_arc_write(&arc, scratch, cap < sizeof scratch ? cap : sizeof scratch);
    if (total == 0)
        return bytes;
    memcpy(data, scratch, total);
    return total;
}

/* The length in front is that of the header. */
static size_t mutate_safetensors(uint8_t *data, size_t bytes, size_t cap, unsigned seed,
                                 tt_fuzz_change change)
{
    uint64_t header;

    if (bytes < 10 || seed % 8 == 0)
        return change(data, bytes, cap);
    memcpy(&header, data, 8);
    if (header > bytes - 8 || header + 8 > sizeof scratch || bytes > sizeof scratch)
        return change(data, bytes, cap);
    size_t rest = bytes - 8 - header;
    memcpy(scratch, data + 8 + header, rest);
    header = change(data + 8, header, cap - 8 - rest);
    memcpy(data + 8 + header, scratch, rest);
    memcpy(data, &header, 8);
    return 8 + header + rest;
}

/* As long as its header says, now and then. */
static size_t mutate_llmc(uint8_t *data, size_t bytes, size_t cap, unsigned seed,
                          tt_fuzz_change change)
{
    int32_t h[8];

    bytes = change(data, bytes, cap);
    if (bytes < 1024 || seed % 4 == 0)
        return bytes;
    memcpy(h, data, sizeof h);
    h[0] = 20240326;
    for (int i = 2; i < 8; i++)
        h[i] = (int32_t)((uint32_t)h[i] % 5) + (seed % 16 != 1);
    memcpy(data, h, sizeof h);
    uint64_t c = (uint64_t)h[6], layers = (uint64_t)h[4];
    uint64_t elems = ((uint64_t)h[7] + (uint64_t)h[2]) * c + layers * (12 * c * c + 13 * c) + 2 * c;
    uint64_t want = 1024 + elems * (h[1] == 3 ? 4 : 2);
    if (want > cap)
        return bytes;
    if (want > bytes)
        memset(data + bytes, 0x2a, want - bytes);
    return want;
}

size_t tt_fuzz_ckpt_mutate(int reader, uint8_t *data, size_t bytes, size_t cap, unsigned seed,
                           tt_fuzz_change change)
{
    switch (reader) {
    case TT_FUZZ_MANIFEST:
        return change(data, bytes, cap);
    case TT_FUZZ_SAFETENSORS:
        return mutate_safetensors(data, bytes, cap, seed, change);
    case TT_FUZZ_LLMC:
        return mutate_llmc(data, bytes, cap, seed, change);
    default:
        return mutate_archive(data, bytes, cap, seed, change);
    }
}

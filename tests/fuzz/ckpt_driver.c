/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fuzz targets of checkpoints without a fuzzer: seeds, which must be taken, and mutations of
 * them by a seeded generator. Files given as arguments are tried as they are, which is how to look
 * at what libFuzzer found.
 *
 *   t_fuzz_ckpt [--runs N] [--seed S] [READER FILE...]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt_targets.h"
#include "tt_test.h"

enum { SEEDS_MAX = 8 };

static const char *const names[TT_FUZZ_CKPT_READERS] = {"manifest", "folder",      "verify",
                                                        "nodes",    "safetensors", "llmc"};
/* How much dearer than a manifest one run is. */
static const int share[TT_FUZZ_CKPT_READERS] = {1, 10, 100, 100, 4, 4};

static tt_rng rng;

static size_t below(size_t limit)
{
    return (size_t)tt_rand_below(&rng, limit == 0 ? 1 : limit);
}

static size_t splice(uint8_t *data, size_t bytes, size_t cap)
{
    static const char *const words[] = {"-1",
                                        "0",
                                        "4294967296",
                                        "9223372036854775807",
                                        "1e99",
                                        "\"",
                                        "[",
                                        "]",
                                        "{",
                                        "}",
                                        ",",
                                        "null",
                                        "\\u0000",
                                        "../",
                                        "\"bytes\":",
                                        "\"u64\"",
                                        "[[0,4096,[0],[1]]]",
                                        "OHDR"};
    const char *word = words[below(sizeof words / sizeof *words)];
    size_t length = strlen(word), at = below(bytes + 1);

    if (bytes + length > cap)
        return bytes;
    memmove(data + at + length, data + at, bytes - at);
    memcpy(data + at, word, length);
    return bytes + length;
}

static size_t change_once(uint8_t *data, size_t bytes, size_t cap)
{
    size_t at = below(bytes), length = below(bytes - at < 64 ? bytes - at + 1 : 64);

    switch (bytes == 0 ? 3 : below(5)) {
    case 0:
        data[at] = (uint8_t)tt_rand(&rng);
        return bytes;
    case 1: /* a piece less */
        memmove(data + at, data + at + length, bytes - at - length);
        return bytes - length;
    case 2: /* a piece twice */
        if (bytes + length > cap)
            return bytes;
        memmove(data + at + length, data + at, bytes - at);
        return bytes + length;
    case 3:
        return splice(data, bytes, cap);
    default: /* a digit */
        for (size_t i = at; i < bytes; i++)
            if (data[i] >= '0' && data[i] <= '9') {
                data[i] = (uint8_t)('0' + below(10));
                break;
            }
        return bytes;
    }
}

static size_t change(uint8_t *data, size_t bytes, size_t cap)
{
    for (size_t times = 1 + below(3); times > 0; times--)
        bytes = change_once(data, bytes, cap);
    return bytes;
}

static void run(int reader, long runs, uint8_t *data)
{
    uint8_t *seed[SEEDS_MAX];
    size_t bytes[SEEDS_MAX];
    int n = 0;
    long taken = 0;

    while (n < SEEDS_MAX && (bytes[n] = tt_fuzz_ckpt_seed(reader, n, &seed[n])) > 0)
        n++;
    for (int i = 0; i < n; i++)
        tt_must_be(tt_fuzz_ckpt_one(reader, seed[i], bytes[i]) == 1, names[reader]);
    for (long i = 0; i < runs && n > 0; i++) {
        int from = (int)below((size_t)n);
        size_t now = bytes[from];

        memcpy(data, seed[from], now);
        for (size_t times = 1 + below(2); times > 0; times--)
            now = tt_fuzz_ckpt_mutate(reader, data, now, TT_FUZZ_CKPT_BYTES,
                                      (unsigned)tt_rand(&rng), change);
        taken += tt_fuzz_ckpt_one(reader, data, now);
    }
    (void)printf("%s: %d seeds, %ld runs, %ld taken\n", names[reader], n, runs, taken);
    for (int i = 0; i < n; i++)
        free(seed[i]);
}

static int run_file(const char *name, const char *path, uint8_t *data)
{
    FILE *file = fopen(path, "rb");
    int reader = 0;

    while (reader < TT_FUZZ_CKPT_READERS && strcmp(names[reader], name) != 0)
        reader++;
    if (file == NULL || reader == TT_FUZZ_CKPT_READERS) {
        (void)fprintf(stderr, "no reader %s, or no file %s\n", name, path);
        return 2;
    }
    size_t bytes = fread(data, 1, TT_FUZZ_CKPT_BYTES, file);
    (void)fclose(file);
    (void)printf("%s: %s\n", path,
                 tt_fuzz_ckpt_one(reader, data, bytes) ? "taken" : tutti_last_error());
    return 0;
}

int main(int argc, char **argv)
{
    uint8_t *data = malloc(TT_FUZZ_CKPT_BYTES);
    long runs = 2000;
    int at = 1, status = 0;

    (void)setenv("TUTTI_LOG_FILE", "/dev/null", 0);
    for (; at + 1 < argc && strncmp(argv[at], "--", 2) == 0; at += 2) {
        if (strcmp(argv[at], "--runs") == 0)
            runs = atol(argv[at + 1]);
        else
            rng.state = strtoull(argv[at + 1], NULL, 10);
    }
    if (data == NULL)
        return 1;
    if (at == argc)
        for (int reader = 0; reader < TT_FUZZ_CKPT_READERS; reader++)
            run(reader, runs / share[reader], data);
    for (int i = at + 1; i < argc && status == 0; i++)
        status = run_file(argv[at], argv[i], data);
    free(data);
    return status;
}

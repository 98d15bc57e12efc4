/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reader of machine descriptions on any bytes: it must return, and what it takes must be whole.
 * As a libFuzzer target, or with driver.c as a program of its own. The environment's TT_FUZZ_READER
 * is the reader's number in fuzz.h.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "topo/paths.h"
#include "topo/read.h"

#include "fuzz.h"

static tutti_status read_p2p(const char *text, size_t bytes, tutti_topo **topo_out)
{
    tutti_topo *topo;
    tutti_status status = tt_topo_read_synthetic("dgx-1v", &topo);

    if (status == TUTTI_OK)
        status = tt_topo_add_p2p(topo, "fuzz", text, bytes);
    if (status == TUTTI_OK)
        *topo_out = topo;
    else
        tutti_topo_close(topo);
    return status;
}

static tutti_status read_any(int reader, const char *text, size_t bytes, tutti_topo **topo_out)
{
    tutti_status status;
    char *copy;

    switch (reader) {
    case TT_FUZZ_NCCL:
        return tt_topo_read_nccl("fuzz", text, bytes, topo_out);
    case TT_FUZZ_HWLOC:
        return tt_topo_read_hwloc("fuzz", text, bytes, topo_out);
    case TT_FUZZ_MATRIX:
        return tt_topo_read_matrix("fuzz", text, bytes, topo_out);
    case TT_FUZZ_WORDS:
        copy = malloc(bytes + 1);
        if (copy == NULL)
            return TUTTI_ERR_NO_MEMORY;
        memcpy(copy, text, bytes);
        copy[bytes] = 0;
        status = tt_topo_read_synthetic(copy, topo_out);
        free(copy);
        return status;
    case TT_FUZZ_P2P:
        return read_p2p(text, bytes, topo_out);
    case TT_FUZZ_TREE:
        return tt_topo_read_root(tt_fuzz_tree(text, bytes), topo_out);
    default:
        return tt_topo_read_text("fuzz", text, bytes, topo_out);
    }
}

static void must_be(bool good, const char *what)
{
    if (good)
        return;
    (void)fprintf(stderr, "not so: %s (last error: %s)\n", what, tutti_last_error());
    abort();
}
#define must(good) must_be((good), #good)

/* Every answer is one of the model, and what is written is read again. */
static void use(const tutti_topo *topo)
{
    int gpus = tutti_topo_gpu_count(topo);

    for (int i = 0; i < gpus && i < 64; i++) {
        tutti_topo_gpu_info info = TUTTI_TOPO_GPU_INFO_INIT;
        tutti_topo_path path;

        must(tutti_topo_gpu(topo, i, &info) == TUTTI_OK);
        must(info.island >= 0 && info.island < tutti_topo_island_count(topo));
        must(tutti_topo_path_query(topo, i, TUTTI_DEVICE_GPU, gpus - 1, &path) == TUTTI_OK);
        must(path.type <= TUTTI_PATH_DIS && path.gbps >= 0);
    }
    for (int host = 0; host < topo->n_hosts && host < 2; host++) {
        tutti_topo *back = NULL;
        char *text = NULL;

        if (tt_topo_write_nccl(topo, host, &text) != TUTTI_OK)
            continue;
        must(tt_topo_read_nccl("written", text, strlen(text), &back) == TUTTI_OK);
        must(back->machines[0]->n_gpus >= tt_topo_machine_of(topo, host)->n_gpus);
        tutti_topo_close(back);
        free(text);
    }
}

int tt_fuzz_one(int reader, const uint8_t *data, size_t bytes)
{
    tutti_topo *topo = NULL;

    if (read_any(reader, (const char *)data, bytes, &topo) != TUTTI_OK) {
        must(topo == NULL && *tutti_last_error() != 0);
        return 0;
    }
    use(topo);
    tutti_topo_close(topo);
    return 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static int reader = -1;

    if (reader < 0) {
        const char *number = getenv("TT_FUZZ_READER");

        reader = number == NULL ? TT_FUZZ_ANY : atoi(number);
    }
    (void)tt_fuzz_one(reader, data, bytes);
    return 0;
}

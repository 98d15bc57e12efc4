/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fuzz target without a fuzzer. For each reader: seeds made by
 * the library itself (the catalogue as words and as NCCL XML) and by hand, and mutations of them by
 * a seeded generator, so that a run is the same each time. Files given as arguments are tried as
 * they are, which is how to look at what libFuzzer found.
 *
 *   t_fuzz_topo [--runs N] [--seed S] [FILE...]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "topo/read.h"

#include "fuzz.h"

enum { SEEDS_MAX = 64, BYTES_MAX = 1 << 16 };

typedef struct seed {
    char *text;
    size_t bytes;
} seed;

static uint64_t state;

static uint64_t next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static size_t below(size_t limit)
{
    return limit == 0 ? 0 : (size_t)(next() % limit);
}

static const char hwloc_seed[] =
    "<?xml version=\"1.0\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology "
    "version=\"2.0\">\n"
    "<object type=\"Machine\" os_index=\"0\" cpuset=\"0x0000000f\" nodeset=\"0x1\" "
    "gp_index=\"1\">\n"
    "<info name=\"Architecture\" value=\"x86_64\"/><info name=\"CPUVendor\" "
    "value=\"GenuineIntel\"/>\n"
    "<object type=\"NUMANode\" os_index=\"0\" cpuset=\"0x0000000f\" nodeset=\"0x1\" gp_index=\"2\" "
    "local_memory=\"1024\"/>\n<object type=\"Bridge\" gp_index=\"3\" bridge_type=\"0-1\" "
    "bridge_pci=\"0000:[00-05]\">\n<object type=\"Bridge\" gp_index=\"4\" bridge_type=\"1-1\" "
    "pci_busid=\"0000:00:01.0\" pci_type=\"0604 [8086:2030] [0000:0000] 04 00\" "
    "pci_link_speed=\"15.753846\">\n<object type=\"PCIDev\" gp_index=\"5\" "
    "pci_busid=\"0000:01:00.0\" "
    "pci_type=\"0302 [10de:1db8] [10de:131d] a1 00\" pci_link_speed=\"15.753846\"><object "
    "type=\"OSDev\" gp_index=\"6\" name=\"nvml0\" osdev_type=\"5\"><info name=\"GPUModel\" "
    "value=\"V100\"/></object></object></object></object></object>\n<distances2hetero nbobjs=\"2\" "
    "kind=\"25\" name=\"NVLinkBandwidth\"><indexes length=\"14\">OSDev:6 PCIDev:5 "
    "</indexes><u64values "
    "length=\"9\">0 25000 0 0 </u64values></distances2hetero></topology>\n";

static const char matrix_seed[] =
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tmlx5_1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV4\tSYS\tPIX\tNODE\t0-31\t0\t\tN/A\nGPU1\tNV4\t X "
    "\tSYS\tPXB\tPHB\t0-31\t0\t\tN/A\n"
    "GPU2\tSYS\tSYS\t X \tSYS\tSYS\t\t1\t\t2\nNIC0\tPIX\tPXB\tSYS\t X "
    "\tPIX\nmlx5_1\tNODE\tPHB\tSYS\t"
    "PIX\t X \n\nNIC Legend:\n\n  NIC0: mlx5_0\n\n \tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tCNS\tX\n";

static const char p2p_seed[] = " \tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\t\n "
                               "GPU0\tX\tOK\tOK\tOK\tOK\tCNS\tCNS\tCNS\t\n "
                               "GPU1\tOK\tX\tOK\tOK\tGNS\tOK\tTNS\tNS\t\n "
                               "GPU2\tOK\tOK\tX\tDR\tU\n\nLegend:\n\n  X    = Self\n";

static const char tree_seed[] =
    "sys/devices/pci0000:00/0000:00:01.0/class\t0x060400\n"
    "sys/devices/pci0000:00/0000:00:01.0/vendor\t0x8086\n"
    "sys/devices/pci0000:00/0000:00:01.0/numa_node\t0\n"
    "sys/devices/pci0000:00/0000:00:01.0/max_link_speed\t16.0 GT/s PCIe\n"
    "sys/devices/pci0000:00/0000:00:01.0/max_link_width\t16\n"
    "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/class\t0x030200\n"
    "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/vendor\t0x10de\n"
    "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/device\t0x20b0\n"
    "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/numa_node\t-1\n"
    "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/local_cpus\tffff\n"
    "sys/devices/pci0000:00/0000:00:02.0/class\t0x020700\n"
    "sys/devices/pci0000:00/0000:00:02.0/vendor\t0x15b3\n"
    "sys/devices/pci0000:00/0000:00:02.0/numa_node\t1\n"
    "sys/bus/pci/devices/0000:00:01.0\t-> ../../../devices/pci0000:00/0000:00:01.0\n"
    "sys/bus/pci/devices/0000:01:00.0\t-> ../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0\n"
    "sys/bus/pci/devices/0000:00:02.0\t-> ../../../devices/pci0000:00/0000:00:02.0\n"
    "sys/class/infiniband/mlx5_0/device\t-> ../../../devices/pci0000:00/0000:00:02.0\n"
    "sys/class/infiniband/mlx5_0/node_guid\t0c42:a103:00a5:1234\n"
    "sys/class/infiniband/mlx5_0/ports/1/state\t4: ACTIVE\n"
    "sys/class/infiniband/mlx5_0/ports/1/rate\t200 Gb/sec (4X HDR)\n"
    "sys/class/infiniband/mlx5_0/ports/1/link_layer\tInfiniBand\n"
    "sys/class/net/eth0/speed\t10000\nsys/class/net/eth0/operstate\tup\n"
    "sys/devices/system/node/node0/cpulist\t0-15\n"
    "sys/devices/system/node/node1/cpulist\t16-31,48\n"
    "proc/driver/nvidia/gpus/0000:01:00.0/numa_status\tNode: 255\n"
    "proc/cpuinfo\tvendor_id\t: AuthenticAMD\nproc/cpuinfo\tcpu family\t: 23\n"
    "proc/cpuinfo\tmodel\t\t: 49\nproc/cpuinfo\tflags\t\t: fpu hypervisor\n";

static void add_seed(seed *seeds, int *n, const char *text)
{
    if (*n == SEEDS_MAX || (seeds[*n].text = strdup(text)) == NULL)
        return;
    seeds[(*n)++].bytes = strlen(text);
}

static int make_seeds(int reader, seed *seeds)
{
    const tt_topo_catalogue *entry;
    int n = 0;

    if (reader == TT_FUZZ_HWLOC || reader == TT_FUZZ_ANY)
        add_seed(seeds, &n, hwloc_seed);
    if (reader == TT_FUZZ_MATRIX || reader == TT_FUZZ_ANY)
        add_seed(seeds, &n, matrix_seed);
    if (reader == TT_FUZZ_P2P)
        add_seed(seeds, &n, p2p_seed);
    if (reader == TT_FUZZ_TREE)
        add_seed(seeds, &n, tree_seed);
    for (int i = 0; (entry = tt_topo_catalogue_at(i)) != NULL; i++) {
        tutti_topo *topo = NULL;
        char *text = NULL;

        if (reader == TT_FUZZ_WORDS) {
            add_seed(seeds, &n, entry->name);
            add_seed(seeds, &n, entry->line);
        }
        if (reader != TT_FUZZ_NCCL && reader != TT_FUZZ_ANY)
            continue;
        if (tt_topo_read_synthetic(entry->name, &topo) == TUTTI_OK &&
            tt_topo_write_nccl(topo, 0, &text) == TUTTI_OK)
            add_seed(seeds, &n, text);
        free(text);
        tutti_topo_close(topo);
    }
    return n;
}

/* A number, a delimiter or a word of a format, where they may matter. */
static size_t splice(uint8_t *data, size_t bytes)
{
    static const char *const words[] = {"-1",           "0",
                                        "4294967296",   "99999999999999999999",
                                        "\"",           "<pci ",
                                        "</cpu>",       "busid=\"",
                                        "0000:00:00.0", "GPU0",
                                        "NV99",         "X",
                                        "\t",           "\n",
                                        "x65536 ",      "-gpu:0 ",
                                        "gpus=128 ",    "nvlink=mesh:64 ",
                                        "numa=256 ",    "0x",
                                        "OK",           "-> ../../../devices/"};
    const char *word = words[below(sizeof words / sizeof *words)];
    size_t length = strlen(word), at = below(bytes + 1);

    if (bytes + length > BYTES_MAX)
        return bytes;
    memmove(data + at + length, data + at, bytes - at);
    memcpy(data + at, word, length);
    return bytes + length;
}

static size_t mutate(uint8_t *data, size_t bytes)
{
    for (size_t times = 1 + below(8); times > 0; times--) {
        size_t at = below(bytes), length = below(bytes - at < 64 ? bytes - at + 1 : 64);

        switch (below(5)) {
        case 0:
            if (bytes > 0)
                data[at] = (uint8_t)next();
            break;
        case 1: /* a piece less */
            memmove(data + at, data + at + length, bytes - at - length);
            bytes -= length;
            break;
        case 2: /* a piece twice */
            if (bytes + length <= BYTES_MAX) {
                memmove(data + at + length, data + at, bytes - at);
                bytes += length;
            }
            break;
        case 3:
            bytes = splice(data, bytes);
            break;
        default:
            if (bytes > 0 && below(16) == 0)
                bytes = at;
            break;
        }
    }
    return bytes;
}

static void run(int reader, long runs, uint8_t *data)
{
    seed seeds[SEEDS_MAX];
    int n = make_seeds(reader, seeds);
    long taken = 0;

    for (int i = 0; i < n; i++)
        if (tt_fuzz_one(reader, (const uint8_t *)seeds[i].text, seeds[i].bytes) == 0) {
            (void)fprintf(stderr, "a seed of reader %d is refused: %s\n", reader,
                          tutti_last_error());
            abort();
        }
    for (long i = 0; i < runs && n > 0; i++) {
        const seed *from = &seeds[below((size_t)n)];
        size_t bytes = from->bytes < BYTES_MAX ? from->bytes : BYTES_MAX;

        memcpy(data, from->text, bytes);
        bytes = mutate(data, bytes);
        taken += tt_fuzz_one(reader, data, bytes);
    }
    (void)printf("reader %d: %d seeds, %ld runs, %ld taken\n", reader, n, runs, taken);
    for (int i = 0; i < n; i++)
        free(seeds[i].text);
}

static int run_file(const char *path, uint8_t *data)
{
    FILE *file = fopen(path, "rb");
    size_t bytes;

    if (file == NULL) {
        perror(path);
        return 1;
    }
    bytes = fread(data, 1, BYTES_MAX, file);
    (void)fclose(file);
    for (int reader = 0; reader < TT_FUZZ_READERS; reader++)
        (void)printf("%s: reader %d: %s\n", path, reader,
                     tt_fuzz_one(reader, data, bytes) ? "taken" : tutti_last_error());
    return 0;
}

int main(int argc, char **argv)
{
    uint8_t *data = malloc(BYTES_MAX);
    long runs = 500;
    int at = 1, status = 0;

    state = 88172645463325252u;
    for (; at + 1 < argc && strncmp(argv[at], "--", 2) == 0; at += 2) {
        if (strcmp(argv[at], "--runs") == 0)
            runs = atol(argv[at + 1]);
        else
            state ^= strtoull(argv[at + 1], NULL, 10) << 1;
    }
    if (data == NULL)
        return 1;
    if (at == argc)
        for (int reader = TT_FUZZ_NCCL; reader < TT_FUZZ_READERS; reader++)
            run(reader, reader == TT_FUZZ_TREE ? runs / 5 : runs, data);
    for (; at < argc && status == 0; at++)
        status = run_file(argv[at], data);
    free(data);
    return status;
}

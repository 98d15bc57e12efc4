/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Machines for the simulator, from tutti's topology: `simgpu_machines -d FOLDER` writes every
 * machine of the catalogue, `simgpu_machines TEXT` prints the one that a line of the topology
 * grammar or a file (NCCL XML, hwloc XML, nvidia-smi topo -m) describes. The first host is taken.
 * The format is read by engine/machine.c: one line per GPU, in the order of the bus.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "topo/read.h"
#include "tutti/topo.h"

enum { MAX_GPUS = 64, MAX_LINKS = 18 };

/* What a description does not say: processors of a GPU, version and speed (GB/s) of a link. */
static const struct {
    int sm, processors, nvlink;
    double gbps;
} generations[] = {{60, 56, 1, 18.0}, {70, 80, 2, 20.0},  {75, 72, 2, 20.0},  {80, 108, 3, 20.0},
                   {86, 84, 3, 12.0}, {89, 142, 4, 20.0}, {90, 132, 4, 20.6}, {100, 148, 5, 40.1}};

static size_t generation(int sm)
{
    size_t i = sizeof(generations) / sizeof(generations[0]) - 1;
    while (i > 0 && generations[i].sm > sm) {
        i--;
    }
    return i;
}

typedef struct gpu {
    tutti_topo_gpu_info info;
    int topo; /* its number there */
} gpu;

static int by_bus(const void *a, const void *b)
{
    return strcmp(((const gpu *)a)->info.busid, ((const gpu *)b)->info.busid);
}

static int read_gpus(const tutti_topo *topo, gpu *out)
{
    int n = 0;
    for (int i = 0; i < tutti_topo_gpu_count(topo) && n < MAX_GPUS; i++) {
        out[n].info = (tutti_topo_gpu_info)TUTTI_TOPO_GPU_INFO_INIT;
        out[n].topo = i;
        if (tutti_topo_gpu(topo, i, &out[n].info) == TUTTI_OK && out[n].info.host == 0) {
            n++;
        }
    }
    qsort(out, (size_t)n, sizeof(out[0]), by_bus);
    return n;
}

static tutti_topo_path path_of(const tutti_topo *topo, const gpu *a, const gpu *b)
{
    tutti_topo_path path = {TUTTI_PATH_DIS, 0, 0};
    if (tutti_topo_path_query(topo, a->topo, TUTTI_DEVICE_GPU, b->topo, &path) != TUTTI_OK) {
        path.type = TUTTI_PATH_DIS;
    }
    return path;
}

/* NVLink hides the PCIe switch between two GPUs, but not that both are close to one NIC. */
static bool share_switch(const tutti_topo *topo, const gpu *a, const gpu *b)
{
    if (path_of(topo, a, b).type == TUTTI_PATH_PIX) {
        return true;
    }
    for (int nic = 0; nic < tutti_topo_nic_count(topo); nic++) {
        tutti_topo_path x, y;
        if (tutti_topo_path_query(topo, a->topo, TUTTI_DEVICE_NIC, nic, &x) == TUTTI_OK &&
            tutti_topo_path_query(topo, b->topo, TUTTI_DEVICE_NIC, nic, &y) == TUTTI_OK &&
            x.type == TUTTI_PATH_PIX && y.type == TUTTI_PATH_PIX) {
            return true;
        }
    }
    return false;
}

/* The NVLink domain that the host is in, as a number; 0: in none. */
static unsigned cluster_of(const tutti_topo *topo)
{
    unsigned number;
    memcpy(&number, topo->hosts[0].cluster, sizeof(number));
    return number;
}

static void print_gpu(FILE *f, const tutti_topo *topo, const gpu *gpus, int n, int at)
{
    const gpu *g = &gpus[at];
    size_t gen = generation(g->info.sm);
    int group = at, used = 0;
    bool fabric = false;
    char links[128] = "";
    for (int i = 0; i < n; i++) {
        tutti_topo_path path = path_of(topo, g, &gpus[i]);
        if (i < group && share_switch(topo, g, &gpus[i])) {
            group = i;
        }
        if (i == at || path.type != TUTTI_PATH_NVL) {
            continue;
        }
        fabric = fabric || path.hops > 1;
        int count = (int)(path.gbps / generations[gen].gbps + 0.5);
        for (int k = 0; path.hops == 1 && k < count && used < MAX_LINKS; k++, used++) {
            size_t length = strlen(links);
            snprintf(links + length, sizeof(links) - length, "%s%d", used > 0 ? "," : "", i);
        }
    }
    fprintf(f,
            "gpu bus=%s numa=%d sm=%d sms=%d mem=%llu nvlinks=%d nvlink=%d nvswitch=%d switch=%d "
            "links=%s c2c=%ux%u fabric=%u:%u name=NVIDIA %s\n",
            g->info.busid, g->info.numa, g->info.sm, generations[gen].processors,
            (unsigned long long)g->info.memory, fabric ? g->info.nvlinks : used,
            generations[gen].nvlink, fabric, group, used > 0 && !fabric ? links : "-",
            tt_topo_machine_of(topo, 0)->gpus[g->topo].c2c_links,
            tt_topo_machine_of(topo, 0)->gpus[g->topo].c2c_mbps, cluster_of(topo),
            topo->hosts[0].clique, g->info.name[0] != '\0' ? g->info.name : "GPU");
}

static int print_machine(FILE *f, const char *text)
{
    tutti_topo *topo;
    gpu gpus[MAX_GPUS];
    tutti_status status = access(text, R_OK) == 0 ? tutti_topo_open_file(text, &topo)
                                                  : tutti_topo_open_synthetic(text, &topo);
    if (status != TUTTI_OK) {
        fprintf(stderr, "simgpu_machines: %s\n", tutti_last_error());
        return 1;
    }
    int n = read_gpus(topo, gpus);
    for (int i = 0; i < n; i++) {
        print_gpu(f, topo, gpus, n, i);
    }
    tutti_topo_close(topo);
    return 0;
}

static int write_all(const char *folder)
{
    int failed = 0;
    const tt_topo_catalogue *entry;
    for (int i = 0; (entry = tt_topo_catalogue_at(i)) != NULL; i++) {
        char path[1024];
        snprintf(path, sizeof(path), "%s/%s", folder, entry->name);
        FILE *f = fopen(path, "w");
        if (f == NULL) {
            perror(path);
            return 1;
        }
        failed += print_machine(f, entry->name);
        fclose(f);
    }
    return failed > 0 ? 1 : 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "-d") == 0) {
        return write_all(argv[2]);
    }
    if (argc == 2) {
        return print_machine(stdout, argv[1]);
    }
    fprintf(stderr, "simgpu_machines -d FOLDER | TEXT | FILE\n");
    return 2;
}

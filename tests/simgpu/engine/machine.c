/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine: which GPUs there are, where they sit and how they are joined. From a file, one line
 * per GPU: that which SIMGPU_MACHINE names, or machines/NAME beside the library (machines.c writes
 * those of tutti's catalogue there); or from the table here, by families of machines. Bus addresses
 * follow what the real machines show, so that programs that sort by bus id meet an order other than
 * 0, 1, 2.
 */
#include "internal.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct family {
    const char *machine, *gpu;
    int count, cc_major, cc_minor, sms, nvlinks, nvlink_version;
    size_t gib;
    bool nvswitch;
    unsigned bus[8];
    int numa[8], pcie_switch[8];
} family;

static const family families[] = {
    {"dgx-a100",
     "NVIDIA A100-SXM4-80GB",
     8,
     8,
     0,
     108,
     12,
     3,
     80,
     true,
     {0x07, 0x0f, 0x47, 0x4e, 0x87, 0x90, 0xb7, 0xbd},
     {3, 3, 1, 1, 7, 7, 5, 5},
     {0, 0, 1, 1, 2, 2, 3, 3}},
    {"dgx-h100",
     "NVIDIA H100 80GB HBM3",
     8,
     9,
     0,
     132,
     18,
     4,
     80,
     true,
     {0x1b, 0x43, 0x52, 0x61, 0x9d, 0xc3, 0xd1, 0xdf},
     {0, 0, 0, 0, 1, 1, 1, 1},
     {0, 1, 2, 3, 4, 5, 6, 7}},
    {"hgx-4",
     "NVIDIA A100-SXM4-40GB",
     4,
     8,
     0,
     108,
     12,
     3,
     40,
     false,
     {0x01, 0x41, 0x81, 0xc1},
     {3, 1, 7, 5},
     {0, 1, 2, 3}},
    {"pcie-8",
     "NVIDIA L40S",
     8,
     8,
     9,
     142,
     0,
     0,
     48,
     false,
     {0x25, 0x26, 0x45, 0x46, 0xa5, 0xa6, 0xc5, 0xc6},
     {0, 0, 0, 0, 1, 1, 1, 1},
     {0, 0, 1, 1, 2, 2, 3, 3}},
};

static sg_gpu gpus[SG_MAX_DEVICES];
static int n_gpus;
static char machine_name[64];

static const family *find(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        if (strlen(families[i].machine) == length &&
            strncmp(families[i].machine, name, length) == 0) {
            return &families[i];
        }
    }
    return NULL;
}

/* A UUID that depends on machine, host, GPU and instance, and on nothing else. */
static void make_uuid(sg_gpu *gpu, const char *prefix, int host)
{
    uint64_t h = 1469598103934665603u;
    char text[160];
    snprintf(text, sizeof(text), "%s/%d/%d/%d", machine_name, host, gpu->physical, gpu->mig);
    unsigned char *b = gpu->uuid_bytes;
    for (int half = 0; half < 2; half++) {
        for (const char *c = text; *c != '\0'; c++) {
            h = (h ^ (unsigned char)*c) * 1099511628211u;
        }
        memcpy(b + 8 * half, &h, 8);
    }
    snprintf(gpu->uuid, sizeof(gpu->uuid),
             "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", prefix,
             b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
             b[14], b[15]);
}

static void make_links(sg_gpu *gpu, const family *f, int count)
{
    gpu->nvlinks = f->nvlinks;
    gpu->nvlink_version = f->nvlink_version;
    gpu->nvswitch = f->nvswitch;
    for (int k = 0; k < 18; k++) {
        gpu->link_peer[k] = -1;
    }
    if (f->nvswitch || f->nvlinks == 0 || count < 2) {
        gpu->nvlinks = f->nvswitch ? f->nvlinks : 0;
        return;
    }
    int each = f->nvlinks / (f->count - 1), k = 0;
    for (int peer = 0; peer < count; peer++) {
        for (int i = 0; peer != gpu->physical && i < each; i++) {
            gpu->link_peer[k++] = peer;
        }
    }
    gpu->nvlinks = k;
}

static void make_gpu(sg_gpu *gpu, const family *f, int index, int count)
{
    memset(gpu, 0, sizeof(*gpu));
    int at = index % f->count;
    gpu->physical = index;
    gpu->mig = -1;
    snprintf(gpu->name, sizeof(gpu->name), "%s", f->gpu);
    gpu->pci_domain = (unsigned)(index / f->count);
    gpu->pci_bus = f->bus[at];
    snprintf(gpu->pci, sizeof(gpu->pci), "%04x:%02x:%02x.0", gpu->pci_domain & 0xffffu,
             gpu->pci_bus & 0xffu, gpu->pci_device & 0x1fu);
    gpu->numa = f->numa[at];
    gpu->pcie_switch = f->pcie_switch[at];
    gpu->cc_major = f->cc_major;
    gpu->cc_minor = f->cc_minor;
    gpu->sm_count = f->sms;
    gpu->memory = f->gib << 30;
    make_uuid(gpu, "GPU", sg_set.host);
    make_links(gpu, f, count);
}

static int parse_count(const char *text, int most)
{
    char *end;
    long n = strtol(text, &end, 10);
    if (*text == '\0' || *end != '\0' || n < 0 || n > most) {
        sg_fatal("setting", "SIMGPU_MACHINE=%s: 0 to %d GPUs", sg_set.machine, most);
    }
    return (int)n;
}

static void read_links(sg_gpu *gpu, const char *text)
{
    int k = 0;
    for (int i = 0; i < 18; i++) {
        gpu->link_peer[i] = -1;
    }
    for (; *text >= '0' && *text <= '9' && k < 18; k++) {
        char *end;
        gpu->link_peer[k] = (int)strtol(text, &end, 10);
        text = end + (*end == ',');
    }
}

static void read_gpu(sg_gpu *gpu, const char *line, const char *path)
{
    int sm, is_switch;
    char links[128];
    unsigned long long memory;
    memset(gpu, 0, sizeof(*gpu));
    if (sscanf(line,
               "gpu bus=%x:%x:%x.%*x numa=%d sm=%d sms=%d mem=%llu nvlinks=%d nvlink=%d "
               "nvswitch=%d switch=%d links=%127s c2c=%ux%u fabric=%u:%u name=%63[^\n]",
               &gpu->pci_domain, &gpu->pci_bus, &gpu->pci_device, &gpu->numa, &sm, &gpu->sm_count,
               &memory, &gpu->nvlinks, &gpu->nvlink_version, &is_switch, &gpu->pcie_switch, links,
               &gpu->c2c_links, &gpu->c2c_mbps, &gpu->cluster, &gpu->clique, gpu->name) != 17) {
        sg_fatal("setting", "SIMGPU_MACHINE: %s has a line that is none: %s", path, line);
    }
    gpu->cc_major = sm / 10;
    gpu->cc_minor = sm % 10;
    gpu->memory = memory > 0 ? (size_t)memory : (size_t)16 << 30;
    gpu->nvswitch = is_switch != 0;
    gpu->physical = n_gpus;
    gpu->mig = -1;
    snprintf(gpu->pci, sizeof(gpu->pci), "%04x:%02x:%02x.0", gpu->pci_domain & 0xffffu,
             gpu->pci_bus & 0xffu, gpu->pci_device & 0x1fu);
    read_links(gpu, links);
}

static bool read_file(const char *path)
{
    char line[512];
    FILE *f = fopen(path, "r");
    while (f != NULL && n_gpus < SG_MAX_DEVICES && fgets(line, sizeof(line), f) != NULL) {
        read_gpu(&gpus[n_gpus], line, path);
        n_gpus++;
    }
    if (f != NULL) {
        fclose(f);
    }
    return f != NULL;
}

/* The links to GPUs beyond the first `count` are down. */
static void cut(int count)
{
    for (int i = 0; i < count; i++) {
        int k = 0;
        for (int j = 0; j < 18; j++) {
            if (gpus[i].link_peer[j] >= 0 && gpus[i].link_peer[j] < count) {
                gpus[i].link_peer[k++] = gpus[i].link_peer[j];
            }
        }
        for (int j = k; j < 18; j++) {
            gpus[i].link_peer[j] = -1;
        }
        gpus[i].nvlinks = gpus[i].nvswitch ? gpus[i].nvlinks : k;
    }
    n_gpus = count;
}

static bool build_from_file(const char *wanted)
{
    Dl_info info;
    char path[1200];
    const char *colon = strrchr(wanted, ':');
    int length = (int)(colon != NULL ? (size_t)(colon - wanted) : strlen(wanted));
    snprintf(path, sizeof(path), "%.*s", length, wanted);
    if (strchr(path, '/') == NULL) {
        const char *slash;
        if (dladdr((void *)&n_gpus, &info) == 0 || (slash = strrchr(info.dli_fname, '/')) == NULL) {
            return false;
        }
        snprintf(path, sizeof(path), "%.*s/machines/%.*s", (int)(slash - info.dli_fname),
                 info.dli_fname, length, wanted);
    }
    if (!read_file(path)) {
        return false;
    }
    snprintf(machine_name, sizeof(machine_name), "%.*s", length, wanted);
    cut(colon != NULL ? parse_count(colon + 1, n_gpus) : n_gpus);
    for (int i = 0; i < n_gpus; i++) {
        make_uuid(&gpus[i], "GPU", sg_set.host);
    }
    return true;
}

static void build(void)
{
    const char *wanted = sg_set.machine != NULL ? sg_set.machine : "dgx-a100";
    if (build_from_file(wanted)) {
        return;
    }
    const char *colon = strchr(wanted, ':');
    const family *f = find(wanted, colon != NULL ? (size_t)(colon - wanted) : strlen(wanted));
    if (f == NULL && colon == NULL) {
        f = &families[0];
        n_gpus = parse_count(wanted, SG_MAX_DEVICES);
    } else if (f == NULL) {
        sg_fatal("setting", "SIMGPU_MACHINE=%s: no such machine", wanted);
    } else {
        n_gpus = colon != NULL ? parse_count(colon + 1, f->count) : f->count;
    }
    snprintf(machine_name, sizeof(machine_name), "%s", f->machine);
    for (int i = 0; i < n_gpus; i++) {
        make_gpu(&gpus[i], f, i, n_gpus);
    }
}

static void need(void)
{
    static bool built;
    sg_lock();
    if (!built) {
        built = true;
        build();
    }
    sg_unlock();
}

int sg_machine_count(void)
{
    need();
    return n_gpus;
}

const sg_gpu *sg_machine_gpu(int physical)
{
    need();
    return physical >= 0 && physical < n_gpus ? &gpus[physical] : NULL;
}

const char *sg_machine_name(void)
{
    need();
    return machine_name;
}

void sg_machine_on_host(sg_gpu *gpu, int host)
{
    make_uuid(gpu, gpu->mig >= 0 ? "MIG" : "GPU", host);
}

int sg_machine_mig(int physical)
{
    int gpu, n;
    if (sg_set.mig == NULL) {
        return 0;
    }
    if (sscanf(sg_set.mig, "%d:%d", &gpu, &n) != 2 || n < 1 || n > 7) {
        sg_fatal("setting", "SIMGPU_MIG=%s: GPU:INSTANCES, at most 7", sg_set.mig);
    }
    return gpu == physical ? n : 0;
}

void sg_machine_instance(int physical, int instance, sg_gpu *out)
{
    *out = *sg_machine_gpu(physical);
    int n = sg_machine_mig(physical);
    out->mig = instance;
    out->memory /= (size_t)n;
    out->sm_count /= n;
    out->nvlinks = 0;
    make_uuid(out, "MIG", sg_host_index());
}

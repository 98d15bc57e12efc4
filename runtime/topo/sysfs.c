/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The PCI bus and the NUMA nodes as sysfs has them. Nothing is required: containers and recorded
 * trees lack files, so a missing one is a fact that is not known.
 *
 * The bus's tree is read from the links in bus/pci/devices, whose text names all bridges above;
 * they are not followed, so a recording works wherever it lies. A name is a parent only if its own
 * link says that it is one level up: made-up links can't form a circle.
 */
#include "topo/sysfs.h"

#include <ctype.h>
#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/mem.h"

enum { PATH_BYTES = 4096 };

static bool first_line(char *out, size_t bytes, const char *path)
{
    FILE *file = fopen(path, "re");
    bool good;

    if (file == NULL)
        return false;
    good = fgets(out, (int)bytes, file) != NULL;
    (void)fclose(file);
    if (!good)
        return false;
    for (size_t n = strlen(out); n > 0 && isspace((unsigned char)out[n - 1]); n--)
        out[n - 1] = 0;
    return *out != 0;
}

bool tt_sysfs_text(char *out, size_t bytes, const char *fmt, ...)
{
    char path[PATH_BYTES];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(path, sizeof path, fmt, args);
    va_end(args);
    return first_line(out, bytes, path);
}

long long tt_sysfs_number(long long absent, const char *fmt, ...)
{
    char path[PATH_BYTES], text[64], *end;
    va_list args;
    long long value;

    va_start(args, fmt);
    (void)vsnprintf(path, sizeof path, fmt, args);
    va_end(args);
    if (!first_line(text, sizeof text, path))
        return absent;
    value = strtoll(text, &end, 0);
    return end == text ? absent : value;
}

/* A node, a model: small and not negative, else as if it were absent. */
static long long limited(long long value, long long absent)
{
    return value >= 0 && value <= UINT16_MAX ? value : absent;
}

/* "16.0 GT/s PCIe" */
static float rate_of(const char *dir, const char *file)
{
    char text[64];
    float rate;

    if (!tt_sysfs_text(text, sizeof text, "%s/%s", dir, file))
        return 0;
    rate = strtof(text, NULL);
    return rate > 0 && rate < 1000 ? rate : 0;
}

static uint16_t width_of(const char *dir, const char *file)
{
    long long width = tt_sysfs_number(0, "%s/%s", dir, file);

    return width > 0 && width <= 64 ? (uint16_t)width : 0;
}

/* The link's limits in configuration space, for kernels that don't show them: the express
 * capability is searched in what may be read. */
static void link_of_config(const char *dir, tt_pci *pci)
{
    static const float rates[] = {0, 2.5f, 5, 8, 16, 32, 64};
    unsigned char config[256];
    char path[PATH_BYTES];
    size_t n, at;
    FILE *file;

    (void)snprintf(path, sizeof path, "%s/config", dir);
    file = fopen(path, "re");
    if (file == NULL)
        return;
    n = fread(config, 1, sizeof config, file);
    (void)fclose(file);
    at = n > 0x40 ? config[0x34] : 0;
    for (int hops = 0; hops < 48 && at >= 0x40 && at + 20 <= n; hops++, at = config[at + 1]) {
        unsigned limits = config[at + 12] | (unsigned)config[at + 13] << 8;

        if (config[at] != 0x10)
            continue;
        if ((limits & 15) < sizeof rates / sizeof *rates)
            pci->gts = rates[limits & 15];
        pci->lanes = (uint16_t)(limits >> 4 & 63);
        return;
    }
}

static void fill_function(const char *root, const char *name, tt_raw_pci *raw)
{
    char dir[PATH_BYTES], link[PATH_BYTES];
    tt_pci *pci = &raw->pci;
    ssize_t n;

    (void)snprintf(dir, sizeof dir, "%s/sys/bus/pci/devices/%s", root, name);
    pci->class_code = (uint32_t)tt_sysfs_number(0, "%s/class", dir);
    pci->vendor = (uint16_t)tt_sysfs_number(0, "%s/vendor", dir);
    pci->device = (uint16_t)tt_sysfs_number(0, "%s/device", dir);
    pci->sub_vendor = (uint16_t)tt_sysfs_number(0, "%s/subsystem_vendor", dir);
    pci->sub_device = (uint16_t)tt_sysfs_number(0, "%s/subsystem_device", dir);
    pci->gts = rate_of(dir, "max_link_speed");
    pci->lanes = width_of(dir, "max_link_width");
    pci->gts_now = rate_of(dir, "current_link_speed");
    pci->lanes_now = width_of(dir, "current_link_width");
    if (pci->gts <= 0 || pci->lanes == 0)
        link_of_config(dir, pci);
    pci->link_from = pci->gts > 0 && pci->lanes > 0 ? TT_FROM_SYSFS : TT_UNKNOWN;
    raw->node = (int32_t)limited(tt_sysfs_number(-1, "%s/numa_node", dir), -1);
    pci->numa_from = raw->node >= 0 ? TT_FROM_SYSFS : TT_UNKNOWN;
    pci->iommu_group = -1;
    (void)snprintf(link, sizeof link, "%s/iommu_group", dir);
    n = readlink(link, dir, sizeof dir - 1);
    if (n > 0) {
        dir[n] = 0;
        pci->iommu_group = strrchr(dir, '/') == NULL ? -1 : atoi(strrchr(dir, '/') + 1);
    }
}

/* Bus ids in a link's text: how many, and the last but one. */
static int bridges_of(const char *root, const char *name, tt_busid *above_out)
{
    char path[PATH_BYTES], text[PATH_BYTES], *save = NULL;
    tt_busid last = TT_BUSID_NONE, busid;
    ssize_t n;
    int depth = 0;

    *above_out = TT_BUSID_NONE;
    (void)snprintf(path, sizeof path, "%s/sys/bus/pci/devices/%s", root, name);
    n = readlink(path, text, sizeof text - 1);
    if (n <= 0)
        return 0;
    text[n] = 0;
    for (char *part = strtok_r(text, "/", &save); part != NULL; part = strtok_r(NULL, "/", &save)) {
        if (strchr(part, '.') == NULL || *part == '.' || tt_busid_parse(part, &busid) != TUTTI_OK)
            continue;
        *above_out = last;
        last = busid;
        depth++;
    }
    return depth;
}

int tt_sysfs_find(const tt_raw_pci *raw, int n, tt_busid busid)
{
    int low = 0, high = n;

    while (low < high) {
        int middle = low + (high - low) / 2;

        if (raw[middle].pci.busid < busid)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && raw[low].pci.busid == busid ? low : -1;
}

static int by_busid(const void *one, const void *two)
{
    tt_busid a = ((const tt_raw_pci *)one)->pci.busid, b = ((const tt_raw_pci *)two)->pci.busid;

    return (a > b) - (a < b);
}

/* The names of the bus's functions, as far as they are bus ids. */
static tutti_status list_functions(const char *root, tt_raw_pci **raw_out, int *n_out)
{
    char path[PATH_BYTES];
    tt_raw_pci *raw = NULL;
    size_t cap = 0;
    struct dirent *entry;
    DIR *dir;
    int n = 0;
    tutti_status status = TUTTI_OK;

    (void)snprintf(path, sizeof path, "%s/sys/bus/pci/devices", root);
    dir = opendir(path);
    while (dir != NULL && (entry = readdir(dir)) != NULL && n < TT_TREE_MAX) {
        tt_busid busid;

        if (entry->d_name[0] == '.' || tt_busid_parse(entry->d_name, &busid) != TUTTI_OK)
            continue;
        status = tt_grow(&raw, &cap, (size_t)n + 1, sizeof *raw);
        if (status != TUTTI_OK)
            break;
        memset(&raw[n], 0, sizeof *raw);
        raw[n].pci.busid = busid;
        raw[n].parent = -1;
        fill_function(root, entry->d_name, &raw[n]);
        n++;
    }
    if (dir != NULL)
        (void)closedir(dir);
    if (status != TUTTI_OK) {
        free(raw);
        return status;
    }
    if (n > 0)
        qsort(raw, (size_t)n, sizeof *raw, by_busid);
    *raw_out = raw;
    *n_out = n;
    return TUTTI_OK;
}

tutti_status tt_sysfs_pci(const char *root, tt_raw_pci **raw_out, int *n_out)
{
    tt_raw_pci *raw;
    int n, *depth;
    tutti_status status;

    TT_TRY(list_functions(root, &raw, &n));
    status = tt_calloc((size_t)n, 2 * sizeof *depth, &depth);
    if (status != TUTTI_OK)
        goto free_raw;
    for (int i = 0; i < n; i++) {
        char name[TT_BUSID_TEXT];
        tt_busid above;

        depth[i] = bridges_of(root, tt_busid_print(raw[i].pci.busid, name), &above);
        depth[n + i] = above == TT_BUSID_NONE ? -1 : tt_sysfs_find(raw, n, above);
    }
    for (int i = 0; i < n; i++) {
        int above = depth[n + i];

        if (above >= 0 && depth[above] == depth[i] - 1)
            raw[i].parent = above;
    }
    free(depth);
    *raw_out = raw;
    *n_out = n;
    return TUTTI_OK;

free_raw:
    free(raw);
    return status;
}

bool tt_sysfs_node_cpus(const char *root, int node, tt_cpuset *cpus_out)
{
    char text[4096];
    tt_cpuset cpus = {NULL, 0};

    if (tt_sysfs_text(text, sizeof text, "%s/sys/devices/system/node/node%d/cpulist", root, node)) {
        if (tt_cpuset_parse_list(text, &cpus) != TUTTI_OK)
            return false;
    } else if (tt_sysfs_text(text, sizeof text, "%s/sys/devices/system/node/node%d/cpumap", root,
                             node)) {
        if (tt_cpuset_parse_mask(text, &cpus) != TUTTI_OK)
            return false;
    } else {
        return false;
    }
    tt_cpuset_free(cpus_out);
    *cpus_out = cpus;
    return true;
}

static int by_number(const void *one, const void *two)
{
    return *(const int *)one - *(const int *)two;
}

/* The number of "node12"; -1: it is no node's name, as which "node012" and "node1x" count too. */
static int node_of_name(const char *name)
{
    const char *number = name + 4;

    if (strncmp(name, "node", 4) != 0 || strlen(number) > 5 || *number == 0 ||
        (*number == '0' && number[1] != 0) || number[strspn(number, "0123456789")] != 0)
        return -1;
    return atoi(number);
}

int tt_sysfs_nodes(const char *root, int *nodes, int cap)
{
    char path[PATH_BYTES];
    struct dirent *entry;
    DIR *dir;
    int n = 0;

    (void)snprintf(path, sizeof path, "%s/sys/devices/system/node", root);
    dir = opendir(path);
    while (dir != NULL && n < cap && (entry = readdir(dir)) != NULL)
        if ((nodes[n] = node_of_name(entry->d_name)) >= 0)
            n++;
    if (dir != NULL)
        (void)closedir(dir);
    if (n > 0)
        qsort(nodes, (size_t)n, sizeof *nodes, by_number);
    return n;
}

/* The value behind "key : " of a line of /proc/cpuinfo; NULL. */
static const char *value_of(const char *line, const char *key)
{
    size_t length = strlen(key);

    if (strncmp(line, key, length) != 0)
        return NULL;
    line += length;
    line += strspn(line, " \t");
    return *line == ':' ? line + 1 + strspn(line + 1, " \t") : NULL;
}

static tt_cpu_vendor vendor_of(const char *id)
{
    if (strcmp(id, "GenuineIntel") == 0)
        return TT_VENDOR_INTEL;
    if (strcmp(id, "AuthenticAMD") == 0)
        return TT_VENDOR_AMD;
    return strcmp(id, "CentaurHauls") == 0 || strstr(id, "Shanghai") != NULL ? TT_VENDOR_ZHAOXIN
                                                                             : TT_VENDOR_UNKNOWN;
}

static void read_cpuinfo(const char *root, tt_numa *cpu)
{
    char path[PATH_BYTES], line[512];
    FILE *file;

    (void)snprintf(path, sizeof path, "%s/proc/cpuinfo", root);
    file = fopen(path, "re");
    for (int lines = 0; file != NULL && lines < 64 && fgets(line, sizeof line, file) != NULL;
         lines++) {
        const char *value;

        line[strcspn(line, "\n")] = 0;
        if ((value = value_of(line, "vendor_id")) != NULL) {
            cpu->arch = TT_ARCH_X86;
            cpu->vendor = vendor_of(value);
        }
        if ((value = value_of(line, "cpu family")) != NULL)
            cpu->family = (int)limited(strtoll(value, NULL, 10), 0);
        if ((value = value_of(line, "model")) != NULL)
            cpu->model = (int)limited(strtoll(value, NULL, 10), 0);
        if (value_of(line, "CPU implementer") != NULL)
            cpu->arch = TT_ARCH_ARM;
        if ((value = value_of(line, "cpu")) != NULL && strncmp(value, "POWER", 5) == 0)
            cpu->arch = TT_ARCH_POWER;
    }
    if (file != NULL)
        (void)fclose(file);
    cpu->cpu_from = cpu->arch != TT_ARCH_UNKNOWN ? TT_FROM_SYSFS : TT_UNKNOWN;
}

static uint64_t memory_of(const char *root, int node)
{
    char path[PATH_BYTES], line[256];
    unsigned long long kilobytes = 0;
    FILE *file;

    (void)snprintf(path, sizeof path, "%s/sys/devices/system/node/node%d/meminfo", root, node);
    file = fopen(path, "re");
    if (file == NULL)
        return 0;
    if (fgets(line, sizeof line, file) != NULL && strstr(line, "MemTotal:") != NULL)
        kilobytes = strtoull(strstr(line, "MemTotal:") + 9, NULL, 10);
    (void)fclose(file);
    return (uint64_t)kilobytes * 1024;
}

tutti_status tt_sysfs_numa(const char *root, tt_machine *m)
{
    int nodes[TT_TOPO_MAX_NUMA], n = tt_sysfs_nodes(root, nodes, TT_TOPO_MAX_NUMA);
    tt_numa cpu = {0};

    for (int i = 0; i < n; i++) {
        tt_cpuset cpus = {NULL, 0};
        bool has = tt_sysfs_node_cpus(root, nodes[i], &cpus) && cpus.n_words != 0;
        int at = tt_tree_domain(m, nodes[i]);
        tutti_status status = at < 0 && has ? tt_machine_add_numa(m, &at) : TUTTI_OK;

        if (status != TUTTI_OK || at < 0) {
            tt_cpuset_free(&cpus);
            TT_TRY(status);
            continue;
        }
        m->numa[at].id = nodes[i];
        m->numa[at].id_from = m->numa[at].cpus_from = TT_FROM_SYSFS;
        m->numa[at].cpus = cpus;
        m->numa[at].memory = memory_of(root, nodes[i]);
    }
    read_cpuinfo(root, &cpu);
    for (int i = 0; i < m->n_numa; i++) {
        m->numa[i].arch = cpu.arch;
        m->numa[i].vendor = cpu.vendor;
        m->numa[i].family = cpu.family;
        m->numa[i].model = cpu.model;
        m->numa[i].cpu_from = cpu.cpu_from;
    }
    return TUTTI_OK;
}

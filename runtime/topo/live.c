/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This machine: the bus and the NUMA nodes by sysfs, the GPUs by NVML. GPUs are those that NVML
 * lists, since a container sees the whole bus but may use only some; without NVML they are the
 * NVIDIA display functions of the bus, of which little is known.
 *
 * sysfs is read by ourselves and not through hwloc: the same code then reads a recording (a
 * directory with sys/ in it), bridges' link limits are needed that hwloc does not give, and a
 * container's missing files are facts to us.
 *
 * A GPU whose node the kernel does not tell is put where NVML says its processors are.
 */
#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/env.h"
#include "core/mem.h"
#include "topo/nvml.h"
#include "topo/read.h"
#include "topo/sysfs.h"

typedef struct looker {
    const char *root; /* "": the machine itself */
    bool recorded;
    tutti_topo *topo;
    tt_machine *m;
    tt_nvml *nvml;
    tt_raw_pci *raw;
    int n_raw, n_bus; /* n_bus: those of the bus, by bus id; GPUs that it does not show follow */
    int *wanted; /* functions: GPUs, then ports */
    int n_wanted, n_gpus;
    int *gpu_dev; /* NVML's number of the wanted GPUs */
    int32_t *at; /* the model's index of a function */
} looker;

static bool is_nvidia(const looker *l, const tt_raw_pci *raw)
{
    char path[4096], busid[TT_BUSID_TEXT];

    if (raw->pci.class_code >> 16 != 0x03)
        return false;
    if (raw->pci.vendor != 0)
        return raw->pci.vendor == 0x10de;
    (void)snprintf(path, sizeof path, "%s/proc/driver/nvidia/gpus/%s", l->root,
                   tt_busid_print(raw->pci.busid, busid));
    return access(path, F_OK) == 0;
}

/* A function for a GPU that the bus does not show. */
static tutti_status add_unseen(looker *l, tt_busid busid, int *at_out)
{
    tt_raw_pci *grown;

    TT_TRY(tt_calloc((size_t)l->n_raw + 1, sizeof *grown, &grown));
    if (l->n_raw > 0)
        memcpy(grown, l->raw, (size_t)l->n_raw * sizeof *grown);
    free(l->raw);
    l->raw = grown;
    grown[l->n_raw].pci.busid = busid;
    grown[l->n_raw].pci.vendor = 0x10de;
    grown[l->n_raw].pci.class_code = 0x030200;
    grown[l->n_raw].pci.iommu_group = -1;
    grown[l->n_raw].parent = grown[l->n_raw].node = -1;
    *at_out = l->n_raw++;
    return TUTTI_OK;
}

/* The processors near a GPU: by NVML, or where the kernel has no numa_node at all, by the bus. */
static bool cpus_near(const looker *l, int dev, tt_busid busid, tt_cpuset *cpus_out)
{
    char text[4096], name[TT_BUSID_TEXT];
    const char *id = tt_busid_print(busid, name);

    if (l->nvml != NULL)
        return tt_nvml_cpus(l->nvml, dev, cpus_out);
    return !tt_sysfs_text(text, sizeof text, "%s/sys/bus/pci/devices/%s/numa_node", l->root, id) &&
           tt_sysfs_text(text, sizeof text, "%s/sys/bus/pci/devices/%s/local_cpus", l->root, id) &&
           tt_cpuset_parse_mask(text, cpus_out) == TUTTI_OK;
}

/* The only node that has all of these processors; -1. */
static int node_of_cpus(const looker *l, const tt_cpuset *near)
{
    int nodes[TT_TOPO_MAX_NUMA], n = tt_sysfs_nodes(l->root, nodes, TT_TOPO_MAX_NUMA), found = -1;
    tt_cpuset cpus = {NULL, 0}, both = {NULL, 0};

    for (int i = 0; near->n_words != 0 && i < n; i++)
        if (tt_sysfs_node_cpus(l->root, nodes[i], &cpus) &&
            tt_cpuset_and(near, &cpus, &both) == TUTTI_OK && tt_cpuset_equal(near, &both))
            found = found < 0 ? nodes[i] : -1;
    tt_cpuset_free(&cpus);
    tt_cpuset_free(&both);
    return found;
}

/* A wanted GPU whose node the kernel does not tell. */
static void guess_node(looker *l, int dev, tt_raw_pci *raw)
{
    tt_cpuset near = {NULL, 0};

    if (raw->node < 0 && cpus_near(l, dev, raw->pci.busid, &near))
        raw->node = node_of_cpus(l, &near);
    if (raw->pci.numa_from == TT_UNKNOWN && raw->node >= 0)
        raw->pci.numa_from = TT_FROM_RULE;
    tt_cpuset_free(&near);
}

static tutti_status want_gpus(looker *l)
{
    int count = tt_nvml_count(l->nvml);

    for (int dev = 0; dev < count; dev++) {
        tt_busid busid = tt_nvml_busid(l->nvml, dev);
        int at = tt_sysfs_find(l->raw, l->n_bus, busid);

        if (at < 0 && busid != TT_BUSID_NONE)
            TT_TRY(add_unseen(l, busid, &at));
        if (at < 0)
            continue;
        guess_node(l, dev, &l->raw[at]);
        l->gpu_dev[l->n_wanted] = dev;
        l->wanted[l->n_wanted++] = at;
    }
    for (int i = 0; l->nvml == NULL && i < l->n_raw && l->n_wanted < TT_TOPO_MAX_GPUS; i++)
        if (is_nvidia(l, &l->raw[i])) {
            guess_node(l, l->n_wanted, &l->raw[i]);
            l->gpu_dev[l->n_wanted] = l->n_wanted;
            l->wanted[l->n_wanted++] = i;
        }
    l->n_gpus = l->n_wanted;
    return TUTTI_OK;
}

static tutti_status want_ports(looker *l)
{
    int *functions, n;

    TT_TRY(tt_sysfs_net_functions(l->root, l->raw, l->n_bus, &functions, &n));
    for (int i = 0; i < n; i++)
        l->wanted[l->n_wanted++] = functions[i];
    free(functions);
    return TUTTI_OK;
}

static int memory_node(const looker *l, tt_busid busid)
{
    char text[64], name[TT_BUSID_TEXT];
    const char *number;

    if (!tt_sysfs_text(text, sizeof text, "%s/proc/driver/nvidia/gpus/%s/numa_status", l->root,
                       tt_busid_print(busid, name)))
        return -1;
    number = strpbrk(text, "0123456789");
    return number == NULL ? -1 : atoi(number);
}

/* In the order of the tree, which is NCCL's. */
static tutti_status add_gpus(looker *l)
{
    for (int p = 0; p < l->m->n_pci; p++)
        for (int i = 0; i < l->n_gpus; i++) {
            tt_gpu *gpu;
            int at;

            if (l->at[l->wanted[i]] != p)
                continue;
            TT_TRY(tt_machine_add_gpu(l->m, &at));
            gpu = &l->m->gpus[at];
            gpu->pci = p;
            gpu->numa = l->m->pci[p].numa;
            gpu->pci_from = TT_FROM_SYSFS;
            gpu->dev = l->gpu_dev[i];
            gpu->affinity_node = l->m->numa[gpu->numa].id;
            gpu->memory_node = memory_node(l, l->m->pci[p].busid);
            gpu->gdr = TT_YES; /* where the driver for it is loaded, which NCCL asks CUDA */
            if (l->nvml != NULL)
                TT_TRY(tt_nvml_fill(l->nvml, l->m, at));
        }
    return TUTTI_OK;
}

/* The class of an NVLink's far end where NVML did not give one: by the bus, else a hidden switch.
 */
static void class_links(looker *l)
{
    for (int i = 0; i < l->m->n_nvlinks; i++) {
        tt_nvlink *link = &l->m->nvlinks[i];
        int at = tt_sysfs_find(l->raw, l->n_bus, link->target);

        if (at >= 0 && l->raw[at].pci.class_code != 0)
            link->tclass = l->raw[at].pci.class_code;
        else if (link->tclass == 0)
            link->tclass = 0x068000;
    }
}

static int count_entries(const char *root, const char *folder)
{
    char path[4096];
    struct dirent *entry;
    DIR *dir;
    int n = 0;

    (void)snprintf(path, sizeof path, "%s/%s", root, folder);
    dir = opendir(path);
    if (dir == NULL)
        return -1;
    while ((entry = readdir(dir)) != NULL)
        n += entry->d_name[0] != '.';
    (void)closedir(dir);
    return n;
}

/* Access control services of a bridge: redirection of peer-to-peer requests upward. Configuration
 * space beyond 256 bytes can be read by root alone. */
static tt_tri acs_of(const looker *l, const tt_raw_pci *raw)
{
    unsigned char config[4096];
    char path[4096], name[TT_BUSID_TEXT];
    size_t n, at = 0x100;
    FILE *file;

    (void)snprintf(path, sizeof path, "%s/sys/bus/pci/devices/%s/config", l->root,
                   tt_busid_print(raw->pci.busid, name));
    file = fopen(path, "re");
    if (file == NULL)
        return TT_TRI_UNKNOWN;
    n = fread(config, 1, sizeof config, file);
    (void)fclose(file);
    if (n <= 0x100)
        return TT_TRI_UNKNOWN;
    for (int hops = 0; hops < 256 && at >= 0x100 && at + 8 <= n; hops++) {
        unsigned header = config[at] | (unsigned)config[at + 1] << 8;
        unsigned next = config[at + 2] | (unsigned)config[at + 3] << 8;

        if (header == 0x0d)
            return (config[at + 6] & 0x0c) != 0 ? TT_YES : TT_NO;
        at = next >> 4;
    }
    return TT_NO;
}

static void look_at_acs(looker *l)
{
    for (int i = 0; i < l->m->n_gpus; i++) {
        int at = tt_sysfs_find(l->raw, l->n_bus, l->m->pci[l->m->gpus[i].pci].busid);

        for (at = at >= 0 ? l->raw[at].parent : -1; at >= 0; at = l->raw[at].parent) {
            tt_tri acs = acs_of(l, &l->raw[at]);

            if (acs == TT_TRI_UNKNOWN)
                return; /* one that can't be read leaves it open */
            if (acs == TT_YES || l->m->system.acs == TT_TRI_UNKNOWN)
                l->m->system.acs = (uint8_t)acs;
            if (acs == TT_YES)
                return;
        }
    }
}

static bool is_hypervisor(const looker *l)
{
    char path[4096], line[8192];
    bool found = false;
    FILE *file;

    (void)snprintf(path, sizeof path, "%s/proc/cpuinfo", l->root);
    file = fopen(path, "re");
    for (int i = 0; file != NULL && i < 64 && !found && fgets(line, sizeof line, file) != NULL; i++)
        found = strncmp(line, "flags", 5) == 0 && strstr(line, " hypervisor") != NULL;
    if (file != NULL)
        (void)fclose(file);
    return found;
}

static void look_at_system(looker *l)
{
    tt_system *s = &l->m->system;
    bool at_root = l->m->n_gpus > 1;

    s->from = TT_FROM_SYSFS;
    s->nvml = l->nvml != NULL ? TT_YES : TT_NO;
    s->iommu_groups = count_entries(l->root, "sys/kernel/iommu_groups");
    s->iommu = s->iommu_groups < 0 ? TT_TRI_UNKNOWN : s->iommu_groups > 0 ? TT_YES : TT_NO;
    s->virtual_machine = is_hypervisor(l) ? TT_YES : TT_NO;
    if (!l->recorded)
        s->container = access("/.dockerenv", F_OK) == 0 || access("/run/.containerenv", F_OK) == 0
                           ? TT_YES
                           : TT_NO;
    for (int i = 0; i < l->n_raw; i++)
        s->dgpu_nodes =
            (uint8_t)(s->dgpu_nodes + (is_nvidia(l, &l->raw[i]) && s->dgpu_nodes < 255));
    for (int i = 0; i < l->m->n_gpus; i++)
        at_root = at_root && l->m->pci[l->m->gpus[i].pci].parent < 0 &&
                  l->m->numa[l->m->gpus[i].numa].id < 0;
    s->flat = at_root ? TT_YES : TT_NO;
    (void)tt_sysfs_text(s->product, sizeof s->product, "%s/sys/class/dmi/id/product_name", l->root);
    look_at_acs(l);
}

static tutti_status look_at_allowed(tt_machine *m)
{
    cpu_set_t *set = CPU_ALLOC(TT_CPUS_MAX);
    size_t bytes = CPU_ALLOC_SIZE(TT_CPUS_MAX);
    tutti_status status = TUTTI_OK;

    if (set == NULL)
        return tt_fail(TUTTI_ERR_NO_MEMORY, "a set of processors");
    if (sched_getaffinity(0, bytes, set) == 0)
        for (int cpu = 0; cpu < TT_CPUS_MAX && status == TUTTI_OK; cpu++)
            if (CPU_ISSET_S((size_t)cpu, bytes, set))
                status = tt_cpuset_add(&m->allowed, cpu);
    CPU_FREE(set);
    return status;
}

/* A machine that tells nothing of NUMA has one domain. */
static tutti_status at_least_one_domain(tt_machine *m)
{
    int at;

    return m->n_numa > 0 ? TUTTI_OK : tt_machine_add_numa(m, &at);
}

static tutti_status look(looker *l)
{
    char name[TT_TOPO_NAME] = "host0";
    tt_host *host;

    TT_TRY(tt_topo_add_machine(l->topo, &l->m));
    TT_TRY(tt_sysfs_pci(l->root, &l->raw, &l->n_raw));
    l->n_bus = l->n_raw;
    TT_TRY(tt_calloc(TT_TOPO_MAX_GPUS + TT_TOPO_MAX_NICS, sizeof *l->wanted, &l->wanted));
    TT_TRY(tt_calloc(TT_TOPO_MAX_GPUS, sizeof *l->gpu_dev, &l->gpu_dev));
    TT_TRY(want_gpus(l));
    TT_TRY(want_ports(l));
    TT_TRY(tt_calloc((size_t)l->n_raw, sizeof *l->at, &l->at));
    TT_TRY(tt_tree_build(l->m, l->raw, l->n_raw, l->wanted, l->n_wanted, l->at));
    TT_TRY(tt_sysfs_numa(l->root, l->m));
    TT_TRY(at_least_one_domain(l->m));
    TT_TRY(add_gpus(l));
    class_links(l);
    TT_TRY(tt_sysfs_nics(l->root, l->topo, l->raw, l->n_bus, l->at));
    look_at_system(l);
    if (l->nvml != NULL)
        TT_TRY(tt_nvml_fill_machine(l->nvml, l->m));
    if (!l->recorded) {
        TT_TRY(look_at_allowed(l->m));
        (void)gethostname(name, sizeof name - 1);
    }
    TT_TRY(tt_topo_add_host(l->topo, 0, name));
    host = &l->topo->hosts[0];
    tt_nvml_fabric(l->nvml, host->cluster, &host->clique);
    return tt_topo_seal(l->topo);
}

static tutti_status read_from(const char *root, bool recorded, bool ask_nvml, tutti_topo **topo_out)
{
    looker l = {.root = root, .recorded = recorded};
    tutti_status status;

    TT_TRY(tt_topo_new(TT_TOPO_LIVE, recorded ? root : "this machine", &l.topo));
    if (ask_nvml)
        l.nvml = tt_nvml_open();
    status = look(&l);
    tt_nvml_close(l.nvml);
    free(l.raw);
    free(l.wanted);
    free(l.gpu_dev);
    free(l.at);
    if (status != TUTTI_OK)
        goto close_topo;
    *topo_out = l.topo;
    return TUTTI_OK;

close_topo:
    tutti_topo_close(l.topo);
    return status;
}

tutti_status tt_topo_read_root(const char *root, tutti_topo **topo_out)
{
    char path[4096];

    (void)snprintf(path, sizeof path, "%s/sys", root);
    if (access(path, R_OK) != 0)
        return tt_fail(TUTTI_ERR_UNSUPPORTED, "%s: a directory without a sys/ in it", root);
    return read_from(root, true, false, topo_out);
}

tutti_status tt_topo_read_live(tutti_topo **topo_out)
{
    const char *root;

    TT_TRY(tt_env_get_string(TT_ENV_TOPO_FSROOT, &root));
    return read_from(root, *root != 0, true, topo_out);
}

void tt_topo_add_cuda(tutti_topo *topo, const char *const *busids, int n)
{
    tt_machine *m = topo->machines[0];
    tt_busid busid;

    for (int i = n - 1; i >= 0; i--) { /* of instances of one GPU the first */
        if (tt_busid_parse(busids[i], &busid) != TUTTI_OK)
            continue;
        for (int g = 0; g < m->n_gpus; g++)
            if (tt_gpu_busid(m, g) == busid)
                m->gpus[g].cuda = i;
    }
    m->system.cuda = n > 0 ? TT_YES : TT_NO;
}

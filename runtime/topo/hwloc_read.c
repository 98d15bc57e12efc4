/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hwloc's XML export (versions 2 and 3 of the format; version 1 as far as it is the same). It is
 * read here and not by hwloc, which aborts or asserts on some malformed input, and whose library
 * need not be newer than the file.
 *
 * What is taken: NUMA nodes and processors, PCI bridges and devices with their link speeds, names
 * and identities of OS devices, and the matrix NVLinkBandwidth. Its values are MB/s, so a count of
 * links is a value over the speed of one link; rows of NVSwitches are the switch, those of packages
 * the processor. hwloc's tree has every bridge; tree.c makes NCCL's of it.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "topo/hwloc_links.h"
#include "topo/read.h"
#include "topo/tree.h"
#include "topo/xml.h"

typedef struct reader {
    const tt_xml *xml;
    tutti_topo *topo;
    tt_machine *m;
    tt_raw_pci *raw;
    int32_t *raw_node; /* the XML element of a raw function */
    int32_t *at; /* the model's index of it */
    int *wanted;
    int n_raw, n_wanted, n_gpus; /* wanted: GPUs first */
    size_t cap_raw, cap_nodes, cap_wanted;
    tt_numa cpu; /* arch, vendor, family, model */
    bool v3;
} reader;

static bool is_type(const reader *r, int32_t node, const char *type)
{
    const char *text = tt_xml_attr(r->xml, node, "type");

    return text != NULL && strcmp(text, type) == 0;
}

/* The value of an <info>; NULL. */
static const char *info(const reader *r, int32_t node, const char *name)
{
    for (int32_t n = tt_xml_child(r->xml, node, "info"); n >= 0;
         n = tt_xml_next(r->xml, n, "info")) {
        const char *key = tt_xml_attr(r->xml, n, "name");

        if (key != NULL && strcmp(key, name) == 0)
            return tt_xml_attr(r->xml, n, "value");
    }
    return NULL;
}

/* "0x00000303,0x03030000,,0x03030303" */
static tutti_status parse_set(const reader *r, int32_t node, const char *key, tt_cpuset *set_out)
{
    const char *text = tt_xml_attr(r->xml, node, key);
    char mask[TT_CPUS_MAX / 32 * 9 + 16];
    size_t n = 0;

    while (text != NULL) {
        size_t length = strcspn(text, ",");
        const char *digits = length > 2 && strncmp(text, "0x", 2) == 0 ? text + 2 : text;

        if (length > 10 || n + 12 > sizeof mask)
            return tt_xml_fail(r->xml, node, "%s=\"%.40s\" is no set", key,
                               tt_xml_attr(r->xml, node, key));
        n += (size_t)snprintf(mask + n, sizeof mask - n, "%s%08lx", n == 0 ? "" : ",",
                              strtoul(digits, NULL, 16) & 0xffffffffu);
        text = text[length] == ',' ? text + length + 1 : NULL;
    }
    mask[n] = 0;
    return n == 0 ? TUTTI_OK : tt_cpuset_parse_mask(mask, set_out);
}

/* The NUMA node that a bridge is at: the nearest object around it that has one node. */
static tutti_status node_around(const reader *r, int32_t node, int *node_out)
{
    tt_cpuset set = {NULL, 0};
    tutti_status status = TUTTI_OK;

    *node_out = -1;
    for (; node >= 0; node = tt_xml_at(r->xml, node)->parent)
        if (tt_xml_attr(r->xml, node, "nodeset") != NULL) {
            status = parse_set(r, node, "nodeset", &set);
            if (status == TUTTI_OK && tt_cpuset_count(&set) == 1)
                *node_out = tt_cpuset_next(&set, -1);
            break;
        }
    tt_cpuset_free(&set);
    return status;
}

/* A link speed in GB/s as a generation with lanes: 16 lanes where that fits, else fewer. */
static void set_link(tt_pci *pci, float gbps)
{
    static const float rates[] = {2.5f, 5, 8, 16, 32, 64};
    static const float lane[] = {0.25f, 0.5f, 0.9846f, 1.969f, 3.938f, 7.563f};

    for (int lanes = 16; lanes >= 1; lanes /= 2)
        for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
            float ratio = gbps / (lane[i] * (float)lanes);

            if (ratio > 0.98f && ratio < 1.02f) {
                pci->gts = rates[i];
                pci->lanes = (uint16_t)lanes;
                pci->link_from = TT_FROM_FILE;
                return;
            }
        }
}

static tutti_status fill_raw(reader *r, int32_t node, tt_raw_pci *raw)
{
    const char *busid = tt_xml_attr(r->xml, node, "pci_busid");
    const char *type = tt_xml_attr(r->xml, node, "pci_type");
    const char *speed = tt_xml_attr(r->xml, node, "pci_link_speed");
    unsigned class_code = 0, vendor = 0, device = 0, sub_vendor = 0, sub_device = 0;

    if (tt_busid_parse(busid, &raw->pci.busid) != TUTTI_OK)
        return tt_xml_fail(r->xml, node, "pci_busid=\"%.40s\" is no PCI bus id", busid);
    if (type != NULL)
        (void)sscanf(type, "%4x [%4x:%4x] [%4x:%4x]", &class_code, &vendor, &device, &sub_vendor,
                     &sub_device);
    raw->pci.class_code = class_code << 8;
    raw->pci.vendor = (uint16_t)vendor;
    raw->pci.device = (uint16_t)device;
    raw->pci.sub_vendor = (uint16_t)sub_vendor;
    raw->pci.sub_device = (uint16_t)sub_device;
    raw->pci.line = tt_xml_at(r->xml, node)->line;
    raw->pci.iommu_group = -1;
    raw->pci.numa_from = TT_FROM_FILE;
    if (speed != NULL)
        set_link(&raw->pci, strtof(speed, NULL));
    return node_around(r, node, &raw->node);
}

/* The raw function that an element's nearest PCI ancestor is; -1. They are added in document order,
 * so an ancestor's stands before, and the search is from the back. */
static int raw_of(const reader *r, int32_t node)
{
    for (; node >= 0; node = tt_xml_at(r->xml, node)->parent) {
        int low = 0, high = r->n_raw;

        if (tt_xml_attr(r->xml, node, "pci_busid") == NULL)
            continue;
        while (low < high) {
            int middle = low + (high - low) / 2;

            if (r->raw_node[middle] < node)
                low = middle + 1;
            else
                high = middle;
        }
        if (low < r->n_raw && r->raw_node[low] == node)
            return low;
    }
    return -1;
}

static tutti_status read_pci(reader *r)
{
    for (int32_t n = 0; n < tt_xml_count(r->xml); n++) {
        int parent;

        if (tt_xml_attr(r->xml, n, "pci_busid") == NULL)
            continue;
        if (r->n_raw == TT_TREE_MAX)
            return tt_xml_fail(r->xml, n, "more than %d PCI devices", TT_TREE_MAX);
        parent = raw_of(r, tt_xml_at(r->xml, n)->parent);
        TT_TRY(tt_grow(&r->raw, &r->cap_raw, (size_t)r->n_raw + 1, sizeof *r->raw));
        TT_TRY(tt_grow(&r->raw_node, &r->cap_nodes, (size_t)r->n_raw + 1, sizeof *r->raw_node));
        memset(&r->raw[r->n_raw], 0, sizeof *r->raw);
        r->raw[r->n_raw].parent = parent;
        r->raw_node[r->n_raw] = n;
        TT_TRY(fill_raw(r, n, &r->raw[r->n_raw]));
        r->n_raw++;
    }
    return TUTTI_OK;
}

/* Network and RDMA devices, by the numbers of the format's version. */
static bool is_net(const reader *r, int32_t node, bool *rdma_out)
{
    const char *text = tt_xml_attr(r->xml, node, "osdev_type");
    long type = text == NULL ? -1 : strtol(text, NULL, 10);

    *rdma_out = r->v3 ? type > 0 && (type & 32) != 0 : type == 3;
    return r->v3 ? type > 0 && (type & 48) != 0 : type == 2 || type == 3;
}

static tutti_status want(reader *r, int raw)
{
    TT_TRY(tt_grow(&r->wanted, &r->cap_wanted, (size_t)r->n_wanted + 1, sizeof *r->wanted));
    r->wanted[r->n_wanted++] = raw;
    return TUTTI_OK;
}

static bool has_rdma(const reader *r)
{
    bool rdma = false;

    for (int32_t n = 0; n < tt_xml_count(r->xml); n++)
        if (is_type(r, n, "OSDev") && is_net(r, n, &rdma) && rdma)
            return true;
    return false;
}

/* OS devices that are ports: RDMA ones, or network interfaces where there is none (NCCL's choice).
 * `what` is called for each at a PCI function. */
static tutti_status for_nets(reader *r, tutti_status (*what)(reader *r, int32_t node, int raw))
{
    bool only_rdma = has_rdma(r), rdma;

    for (int32_t n = 0; n < tt_xml_count(r->xml); n++) {
        int raw;

        if (!is_type(r, n, "OSDev") || !is_net(r, n, &rdma) || rdma != only_rdma)
            continue;
        raw = raw_of(r, n);
        if (raw >= 0)
            TT_TRY(what(r, n, raw));
    }
    return TUTTI_OK;
}

static tutti_status want_net(reader *r, int32_t node, int raw)
{
    (void)node;
    return want(r, raw);
}

static tutti_status want_devices(reader *r)
{
    for (int i = 0; i < r->n_raw; i++)
        if (r->raw[i].pci.class_code >> 16 == 0x03 && r->raw[i].pci.vendor == 0x10de)
            TT_TRY(want(r, i));
    r->n_gpus = r->n_wanted;
    return for_nets(r, want_net);
}

static void copy_text(char *to, size_t bytes, const char *from)
{
    if (from != NULL)
        (void)snprintf(to, bytes, "%s", from);
}

/* Name, UUID and number from the OS devices of a GPU. */
static void name_gpu(const reader *r, int32_t node, tt_gpu *gpu)
{
    for (int32_t n = tt_xml_child(r->xml, node, "object"); n >= 0;
         n = tt_xml_next(r->xml, n, "object")) {
        const char *name = tt_xml_attr(r->xml, n, "name");

        if (!is_type(r, n, "OSDev") || name == NULL)
            continue;
        copy_text(gpu->name, sizeof gpu->name, info(r, n, "GPUModel"));
        copy_text(gpu->uuid, sizeof gpu->uuid, info(r, n, "NVIDIAUUID"));
        if (strncmp(name, "nvml", 4) == 0 && isdigit((unsigned char)name[4]) && strlen(name) < 8)
            gpu->dev = atoi(name + 4);
        if (strncmp(name, "cuda", 4) == 0 && isdigit((unsigned char)name[4]) && strlen(name) < 8)
            gpu->cuda = atoi(name + 4);
    }
}

/* In the model's order, which the tree has decided. */
static tutti_status add_gpus(reader *r)
{
    for (int p = 0; p < r->m->n_pci; p++)
        for (int i = 0; i < r->n_gpus; i++) {
            tt_gpu *gpu;
            int at;

            if (r->at[r->wanted[i]] != p)
                continue;
            TT_TRY(tt_machine_add_gpu(r->m, &at));
            gpu = &r->m->gpus[at];
            gpu->pci = p;
            gpu->numa = r->m->pci[p].numa;
            gpu->pci_from = TT_FROM_FILE;
            gpu->gdr = TT_YES; /* hwloc does not tell; NCCL finds it with a driver for it */
            gpu->line = r->m->pci[p].line;
            name_gpu(r, r->raw_node[r->wanted[i]], gpu);
        }
    return TUTTI_OK;
}

static tutti_status add_net(reader *r, int32_t node, int raw)
{
    const char *guid = info(r, node, "NodeGUID");
    bool rdma = false;
    tt_nic *nic;
    int at;

    (void)is_net(r, node, &rdma);
    TT_TRY(tt_machine_add_nic(r->m, &at));
    nic = &r->m->nics[at];
    nic->pci = r->at[raw];
    nic->numa = r->m->pci[nic->pci].numa;
    nic->pci_from = TT_FROM_FILE;
    nic->port = 1;
    nic->line = tt_xml_at(r->xml, node)->line;
    copy_text(nic->name, sizeof nic->name, tt_xml_attr(r->xml, node, "name"));
    for (const char *c = guid; rdma && c != NULL && *c != 0; c++)
        if (isxdigit((unsigned char)*c))
            nic->guid = nic->guid << 4 | (uint64_t)strtoul((char[]){*c, 0}, NULL, 16);
    nic->has_guid = nic->guid != 0;
    nic->gdr = rdma ? TT_YES : TT_NO;
    nic->kind = rdma ? r->m->pci[nic->pci].class_code >> 8 == 0x0207 ? TT_NIC_IB : TT_NIC_ROCE
                     : TT_NIC_ETHERNET;
    for (int i = 0; i < at; i++)
        if (r->m->nics[i].pci == nic->pci) {
            nic->card = r->m->nics[i].card;
            break;
        }
    return TUTTI_OK;
}

static void number_of(const char *text, int *value)
{
    if (text != NULL && isdigit((unsigned char)*text) && strlen(text) < 5)
        *value = atoi(text);
}

static void read_processor(reader *r, int32_t node)
{
    const char *vendor = info(r, node, "CPUVendor"), *model = info(r, node, "CPUModel");

    if (vendor != NULL && strcmp(vendor, "GenuineIntel") == 0)
        r->cpu.vendor = TT_VENDOR_INTEL;
    if (vendor != NULL && strcmp(vendor, "AuthenticAMD") == 0)
        r->cpu.vendor = TT_VENDOR_AMD;
    if (r->cpu.vendor != TT_VENDOR_UNKNOWN)
        r->cpu.arch = TT_ARCH_X86;
    if (info(r, node, "CPUImplementer") != NULL)
        r->cpu.arch = TT_ARCH_ARM;
    if (model != NULL && strncmp(model, "POWER", 5) == 0)
        r->cpu.arch = TT_ARCH_POWER;
    number_of(info(r, node, "CPUFamilyNumber"), &r->cpu.family);
    number_of(info(r, node, "CPUModelNumber"), &r->cpu.model);
}

static void read_architecture(reader *r, int32_t node)
{
    const char *arch = info(r, node, "Architecture");

    copy_text(r->m->system.product, sizeof r->m->system.product, info(r, node, "DMIProductName"));
    if (arch == NULL)
        return;
    if (strcmp(arch, "x86_64") == 0)
        r->cpu.arch = TT_ARCH_X86;
    if (strcmp(arch, "aarch64") == 0)
        r->cpu.arch = TT_ARCH_ARM;
    if (strncmp(arch, "ppc64", 5) == 0)
        r->cpu.arch = TT_ARCH_POWER;
}

/* A node with processors is a domain; one without is a GPU's memory, or other memory. */
static tutti_status read_numa(reader *r, int32_t node)
{
    long long id, memory;
    tt_cpuset cpus = {NULL, 0};
    tt_numa *numa;
    int at;

    TT_TRY(tt_xml_int(r->xml, node, "os_index", (tt_xml_range){0, UINT16_MAX, 0}, &id));
    TT_TRY(tt_xml_int(r->xml, node, "local_memory", (tt_xml_range){0, INT64_MAX, 0}, &memory));
    TT_TRY(parse_set(r, node, "cpuset", &cpus));
    at = tt_tree_domain(r->m, (int)id);
    if (at < 0 && cpus.n_words != 0) {
        tutti_status status = tt_machine_add_numa(r->m, &at);

        if (status != TUTTI_OK) {
            tt_cpuset_free(&cpus);
            return status;
        }
    }
    if (at < 0)
        return TUTTI_OK;
    numa = &r->m->numa[at];
    numa->id = (int)id;
    numa->memory = (uint64_t)memory;
    tt_cpuset_free(&numa->cpus);
    numa->cpus = cpus;
    numa->id_from = numa->cpus_from = TT_FROM_FILE;
    return TUTTI_OK;
}

static tutti_status read_domains(reader *r)
{
    for (int32_t n = 0; n < tt_xml_count(r->xml); n++) {
        if (is_type(r, n, "Machine"))
            read_architecture(r, n);
        if (is_type(r, n, "Package") || is_type(r, n, "Machine") || is_type(r, n, "Socket"))
            read_processor(r, n);
        if (is_type(r, n, "NUMANode"))
            TT_TRY(read_numa(r, n));
    }
    for (int i = 0; i < r->m->n_numa; i++) {
        tt_numa *numa = &r->m->numa[i];

        numa->arch = r->cpu.arch;
        numa->vendor = r->cpu.vendor;
        numa->family = r->cpu.family;
        numa->model = r->cpu.model;
        numa->cpu_from = r->cpu.arch != TT_ARCH_UNKNOWN ? TT_FROM_FILE : TT_UNKNOWN;
    }
    return TUTTI_OK;
}

static tutti_status read_machine(reader *r)
{
    TT_TRY(tt_topo_add_machine(r->topo, &r->m));
    r->m->system.from = TT_FROM_FILE;
    TT_TRY(read_pci(r));
    TT_TRY(want_devices(r));
    TT_TRY(tt_calloc((size_t)r->n_raw, sizeof *r->at, &r->at));
    TT_TRY(tt_tree_build(r->m, r->raw, r->n_raw, r->wanted, r->n_wanted, r->at));
    TT_TRY(read_domains(r));
    if (r->m->n_numa == 0)
        return tt_fail(TUTTI_ERR_CORRUPT, "%s: an hwloc export without any NUMA node or device",
                       tt_xml_file(r->xml));
    TT_TRY(add_gpus(r));
    TT_TRY(for_nets(r, add_net));
    TT_TRY(tt_hwloc_read_nvlinks(r->xml, r->m));
    TT_TRY(tt_topo_add_host(r->topo, 0, "host0"));
    return tt_topo_seal(r->topo);
}

tutti_status tt_topo_read_hwloc(const char *name, const char *text, size_t bytes,
                                tutti_topo **topo_out)
{
    reader r = {0};
    tt_xml *xml;
    tutti_topo *topo = NULL;
    const char *version;
    tutti_status status;

    TT_TRY(tt_xml_parse(name, text, bytes, &xml));
    status = tt_topo_new(TT_TOPO_HWLOC, name, &topo);
    if (status != TUTTI_OK)
        goto free_xml;
    r.xml = xml;
    r.topo = topo;
    version = tt_xml_attr(xml, 0, "version");
    r.v3 = version != NULL && version[0] >= '3';
    status = read_machine(&r);
    if (status == TUTTI_OK) {
        *topo_out = topo;
        topo = NULL;
    }
    free(r.raw);
    free(r.raw_node);
    free(r.at);
    free(r.wanted);
    tutti_topo_close(topo);

free_xml:
    tt_xml_free(xml);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's topology XML: dumps of real runs, and vendors' templates.
 *
 * <system> holds <cpu> (one per NUMA domain), which holds a tree of <pci>; a <pci> holds a <gpu>
 * with its <nvlink>s and <c2c>, or a <nic> with its <net>s. A template has GPUs and NICs as PCI
 * functions of their class only: they are taken as GPUs and NICs of which little is known, and the
 * topo says that it is a template. What NCCL would fill in from the machine stays unknown.
 *
 * Elements are appended in document order, so lists have NCCL's order. A net that is listed a
 * second time (the same dev on a host) is what NCCL ignores too. Elements of another host_hash are
 * another host; where their GPUs are all at switches they are one NVLink domain, as NCCL takes
 * them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "topo/read.h"
#include "topo/xml.h"

enum { HOSTS_MAX = 256 };
#define RANGE(low, high, absent) ((tt_xml_range){low, high, absent})

typedef struct reader {
    const tt_xml *xml;
    tutti_topo *topo;
    tt_machine *m; /* of the <cpu> being read */
    uint64_t hash[HOSTS_MAX];
    int machine; /* its index */
    bool has_gpu, has_net, has_rank; /* the file has such elements; a template has not */
} reader;

static uint32_t line_of(const reader *r, int32_t node)
{
    return tt_xml_at(r->xml, node)->line;
}

/* A number of 0x or bare hexadecimal digits; 0 where it is not there. */
static uint64_t hex_attr(const reader *r, int32_t node, const char *key)
{
    const char *text = tt_xml_attr(r->xml, node, key);

    return text == NULL ? 0 : strtoull(text, NULL, 16);
}

static tutti_status int_attr(const reader *r, int32_t node, const char *key, tt_xml_range range,
                             int *value_out)
{
    long long value;

    TT_TRY(tt_xml_int(r->xml, node, key, range, &value));
    *value_out = (int)value;
    return TUTTI_OK;
}

static tutti_status tri_attr(const reader *r, int32_t node, const char *key, uint8_t *tri_out)
{
    int value;

    TT_TRY(int_attr(r, node, key, RANGE(-1, 1000, -1), &value));
    *tri_out = value < 0 ? TT_TRI_UNKNOWN : value > 0 ? TT_YES : TT_NO;
    return TUTTI_OK;
}

static tutti_status busid_attr(const reader *r, int32_t node, const char *key, tt_busid *busid_out)
{
    const char *text = tt_xml_attr(r->xml, node, key);

    if (text == NULL)
        return tt_xml_fail(r->xml, node, "<%s> has no %s", tt_xml_name(r->xml, node), key);
    if (tt_busid_parse(text, busid_out) != TUTTI_OK)
        return tt_xml_fail(r->xml, node, "%s=\"%.40s\" is no PCI bus id", key, text);
    return TUTTI_OK;
}

static tutti_status read_links(reader *r, int32_t gpu_node, int gpu)
{
    const tt_xml *xml = r->xml;

    for (int32_t n = tt_xml_child(xml, gpu_node, "nvlink"); n >= 0;
         n = tt_xml_next(xml, n, "nvlink")) {
        tt_nvlink *link;
        int at, count;

        TT_TRY(int_attr(r, n, "count", RANGE(0, 256, 1), &count));
        TT_TRY(tt_machine_add_nvlink(r->m, &at));
        link = &r->m->nvlinks[at];
        link->gpu = gpu;
        link->count = (uint16_t)count;
        link->tclass = (uint32_t)hex_attr(r, n, "tclass");
        TT_TRY(busid_attr(r, n, "target", &link->target));
    }
    for (int32_t n = tt_xml_child(xml, gpu_node, "c2c"); n >= 0; n = tt_xml_next(xml, n, "c2c")) {
        int bw, count;

        TT_TRY(int_attr(r, n, "bw", RANGE(0, 100000000, 0), &bw));
        TT_TRY(int_attr(r, n, "count", RANGE(0, 1000, 0), &count));
        r->m->gpus[gpu].c2c_mbps = (uint32_t)bw;
        r->m->gpus[gpu].c2c_links = (uint16_t)count;
    }
    return TUTTI_OK;
}

static tutti_status read_gpu(reader *r, int32_t node, int pci)
{
    tt_gpu *gpu;
    int at, sm, dev, rank;

    TT_TRY(tt_machine_add_gpu(r->m, &at));
    gpu = &r->m->gpus[at];
    gpu->pci = pci;
    gpu->numa = r->m->pci[pci].numa;
    gpu->pci_from = TT_FROM_FILE;
    gpu->line = line_of(r, node);
    if (strcmp(tt_xml_name(r->xml, node), "gpu") != 0)
        return TUTTI_OK; /* a template's PCI function */
    TT_TRY(int_attr(r, node, "sm", RANGE(0, 999, 0), &sm));
    TT_TRY(int_attr(r, node, "dev", RANGE(-1, 4095, at), &dev));
    TT_TRY(int_attr(r, node, "rank", RANGE(-1, 1 << 24, -1), &rank));
    TT_TRY(tri_attr(r, node, "gdr", &gpu->gdr));
    gpu->sm = sm;
    gpu->sm_from = sm > 0 ? TT_FROM_FILE : TT_UNKNOWN;
    gpu->dev = dev < 0 ? at : dev;
    gpu->rank = rank;
    r->has_rank |= rank >= 0;
    /* A dump without links says that there are none; a template does not say. */
    gpu->nvlink_from = gpu->c2c_from = rank >= 0 ? TT_FROM_FILE : TT_UNKNOWN;
    TT_TRY(read_links(r, node, at));
    if (tt_xml_child(r->xml, node, "nvlink") >= 0)
        gpu->nvlink_from = TT_FROM_FILE;
    if (tt_xml_child(r->xml, node, "c2c") >= 0)
        gpu->c2c_from = TT_FROM_FILE;
    return TUTTI_OK;
}

static tt_nic_kind kind_of_nic(const tt_machine *m, int pci, const char *name)
{
    if (pci >= 0 && m->pci[pci].vendor == 0x1d0f)
        return TT_NIC_EFA;
    if (pci >= 0 && m->pci[pci].class_code >> 8 == 0x0207)
        return TT_NIC_IB;
    if (strncmp(name, "mlx", 3) == 0 || strncmp(name, "roce", 4) == 0)
        return TT_NIC_ROCE;
    if (strncmp(name, "rdmap", 5) == 0)
        return TT_NIC_EFA;
    return *name == 0 ? TT_NIC_UNKNOWN : TT_NIC_ETHERNET;
}

/* Ports of one card: of one bus id, or all that hang on NUMA domains. */
static int card_of(const tt_machine *m, int nic)
{
    for (int i = 0; i < nic; i++) {
        int one = m->nics[i].pci, two = m->nics[nic].pci;

        if ((one < 0 && two < 0) ||
            (one >= 0 && two >= 0 && m->pci[one].busid == m->pci[two].busid))
            return m->nics[i].card;
    }
    return nic;
}

static tutti_status fill_net(reader *r, int32_t node, tt_nic *nic)
{
    const char *name = tt_xml_attr(r->xml, node, "name");
    const char *latency = tt_xml_attr(r->xml, node, "latency");
    long long speed;
    int port, maxconn, keep;

    TT_TRY(tt_xml_int(r->xml, node, "speed", RANGE(-1, 100000000, 0), &speed));
    TT_TRY(int_attr(r, node, "port", RANGE(0, 65535, 0), &port));
    TT_TRY(int_attr(r, node, "maxconn", RANGE(0, 1 << 30, 0), &maxconn));
    TT_TRY(int_attr(r, node, "keep", RANGE(0, 1, 0), &keep));
    TT_TRY(tri_attr(r, node, "gdr", &nic->gdr));
    TT_TRY(tri_attr(r, node, "coll", &nic->coll));
    nic->mbps = speed > 0 ? speed : 0;
    nic->speed_from = speed > 0 ? TT_FROM_FILE : TT_UNKNOWN;
    nic->port = port;
    nic->maxconn = maxconn;
    nic->keep = keep ? TT_YES : TT_TRI_UNKNOWN;
    nic->latency = latency == NULL ? 0 : strtof(latency, NULL);
    if (!(nic->latency >= 0 && nic->latency < 1e6f))
        nic->latency = 0;
    nic->guid = hex_attr(r, node, "guid");
    nic->has_guid = tt_xml_attr(r->xml, node, "guid") != NULL;
    if (name != NULL)
        (void)snprintf(nic->name, sizeof nic->name, "%s", name);
    nic->kind = (uint8_t)kind_of_nic(r->m, nic->pci, nic->name);
    return TUTTI_OK;
}

static bool has_dev(const tt_machine *m, int n, int dev)
{
    for (int i = 0; i < n; i++)
        if (m->nics[i].dev == dev)
            return true;
    return false;
}

/* The first number from its place on that none of the NICs before has. */
static int free_dev(const tt_machine *m, int at)
{
    int dev = at;

    while (has_dev(m, at, dev))
        dev++;
    return dev;
}

/* A <net> (or a template's PCI function) of a card at `pci`, or on the domain itself (-1). */
static tutti_status read_net(reader *r, int32_t node, int pci, int numa)
{
    bool real = strcmp(tt_xml_name(r->xml, node), "net") == 0;
    tt_nic *nic;
    int at, dev = -1;

    if (real)
        TT_TRY(int_attr(r, node, "dev", RANGE(-1, 65535, -1), &dev));
    if (dev >= 0 && has_dev(r->m, r->m->n_nics, dev)) {
        const char *name = tt_xml_attr(r->xml, node, "name");

        return tt_topo_note_add(r->topo, r->machine,
                                "line %u: net %s has dev %d, which an earlier net has; ignored",
                                (unsigned)line_of(r, node), name == NULL ? "" : name, dev);
    }
    TT_TRY(tt_machine_add_nic(r->m, &at));
    nic = &r->m->nics[at];
    nic->dev = dev >= 0 ? dev : free_dev(r->m, at);
    nic->pci = pci;
    nic->numa = numa;
    nic->line = line_of(r, node);
    nic->pci_from = pci >= 0 ? TT_FROM_FILE : TT_UNKNOWN;
    nic->card = card_of(r->m, at);
    if (real)
        return fill_net(r, node, nic);
    nic->kind = (uint8_t)kind_of_nic(r->m, pci, "");
    return TUTTI_OK;
}

static tutti_status read_nets(reader *r, int32_t nic_node, int pci, int numa)
{
    for (int32_t n = tt_xml_child(r->xml, nic_node, "net"); n >= 0;
         n = tt_xml_next(r->xml, n, "net"))
        TT_TRY(read_net(r, n, pci, numa));
    return TUTTI_OK;
}

static tutti_status fill_pci(reader *r, int32_t node, tt_pci *pci)
{
    const char *speed = tt_xml_attr(r->xml, node, "link_speed");
    int width;

    TT_TRY(busid_attr(r, node, "busid", &pci->busid));
    TT_TRY(int_attr(r, node, "link_width", RANGE(0, 1024, 0), &width));
    pci->lanes = (uint16_t)width;
    pci->gts = speed == NULL ? 0 : strtof(speed, NULL);
    if (!(pci->gts > 0 && pci->gts < 1000))
        pci->gts = 0;
    pci->link_from = pci->gts > 0 && width > 0 ? TT_FROM_FILE : TT_UNKNOWN;
    pci->class_code = (uint32_t)hex_attr(r, node, "class");
    pci->vendor = (uint16_t)hex_attr(r, node, "vendor");
    pci->device = (uint16_t)hex_attr(r, node, "device");
    pci->sub_vendor = (uint16_t)hex_attr(r, node, "subsystem_vendor");
    pci->sub_device = (uint16_t)hex_attr(r, node, "subsystem_device");
    pci->line = line_of(r, node);
    return TUTTI_OK;
}

static tutti_status read_pci(reader *r, int32_t node, int parent, int numa);

/* What a <pci> holds: a GPU, a NIC, or more of the tree. */
static tutti_status read_function(reader *r, int32_t node, int pci, int numa)
{
    int32_t gpu = tt_xml_child(r->xml, node, "gpu"), nic = tt_xml_child(r->xml, node, "nic");
    uint32_t class_code = r->m->pci[pci].class_code;

    if (gpu >= 0)
        TT_TRY(read_gpu(r, gpu, pci));
    else if (!r->has_gpu && class_code >> 16 == 0x03)
        TT_TRY(read_gpu(r, node, pci));
    if (nic >= 0)
        TT_TRY(read_nets(r, nic, pci, numa));
    else if (!r->has_net && class_code >> 16 == 0x02)
        TT_TRY(read_net(r, node, pci, numa));
    for (int32_t n = tt_xml_child(r->xml, node, "pci"); n >= 0; n = tt_xml_next(r->xml, n, "pci"))
        TT_TRY(read_pci(r, n, pci, numa));
    return TUTTI_OK;
}

static tutti_status read_pci(reader *r, int32_t node, int parent, int numa)
{
    int at;

    TT_TRY(tt_machine_add_pci(r->m, &at));
    r->m->pci[at].parent = parent;
    r->m->pci[at].numa = numa;
    r->m->pci[at].numa_from = TT_FROM_FILE;
    TT_TRY(fill_pci(r, node, &r->m->pci[at]));
    return read_function(r, node, at, numa);
}

static tutti_status fill_cpu(reader *r, int32_t node, tt_numa *numa)
{
    const char *arch = tt_xml_attr(r->xml, node, "arch");
    const char *vendor = tt_xml_attr(r->xml, node, "vendor");
    const char *affinity = tt_xml_attr(r->xml, node, "affinity");

    TT_TRY(int_attr(r, node, "numaid", RANGE(-1, 65535, -1), &numa->id));
    TT_TRY(int_attr(r, node, "familyid", RANGE(0, 65535, 0), &numa->family));
    TT_TRY(int_attr(r, node, "modelid", RANGE(0, 65535, 0), &numa->model));
    numa->id_from = numa->id >= 0 ? TT_FROM_FILE : TT_UNKNOWN;
    numa->cpu_from = arch != NULL ? TT_FROM_FILE : TT_UNKNOWN;
    if (arch != NULL)
        numa->arch = strcmp(arch, "x86_64") == 0  ? TT_ARCH_X86
                     : strcmp(arch, "arm64") == 0 ? TT_ARCH_ARM
                     : strcmp(arch, "ppc64") == 0 ? TT_ARCH_POWER
                                                  : TT_ARCH_UNKNOWN;
    if (vendor != NULL)
        numa->vendor = strcmp(vendor, "GenuineIntel") == 0   ? TT_VENDOR_INTEL
                       : strcmp(vendor, "AuthenticAMD") == 0 ? TT_VENDOR_AMD
                       : strcmp(vendor, "CentaurHauls") == 0 || strstr(vendor, "Shanghai") != NULL
                           ? TT_VENDOR_ZHAOXIN
                           : TT_VENDOR_UNKNOWN;
    if (affinity == NULL || *affinity == 0)
        return TUTTI_OK;
    numa->cpus_from = TT_FROM_FILE;
    if (tt_cpuset_parse_mask(affinity, &numa->cpus) != TUTTI_OK)
        return tt_xml_fail(r->xml, node, "affinity=\"%.60s\" is no mask of processors", affinity);
    return TUTTI_OK;
}

/* The machine of a <cpu>'s host_hash; a new one for a new hash. */
static tutti_status enter_host(reader *r, int32_t node)
{
    uint64_t hash = hex_attr(r, node, "host_hash");
    char name[TT_TOPO_NAME];

    for (int i = 0; i < r->topo->n_machines; i++)
        if (r->hash[i] == hash) {
            r->machine = i;
            r->m = r->topo->machines[i];
            return TUTTI_OK;
        }
    if (r->topo->n_machines == HOSTS_MAX)
        return tt_xml_fail(r->xml, node, "more than %d hosts", HOSTS_MAX);
    r->machine = r->topo->n_machines;
    r->hash[r->machine] = hash;
    TT_TRY(tt_topo_add_machine(r->topo, &r->m));
    r->m->host_hash = hash;
    r->m->system.from = TT_FROM_FILE;
    (void)snprintf(name, sizeof name, "host%d", r->machine);
    return tt_topo_add_host(r->topo, r->machine, name);
}

static tutti_status read_cpu(reader *r, int32_t node)
{
    int at;

    TT_TRY(enter_host(r, node));
    TT_TRY(tt_machine_add_numa(r->m, &at));
    TT_TRY(fill_cpu(r, node, &r->m->numa[at]));
    for (int32_t n = tt_xml_at(r->xml, node)->child; n >= 0; n = tt_xml_at(r->xml, n)->next) {
        if (strcmp(tt_xml_name(r->xml, n), "pci") == 0)
            TT_TRY(read_pci(r, n, -1, at));
        else if (strcmp(tt_xml_name(r->xml, n), "nic") == 0)
            TT_TRY(read_nets(r, n, -1, at));
    }
    return TUTTI_OK;
}

static int pci_at(const tt_machine *m, tt_busid busid)
{
    for (int i = 0; i < m->n_pci; i++)
        if (m->pci[i].busid == busid)
            return i;
    return -1;
}

/* <pcilink>s name switches that may come later in the file, so they are read after the tree. */
static tutti_status read_pcilinks(reader *r, int32_t node)
{
    tt_busid one, two;
    size_t cap;
    int a, b;

    for (int32_t n = tt_xml_at(r->xml, node)->child; n >= 0; n = tt_xml_at(r->xml, n)->next) {
        if (strcmp(tt_xml_name(r->xml, n), "pci") == 0)
            TT_TRY(read_pcilinks(r, n));
        if (strcmp(tt_xml_name(r->xml, n), "pcilink") != 0)
            continue;
        TT_TRY(busid_attr(r, node, "busid", &one));
        TT_TRY(busid_attr(r, n, "target", &two));
        a = pci_at(r->m, one);
        b = pci_at(r->m, two);
        if (a < 0 || b < 0 || r->m->n_pcilinks >= TT_TOPO_MAX_PCI)
            continue;
        cap = (size_t)r->m->n_pcilinks;
        TT_TRY(
            tt_grow(&r->m->pcilinks, &cap, (size_t)r->m->n_pcilinks + 1, sizeof *r->m->pcilinks));
        r->m->pcilinks[r->m->n_pcilinks].a = a;
        r->m->pcilinks[r->m->n_pcilinks++].b = b;
    }
    return TUTTI_OK;
}

static void look_for_devices(reader *r)
{
    for (int32_t node = 0; node < tt_xml_count(r->xml); node++) {
        r->has_gpu |= strcmp(tt_xml_name(r->xml, node), "gpu") == 0;
        r->has_net |= strcmp(tt_xml_name(r->xml, node), "net") == 0;
    }
}

static bool at_switches(const tt_machine *m)
{
    for (int i = 0; i < m->n_nvlinks; i++)
        if (m->nvlinks[i].tclass >> 16 != 0x03 && m->nvlinks[i].tclass != 0x068001)
            return true;
    return false;
}

/* Hosts in one file are one NVLink domain (NCCL fuses no others). */
static void mark_fabric(tutti_topo *topo)
{
    for (int i = 0; i < topo->n_hosts && topo->n_hosts > 1; i++)
        if (at_switches(tt_topo_machine_of(topo, i)))
            topo->hosts[i].cluster[0] = 1;
}

static tutti_status read_system(reader *r)
{
    long long version;

    TT_TRY(tt_xml_int(r->xml, 0, "version", RANGE(0, 1000, 1), &version));
    if (version != 1)
        return tt_fail(TUTTI_ERR_UNSUPPORTED, "%s: NCCL topology of version %lld, only 1 is known",
                       tt_xml_file(r->xml), version);
    look_for_devices(r);
    for (int32_t n = tt_xml_child(r->xml, 0, "cpu"); n >= 0; n = tt_xml_next(r->xml, n, "cpu"))
        TT_TRY(read_cpu(r, n));
    if (r->topo->n_machines == 0)
        return tt_fail(TUTTI_ERR_CORRUPT, "%s: an NCCL topology without any <cpu>",
                       tt_xml_file(r->xml));
    for (int32_t n = tt_xml_child(r->xml, 0, "cpu"); n >= 0; n = tt_xml_next(r->xml, n, "cpu")) {
        TT_TRY(enter_host(r, n));
        TT_TRY(read_pcilinks(r, n));
    }
    r->topo->is_template = !r->has_rank;
    mark_fabric(r->topo);
    return tt_topo_seal(r->topo);
}

/* What a graph dump holds, in a few words for the refusal. */
static tutti_status refuse_graphs(const tt_xml *xml)
{
    static const char *const names[] = {"ring", "tree", "collnet chain", "NVLS", "collnet direct"};
    char what[256] = "";
    size_t at = 0;

    for (int32_t n = tt_xml_child(xml, 0, "graph"); n >= 0; n = tt_xml_next(xml, n, "graph")) {
        const char *id = tt_xml_attr(xml, n, "id"), *channels = tt_xml_attr(xml, n, "nchannels");
        const char *speed = tt_xml_attr(xml, n, "speedintra"),
                   *type = tt_xml_attr(xml, n, "typeintra");
        unsigned long number = id == NULL ? 9 : strtoul(id, NULL, 10);
        int length;

        if (number > 4 || channels == NULL || speed == NULL || type == NULL)
            continue;
        length = snprintf(what + at, sizeof what - at, "%s%s %.8s x %.8s GB/s %.8s",
                          at == 0 ? "" : ", ", names[number], channels, speed, type);
        if (length < 0 || (size_t)length >= sizeof what - at)
            break;
        at += (size_t)length;
    }
    return tt_fail(TUTTI_ERR_UNSUPPORTED,
                   "%s: an NCCL graph file (%s): it holds the channels that NCCL found, not the "
                   "machine; dump that with NCCL_TOPO_DUMP_FILE",
                   tt_xml_file(xml), at == 0 ? "no graph of a known kind" : what);
}

tutti_status tt_topo_read_nccl(const char *name, const char *text, size_t bytes,
                               tutti_topo **topo_out)
{
    reader *r = NULL;
    tt_xml *xml;
    tutti_topo *topo = NULL;
    tutti_status status;

    TT_TRY(tt_xml_parse(name, text, bytes, &xml));
    if (strcmp(tt_xml_name(xml, 0), "graphs") == 0) {
        status = refuse_graphs(xml);
        goto free_xml;
    }
    if (strcmp(tt_xml_name(xml, 0), "system") != 0) {
        status = tt_fail(TUTTI_ERR_UNSUPPORTED, "%s: <%.40s> is no NCCL topology", name,
                         tt_xml_name(xml, 0));
        goto free_xml;
    }
    status = tt_calloc(1, sizeof *r, &r);
    if (status == TUTTI_OK)
        status = tt_topo_new(TT_TOPO_NCCL, name, &topo);
    if (status != TUTTI_OK)
        goto free_reader;
    r->xml = xml;
    r->topo = topo;
    status = read_system(r);
    if (status == TUTTI_OK) {
        *topo_out = topo;
        topo = NULL;
    }

free_reader:
    tutti_topo_close(topo);
    free(r);
free_xml:
    tt_xml_free(xml);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Network ports of this machine, as NCCL would choose them: the active ports of RDMA devices, or,
 * where there are none, network interfaces that are up (those of bridges, containers and the
 * loopback left out). Names are taken in order, so numbers are the same on each call.
 *
 * A port that is down is no NIC, but it is noted: it is what users look for first.
 */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/mem.h"
#include "topo/sysfs.h"

enum { PATH_BYTES = 4096 };

typedef struct port {
    char name[TT_TOPO_NAME];
    int port; /* 0: a network interface */
    int function; /* index in raw; -1 */
    bool up;
} port;

typedef struct ports {
    port *list;
    size_t cap;
    int n;
    bool rdma;
} ports;

/* The function that `path`/device links to; -1. */
static int function_of(const tt_raw_pci *raw, int n, const char *path)
{
    char link[PATH_BYTES], text[PATH_BYTES];
    tt_busid busid;
    ssize_t length;

    (void)snprintf(link, sizeof link, "%s/device", path);
    length = readlink(link, text, sizeof text - 1);
    if (length <= 0)
        return -1;
    text[length] = 0;
    if (strrchr(text, '/') == NULL || tt_busid_parse(strrchr(text, '/') + 1, &busid) != TUTTI_OK)
        return -1;
    return tt_sysfs_find(raw, n, busid);
}

static tutti_status add_port(ports *p, const char *name, int number, int function, bool up)
{
    port *to;

    if (p->n == TT_TOPO_MAX_NICS)
        return TUTTI_OK;
    TT_TRY(tt_grow(&p->list, &p->cap, (size_t)p->n + 1, sizeof *p->list));
    to = &p->list[p->n++];
    (void)snprintf(to->name, sizeof to->name, "%s", name);
    to->port = number;
    to->function = function;
    to->up = up;
    return TUTTI_OK;
}

static tutti_status add_rdma(ports *p, const char *root, const tt_raw_pci *raw, int n,
                             const char *name)
{
    char dir[PATH_BYTES], state[64];
    int function;

    (void)snprintf(dir, sizeof dir, "%s/sys/class/infiniband/%s", root, name);
    function = function_of(raw, n, dir);
    p->rdma = true;
    for (int number = 1; number < 16; number++)
        if (tt_sysfs_text(state, sizeof state, "%s/ports/%d/state", dir, number))
            TT_TRY(add_port(p, name, number, function, strstr(state, "ACTIVE") != NULL));
    return TUTTI_OK;
}

static bool is_virtual(const char *name)
{
    static const char *const fronts[] = {"lo",  "docker",  "veth", "br-",   "virbr", "cali", "tunl",
                                         "cni", "flannel", "kube", "dummy", "sit",   "ip6"};

    for (size_t i = 0; i < sizeof fronts / sizeof *fronts; i++)
        if (strncmp(name, fronts[i], strlen(fronts[i])) == 0)
            return true;
    return false;
}

static tutti_status add_interface(ports *p, const char *root, const tt_raw_pci *raw, int n,
                                  const char *name)
{
    char dir[PATH_BYTES], state[64];
    int function;

    if (is_virtual(name))
        return TUTTI_OK;
    (void)snprintf(dir, sizeof dir, "%s/sys/class/net/%s", root, name);
    function = function_of(raw, n, dir);
    if (!tt_sysfs_text(state, sizeof state, "%s/operstate", dir))
        return TUTTI_OK;
    return add_port(p, name, 0, function,
                    strcmp(state, "up") == 0 || strcmp(state, "unknown") == 0);
}

static tutti_status for_names(ports *p, const char *root, const tt_raw_pci *raw, int n, bool rdma)
{
    char path[PATH_BYTES];
    struct dirent **names;
    int count;
    tutti_status status = TUTTI_OK;

    (void)snprintf(path, sizeof path, "%s/sys/class/%s", root, rdma ? "infiniband" : "net");
    count = scandir(path, &names, NULL, versionsort);
    for (int i = 0; i < count; i++) {
        if (status == TUTTI_OK && names[i]->d_name[0] != '.')
            status = rdma ? add_rdma(p, root, raw, n, names[i]->d_name)
                          : add_interface(p, root, raw, n, names[i]->d_name);
        free(names[i]);
    }
    if (count >= 0)
        free(names);
    return status;
}

static bool any_up(const ports *p)
{
    for (int i = 0; i < p->n; i++)
        if (p->list[i].up)
            return true;
    return false;
}

static tutti_status list_ports(const char *root, const tt_raw_pci *raw, int n, ports *p)
{
    tutti_status status;

    *p = (ports){0};
    status = for_names(p, root, raw, n, true);
    if (status == TUTTI_OK && !any_up(p))
        status = for_names(p, root, raw, n, false);
    if (status != TUTTI_OK)
        free(p->list);
    return status;
}

tutti_status tt_sysfs_net_functions(const char *root, const tt_raw_pci *raw, int n,
                                    int **functions_out, int *n_functions_out)
{
    ports p;
    int *functions, count = 0;
    tutti_status status;

    TT_TRY(list_ports(root, raw, n, &p));
    status = tt_calloc((size_t)p.n, sizeof *functions, &functions);
    for (int i = 0; status == TUTTI_OK && i < p.n; i++)
        if (p.list[i].up && p.list[i].function >= 0)
            functions[count++] = p.list[i].function;
    free(p.list);
    TT_TRY(status);
    *functions_out = functions;
    *n_functions_out = count;
    return TUTTI_OK;
}

static void fill_rdma(const char *root, const port *p, tt_nic *nic, const tt_machine *m)
{
    char dir[PATH_BYTES], text[128];
    double gbit;

    (void)snprintf(dir, sizeof dir, "%s/sys/class/infiniband/%s", root, p->name);
    if (tt_sysfs_text(text, sizeof text, "%s/ports/%d/rate", dir, p->port) &&
        (gbit = strtod(text, NULL)) < 1e5)
        nic->mbps = (int64_t)(fmax(gbit, 0) * 1000);
    if (tt_sysfs_text(text, sizeof text, "%s/node_guid", dir))
        for (const char *c = text; *c != 0; c++)
            if (*c != ':')
                nic->guid = nic->guid << 4 | strtoull((char[]){*c, 0}, NULL, 16);
    nic->has_guid = nic->guid != 0;
    nic->port = p->port;
    nic->gdr = TT_YES; /* where the driver for it is loaded, which NCCL asks the plugin */
    nic->kind = TT_NIC_ROCE;
    if (tt_sysfs_text(text, sizeof text, "%s/ports/%d/link_layer", dir, p->port) &&
        strcmp(text, "InfiniBand") == 0)
        nic->kind = TT_NIC_IB;
    if (nic->pci >= 0 && m->pci[nic->pci].vendor == 0x1d0f)
        nic->kind = TT_NIC_EFA;
}

static void fill_interface(const char *root, const port *p, tt_nic *nic)
{
    nic->mbps = tt_sysfs_number(0, "%s/sys/class/net/%s/speed", root, p->name);
    nic->kind = TT_NIC_ETHERNET;
    nic->gdr = TT_NO;
}

static tutti_status add_nic(const char *root, tt_machine *m, const port *p, const int32_t *at)
{
    tt_nic *nic;
    int i;

    TT_TRY(tt_machine_add_nic(m, &i));
    nic = &m->nics[i];
    nic->pci = p->function >= 0 ? at[p->function] : -1;
    nic->numa = nic->pci >= 0 ? m->pci[nic->pci].numa : 0;
    nic->pci_from = nic->pci >= 0 ? TT_FROM_SYSFS : TT_UNKNOWN;
    nic->up = TT_YES;
    (void)snprintf(nic->name, sizeof nic->name, "%s", p->name);
    if (p->port > 0)
        fill_rdma(root, p, nic, m);
    else
        fill_interface(root, p, nic);
    if (nic->mbps < 0 || nic->mbps > 100000000)
        nic->mbps = 0;
    nic->speed_from = nic->mbps > 0 ? TT_FROM_SYSFS : TT_UNKNOWN;
    for (int k = 0; k < i; k++)
        if (m->nics[k].pci == nic->pci) {
            nic->card = m->nics[k].card;
            break;
        }
    return TUTTI_OK;
}

/* In the order of the model's tree, then those of no function. */
static tutti_status add_nics(const char *root, tutti_topo *topo, const ports *p, const int32_t *at)
{
    tt_machine *m = topo->machines[0];

    for (int pci = 0; pci <= m->n_pci; pci++)
        for (int i = 0; i < p->n; i++) {
            const port *one = &p->list[i];
            int where = one->function >= 0 ? at[one->function] : m->n_pci;

            if (one->up && where == pci)
                TT_TRY(add_nic(root, m, one, at));
        }
    /* NCCL numbers them by name. */
    for (int i = 0, dev = 0; i < p->n; i++) {
        if (!p->list[i].up)
            continue;
        for (int k = 0; k < m->n_nics; k++)
            if (strcmp(m->nics[k].name, p->list[i].name) == 0 && m->nics[k].port == p->list[i].port)
                m->nics[k].dev = dev;
        dev++;
    }
    return TUTTI_OK;
}

tutti_status tt_sysfs_nics(const char *root, tutti_topo *topo, const tt_raw_pci *raw, int n,
                           const int32_t *at)
{
    tt_machine *m = topo->machines[0];
    ports p;
    tutti_status status;

    TT_TRY(list_ports(root, raw, n, &p));
    m->system.rdma = p.rdma ? TT_YES : TT_NO;
    for (int i = 0; i < n; i++)
        if (raw[i].pci.vendor == 0x1d0f && raw[i].pci.device >> 8 == 0xef)
            m->system.efa = TT_YES;
    status = add_nics(root, topo, &p, at);
    for (int i = 0; status == TUTTI_OK && i < p.n; i++)
        if (!p.list[i].up && p.list[i].port > 0)
            status = tt_topo_note_add(topo, 0, "port %d of %s is not active: NCCL will not use it",
                                      p.list[i].port, p.list[i].name);
    free(p.list);
    return status;
}

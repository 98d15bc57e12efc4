/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NICs: whether each GPU has one of its own near it, on this host and on all hosts alike.
 *
 * "Near" is what NCCL takes for it: up to a PCIe switch, or C2C. Ports of plain Ethernet are for
 * management and are not asked for GPUDirect. A template names no speeds, and a table none either;
 * nothing is said about them there. Hosts are compared with the first one, and one difference of
 * each sort is told, not one per host.
 */
#include <stdio.h>
#include <string.h>

#include "topo/findings_parts.h"

static bool is_rdma(const tt_nic *nic)
{
    return nic->kind == TT_NIC_IB || nic->kind == TT_NIC_ROCE || nic->kind == TT_NIC_EFA;
}

/* A port that could reach GPU memory: slow ones and plain Ethernet are for management. */
static bool fast(const tt_nic *nic)
{
    return is_rdma(nic) || (nic->kind == TT_NIC_UNKNOWN && nic->gbps > 3);
}

/* A port that a training job would use. */
static bool usable(const tt_nic *nic)
{
    return nic->up != TT_NO;
}

static void check_none(tt_check *c)
{
    const tt_machine *m = c->m;
    if (m->n_gpus == 0)
        return;
    if (m->n_nics == 0)
        tt_found(c, "nic-none", 0,
                 "no NIC is known: this host works alone, or NCCL goes by sockets over whatever "
                 "interface it finds");
    if (m->system.efa == TT_YES && c->also->net_plugin == TT_NO)
        tt_found(c, "net-plugin", 0.95,
                 "an EFA device is on the bus, but no NCCL network plugin can be loaded: NCCL goes "
                 "by TCP sockets");
    else if (m->system.rdma == TT_YES && m->n_nics == 0)
        tt_found(c, "rdma-unused", 0.95,
                 "an RDMA device is on the bus, but none of its ports is to be seen: NCCL goes by "
                 "TCP sockets");
}

static float fastest(const tt_machine *m)
{
    float most = 0;
    for (int k = 0; k < m->n_nics; k++)
        if (usable(&m->nics[k]) && m->nics[k].gbps > most)
            most = m->nics[k].gbps;
    return most;
}

static void check_speeds(tt_check *c)
{
    tt_some unknown = {0}, slow = {0};
    char text[TT_SOME_TEXT];
    float most = fastest(c->m);
    for (int k = 0; k < c->m->n_nics; k++) {
        const tt_nic *nic = &c->m->nics[k];
        if (usable(nic) && nic->mbps <= 0)
            tt_some_add(&unknown, k);
        else if (usable(nic) && nic->gbps < 0.9f * most)
            tt_some_add(&slow, k);
    }
    if (unknown.n > 0 && c->topo->format != TT_TOPO_MATRIX && !c->topo->is_template)
        tt_found(c, "nic-speed", 0, "%s: no speed given, NCCL counts 10 Gb/s",
                 tt_some_nics(c, &unknown, text));
    if (slow.n > 0)
        tt_found(c, "nic-uneven", 0,
                 "%s %s slower than the fastest (%.1f GB/s): a channel on a slow one slows all",
                 tt_some_nics(c, &slow, text), slow.n == 1 ? "is" : "are", (double)most);
}

static void check_ports(tt_check *c)
{
    tt_some down = {0}, no_gdr = {0};
    char text[TT_SOME_TEXT];
    for (int k = 0; k < c->m->n_nics; k++) {
        if (c->m->nics[k].up == TT_NO)
            tt_some_add(&down, k);
        if (is_rdma(&c->m->nics[k]) && c->m->nics[k].gdr == TT_NO)
            tt_some_add(&no_gdr, k);
    }
    if (down.n > 0)
        tt_found(c, "nic-down", (double)down.n / c->m->n_nics, "%s %s down",
                 tt_some_nics(c, &down, text), down.n == 1 ? "is" : "are");
    if (no_gdr.n > 0)
        tt_found(c, "nic-no-gdr", 0.5,
                 "%s cannot reach GPU memory (no GPUDirect RDMA): everything goes through the "
                 "host's memory",
                 tt_some_nics(c, &no_gdr, text));
}

/* GPUs whose NIC is beyond the CPU, and those that go by a peer's. */
typedef struct far_gpus {
    tt_some far, by_peer;
    int worst; /* path type */
    double share; /* of the NIC's speed that the way gives, at worst */
} far_gpus;

static void find_far(const tt_machine *m, far_gpus *found)
{
    for (int g = 0; g < m->n_gpus; g++) {
        int nic = tt_paths_nic(m, g, 0);
        if (nic < 0 || !fast(&m->nics[nic]))
            continue;
        const tt_path *raw = &m->paths->raw_gpu_nic[g * m->n_nics + nic];
        const tt_path *used = &m->paths->gpu_nic[g * m->n_nics + nic];
        if (raw->type <= TUTTI_PATH_P2C || used->type <= TUTTI_PATH_P2C)
            continue;
        if (used->type == TUTTI_PATH_PXN && used->via >= 0) {
            tt_some_add(&found->by_peer, g);
            continue;
        }
        tt_some_add(&found->far, g);
        found->worst = raw->type > found->worst ? raw->type : found->worst;
        if (m->nics[nic].gbps > 0 && used->gbps / m->nics[nic].gbps < found->share)
            found->share = used->gbps / m->nics[nic].gbps;
    }
}

static void check_near(tt_check *c)
{
    const tt_machine *m = c->m;
    far_gpus f = {.worst = TUTTI_PATH_PIX, .share = 1};
    char text[TT_SOME_TEXT];
    find_far(m, &f);
    if (f.far.n > 0 && m->system.flat != TT_YES && !c->topo->is_template)
        tt_found(c, "nic-far", f.share < 1 ? 1 - f.share : 0.2,
                 "the nearest NIC of %s is %s away: GPUDirect RDMA is off, data goes through the "
                 "host's memory",
                 tt_some_gpus(c, &f.far, text), tt_path_name((tutti_path_type)f.worst));
    if (f.by_peer.n > 0) {
        int g = f.by_peer.at[0];
        tt_found(c, "nic-by-peer", 0.1,
                 "%s %s no near NIC: NCCL takes that of a peer GPU (PXN), GPU %d that of GPU %d",
                 tt_some_gpus(c, &f.by_peer, text), f.by_peer.n == 1 ? "has" : "have", g,
                 m->paths->gpu_nic[g * m->n_nics + tt_paths_nic(m, g, 0)].via);
    }
}

/* How many GPUs' channels take each NIC; and how many take it first. */
static void count_users(const tt_machine *m, int *any, int *first)
{
    memset(any, 0, (size_t)m->n_nics * sizeof *any);
    memset(first, 0, (size_t)m->n_nics * sizeof *first);
    for (int g = 0; g < m->n_gpus; g++)
        for (int ch = 0; ch < m->paths->n_local[g]; ch++) {
            int nic = tt_paths_nic(m, g, ch);
            if (nic < 0)
                continue;
            any[nic]++;
            first[nic] += ch == 0;
        }
}

static void check_shares(tt_check *c)
{
    const tt_machine *m = c->m;
    int any[TT_TOPO_MAX_NICS], first[TT_TOPO_MAX_NICS];
    tt_some unused = {0}, crowded = {0};
    char text[TT_SOME_TEXT];
    float most = fastest(m);
    if (m->n_gpus == 0 || m->n_nics == 0)
        return;
    count_users(m, any, first);
    for (int k = 0; k < m->n_nics; k++) {
        if (any[k] == 0 && usable(&m->nics[k]) && m->nics[k].gbps >= 0.9f * most)
            tt_some_add(&unused, k);
        if (first[k] > 1)
            tt_some_add(&crowded, k);
    }
    if (unused.n > 0 && unused.n < m->n_nics)
        tt_found(c, "nic-unused", (double)unused.n / m->n_nics,
                 "%d of %d NICs are near no GPU and carry nothing: %s", unused.n, m->n_nics,
                 tt_some_nics(c, &unused, text));
    if (crowded.n == 0)
        return;
    int sharers = first[crowded.at[0]];
    if (m->n_nics >= m->n_gpus && unused.n > 0)
        tt_found(c, "rails-shared", 1 - 1.0 / sharers,
                 "GPUs and NICs do not pair: %d GPUs take %s while other NICs are free", sharers,
                 tt_some_nics(c, &crowded, text));
    else
        tt_found(c, "nic-shared", 0, "%d GPUs share %s%s", sharers, crowded.n > 1 ? "each of " : "",
                 tt_some_nics(c, &crowded, text));
}

void tt_check_nic(tt_check *c)
{
    check_none(c);
    check_ports(c);
    check_speeds(c);
    check_near(c);
    check_shares(c);
    if (c->cross_nic == 2)
        tt_found(c, "cross-nic", 0,
                 "NCCL's ring over several hosts enters by one NIC and leaves by another: on a "
                 "rail-only network these do not reach each other");
}

static const char *host_name(const tutti_topo *topo, int h, char text[TT_TOPO_NAME])
{
    if (topo->hosts[h].name[0] != '\0')
        snprintf(text, TT_TOPO_NAME, "%s", topo->hosts[h].name);
    else
        snprintf(text, TT_TOPO_NAME, "host %d", h);
    return text;
}

static void nics_text(const tt_machine *m, char *text, size_t cap)
{
    float most = 0;
    for (int k = 0; k < m->n_nics; k++)
        most = m->nics[k].gbps > most ? m->nics[k].gbps : most;
    snprintf(text, cap, "%d NICs of up to %.1f GB/s", m->n_nics, (double)most);
}

/* Machine b against machine a: the first difference that matters, once. */
static void compare_nics(tt_check *c, int host_a, int host_b)
{
    const tt_machine *a = tt_topo_machine_of(c->topo, host_a);
    const tt_machine *b = tt_topo_machine_of(c->topo, host_b);
    char name_a[TT_TOPO_NAME], name_b[TT_TOPO_NAME], nics_a[64], nics_b[64];
    bool differ = a->n_nics != b->n_nics;
    host_name(c->topo, host_a, name_a);
    host_name(c->topo, host_b, name_b);
    for (int k = 0; k < a->n_nics && !differ; k++)
        differ = a->nics[k].mbps != b->nics[k].mbps || a->nics[k].kind != b->nics[k].kind;
    if (!differ)
        return;
    nics_text(a, nics_a, sizeof nics_a);
    nics_text(b, nics_b, sizeof nics_b);
    tt_found(c, "hosts-nics", 0.5,
             "%s has %s, %s has %s: NCCL may hang, or goes at the pace of the "
             "weaker one",
             name_a, nics_a, name_b, nics_b);
}

static void compare_rails(tt_check *c, int host_a, int host_b)
{
    const tt_machine *a = tt_topo_machine_of(c->topo, host_a);
    const tt_machine *b = tt_topo_machine_of(c->topo, host_b);
    char name_a[TT_TOPO_NAME], name_b[TT_TOPO_NAME];
    if (a->n_nics != b->n_nics || a->n_gpus != b->n_gpus)
        return;
    for (int g = 0; g < a->n_gpus; g++) {
        int p = tt_paths_nic(a, g, 0), q = tt_paths_nic(b, g, 0);
        if (p < 0 || q < 0 || a->nics[p].dev == b->nics[q].dev)
            continue;
        tt_found(
            c, "rails-differ", 0.2,
            "GPU %d is near NIC %d on %s and near NIC %d on %s: ranks of equal index are not on "
            "one rail; tutti places by rail",
            g, a->nics[p].dev, host_name(c->topo, host_a, name_a), b->nics[q].dev,
            host_name(c->topo, host_b, name_b));
        return;
    }
}

static void compare_fabric(tt_check *c, int host_a, int host_b)
{
    const tt_host *a = &c->topo->hosts[host_a], *b = &c->topo->hosts[host_b];
    char name_a[TT_TOPO_NAME], name_b[TT_TOPO_NAME];
    static const uint8_t none[sizeof a->cluster];
    if (memcmp(a->cluster, none, sizeof none) == 0 ||
        memcmp(a->cluster, b->cluster, sizeof none) != 0 || a->clique == b->clique)
        return;
    tt_found(c, "fabric-cliques", 0.5,
             "%s and %s are in one NVLink cluster but in different cliques (%u and %u): no NVLink "
             "between them",
             host_name(c->topo, host_a, name_a), host_name(c->topo, host_b, name_b), a->clique,
             b->clique);
}

void tt_check_hosts(tt_check *c)
{
    const tutti_topo *topo = c->topo;
    bool nics = false, rails = false, cliques = false;
    for (int h = 1; h < topo->n_hosts; h++) {
        size_t n = c->out->n;
        if (!cliques) {
            compare_fabric(c, 0, h);
            cliques = c->out->n > n;
        }
        if (topo->hosts[h].machine == topo->hosts[0].machine)
            continue;
        n = c->out->n;
        if (!nics) {
            compare_nics(c, 0, h);
            nics = c->out->n > n;
        }
        n = c->out->n;
        if (!rails) {
            compare_rails(c, 0, h);
            rails = c->out->n > n;
        }
    }
}

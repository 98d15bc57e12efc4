/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What can be wrong with NVLink.
 *
 * A healthy machine is one whose GPUs are alike: what the best of them has is taken for what all
 * should have, since no description tells what was built in. Where bridges join single pairs, GPUs
 * without any are built so, and are left alone. A link that is active is not a fabric that works:
 * its state is looked at by itself.
 */
#include <stdio.h>

#include "topo/findings_parts.h"

static int most_links(const tt_machine *m)
{
    int most = 0;
    for (int g = 0; g < m->n_gpus; g++) {
        int links = tt_links_of(m, g);
        most = links > most ? links : most;
    }
    return most;
}

static void check_missing(tt_check *c, int most)
{
    tt_some none = {0};
    char text[TT_SOME_TEXT];
    for (int g = 0; g < c->m->n_gpus; g++)
        if (tt_links_of(c->m, g) == 0)
            tt_some_add(&none, g);
    if (most == 0 || none.n == 0)
        return;
    /* pairs with bridges beside GPUs without are built like that */
    bool pairs = c->m->n_gpus > 2 && most <= 12 && none.n * 2 >= c->m->n_gpus;
    if (!pairs)
        tt_found(
            c, "nvlink-none", 1 - 0.1 / 20,
            "%s %s 0 of %d NVLinks while the others have them: NCCL falls back to PCIe or to a "
            "slow simple order for all ranks",
            tt_some_gpus(c, &none, text), none.n == 1 ? "has" : "have", most);
}

static void check_degraded(tt_check *c, int most)
{
    tt_some fewer = {0};
    char text[TT_SOME_TEXT];
    int least = most;
    bool by_pair = false;
    for (int l = 0; l < c->m->n_nvlinks; l++)
        by_pair |= c->m->nvlinks[l].peer == TT_PEER_GPU;
    for (int g = 0; g < c->m->n_gpus; g++) {
        int links = tt_links_of(c->m, g), down = c->m->gpus[g].links_down;
        bool lacks = links < most && (!by_pair || down > 0);
        if (links == 0 || (!lacks && down == 0))
            continue;
        tt_some_add(&fewer, g);
        least = links < least ? links : least;
    }
    if (fewer.n > 0 && least < most)
        tt_found(c, "nvlink-degraded", 1 - (double)least / most,
                 "%s %s %d of %d NVLinks: every ring passes every GPU, so all go at %d/%d of the "
                 "speed",
                 tt_some_gpus(c, &fewer, text), fewer.n == 1 ? "has" : "have", least, most, least,
                 most);
    else if (fewer.n > 0)
        tt_found(c, "nvlink-degraded", 0, "%s %s NVLinks that exist and are down",
                 tt_some_gpus(c, &fewer, text), fewer.n == 1 ? "has" : "have");
}

static int links_between(const tt_machine *m, int a, int b)
{
    int links = 0;
    for (int l = 0; l < m->n_nvlinks; l++)
        if (m->nvlinks[l].gpu == a && m->nvlinks[l].peer_gpu == b)
            links += m->nvlinks[l].count;
    return links;
}

/* Bridged pairs: GPUs that have one peer each. */
static void check_pairs(tt_check *c)
{
    const tt_machine *m = c->m;
    int most = 0, least = 0, pair[2] = {-1, -1};
    for (int a = 0; a < m->n_gpus; a++)
        for (int b = a + 1; b < m->n_gpus; b++) {
            int links = links_between(m, a, b);
            if (links == 0 || links != tt_links_of(m, a))
                continue;
            most = links > most ? links : most;
            if (least == 0 || links < least) {
                least = links;
                pair[0] = a;
                pair[1] = b;
            }
        }
    if (least == 3 && most == 3)
        most = 4; /* bridges have four; three is a bad contact */
    if (least > 0 && least < most)
        tt_found(c, "nvlink-bridge", 1 - (double)least / most,
                 "GPUs %d and %d are bridged by %d of %d NVLinks", pair[0], pair[1], least, most);
}

/* GPUs with a link to a peer of this kind. */
static void linked_to(const tt_machine *m, int peer, tt_some *some)
{
    for (int l = 0; l < m->n_nvlinks; l++)
        if (m->nvlinks[l].peer == peer &&
            (some->n == 0 || some->at[some->n - 1] != m->nvlinks[l].gpu))
            tt_some_add(some, m->nvlinks[l].gpu);
}

static bool sees_hidden_switch(const tt_machine *m)
{
    for (int l = 0; l < m->n_nvlinks; l++)
        if (m->nvlinks[l].peer == TT_PEER_SWITCH && m->nvlinks[l].target == TT_BUSID_HIDDEN)
            return true;
    return false;
}

static void find_lopsided(const tt_machine *m, tt_some *some)
{
    for (int l = 0; l < m->n_nvlinks; l++) {
        const tt_nvlink *link = &m->nvlinks[l];
        if (link->peer == TT_PEER_GPU &&
            links_between(m, link->gpu, link->peer_gpu) !=
                links_between(m, link->peer_gpu, link->gpu) &&
            (some->n == 0 || some->at[some->n - 1] != link->gpu))
            tt_some_add(some, link->gpu);
    }
}

static void check_targets(tt_check *c)
{
    tt_some self = {0}, missing = {0}, hidden = {0}, lopsided = {0};
    char text[TT_SOME_TEXT];
    linked_to(c->m, TT_PEER_SELF, &self);
    linked_to(c->m, TT_PEER_MISSING, &missing);
    linked_to(c->m, TT_PEER_SWITCH, &hidden);
    find_lopsided(c->m, &lopsided);
    if (self.n > 0)
        tt_found(c, "nvlink-self", 0.9,
                 "the NVLinks of %s have the GPU itself as their target: NCCL sees no NVLink and "
                 "goes by PCIe",
                 tt_some_gpus(c, &self, text));
    if (missing.n > 0)
        tt_found(c, "nvlink-peer", 0.5,
                 "NVLinks of %s lead to a bus id that is no GPU of this host",
                 tt_some_gpus(c, &missing, text));
    /* synthetic machines have no bus ids of switches at all */
    if (sees_hidden_switch(c->m) && c->topo->format != TT_TOPO_SYNTHETIC)
        tt_found(c, "nvlink-hidden-switch", 0,
                 "the NVLinks of %s lead to a switch that is not shown (fffffff:ff:ff.0)",
                 tt_some_gpus(c, &hidden, text));
    if (lopsided.n > 0)
        tt_found(c, "nvlink-one-sided", 0.5,
                 "%s and their peers count the NVLinks between them differently",
                 tt_some_gpus(c, &lopsided, text));
}

static void check_fabric(tt_check *c)
{
    tt_some failed = {0}, waiting = {0};
    char text[TT_SOME_TEXT];
    for (int g = 0; g < c->m->n_gpus; g++) {
        if (c->m->gpus[g].fabric == TT_FABRIC_FAILED)
            tt_some_add(&failed, g);
        if (c->m->gpus[g].fabric == TT_FABRIC_NOT_STARTED ||
            c->m->gpus[g].fabric == TT_FABRIC_IN_PROGRESS)
            tt_some_add(&waiting, g);
    }
    if (failed.n > 0)
        tt_found(c, "fabric-failed", 1, "NVLink fabric training failed on %s",
                 tt_some_gpus(c, &failed, text));
    if (waiting.n > 0)
        tt_found(c, "fabric-not-ready", 1,
                 "the links of %s are active, but the fabric was never set up: state '%s'",
                 tt_some_gpus(c, &waiting, text),
                 c->m->gpus[waiting.at[0]].fabric == TT_FABRIC_IN_PROGRESS ? "in progress"
                                                                           : "not started");
}

static const char *p2p_text(int status)
{
    switch (status) {
    case TT_P2P_CHIPSET:
        return "chipset not supported";
    case TT_P2P_GPU:
        return "GPU not supported";
    case TT_P2P_TOPOLOGY:
        return "topology not supported";
    case TT_P2P_DISABLED:
        return "disabled by a driver setting";
    default:
        return "not supported";
    }
}

/* The driver refuses peer access where NCCL would use it. Of a path by way of a GPU NCCL asks for
 * both halves, which are pairs of their own. Thor says "not supported" of everything: that alone is
 * taken for not known. */
static bool is_refused(const tt_machine *m, int a, int b)
{
    int status = m->p2p[a * m->n_gpus + b], type = m->paths->raw_gpu_gpu[a * m->n_gpus + b].type;
    if (status <= TT_P2P_OK || type > TUTTI_PATH_PXB || type == TUTTI_PATH_NVB)
        return false;
    return type > TUTTI_PATH_NVB || status != TT_P2P_NOT_SUPPORTED || m->gpus[a].sm < 110;
}

static void check_p2p(tt_check *c)
{
    const tt_machine *m = c->m;
    int nvlink = 0, pcie = 0, first[2][3] = {{0}};
    if (m->p2p == NULL)
        return;
    for (int a = 0; a < m->n_gpus; a++)
        for (int b = a + 1; b < m->n_gpus; b++) {
            if (!is_refused(m, a, b))
                continue;
            int kind = m->paths->raw_gpu_gpu[a * m->n_gpus + b].type > TUTTI_PATH_NVB;
            int *n = kind == 0 ? &nvlink : &pcie;
            if ((*n)++ == 0) {
                first[kind][0] = a;
                first[kind][1] = b;
                first[kind][2] = m->p2p[a * m->n_gpus + b];
            }
        }
    if (nvlink > 0)
        tt_found(
            c, "p2p-nvlink-refused", 1,
            "the driver refuses peer access over NVLink between GPU %d and GPU %d (%s)%s: NCCL "
            "stops with an error",
            first[0][0], first[0][1], p2p_text(first[0][2]), nvlink > 1 ? " and others" : "");
    if (pcie > 0)
        tt_found(c, "p2p-pcie-refused", 0.4,
                 "the driver refuses peer access over PCIe between GPU %d and GPU %d (%s)%s: data "
                 "goes through the host's memory",
                 first[1][0], first[1][1], p2p_text(first[1][2]), pcie > 1 ? " and others" : "");
}

void tt_check_nvlink(tt_check *c)
{
    int most = most_links(c->m);
    check_missing(c, most);
    check_degraded(c, most);
    check_pairs(c);
    check_targets(c);
    check_fabric(c);
    check_p2p(c);
    if (c->fallback)
        tt_found(c, "nccl-fallback", 1 - 0.1 / 12,
                 "NCCL's search finds no ring over the %d GPUs and would use one channel at 0.1 "
                 "GB/s",
                 c->m->n_gpus);
}

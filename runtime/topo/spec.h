/* SPDX-License-Identifier: Apache-2.0 */
/* A synthetic machine as numbers, between the words of synthetic.c and the model of assemble.c. */
#ifndef TT_TOPO_SPEC_H
#define TT_TOPO_SPEC_H

#include "topo/model.h"

enum { TT_SPEC_TAKEN = 64, TT_SPEC_ALL_LINKS = 1000 };

typedef enum tt_spec_nvlink {
    TT_SPEC_NONE,
    TT_SPEC_SWITCH,
    TT_SPEC_MESH,
    TT_SPEC_PAIR,
    TT_SPEC_RING,
    TT_SPEC_CUBE
} tt_spec_nvlink;
typedef enum tt_spec_tree { TT_TREE_ROOT, TT_TREE_SWITCH, TT_TREE_FLAT } tt_spec_tree;

typedef struct tt_spec {
    int hosts, fabric, gpus, sm, mem, numa, cores, gen, lanes, per_switch, links, c2c, c2c_mbps;
    int nics, rate, gdr, cpu_model;
    tt_cpu_arch arch;
    tt_cpu_vendor vendor;
    tt_spec_tree tree;
    tt_spec_nvlink nvlink;
    tt_nic_kind net;
    char name[TT_TOPO_NAME];
    int gpu_numa[TT_TOPO_MAX_GPUS], n_gpu_numa;
    int nic_order[TT_TOPO_MAX_NICS], n_nic_order;
    struct taken {
        char what; /* 'l' link, 'n' nic, 'g' gpu */
        int a, b, count;
    } taken[TT_SPEC_TAKEN];
    int n_taken;
    int depth; /* of catalogue names */
} tt_spec;

/* Fills an empty topo and seals it. */
tutti_status tt_spec_build(const tt_spec *spec, tutti_topo *topo);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan: what is decided from the machines' models about a job. Which GPU, NIC and island each
 * rank has, where a rank stands in a mesh, and how a communicator is to be set up. It computes
 * only: nothing here asks the machine or sets anything. It works as well without models (hosts
 * alone then count) and without GPUs.
 *
 * Every rank makes the plan from the same input and so comes to the same decisions; nothing of it
 * is sent around.
 */
#ifndef TT_TOPO_PLAN_H
#define TT_TOPO_PLAN_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"

struct tutti_topo;

/* One rank as it is given to the plan. */
typedef struct tt_plan_rank {
    int host; /* 0 ... hosts-1 */
    int gpu; /* index in the host's machine; -1: a rank of the host backend */
} tt_plan_rank;

typedef struct tt_plan_input {
    const struct tutti_topo *topo; /* of as many hosts; NULL: not known */
    int hosts, ranks;
    const tt_plan_rank *rank;
} tt_plan_input;

/* Where the plan has a rank. */
typedef struct tt_plan_seat {
    int host, gpu;
    int local; /* index among the ranks of its host, in rank order */
    int island; /* number of its NVLink island in the job; ranks of one are joined by NVLink */
    int nic; /* index of its NIC in the host's machine; -1: none */
    int rail; /* which of the network's rails that NIC is on; -1: none */
    int numa; /* of the GPU, -1: not known */
} tt_plan_seat;

typedef struct tt_plan tt_plan;

/* Borrows the topo, which must outlive the plan; copies the rest. Errors: ARG (a host or GPU out of
 * range), NO_MEMORY. O(n log n) in ranks, plus a constant for each distinct machine. */
tutti_status tt_plan_create(const tt_plan_input *in, tt_plan **plan_out);
void tt_plan_destroy(tt_plan *plan); /* takes NULL */

int tt_plan_ranks(const tt_plan *plan);
int tt_plan_hosts(const tt_plan *plan);
tt_plan_seat tt_plan_seat_of(const tt_plan *plan, int rank);

/*
 * Who stands where in a mesh. `ranks` are its n members (ranks of the job, in the caller's order),
 * size[axes] its shape with product n, the last axis innermost: it varies fastest and is taken to
 * carry most. order_out[i] is the rank at place i in row-major order. The inner axes are laid into
 * islands and hosts, and ranks that differ only in outer coordinates on one rail. Never costs more
 * in the model (tt_plan_order_cost) than the order given. Errors: ARG, NO_MEMORY.
 */
tutti_status tt_plan_order(const tt_plan *plan, const int *ranks, int n, const int *size, int axes,
                           int *order_out);

/* The modelled communication time of one step, in microseconds, of a mesh in a given order
 * (order_cost.c). Axis k from the inside is taken to all-reduce tt_plan_axis_bytes(k): 4 GiB for
 * the innermost, an eighth of that for the next, and so on. Errors as of tt_plan_order. */
tutti_status tt_plan_order_cost(const tt_plan *plan, const int *order, int n, const int *size,
                                int axes, double *us_out);
double tt_plan_axis_bytes(int from_inside);

/* How a communicator of some ranks is to be set up. A zero (name: "") leaves NCCL's default. */
typedef struct tt_comm_config {
    int min_ctas, max_ctas;
    int cga_cluster_size; /* -1: NCCL's default; 0 and 1 mean something to it */
    int nvls_ctas;
    int split_share; /* 1: what is split from it shares its buffers and proxies */
    char name[64]; /* commName */
    /* All-reduce of at least this many bytes goes in three steps (reduce-scatter in the group of
     * tt_plan_groups, all-reduce over equal indices, all-gather); SIZE_MAX: never. */
    size_t hier_min_bytes;
    char why[512]; /* a sentence for each value that is set; "" when none is */
} tt_comm_config;

/* What the caller knows of a communicator's use. */
typedef struct tt_comm_use {
    const char *name; /* for commName, or NULL */
    bool in_turn; /* communicators of one GPU never work at the same time */
} tt_comm_use;

/* Errors: ARG, NO_MEMORY. */
tutti_status tt_plan_comm_config(const tt_plan *plan, const int *ranks, int n,
                                 const tt_comm_use *use, tt_comm_config *config_out);

/* The groups of an all-reduce in three steps: ranks of one NVLink island, or where GPUs have none,
 * of one PCIe switch; a host's ranks on the host backend. group_out and index_out (n each) give a
 * member's group and its index there. *groups_out is 0 where the groups are not equally large, or
 * there is only one, or they are of one rank. Errors: ARG, NO_MEMORY. */
tutti_status tt_plan_groups(const tt_plan *plan, const int *ranks, int n, int *group_out,
                            int *index_out, int *groups_out);

/* The modelled time in us of an all-reduce over the ranks, at once and in three steps; 0 where it
 * is not known (no model, or hosts that differ) or not possible. */
tutti_status tt_plan_all_reduce_us(const tt_plan *plan, const int *ranks, int n, double bytes,
                                   double *flat_us_out, double *three_us_out);

/* A variable for the whole job, read once by NCCL before its first call. */
typedef struct tt_plan_variable {
    const char *name;
    char value[256];
    char why[256];
    char user[256]; /* what the user has set, which stays; "" where unset */
} tt_plan_variable;
enum { TT_PLAN_VARIABLES = 8 };

struct tt_findings; /* topo/findings.h */
/* The process-wide block, the same on all ranks; what the user set and what it costs goes to
 * `conflicts` (kind env-overrides; may be NULL). `get` reads the environment. Returns the number of
 * variables through *n_out. Errors: NO_MEMORY. */
typedef const char *(*tt_plan_getenv)(void *arg, const char *name); /* NULL: not set */
tutti_status tt_plan_environment(const tt_plan *plan, tt_plan_getenv get, void *arg,
                                 tt_plan_variable list_out[TT_PLAN_VARIABLES], int *n_out,
                                 struct tt_findings *conflicts);

#endif

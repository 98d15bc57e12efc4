/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The judge of rank orders: what the communication of one training step costs in the model.
 *
 * One axis after the other all-reduces its bytes, all its groups at the same time. A group is a
 * ring over its members, host by host, in a host in the order of the machine (as NCCL arranges it
 * whatever the order of ranks), so it sends 2(k-1)/k of the bytes over every link it passes. A
 * group joined by NVLink goes at the narrowest cut's speed; everything else loads links that other
 * groups load too: PCIe, the links between NUMA domains, NICs. An axis ends when its slowest group
 * and its fullest link do. That is coarse, but it has what placement can change: what crosses which
 * link, and which links are shared.
 *
 * A tree instead of a ring would change the factor before the bytes, the same for all orders.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "topo/plan_parts.h"

/* us of one step of a ring, as in NCCL's model for its default protocol */
#define STEP_NVLINK_US 3.4
#define STEP_PCI_US 5.7
#define STEP_NET_US 14.0

typedef struct member {
    int slot; /* of its host, in the order in which the mesh meets the hosts */
    int place_in_host; /* sorts the members of a host as the machine has them */
    int rank;
} member;

struct tt_judge {
    const tt_plan *plan;
    tt_mesh_load mesh;
    int stride; /* wires of the largest machine, and two for a host that is not known */
    int slots; /* hosts that take part */
    int *slot; /* of each host of the plan; -1: not met yet */
    int *slot_host;
    double *load; /* [slot x stride + link], bytes of the axis */
    member *members;
    int *gpus;
    double soft; /* of the last order judged: what all groups and links take, not the worst alone */
};

tutti_status tt_judge_create(const tt_plan *plan, const tt_mesh_load *mesh, tt_judge **judge_out)
{
    tt_judge *j = NULL;
    size_t n = (size_t)mesh->n, hosts = (size_t)(mesh->n < plan->hosts ? mesh->n : plan->hosts);
    TT_TRY(tt_calloc(1, sizeof *j, &j));
    j->plan = plan;
    j->mesh = *mesh;
    for (int m = 0; plan->topo != NULL && m < plan->topo->n_machines; m++)
        if (plan->fabric[m]->wires->n_wires > j->stride)
            j->stride = plan->fabric[m]->wires->n_wires;
    j->stride += 2;
    tutti_status status = tt_calloc((size_t)plan->hosts, sizeof(int), &j->slot);
    if (status == TUTTI_OK)
        status = tt_calloc(hosts, sizeof(int), &j->slot_host);
    if (status == TUTTI_OK)
        status = tt_calloc(hosts * (size_t)j->stride, sizeof(double), &j->load);
    if (status == TUTTI_OK)
        status = tt_calloc(n, sizeof *j->members, &j->members);
    if (status == TUTTI_OK)
        status = tt_calloc(n, sizeof(int), &j->gpus);
    if (status != TUTTI_OK) {
        tt_judge_destroy(j);
        return status;
    }
    memset(j->slot, 0xff, (size_t)plan->hosts * sizeof(int));
    *judge_out = j;
    return TUTTI_OK;
}

void tt_judge_destroy(tt_judge *judge)
{
    if (judge == NULL)
        return;
    free(judge->gpus);
    free(judge->members);
    free(judge->load);
    free(judge->slot_host);
    free(judge->slot);
    free(judge);
}

static int slot_of(tt_judge *j, int host)
{
    if (j->slot[host] < 0) {
        j->slot[host] = j->slots;
        j->slot_host[j->slots++] = host;
    }
    return j->slot[host];
}

static int by_slot(const void *a, const void *b)
{
    const member *x = a, *y = b;
    return x->slot != y->slot ? x->slot - y->slot : x->place_in_host - y->place_in_host;
}

/* GPUs with near ones near: by island, NUMA domain and position in the tree, which is the order in
 * which the model lists them within these. */
static int place_in_host(const tt_plan *plan, int rank)
{
    const tt_plan_seat *seat = &plan->seat[rank];
    const tt_machine *m = tt_plan_machine(plan, seat->host);
    if (m == NULL || seat->gpu < 0)
        return seat->local;
    return m->gpus[seat->gpu].numa * TT_TOPO_MAX_GPUS + seat->gpu;
}

static tt_fabric *fabric_of(const tt_judge *j, const member *m)
{
    const tt_plan *plan = j->plan;
    int host = plan->seat[m->rank].host;
    if (plan->topo == NULL || plan->seat[m->rank].gpu < 0)
        return NULL;
    return plan->fabric[plan->topo->hosts[host].machine];
}

static void add_load(tt_judge *j, int slot, const int *way, int n, double bytes)
{
    for (int i = 0; i < n; i++)
        j->load[(size_t)slot * (size_t)j->stride + (size_t)way[i]] += bytes;
}

/* One hop inside a host. Returns the time it takes if it had its links for itself. */
static double hop(tt_judge *j, const member *from, const member *to, double bytes)
{
    tt_fabric *f = fabric_of(j, from);
    int way[TT_WAY_MAX];
    if (f == NULL)
        return bytes / (1000 * TT_PLAN_MEMORY_GBPS);
    int a = j->plan->seat[from->rank].gpu, b = j->plan->seat[to->rank].gpu;
    const tt_path *path = &f->machine->paths->gpu_gpu[a * f->machine->n_gpus + b];
    if (path->type > TUTTI_PATH_C2C)
        add_load(j, from->slot, way, tt_fabric_way(f, a, b, way), bytes);
    return bytes / (1000 * (path->gbps > 0 ? path->gbps : 0.1));
}

/* The members of one host; `ring`: all of the group. */
static double inside(tt_judge *j, const member *m, int k, bool ring, double bytes)
{
    tt_fabric *f = fabric_of(j, m);
    double slowest = 0;
    if (k < 2)
        return 0;
    if (f != NULL) {
        for (int i = 0; i < k; i++)
            j->gpus[i] = j->plan->seat[m[i].rank].gpu;
        float island = tt_fabric_island(f, j->gpus, k);
        if (island > 0)
            return bytes / (1000 * island);
    }
    for (int i = 0; i + 1 < k || (ring && i < k); i++)
        slowest = fmax(slowest, hop(j, &m[i], &m[(i + 1) % k], bytes));
    return slowest;
}

static bool other_members_nic(const tt_judge *j, const member *m, int k, int upto)
{
    (void)k;
    for (int i = 0; i < upto; i++)
        if (j->plan->seat[m[i].rank].nic == j->plan->seat[m[upto].rank].nic)
            return true;
    return false;
}

/* In and out of a host, over all the NICs that its members are near. */
static void across(tt_judge *j, const member *m, int k, double bytes)
{
    tt_fabric *f = fabric_of(j, m);
    int nics = 0, way[TT_WAY_MAX];
    for (int i = 0; i < k && f != NULL; i++)
        nics += j->plan->seat[m[i].rank].nic >= 0 && !other_members_nic(j, m, k, i);
    if (nics == 0) {
        const int both[2] = {j->stride - 2, j->stride - 1};
        add_load(j, m->slot, both, 2, bytes);
        return;
    }
    for (int i = 0; i < k; i++) {
        const tt_plan_seat *seat = &j->plan->seat[m[i].rank];
        if (seat->nic < 0 || other_members_nic(j, m, k, i))
            continue;
        for (int out = 0; out < 2; out++)
            add_load(j, m->slot, way, tt_fabric_way_nic(f, seat->gpu, seat->nic, out != 0, way),
                     bytes / nics);
    }
}

static uint64_t rails_of(const tt_judge *j, const member *m, int k)
{
    uint64_t rails = 0;
    for (int i = 0; i < k; i++)
        if (j->plan->seat[m[i].rank].rail >= 0)
            rails |= UINT64_C(1) << (j->plan->seat[m[i].rank].rail & 63);
    return rails;
}

static bool one_island(const tt_judge *j, int k)
{
    for (int i = 1; i < k; i++)
        if (j->plan->seat[j->members[i].rank].island != j->plan->seat[j->members[0].rank].island)
            return false;
    return j->plan->topo != NULL && j->plan->seat[j->members[0].rank].gpu >= 0;
}

/* Over several hosts of one NVLink fabric: as fast as a GPU's own links to the switch. */
static double fabric_time(const tt_judge *j, int k, double bytes)
{
    double slowest = 0;
    for (int i = 0; i < k; i++) {
        const tt_fabric *f = fabric_of(j, &j->members[i]);
        float up = f->uplink[j->plan->seat[j->members[i].rank].gpu];
        slowest = fmax(slowest, bytes / (1000 * (up > 0 ? up : 0.1)));
    }
    return slowest;
}

/* Adds the group's loads; returns its own time and, through *steps_us, that of its steps. */
static double group_us(tt_judge *j, int k, double axis_bytes, double *steps_us)
{
    double bytes = axis_bytes * 2 * (k - 1) / k, slowest = 0;
    int hosts = 0;
    uint64_t rails = 0, rails_before = 0;
    qsort(j->members, (size_t)k, sizeof *j->members, by_slot);
    if (j->members[0].slot != j->members[k - 1].slot && one_island(j, k)) {
        *steps_us = 2 * (k - 1) * STEP_NVLINK_US;
        return fabric_time(j, k, bytes);
    }
    bool single = j->members[0].slot == j->members[k - 1].slot;
    for (int i = 0, end; i < k; i = end, hosts++) {
        const member *m = &j->members[i];
        for (end = i; end < k && j->members[end].slot == m->slot; end++)
            ;
        slowest = fmax(slowest, inside(j, m, end - i, single, bytes));
        if (single)
            break;
        rails = rails_of(j, m, end - i);
        across(j, m, end - i,
               hosts > 0 && rails != rails_before ? bytes * TT_PLAN_RAIL_CHANGE : bytes);
        rails_before = rails;
    }
    const tt_fabric *f = fabric_of(j, j->members);
    double inner = f != NULL && one_island(j, single ? k : 1) ? STEP_NVLINK_US : STEP_PCI_US;
    double net = single ? 0 : hosts;
    *steps_us =
        2 * ((k - 1 - (net > 0 ? net - 1 : 0)) * inner + (net > 0 ? net - 1 : 0) * STEP_NET_US);
    return slowest;
}

static double fullest_link(tt_judge *j)
{
    double worst = 0, sum = 0;
    for (int s = 0; s < j->slots; s++) {
        const tutti_topo *topo = j->plan->topo;
        const tt_wires *w =
            topo == NULL ? NULL : j->plan->fabric[topo->hosts[j->slot_host[s]].machine]->wires;
        const double *load = &j->load[(size_t)s * (size_t)j->stride];
        for (int l = 0; w != NULL && l < w->n_wires; l++)
            if (load[l] > 0) {
                double us = load[l] / (1000 * w->wires[l].gbps);
                worst = fmax(worst, us);
                sum += us;
            }
        worst = fmax(worst, load[j->stride - 1] / (1000 * TT_PLAN_NIC_GBPS));
        sum += load[j->stride - 1] / (1000 * TT_PLAN_NIC_GBPS);
    }
    j->soft += sum / j->mesh.n;
    return worst;
}

static double axis_us(tt_judge *j, const int *order, int axis, int stride)
{
    int size = j->mesh.size[axis];
    double slowest = 0, most_steps = 0;
    memset(j->load, 0, (size_t)j->slots * (size_t)j->stride * sizeof(double));
    for (int base = 0; base < j->mesh.n; base += stride * size)
        for (int first = base; first < base + stride; first++) {
            double steps;
            for (int i = 0; i < size; i++) {
                int rank = order[first + i * stride];
                j->members[i] = (member){slot_of(j, j->plan->seat[rank].host),
                                         place_in_host(j->plan, rank), rank};
            }
            double us = group_us(j, size, j->mesh.bytes[axis], &steps);
            slowest = fmax(slowest, us);
            j->soft += us * size / j->mesh.n;
            most_steps = fmax(most_steps, steps);
        }
    return fmax(slowest, fullest_link(j)) + most_steps;
}

double tt_judge_us(tt_judge *judge, const int *order)
{
    double us = 0;
    int stride = 1;
    judge->soft = 0;
    for (int i = 0; i < judge->mesh.n; i++)
        slot_of(judge, judge->plan->seat[order[i]].host);
    for (int axis = judge->mesh.axes - 1; axis >= 0; axis--) {
        if (judge->mesh.size[axis] > 1 && judge->mesh.bytes[axis] > 0)
            us += axis_us(judge, order, axis, stride);
        stride *= judge->mesh.size[axis];
    }
    return us;
}

double tt_judge_search(tt_judge *judge, const int *order)
{
    double us = tt_judge_us(judge, order);
    return us + 1e-3 * judge->soft;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every finding there is: made to appear on a machine that is hurt in one way, and absent on the
 * same machine unhurt.
 */
#include "tt_test.h"

#include "topo/findings.h"
#include "topo/plan.h"
#include "topo/read.h"

static tutti_topo *open_machine(const char *text)
{
    tutti_topo *topo = NULL;
    if (tt_topo_read_synthetic(text, &topo) != TUTTI_OK)
        print_error("%s: %s\n", text, tutti_last_error());
    assert_non_null(topo);
    return topo;
}

static int count_of(const tutti_topo *topo, const tt_find_also *also, const char *id)
{
    tt_findings found = {0};
    int n = 0;
    assert_int_equal(tt_findings_make(topo, also, &found), TUTTI_OK);
    for (size_t i = 0; i < found.n; i++)
        n += strcmp(found.list[i].id, id) == 0;
    tt_findings_free(&found);
    return n;
}

static void reseal(tutti_topo *topo)
{
    free(topo->gpu_first);
    free(topo->nic_first);
    free(topo->island);
    topo->gpu_first = topo->nic_first = NULL;
    topo->island = NULL;
    assert_int_equal(tt_topo_seal(topo), TUTTI_OK);
}

/* How a machine is hurt. */
static void self_links(tutti_topo *topo)
{
    tt_machine *m = topo->machines[0];
    topo->format = TT_TOPO_NCCL;
    for (int l = 0; l < m->n_nvlinks; l++) {
        m->nvlinks[l].tclass = 0x030200;
        m->nvlinks[l].peer_gpu = m->nvlinks[l].gpu;
    }
}

static void lost_peer(tutti_topo *topo)
{
    tt_nvlink *link = &topo->machines[0]->nvlinks[0];
    link->tclass = 0x030200;
    link->peer_gpu = -1;
    link->target = 0x99 << 12;
}

static void one_sided(tutti_topo *topo)
{
    topo->machines[0]->nvlinks[0].count--;
}

static void hidden_switch(tutti_topo *topo)
{
    topo->format = TT_TOPO_NCCL;
    for (int l = 0; l < topo->machines[0]->n_nvlinks; l++)
        topo->machines[0]->nvlinks[l].target = TT_BUSID_HIDDEN;
}

static void fabric_failed(tutti_topo *topo)
{
    topo->machines[0]->gpus[3].fabric = TT_FABRIC_FAILED;
}

static void fabric_waits(tutti_topo *topo)
{
    topo->machines[0]->gpus[3].fabric = TT_FABRIC_IN_PROGRESS;
}

static void refuse(tutti_topo *topo, size_t gpu, tt_p2p status)
{
    tt_machine *m = topo->machines[0];
    size_t n = (size_t)m->n_gpus;
    m->p2p = calloc(n * n, 1);
    assert_non_null(m->p2p);
    for (size_t i = 0; i < n * n; i++)
        m->p2p[i] = TT_P2P_OK;
    m->p2p[gpu] = m->p2p[gpu * n] = (uint8_t)status;
}

static void refuse_p2p(tutti_topo *topo)
{
    refuse(topo, 1, TT_P2P_DISABLED);
}

static void narrow(tutti_topo *topo)
{
    tt_pci *p = &topo->machines[0]->pci[topo->machines[0]->gpus[2].pci];
    p->lanes_now = 8;
    p->gts_now = p->gts;
}

static void slow_slot(tutti_topo *topo)
{
    topo->machines[0]->pci[topo->machines[0]->gpus[2].pci].lanes = 4;
}

static void virtual_port(tutti_topo *topo)
{
    tt_pci *p = &topo->machines[0]->pci[topo->machines[0]->gpus[2].pci];
    p = &topo->machines[0]->pci[p->parent];
    p->gts = 2.5f;
    p->lanes = 1;
}

static void speed_unknown(tutti_topo *topo)
{
    topo->machines[0]->pci[topo->machines[0]->gpus[2].pci].gts = 0;
}

static void numa_unknown(tutti_topo *topo)
{
    topo->machines[0]->numa[0].id = -1;
}

static void numa_differs(tutti_topo *topo)
{
    topo->machines[0]->gpus[0].affinity_node = 1;
}

static void other_cores(tutti_topo *topo)
{
    tt_machine *m = topo->machines[0];
    assert_int_equal(tt_cpuset_copy(&m->numa[1].cpus, &m->allowed), TUTTI_OK);
}

static void cut_cores(tutti_topo *topo)
{
    tt_machine *m = topo->machines[0];
    assert_int_equal(tt_cpuset_add(&m->gpus[0].cpus, tt_cpuset_next(&m->numa[0].cpus, -1)),
                     TUTTI_OK);
    m->gpus[0].cpus_from = TT_FROM_NVML;
    m->numa[0].cpus_from = TT_FROM_SYSFS;
}

static void acs_on(tutti_topo *topo)
{
    topo->machines[0]->system.acs = TT_YES;
}

static void acs_unknown(tutti_topo *topo)
{
    topo->machines[0]->system.iommu = TT_YES;
    topo->machines[0]->system.iommu_groups = 40;
}

static void efa_device(tutti_topo *topo)
{
    topo->machines[0]->system.efa = TT_YES;
}

static void rdma_device(tutti_topo *topo)
{
    topo->machines[0]->system.rdma = TT_YES;
}

static void nic_down(tutti_topo *topo)
{
    topo->machines[0]->nics[1].up = TT_NO;
}

static void nic_without_speed(tutti_topo *topo)
{
    topo->machines[0]->nics[1].mbps = 0;
}

static void slow_nic(tutti_topo *topo)
{
    topo->machines[0]->nics[1].mbps = 25000;
}

/* The NIC of GPUs 0-3 moves to the root of the other domain. */
static void far_nic(tutti_topo *topo)
{
    tt_machine *m = topo->machines[0];
    for (int k = 0; k < m->n_nics; k++) {
        m->pci[m->nics[k].pci].parent = -1;
        m->pci[m->nics[k].pci].numa = m->nics[k].numa = m->numa[0].id == 0 ? 0 : 1;
    }
}

static void mig_on(tutti_topo *topo)
{
    topo->machines[0]->gpus[0].mig = TT_YES;
}

static void same_busid(tutti_topo *topo)
{
    tt_machine *m = topo->machines[0];
    m->pci[m->gpus[1].pci].busid = m->pci[m->gpus[0].pci].busid;
}

static void older_gpu(tutti_topo *topo)
{
    topo->machines[0]->gpus[1].sm = 80;
}

static void sm_unknown(tutti_topo *topo)
{
    tt_machine *m = topo->machines[0];
    for (int g = 0; g < m->n_gpus; g++) {
        m->gpus[g].sm = 0;
        m->pci[m->gpus[g].pci].device = 0;
    }
}

static void health(tutti_topo *topo)
{
    tt_gpu_health *h = &topo->machines[0]->gpus[2].health;
    *h = (tt_gpu_health){.from = TT_FROM_NVML,
                         .vgpu = TT_YES,
                         .remap_pending = TT_YES,
                         .remap_failed = TT_YES,
                         .processes = 1,
                         .throttle = 0x40};
}

static void no_driver(tutti_topo *topo)
{
    topo->machines[0]->system.nvml = TT_NO;
    topo->machines[0]->system.dgpu_nodes = 8;
}

static void hidden_gpus(tutti_topo *topo)
{
    topo->machines[0]->system.dgpu_nodes = 16;
}

static void hidden_from_cuda(tutti_topo *topo)
{
    topo->machines[0]->gpus[0].cuda = 0;
    topo->machines[0]->system.cuda = TT_YES;
}

static void cuda_order(tutti_topo *topo)
{
    topo->machines[0]->gpus[0].cuda = 1;
    topo->machines[0]->gpus[1].cuda = 0;
}

static void number_gap(tutti_topo *topo)
{
    topo->machines[0]->gpus[3].dev = 4;
}

static void own_memory_node(tutti_topo *topo)
{
    topo->machines[0]->gpus[0].memory_node = 2;
}

/* A GPU's own NIC sits at the root: it takes a peer's, and this one is free. */
static void nic_at_root(tutti_topo *topo)
{
    tt_machine *m = topo->machines[0];
    m->pci[m->nics[3].pci].parent = -1;
}

static void is_template(tutti_topo *topo)
{
    topo->is_template = true;
}

static void cliques(tutti_topo *topo)
{
    for (int h = 0; h < topo->n_hosts; h++)
        topo->hosts[h].cluster[0] = 7;
    topo->hosts[1].clique = topo->hosts[0].clique + 1;
}

typedef struct hurt {
    const char *id;
    const char *machine; /* healthy */
    const char *words; /* more words of the description, or NULL */
    void (*how)(tutti_topo *topo); /* or NULL */
    tt_find_also also;
} hurt;

/* Small ones, since each search for channels costs time that grows fast with the GPUs. */
#define HGX                                                                                        \
    "gpus=4 sm=90 numa=2 cpu=intel:143 cores=8 pcie=5x16 tree=switch:1 nvlink=switch:18 nics=4 "   \
    "rate=400 net=ib"
#define BOARD                                                                                      \
    "gpus=4 sm=86 numa=2 cpu=intel:106 cores=8 pcie=4x16 tree=switch:2 nics=2 rate=100 net=roce"
#define CLOUD                                                                                      \
    "gpus=2 sm=80 numa=1 cpu=intel:85 pcie=3x16 tree=switch:1 nvlink=switch:12 nics=2 rate=100 "   \
    "net=efa"

static const hurt hurts[] = {
    {"nvlink-none", HGX, " -nvlink:1", NULL, {0}},
    {"nvlink-degraded", HGX, " -nvlink:1:3", NULL, {0}},
    {"nvlink-bridge",
     "gpus=4 sm=86 tree=root nvlink=pair:4",
     " -nvlink:0:1 -nvlink:1:1",
     NULL,
     {0}},
    {"nvlink-self", "a100-pcie-pairs", NULL, self_links, {0}},
    {"nvlink-peer", "a100-pcie-pairs", NULL, lost_peer, {0}},
    {"nvlink-one-sided", "a100-pcie-pairs", NULL, one_sided, {0}},
    {"nvlink-hidden-switch", HGX, NULL, hidden_switch, {0}},
    {"fabric-failed", HGX, NULL, fabric_failed, {0}},
    {"fabric-not-ready", HGX, NULL, fabric_waits, {0}},
    {"fabric-cliques", HGX " x2", NULL, cliques, {0}},
    {"p2p-nvlink-refused", HGX, NULL, refuse_p2p, {0}},
    {"p2p-pcie-refused", BOARD, NULL, refuse_p2p, {0}},
    {"vm-flat", HGX, " tree=flat numa=1", NULL, {0}},
    {"pcie-virtual-port", HGX, NULL, virtual_port, {0}},
    {"pcie-unknown", HGX, NULL, speed_unknown, {0}},
    {"pcie-width", HGX, NULL, narrow, {0}},
    {"pcie-uneven", HGX, NULL, slow_slot, {0}},
    {"numa-unknown", HGX, NULL, numa_unknown, {0}},
    {"numa-differs", HGX, NULL, numa_differs, {0}},
    {"cpuset-empty", HGX, NULL, other_cores, {0}},
    {"cpuset-cut", HGX, NULL, cut_cores, {0}},
    {"acs-on", BOARD, NULL, acs_on, {0}},
    {"acs-unknown", BOARD, NULL, acs_unknown, {0}},
    {"slow-middle",
     "gpus=8 sm=86 tree=switch:8 numa=1",
     " numa=2 tree=switch:4 cpu=intel:85",
     NULL,
     {0}},
    {"xml-overflow", "hgx-h100", " nics=96", NULL, {0}},
    {"nic-none", HGX, " nics=0", NULL, {0}},
    {"net-plugin", CLOUD, NULL, efa_device, {TT_NO}},
    {"rdma-unused", HGX " nics=0", NULL, rdma_device, {0}},
    {"nic-down", HGX, NULL, nic_down, {0}},
    {"nic-speed", HGX, NULL, nic_without_speed, {0}},
    {"nic-uneven", HGX, NULL, slow_nic, {0}},
    {"nic-no-gdr", HGX, " gdr=0", NULL, {0}},
    {"nic-far", BOARD, NULL, far_nic, {0}},
    {"nic-by-peer", HGX, " -nic:3", NULL, {0}},
    {"nic-unused", HGX, " -gpu:3", NULL, {0}},
    {"nic-shared", HGX, " nics=2", NULL, {0}},
    {"mig", HGX, NULL, mig_on, {0}},
    {"duplicate-gpu", BOARD, NULL, same_busid, {0}},
    {"gpu-mixed", HGX, NULL, older_gpu, {0}},
    {"gpu-unknown", HGX, NULL, sm_unknown, {0}},
    {"vgpu", HGX, NULL, health, {0}},
    {"gpu-busy", HGX, NULL, health, {0}},
    {"gpu-throttled", HGX, NULL, health, {0}},
    {"row-remap-pending", HGX, NULL, health, {0}},
    {"row-remap-failed", HGX, NULL, health, {0}},
    {"no-driver", HGX " gpus=0", NULL, no_driver, {0}},
    {"one-gpu-visible", "grace-hopper", NULL, hidden_gpus, {0}},
    {"gpus-hidden", HGX, NULL, hidden_gpus, {0}},
    {"gpus-hidden", HGX, NULL, hidden_from_cuda, {0}},
    {"cuda-order", HGX, NULL, cuda_order, {0}},
    {"gpu-gap", HGX, NULL, number_gap, {0}},
    {"memory-node", "grace-hopper", NULL, own_memory_node, {0}},
    {"nccl-fallback", "gpus=8 sm=90 tree=root numa=2", " pcie=1x1", NULL, {0}},
    {"cross-nic", "gpus=4 sm=80 tree=switch:2", " nics=4 net=ib rate=200", NULL, {0}},
    {"rails-shared", HGX, NULL, nic_at_root, {0}},
    {"template", HGX, NULL, is_template, {0}},
};
enum { HURTS = sizeof hurts / sizeof hurts[0] };

/* On the machine of the entry before if it is the same one: its searches are kept with it. */
static int count_when_well(size_t i, tutti_topo **well)
{
    if (i == 0 || strcmp(hurts[i].machine, hurts[i - 1].machine) != 0) {
        tutti_topo_close(*well);
        *well = open_machine(hurts[i].machine);
    }
    return count_of(*well, NULL, hurts[i].id);
}

static void test_each_appears_once_and_only_where_it_belongs(void **state)
{
    tutti_topo *well = NULL;
    int wrong = 0;
    (void)state;
    for (size_t i = 0; i < HURTS; i++) {
        const hurt *h = &hurts[i];
        char text[256];
        snprintf(text, sizeof text, "%s%s", h->machine, h->words != NULL ? h->words : "");
        tutti_topo *hurt_one = open_machine(text);
        if (h->how != NULL) {
            h->how(hurt_one);
            reseal(hurt_one);
        }
        int before = count_when_well(i, &well), after = count_of(hurt_one, &h->also, h->id);
        if (before != 0 || after != 1) {
            print_error("%s: found %d times on %s, %d times when hurt\n", h->id, before, h->machine,
                        after);
            wrong++;
        }
        tutti_topo_close(hurt_one);
    }
    tutti_topo_close(well);
    assert_int_equal(wrong, 0);
}

/* Of two GPUs that reach each other by way of a third, as in a DGX-1, the driver says so always. */
static void test_access_by_way_of_a_gpu_is_no_matter_of_the_pair(void **state)
{
    tutti_topo *topo = open_machine("dgx-1v");
    (void)state;
    refuse(topo, 5, TT_P2P_CHIPSET);
    assert_int_equal(count_of(topo, NULL, "p2p-nvlink-refused"), 0);
    assert_int_equal(count_of(topo, NULL, "p2p-pcie-refused"), 0);
    tutti_topo_close(topo);
}

/* Two hosts, the second described otherwise. */
static void two_hosts(const char *a, const char *b, const char *id)
{
    static const int part_of[] = {0, 1};
    tutti_topo *parts[2] = {open_machine(a), open_machine(b)}, *topo;
    assert_int_equal(tt_topo_join(parts, 2, part_of, 2, &topo), TUTTI_OK);
    if (count_of(topo, NULL, id) != 1)
        print_error("%s: not found between %s and %s\n", id, a, b);
    assert_int_equal(count_of(topo, NULL, id), 1);
    tutti_topo_close(topo);
    tutti_topo_close(parts[0]);
    tutti_topo_close(parts[1]);
}

static void test_between_hosts(void **state)
{
    (void)state;
    two_hosts("hgx-h100", "hgx-h100 nics=4", "hosts-nics");
    two_hosts("hgx-h100", "hgx-h100 rate=200", "hosts-nics");
    two_hosts("hgx-h100", "hgx-h100 nicorder=1,0,2,3,4,5,6,7", "rails-differ");
    tutti_topo *same = open_machine("hgx-h100 x2");
    assert_int_equal(count_of(same, NULL, "hosts-nics"), 0);
    assert_int_equal(count_of(same, NULL, "rails-differ"), 0);
    tutti_topo_close(same);
}

static void test_healthy_machines_have_no_errors(void **state)
{
    static const char *const healthy[] = {"dgx-1v",   "dgx-2",         "dgx-a100",    "hgx-h100",
                                          "hgx-b200", "gb200-nvl72",   "p4d",         "p5",
                                          "ndv4",     "workstation-2", "grace-hopper"};
    (void)state;
    for (size_t i = 0; i < sizeof healthy / sizeof healthy[0]; i++) {
        tutti_topo *topo = open_machine(healthy[i]);
        tt_findings found = {0};
        assert_int_equal(tt_findings_make(topo, NULL, &found), TUTTI_OK);
        for (size_t k = 0; k < found.n; k++)
            if (found.list[k].severity != TT_SEVERITY_NOTE) {
                print_error("%s: %s: %s\n", healthy[i], found.list[k].id, found.list[k].text);
                fail();
            }
        tt_findings_free(&found);
        tutti_topo_close(topo);
    }
}

static void test_sorted_and_complete(void **state)
{
    tutti_topo *topo = open_machine(HGX " -nvlink:1 -nic:3 gdr=0");
    tt_findings found = {0};
    (void)state;
    assert_int_equal(tt_findings_make(topo, NULL, &found), TUTTI_OK);
    assert_true(found.n >= 3);
    for (size_t i = 0; i < found.n; i++) {
        const tt_finding *f = &found.list[i];
        assert_true(strlen(f->text) > 10 && strlen(f->action) > 0);
        assert_true(f->cost >= 0 && f->cost <= 1);
        if (i > 0 && f->severity == f[-1].severity)
            assert_true(f->cost <= f[-1].cost);
        else if (i > 0)
            assert_true(f->severity < f[-1].severity);
    }
    tt_findings_free(&found);
    tutti_topo_close(topo);
}

/* Every kind has a test here, but for those that others make. */
static void test_all_kinds_are_tested(void **state)
{
    static const char *const elsewhere[] = {"hosts-nics", "rails-differ", "env-overrides",
                                            "split-containers"};
    (void)state;
    const tt_finding_kind *kind;
    for (int i = 0; (kind = tt_finding_kind_at(i)) != NULL; i++) {
        bool tested = false;
        for (size_t k = 0; k < HURTS; k++)
            tested |= strcmp(hurts[k].id, kind->id) == 0;
        for (size_t k = 0; k < sizeof elsewhere / sizeof elsewhere[0]; k++)
            tested |= strcmp(elsewhere[k], kind->id) == 0;
        if (!tested)
            print_error("no test makes %s\n", kind->id);
        assert_true(tested);
        assert_ptr_equal(tt_finding_kind_of(kind->id), kind);
    }
    assert_null(tt_finding_kind_of("no-such-thing"));
}

static const char *set_by_user(void *arg, const char *name)
{
    return strcmp(name, arg) == 0 ? "1" : NULL;
}

static int overrides(const char *machine, const char *variable)
{
    tutti_topo *topo = open_machine(machine);
    tt_plan_rank rank[8];
    tt_plan_variable list[TT_PLAN_VARIABLES];
    tt_findings found = {0};
    tt_plan *plan;
    char name[64];
    int n, count = 0;
    for (int i = 0; i < 8; i++)
        rank[i] = (tt_plan_rank){0, i};
    tt_plan_input in = {topo, 1, 8, rank};
    snprintf(name, sizeof name, "%s", variable);
    assert_int_equal(tt_plan_create(&in, &plan), TUTTI_OK);
    assert_int_equal(tt_plan_environment(plan, set_by_user, name, list, &n, &found), TUTTI_OK);
    for (size_t i = 0; i < found.n; i++)
        count += strcmp(found.list[i].id, "env-overrides") == 0 &&
                 strstr(found.list[i].text, variable) != NULL;
    tt_findings_free(&found);
    tt_plan_destroy(plan);
    tutti_topo_close(topo);
    return count;
}

static void test_what_the_user_set_is_reported(void **state)
{
    (void)state;
    assert_int_equal(overrides("hgx-h100", "NCCL_P2P_DISABLE"), 1);
    assert_int_equal(overrides("hgx-h100", "NCCL_IB_DISABLE"), 1);
    assert_int_equal(overrides("hgx-h100 nics=0", "NCCL_IB_DISABLE"), 0);
    assert_int_equal(overrides("hgx-h100", "NCCL_GRAPH_FILE"), 1);
    assert_int_equal(overrides("hgx-h100", "NCCL_DEBUG"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_appears_once_and_only_where_it_belongs),
        cmocka_unit_test(test_access_by_way_of_a_gpu_is_no_matter_of_the_pair),
        cmocka_unit_test(test_between_hosts),
        cmocka_unit_test(test_healthy_machines_have_no_errors),
        cmocka_unit_test(test_sorted_and_complete),
        cmocka_unit_test(test_all_kinds_are_tested),
        cmocka_unit_test(test_what_the_user_set_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

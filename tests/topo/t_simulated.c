/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A machine of the catalogue two ways: as described, and as the live reader finds it on a /sys made
 * from the description and the simulated NVML (SIMGPU_MACHINE) that shows its GPUs. Both must be
 * one model, and one page of `tutti topo --json`: machine, findings and plan.
 * t_topo_simulated TUTTI DESCRIPTION
 */
#include <jansson.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "topo/paths.h"
#include "topo/read.h"

#include "tt_test.h"

static char root[64];
static const char *machine_name, *tutti;

static void make_folders(char *full)
{
    for (char *slash = strchr(full + strlen(root) + 1, '/'); slash != NULL;
         slash = strchr(slash + 1, '/')) {
        *slash = 0;
        (void)mkdir(full, 0755);
        *slash = '/';
    }
}

static void put(const char *text, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void put(const char *text, const char *fmt, ...)
{
    char path[1024], full[1200];
    va_list args;
    FILE *file;

    va_start(args, fmt);
    (void)vsnprintf(path, sizeof path, fmt, args);
    va_end(args);
    (void)snprintf(full, sizeof full, "%s/%s", root, path);
    make_folders(full);
    file = fopen(full, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void put_number(long number, const char *form, const char *dir, const char *name)
{
    char text[32];

    (void)snprintf(text, sizeof text, strcmp(form, "x") == 0 ? "0x%lx\n" : "%ld\n", number);
    put(text, "%s/%s", dir, name);
}

/* A bridge or function at the end of a chain of names. */
static void put_function(const char *chain, const tt_pci *pci, int node)
{
    char dir[900], speed[32], target[1000], link[1000];

    (void)snprintf(dir, sizeof dir, "sys/devices/%s", chain);
    put_number(pci->class_code, "x", dir, "class");
    put_number(pci->vendor, "x", dir, "vendor");
    put_number(pci->device, "x", dir, "device");
    put_number(node, "d", dir, "numa_node");
    if (pci->gts > 0) {
        (void)snprintf(speed, sizeof speed, "%.1f GT/s PCIe\n", (double)pci->gts);
        put(speed, "%s/max_link_speed", dir);
        put_number(pci->lanes, "d", dir, "max_link_width");
    }
    put("", "sys/bus/pci/devices/.keep");
    (void)snprintf(target, sizeof target, "../../../devices/%s", chain);
    (void)snprintf(link, sizeof link, "%s/sys/bus/pci/devices/%s", root, strrchr(chain, '/') + 1);
    assert_int_equal(symlink(target, link), 0);
}

/* The function below a port of its own: the root port, or the downstream port of its switch. */
static void chain_of(const tt_machine *m, int pci, char *chain, size_t bytes)
{
    char above[700] = "pci0000:00", busid[TT_BUSID_TEXT];

    if (m->pci[pci].parent >= 0)
        chain_of(m, m->pci[pci].parent, above, sizeof above);
    (void)snprintf(chain, bytes, "%s/%04x:%02x:00.0/%s", above, 0xe000 + (unsigned)pci / 256,
                   (unsigned)pci % 256, tt_busid_print(m->pci[pci].busid, busid));
}

static void write_bus(const tt_machine *m)
{
    for (int i = 0; i < m->n_pci; i++) {
        tt_pci port = {.class_code = 0x060400, .vendor = 0x8086, .gts = 64, .lanes = 16};
        int node = m->numa[m->pci[i].numa].id;
        char chain[800], *last;

        chain_of(m, i, chain, sizeof chain);
        put_function(chain, &m->pci[i], node);
        last = strrchr(chain, '/');
        *last = 0;
        if (m->pci[i].gts <= 0)
            port.gts = 0;
        put_function(chain, &port, node);
    }
}

static void write_nics(const tt_machine *m)
{
    static const char *const layers[] = {"Ethernet\n", "Ethernet\n", "InfiniBand\n", "Ethernet\n",
                                         "Unspecified\n"};
    char text[64], link[300], target[64], busid[TT_BUSID_TEXT];

    for (int i = 0; i < m->n_nics; i++) {
        const tt_nic *nic = &m->nics[i];
        bool rdma = nic->kind != TT_NIC_ETHERNET;
        char dir[128];

        (void)snprintf(dir, sizeof dir, "sys/class/%s/%s", rdma ? "infiniband" : "net", nic->name);
        if (rdma) {
            put("4: ACTIVE\n", "%s/ports/1/state", dir);
            put(layers[nic->kind], "%s/ports/1/link_layer", dir);
            (void)snprintf(text, sizeof text, "%ld Gb/sec (4X)\n", (long)nic->mbps / 1000);
            put(text, "%s/ports/1/rate", dir);
            (void)snprintf(text, sizeof text, "0000:0000:0000:%04lx\n", (unsigned long)nic->guid);
            put(text, "%s/node_guid", dir);
        } else {
            put("up\n", "%s/operstate", dir);
            put_number(nic->mbps, "d", dir, "speed");
        }
        (void)snprintf(link, sizeof link, "%s/%s/device", root, dir);
        (void)snprintf(target, sizeof target, "../../../%s",
                       tt_busid_print(m->pci[nic->pci].busid, busid));
        assert_int_equal(symlink(target, link), 0);
    }
}

/* What Linux tells of a GPU whose memory is a node of its own: a node without processors. */
static void write_memory_nodes(const tt_machine *m)
{
    char text[64], busid[TT_BUSID_TEXT];

    for (int i = 0; i < m->n_gpus; i++)
        if (m->gpus[i].c2c_links > 0) {
            (void)snprintf(text, sizeof text, "Node: %d\nNUMA initialized: 1\n", m->n_numa + i);
            put(text, "proc/driver/nvidia/gpus/%s/numa_status",
                tt_busid_print(m->pci[m->gpus[i].pci].busid, busid));
            put("\n", "sys/devices/system/node/node%d/cpulist", m->n_numa + i);
        }
}

static void write_processors(const tt_machine *m)
{
    static const char *const vendors[] = {"", "GenuineIntel", "AuthenticAMD", "CentaurHauls"};
    char text[4096];

    for (int i = 0; i < m->n_numa; i++)
        if (m->numa[i].id >= 0) {
            (void)tt_cpuset_print_list(&m->numa[i].cpus, text, sizeof text);
            put(text, "sys/devices/system/node/node%d/cpulist", m->numa[i].id);
        }
    (void)snprintf(text, sizeof text, "vendor_id\t: %s\ncpu family\t: %d\nmodel\t\t: %d\n",
                   vendors[m->numa[0].vendor], m->numa[0].family, m->numa[0].model);
    put(m->numa[0].arch == TT_ARCH_ARM ? "CPU implementer\t: 0x41\n" : text, "proc/cpuinfo");
}

static int links_to(const tt_machine *m, int gpu, int peer)
{
    int count = 0;

    for (int i = 0; i < m->n_nvlinks; i++)
        if (m->nvlinks[i].gpu == gpu &&
            (peer < 0 ? m->nvlinks[i].peer == TT_PEER_SWITCH : m->nvlinks[i].peer_gpu == peer))
            count += m->nvlinks[i].count;
    return count;
}

/* Speeds may differ by rounding: links are counted in one sum or several. */
static void same_paths(const tt_path *a, const tt_path *b, int n)
{
    for (int i = 0; i < n; i++)
        assert_true(a[i].type == b[i].type && a[i].hops == b[i].hops && a[i].via == b[i].via &&
                    a[i].gbps < b[i].gbps * 1.001f && b[i].gbps < a[i].gbps * 1.001f);
}

static void compare(const tt_machine *a, const tt_machine *b)
{
    assert_int_equal(a->n_gpus, b->n_gpus);
    assert_int_equal(a->n_nics, b->n_nics);
    assert_int_equal(a->n_pci, b->n_pci);
    for (int i = 0; i < a->n_gpus; i++) {
        assert_true(a->pci[a->gpus[i].pci].busid == b->pci[b->gpus[i].pci].busid);
        assert_int_equal(a->gpus[i].sm, b->gpus[i].sm);
        assert_int_equal(a->gpus[i].c2c_links, b->gpus[i].c2c_links);
        assert_int_equal(a->gpus[i].c2c_mbps, b->gpus[i].c2c_mbps);
        assert_int_equal(a->numa[a->gpus[i].numa].id, b->numa[b->gpus[i].numa].id);
        for (int peer = -1; peer < a->n_gpus; peer++)
            assert_int_equal(links_to(a, i, peer), links_to(b, i, peer));
    }
    for (int i = 0; i < a->n_nics; i++) {
        assert_string_equal(a->nics[i].name, b->nics[i].name);
        assert_int_equal(a->nics[i].dev, b->nics[i].dev);
        assert_int_equal(a->nics[i].mbps, b->nics[i].mbps);
        assert_int_equal(a->nics[i].pci, b->nics[i].pci);
    }
    for (int i = 0; i < a->n_pci; i++)
        assert_true(a->pci[i].busid == b->pci[i].busid && a->pci[i].parent == b->pci[i].parent &&
                    a->pci[i].gbps == b->pci[i].gbps);
    same_paths(a->paths->gpu_gpu, b->paths->gpu_gpu, a->n_gpus * a->n_gpus);
    same_paths(a->paths->gpu_nic, b->paths->gpu_nic, a->n_gpus * a->n_nics);
    assert_memory_equal(a->paths->island, b->paths->island, (size_t)a->n_gpus * sizeof(int32_t));
}

static json_t *page(const char *options)
{
    char command[1200];
    json_t *read;
    FILE *from;

    (void)snprintf(command, sizeof command, "'%s' topo --json %s", tutti, options);
    from = popen(command, "re");
    assert_non_null(from);
    read = json_loadf(from, 0, NULL);
    assert_int_equal(pclose(from), 0);
    assert_non_null(read);
    return read;
}

/* Numbers within a thousandth, as for the paths above; all else alike. */
static bool alike(const json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;
    size_t i;

    if (json_is_number(a) && json_is_number(b))
        return fabs(json_number_value(a) - json_number_value(b)) <=
               1e-3 * fabs(json_number_value(b));
    if (json_typeof(a) != json_typeof(b) || json_array_size(a) != json_array_size(b) ||
        json_object_size(a) != json_object_size(b))
        return false;
    json_array_foreach((json_t *)(size_t)a, i,
                       value) if (!alike(value, json_array_get(b, i))) return false;
    json_object_foreach((json_t *)(size_t)a, key,
                        value) if (!alike(value, json_object_get(b, key))) return false;
    return json_is_array(a) || json_is_object(a) || json_equal(a, b);
}

/* What only one of the two can know: names, serial numbers, processors that are in no domain. */
static void forget_names(json_t *machine)
{
    size_t i;
    json_t *gpu, *domain, *rank;

    json_array_foreach(json_object_get(machine, "gpus"), i, gpu)
    {
        (void)json_object_del(gpu, "uuid");
        (void)json_object_del(gpu, "name");
        (void)json_object_del(gpu, "memory");
        (void)json_object_del(gpu, "cuda");
    }
    json_array_foreach(json_object_get(machine, "numa"), i,
                       domain) if (json_integer_value(json_object_get(domain, "id")) < 0)
    {
        (void)json_object_del(domain, "cpus");
        json_array_foreach(json_object_get(json_object_get(machine, "plan"), "ranks"), i, rank)
        {
            (void)json_object_del(rank, "cpus");
            (void)json_object_del(rank, "cpus_why");
        }
        break;
    }
}

/* Findings that follow from what only one of the two can know. */
static bool one_sided(const char *id)
{
    static const char *const ids[] = {
        "memory-node", /* Linux's number of the GPU's memory; a description has none */
        "net-plugin", /* NCCL's plugin is tried on the machine at hand only */
    };

    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++)
        if (strcmp(ids[i], id) == 0)
            return true;
    return false;
}

static void forget_findings(json_t *machine)
{
    json_t *list = json_object_get(machine, "findings");

    for (size_t i = json_array_size(list); i-- > 0;)
        if (one_sided(json_string_value(json_object_get(json_array_get(list, i), "id"))))
            (void)json_array_remove(list, i);
}

static void same_pages(void)
{
    static const char *const members[] = {"gpus",    "nics",     "numa",     "paths",
                                          "islands", "estimate", "findings", "plan"};
    char options[128];
    json_t *live = page(""), *described;
    int wrong = 0;

    (void)snprintf(options, sizeof options, "--machine '%s'", machine_name);
    described = page(options);
    forget_names(live);
    forget_names(described);
    forget_findings(live);
    forget_findings(described);
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        const json_t *a = json_object_get(live, members[i]),
                     *b = json_object_get(described, members[i]);
        if (a == NULL || b == NULL || !alike(a, b)) {
            print_error("%s differs: live %.3000s\n described %.3000s\n", members[i],
                        json_dumps(a, JSON_COMPACT), json_dumps(b, JSON_COMPACT));
            wrong++;
        }
    }
    json_decref(live);
    json_decref(described);
    assert_int_equal(wrong, 0);
}

static json_t *finding(const json_t *machine, const char *id)
{
    json_t *found;
    size_t i;

    json_array_foreach(json_object_get(machine, "findings"), i,
                       found) if (strcmp(json_string_value(json_object_get(found, "id")), id) ==
                                  0) return found;
    return NULL;
}

/* CUDA's numbers: CUDA_VISIBLE_DEVICES turned around, and cut off by an entry that is no GPU. */
static void check_cuda_numbers(int gpus)
{
    json_t *live;
    char order[256] = "";

    for (int i = gpus - 1; i >= 0; i--)
        (void)snprintf(order + strlen(order), sizeof order - strlen(order), i > 0 ? "%d," : "%d",
                       i);
    assert_int_equal(setenv("CUDA_VISIBLE_DEVICES", order, 1), 0);
    live = page("");
    for (int i = 0; i < gpus; i++) {
        const json_t *gpu = json_array_get(json_object_get(live, "gpus"), (size_t)i);

        assert_int_equal(json_integer_value(json_object_get(gpu, "dev")), i);
        assert_int_equal(json_integer_value(json_object_get(gpu, "cuda")), gpus - 1 - i);
    }
    assert_non_null(finding(live, "cuda-order"));
    assert_null(finding(live, "gpus-hidden"));
    json_decref(live);

    assert_int_equal(setenv("CUDA_VISIBLE_DEVICES", "0,99,1", 1), 0);
    live = page("");
    assert_null(finding(live, "cuda-order"));
    assert_non_null(finding(live, "gpus-hidden"));
    assert_true(
        json_is_null(json_object_get(json_array_get(json_object_get(live, "gpus"), 1), "cuda")));
    json_decref(live);

    assert_int_equal(unsetenv("CUDA_VISIBLE_DEVICES"), 0);
    live = page("");
    assert_null(finding(live, "cuda-order"));
    assert_null(finding(live, "gpus-hidden"));
    json_decref(live);
}

static void one_model(void **state)
{
    tutti_topo *described = NULL, *live = NULL;
    const tt_machine *m;
    char command[128];

    (void)state;
    assert_int_equal(tutti_topo_open_synthetic(machine_name, &described), TUTTI_OK);
    m = described->machines[0];
    (void)snprintf(root, sizeof root, "/tmp/tutti-topo-XXXXXX");
    assert_non_null(mkdtemp(root));
    write_bus(m);
    write_nics(m);
    write_processors(m);
    write_memory_nodes(m);
    assert_int_equal(setenv("TUTTI_TOPO_FSROOT", root, 1), 0);
    if (tutti_topo_open_live(&live) != TUTTI_OK)
        fail_msg("%s", tutti_last_error());
    same_pages();
    if (strcmp(getenv("TUTTI_BACKEND"), "cuda") == 0)
        check_cuda_numbers(m->n_gpus);
    (void)snprintf(command, sizeof command, "rm -rf '%s'", root);
    assert_int_equal(system(command), 0);
    if (live->machines[0]->system.nvml != TT_YES)
        fail_msg("no simulated NVML was found");
    compare(m, live->machines[0]);
    assert_memory_equal(described->hosts[0].cluster, live->hosts[0].cluster,
                        sizeof live->hosts[0].cluster);
    assert_int_equal(described->hosts[0].clique, live->hosts[0].clique);
    tutti_topo_close(described);
    tutti_topo_close(live);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_model)};

    if (argc != 3)
        return 2;
    tutti = argv[1];
    machine_name = argv[2];
    return cmocka_run_group_tests(tests, NULL, NULL);
}

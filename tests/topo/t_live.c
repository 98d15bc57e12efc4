/* SPDX-License-Identifier: Apache-2.0 */
/* The live reader: on this machine, on a made-up /sys, and on recorded ones. */
#include <sys/stat.h>

#include "topo/paths.h"
#include "topo/read.h"

#include "corpus.h"
#include "tt_test.h"

static char root[64];

/* In memory where it can be: a recording has tens of thousands of small files. */
static int make_root(void **state)
{
    (void)state;
    (void)snprintf(root, sizeof root, "/dev/shm/tutti-topo-XXXXXX");
    if (mkdtemp(root) != NULL)
        return 0;
    (void)snprintf(root, sizeof root, "/tmp/tutti-topo-XXXXXX");
    return mkdtemp(root) == NULL;
}

static int remove_root(void **state)
{
    char command[128];

    (void)state;
    (void)snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

/* A file of the made-up root, with the folders above it. */
static void put(const char *path, const char *text)
{
    char full[512];
    FILE *file;

    (void)snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *slash = strchr(full + strlen(root) + 1, '/'); slash != NULL;
         slash = strchr(slash + 1, '/')) {
        *slash = 0;
        (void)mkdir(full, 0755);
        *slash = '/';
    }
    file = fopen(full, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* A PCI function below devices/, its link in bus/pci/devices, and its facts. */
static void put_function(const char *chain, const char *class_code, const char *ids,
                         const char *speed, const char *node)
{
    const char *name = strrchr(chain, '/') + 1;
    char path[256], target[512], link[512];

    (void)snprintf(path, sizeof path, "sys/devices/%s/class", chain);
    put(path, class_code);
    (void)snprintf(path, sizeof path, "sys/devices/%s/vendor", chain);
    put(path, ids);
    (void)snprintf(path, sizeof path, "sys/devices/%s/device", chain);
    put(path, strchr(ids, ' ') + 1);
    (void)snprintf(path, sizeof path, "sys/devices/%s/max_link_speed", chain);
    put(path, speed);
    (void)snprintf(path, sizeof path, "sys/devices/%s/max_link_width", chain);
    put(path, "16\n");
    (void)snprintf(path, sizeof path, "sys/devices/%s/numa_node", chain);
    put(path, node);
    put("sys/bus/pci/devices/.keep", "");
    (void)snprintf(target, sizeof target, "../../../devices/%s", chain);
    (void)snprintf(link, sizeof link, "%s/sys/bus/pci/devices/%s", root, name);
    assert_int_equal(symlink(target, link), 0);
}

/* Two GPUs and a NIC behind a switch of node 1, a third GPU at a root port of node 0, which is
 * slow. */
static void made_up_machine(void **state)
{
    static const char sw[] = "pci0000:80/0000:80:01.0/0000:81:00.0";
    char chain[256];
    tutti_topo *topo = NULL;
    const tt_machine *m;

    (void)state;
    put_function("pci0000:00/0000:00:01.0", "0x060400", "0x8086 0x1", "8.0 GT/s PCIe", "0");
    put_function("pci0000:00/0000:00:01.0/0000:01:00.0", "0x030200", "0x10de 0x20b0",
                 "16.0 GT/s PCIe", "0");
    put_function("pci0000:80/0000:80:01.0", "0x060400", "0x8086 0x1", "16.0 GT/s PCIe", "1");
    put_function(sw, "0x060400", "0x1000 0x2", "16.0 GT/s PCIe", "1");
    for (int i = 0; i < 3; i++) {
        (void)snprintf(chain, sizeof chain, "%s/0000:82:%02x.0", sw, i);
        put_function(chain, "0x060400", "0x1000 0x2", "16.0 GT/s PCIe", "1");
        (void)snprintf(chain, sizeof chain, "%s/0000:82:%02x.0/0000:%02x:00.0", sw, i, 0x83 + i);
        put_function(chain, i < 2 ? "0x030200" : "0x020700",
                     i < 2 ? "0x10de 0x20b0" : "0x15b3 0x101b", "16.0 GT/s PCIe", "1");
    }
    put("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
    put("sys/class/infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (4X HDR)\n");
    put("sys/class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n");
    put("sys/class/infiniband/mlx5_0/node_guid", "0c42:a103:00a5:1234\n");
    put("sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
    (void)snprintf(chain, sizeof chain, "%s/sys/class/infiniband/mlx5_0/device", root);
    assert_int_equal(symlink("../../../0000:85:00.0", chain), 0);
    put("sys/devices/system/node/node0/cpulist", "0-15\n");
    put("sys/devices/system/node/node1/cpulist", "16-31\n");
    put("proc/cpuinfo", "vendor_id\t: AuthenticAMD\ncpu family\t: 23\nmodel\t\t: 49\n");

    if (tutti_topo_open_file(root, &topo) != TUTTI_OK)
        fail_msg("%s", tutti_last_error());
    m = topo->machines[0];
    assert_int_equal(m->n_gpus, 3);
    assert_int_equal(m->n_nics, 1);
    assert_int_equal(m->n_numa, 2);
    assert_int_equal(m->gpus[0].sm, 80);
    assert_int_equal(m->pci[m->gpus[0].pci].parent, -1);
    assert_true(m->pci[m->gpus[0].pci].gbps == 12); /* its root port is of generation 3 */
    assert_int_equal(m->paths->gpu_gpu[1 * 3 + 2].type, TUTTI_PATH_PIX);
    assert_int_equal(m->paths->gpu_gpu[0 * 3 + 1].type, TUTTI_PATH_SYS);
    assert_int_equal(m->paths->gpu_nic[1].type, TUTTI_PATH_PIX);
    assert_int_equal(m->nics[0].mbps, 200000);
    assert_int_equal(m->nics[0].kind, TT_NIC_IB);
    assert_true(m->nics[0].guid == UINT64_C(0x0c42a10300a51234));
    assert_int_equal(m->numa[1].vendor, TT_VENDOR_AMD);
    assert_int_equal(tt_cpuset_next(&m->numa[1].cpus, -1), 16);
    assert_int_equal(topo->n_notes, 1); /* mlx5_1 is down */
    tutti_topo_close(topo);
}

static void this_machine(void **state)
{
    tutti_topo *topo = NULL;

    (void)state;
    if (tutti_topo_open_live(&topo) != TUTTI_OK)
        fail_msg("%s", tutti_last_error());
    assert_int_equal(tutti_topo_host_count(topo), 1);
    assert_true(topo->machines[0]->n_numa >= 1);
    assert_true(tt_cpuset_count(&topo->machines[0]->allowed) >= 1);
    tutti_topo_close(topo);
}

/* A link that names itself as its parent, nonsense as facts, and a folder without sys. */
static void hostile_root(void **state)
{
    char path[256], *text;
    tutti_topo *topo = NULL, *again;

    (void)state;
    put_function("a/0000:01:00.0", "xyz", "0x10de 0x", "fast", "99999999999999999999");
    (void)snprintf(path, sizeof path, "%s/sys/bus/pci/devices/0000:02:00.0", root);
    assert_int_equal(symlink("0000:02:00.0/0000:02:00.0/0000:02:00.0", path), 0);
    put("sys/devices/system/node/node0/cpulist", "0-\n");
    put("sys/devices/system/node/nodeX/cpulist", "0\n");
    put_function("a/0000:03:00.0", "0x030200", "0x10de 0x20b0", "1e30", "-2");
    put("proc/cpuinfo", "vendor_id\t: GenuineIntel\ncpu family\t: -6\nmodel\t\t: 99999999999\n");
    put("sys/devices/system/node/node1/cpulist", "1\n");
    put("sys/devices/system/node/node01/cpulist", "2\n");
    put("sys/class/net/eth0/operstate", "up\n");
    put("sys/class/net/eth0/speed", "-1\n");
    put("sys/class/net/\033[1m\xe4\xc3\xa4\xed\xa0\x80/operstate", "up\n");
    if (tutti_topo_open_file(root, &topo) != TUTTI_OK)
        fail_msg("%s", tutti_last_error());
    assert_int_equal(topo->machines[0]->n_gpus, 1);
    assert_int_equal(topo->machines[0]->n_nics, 2);
    assert_int_equal(topo->machines[0]->n_numa, 2);
    assert_int_equal(topo->machines[0]->numa[0].id, -1);
    assert_int_equal(tt_cpuset_next(&topo->machines[0]->numa[1].cpus, -1), 1);
    for (int i = 0; i < 2; i++)
        if (strcmp(topo->machines[0]->nics[i].name, "eth0") != 0)
            assert_string_equal(topo->machines[0]->nics[i].name, "?[1m?\xc3\xa4???");
    assert_int_equal(tt_topo_write_nccl(topo, 0, &text), TUTTI_OK);
    assert_int_equal(tt_topo_read_nccl("written", text, strlen(text), &again), TUTTI_OK);
    free(text);
    tutti_topo_close(again);
    tutti_topo_close(topo);
    (void)snprintf(path, sizeof path, "%s/proc", root);
    (void)mkdir(path, 0755);
    assert_int_equal(tutti_topo_open_file(path, &topo), TUTTI_ERR_UNSUPPORTED);
}

/* Unpacks what the reader looks at, and reads it; TUTTI_TOPO_FSROOT leads there too. */
static void read_recording(const char *path, void *arg)
{
    char command[6000], dir[300];
    struct dirent *entry;
    tutti_topo *topo = NULL;
    DIR *list;

    (void)arg;
    (void)snprintf(
        command, sizeof command,
        "tar xjf '%s' -C '%s' --wildcards '*/sys/bus/pci/devices*' '*/sys/devices/pci*' "
        "'*/sys/devices/system/node/node*' '*/sys/class/infiniband*' '*/sys/class/net/*' "
        "'*/proc/cpuinfo' '*/proc/driver/nvidia/*' 2>/dev/null",
        path, root);
    (void)!system(command); /* it fails where a pattern matches nothing */
    list = opendir(root);
    assert_non_null(list);
    while ((entry = readdir(list)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        (void)snprintf(dir, sizeof dir, "%s/%s", root, entry->d_name);
        if (tutti_topo_open_file(dir, &topo) != TUTTI_OK)
            fail_msg("%s: %s", path, tutti_last_error());
        assert_true(topo->machines[0]->n_numa >= 1);
        if (strstr(path, "nvidiagpunumanodes") != NULL) {
            assert_int_equal(topo->machines[0]->n_gpus, 6);
            assert_true(topo->machines[0]->gpus[0].memory_node >= 250);
            assert_int_equal(topo->machines[0]->numa[0].arch, TT_ARCH_POWER);
        }
        tutti_topo_close(topo);
        assert_int_equal(setenv("TUTTI_TOPO_FSROOT", dir, 1), 0);
        assert_int_equal(tutti_topo_open_live(&topo), TUTTI_OK);
        assert_int_equal(unsetenv("TUTTI_TOPO_FSROOT"), 0);
        tutti_topo_close(topo);
        (void)snprintf(command, sizeof command, "rm -rf '%s'", dir);
        assert_int_equal(system(command), 0);
    }
    (void)closedir(list);
}

static void recorded_machines(void **state)
{
    (void)state;
    if (corpus_root() == NULL || system("bzip2 --version >/dev/null 2>&1 </dev/null") != 0)
        skip();
    assert_int_equal(corpus_each("hwloc", ".tar.bz2", read_recording, NULL), 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(this_machine),
        cmocka_unit_test_setup_teardown(made_up_machine, make_root, remove_root),
        cmocka_unit_test_setup_teardown(hostile_root, make_root, remove_root),
        cmocka_unit_test_setup_teardown(recorded_machines, make_root, remove_root),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

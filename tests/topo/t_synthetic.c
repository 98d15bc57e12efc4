/* SPDX-License-Identifier: Apache-2.0 */
/* Machines described in words, and the paths between their devices. */
#include "core/mem.h"
#include "topo/paths.h"
#include "topo/read.h"
#include "tt_test.h"

static tutti_topo *open_words(const char *text)
{
    tutti_topo *topo = NULL;

    if (tutti_topo_open_synthetic(text, &topo) != TUTTI_OK)
        fail_msg("%s: %s", text, tutti_last_error());
    return topo;
}

static tutti_topo_path between(const tutti_topo *topo, int gpu, tutti_device_kind kind, int peer)
{
    tutti_topo_path path = {TUTTI_PATH_DIS, 0, 0};

    assert_int_equal(tutti_topo_path_query(topo, gpu, kind, peer, &path), TUTTI_OK);
    return path;
}

static void catalogue_opens(void **state)
{
    const tt_topo_catalogue *entry;
    int n = 0;

    (void)state;
    for (; (entry = tt_topo_catalogue_at(n)) != NULL; n++) {
        tutti_topo *topo = open_words(entry->name);

        assert_true(tutti_topo_gpu_count(topo) > 0);
        for (int i = 0; i < tutti_topo_gpu_count(topo); i++) {
            tutti_topo_gpu_info info = TUTTI_TOPO_GPU_INFO_INIT;

            assert_int_equal(tutti_topo_gpu(topo, i, &info), TUTTI_OK);
            assert_true(info.sm >= 70 && info.island < tutti_topo_island_count(topo));
            assert_true(info.nic >= 0 && info.nic < tutti_topo_nic_count(topo));
        }
        tutti_topo_close(topo);
    }
    assert_int_equal(n, 16);
}

static void islands_of_known_machines(void **state)
{
    static const struct {
        const char *text;
        int gpus, islands;
        tutti_path_type type;
        double gbps;
    } known[] = {
        {"hgx-h100", 8, 1, TUTTI_PATH_NVL, 370.8},
        {"hgx-h100 x4", 32, 4, TUTTI_PATH_NVL, 370.8},
        {"gb200-nvl72", 72, 1, TUTTI_PATH_NVL, 721.8},
        {"gb200-nvl72 x4 fabric=2", 16, 2, TUTTI_PATH_NVL, 721.8},
        {"a100-pcie-pairs", 4, 2, TUTTI_PATH_NVL, 240},
        {"dgx-1v", 8, 1, TUTTI_PATH_NVL, 20},
        {"pcie-8", 8, 8, TUTTI_PATH_PIX, 24},
        {"hgx-h100 -nvlink:5", 8, 2, TUTTI_PATH_NVL, 370.8},
        {"hgx-h100 -nvlink:0:3", 8, 1, TUTTI_PATH_NVL, 309},
        {"hgx-h100 -gpu:0 -gpu:7 -nic:1", 6, 1, TUTTI_PATH_NVL, 370.8},
    };

    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        tutti_topo *topo = open_words(known[i].text);
        tutti_topo_path path = between(topo, 0, TUTTI_DEVICE_GPU, 1);

        if (tutti_topo_gpu_count(topo) != known[i].gpus ||
            tutti_topo_island_count(topo) != known[i].islands || path.type != known[i].type ||
            path.gbps < known[i].gbps * 0.999 || path.gbps > known[i].gbps * 1.001)
            fail_msg("%s: %d GPUs, %d islands, 0-1 %s %g GB/s", known[i].text,
                     tutti_topo_gpu_count(topo), tutti_topo_island_count(topo),
                     tt_path_name(path.type), path.gbps);
        tutti_topo_close(topo);
    }
}

static void nics_near_and_far(void **state)
{
    tutti_topo *topo = open_words("hgx-h100 nicorder=3,1,0,2,7,6,5,4");
    tutti_topo_nic_info nic = TUTTI_TOPO_NIC_INFO_INIT;
    tutti_topo_path path;

    (void)state;
    for (int i = 0; i < 8; i++) {
        tutti_topo_gpu_info info = TUTTI_TOPO_GPU_INFO_INIT;

        assert_int_equal(tutti_topo_gpu(topo, i, &info), TUTTI_OK);
        assert_int_equal(info.nic, i);
        path = between(topo, i, TUTTI_DEVICE_NIC, i);
        assert_int_equal(path.type, TUTTI_PATH_PIX);
        assert_true(path.gbps > 47.9 && path.gbps < 50.1);
        path = between(topo, i, TUTTI_DEVICE_NIC, (i + 1) % 8);
        assert_int_equal(path.type, TUTTI_PATH_PXN);
    }
    assert_int_equal(tutti_topo_nic(topo, 0, &nic), TUTTI_OK);
    assert_string_equal(nic.name, "mlx5_3");
    tutti_topo_close(topo);

    topo = open_words("vm-flat-8");
    path = between(topo, 0, TUTTI_DEVICE_NIC, 3);
    assert_int_equal(path.type, TUTTI_PATH_PHB);
    tutti_topo_close(topo);
}

/* Many hosts share one machine, and pairs between them are answered by their number. */
static void thousand_hosts(void **state)
{
    tutti_topo *topo = open_words("hgx-h100 x1024");
    tutti_topo_gpu_info info = TUTTI_TOPO_GPU_INFO_INIT;

    (void)state;
    assert_int_equal(topo->n_machines, 1);
    assert_int_equal(tutti_topo_gpu_count(topo), 8192);
    assert_int_equal(tutti_topo_gpu(topo, 8191, &info), TUTTI_OK);
    assert_int_equal(info.host, 1023);
    assert_int_equal(info.nic, 8191);
    assert_int_equal(between(topo, 0, TUTTI_DEVICE_GPU, 8191).type, TUTTI_PATH_NET);
    assert_int_equal(between(topo, 8184, TUTTI_DEVICE_GPU, 8191).type, TUTTI_PATH_NVL);
    assert_int_equal(tutti_topo_gpu(topo, 8192, &info), TUTTI_ERR_ARG);
    tutti_topo_close(topo);
}

static void words_refused(void **state)
{
    static const char *const bad[] = {
        "hgx-h101",
        "gpus=",
        "gpus=129",
        "gpus=8x",
        "sm=abc",
        "tree=switch",
        "tree=switch:0",
        "nvlink=mesh",
        "gpus=4 nvlink=cube",
        "-nvlink",
        "-nvlink:1-",
        "-nic:0",
        "-gpu:9",
        "gpus=2 numa=2 gpunuma=0,2",
        "gpus=2 gpunuma=0,",
        "nics=2 nicorder=0",
        "hgx-h100 p5",
        "nics=2 nicorder=1,1",
        "cpu=intel:",
        "pcie=7x16",
        "pcie=5",
        "c2c=x",
        "x0 x",
        "rate=0",
    };
    tutti_topo *topo = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (tutti_topo_open_synthetic(bad[i], &topo) != TUTTI_ERR_ARG || topo != NULL)
            fail_msg("\"%s\" was taken", bad[i]);
}

static void cpu_sets(void **state)
{
    static const struct {
        const char *list, *mask;
        int count;
    } same[] = {{"0-3,8", "0000010f", 5},
                {"0-31,64-95", "ffffffff,00000000,ffffffff", 64},
                {"63", "80000000,00000000", 1},
                {"0-9", "3ff", 10}};
    static const char *const bad[] = {"1-", "-1", "3-1", "0,", "a", "1 2", "0-99999999", "N/A"};
    tt_cpuset one = {NULL, 0}, two = {NULL, 0};
    char text[200];

    (void)state;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        assert_int_equal(tt_cpuset_parse_list(same[i].list, &one), TUTTI_OK);
        assert_int_equal(tt_cpuset_parse_mask(same[i].mask, &two), TUTTI_OK);
        assert_true(tt_cpuset_equal(&one, &two));
        assert_int_equal(tt_cpuset_count(&one), same[i].count);
        (void)tt_cpuset_print_list(&two, text, sizeof text);
        assert_string_equal(text, same[i].list);
        (void)tt_cpuset_print_mask(&two, text, sizeof text);
        assert_int_equal(tt_cpuset_parse_mask(text, &one), TUTTI_OK);
        assert_true(tt_cpuset_equal(&one, &two));
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(tt_cpuset_parse_list(bad[i], &one), TUTTI_ERR_CORRUPT);
    assert_int_equal(tt_cpuset_parse_mask("0x12", &one), TUTTI_ERR_CORRUPT);
    assert_int_equal(tt_cpuset_parse_list("", &two), TUTTI_OK);
    assert_int_equal(tt_cpuset_count(&two), 0);
    assert_int_equal(tt_cpuset_and(&one, &two, &one), TUTTI_OK);
    assert_int_equal(tt_cpuset_count(&one), 0);
    tt_cpuset_free(&one);
    tt_cpuset_free(&two);
}

static void bus_ids(void **state)
{
    static const char *const good[] = {"0000:3b:00.0", "10000:e1:00.0", "ffff:ff:01.0",
                                       "fffffff:ff:ff.0"};
    static const char *const bad[] = {"",
                                      "3b",
                                      "0000:3b:00",
                                      "0000:3b:00.g",
                                      "0000:3b:00.0 ",
                                      "123456789:00:00.0",
                                      "0000-3b-00.0"};
    char text[TT_BUSID_TEXT];
    tt_busid busid;

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(tt_busid_parse(good[i], &busid), TUTTI_OK);
        assert_string_equal(tt_busid_print(busid, text), good[i]);
    }
    assert_int_equal(tt_busid_parse("fffffff:ff:ff.0", &busid), TUTTI_OK);
    assert_true(busid == TT_BUSID_HIDDEN);
    assert_int_equal(tt_busid_parse("3b:00.1", &busid), TUTTI_OK);
    assert_true(busid == 0x3b001);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(tt_busid_parse(bad[i], &busid), TUTTI_ERR_CORRUPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(catalogue_opens),   cmocka_unit_test(islands_of_known_machines),
        cmocka_unit_test(nics_near_and_far), cmocka_unit_test(thousand_hosts),
        cmocka_unit_test(words_refused),     cmocka_unit_test(cpu_sets),
        cmocka_unit_test(bus_ids),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

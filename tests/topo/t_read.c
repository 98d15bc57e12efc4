/* SPDX-License-Identifier: Apache-2.0 */
/* Readers: small descriptions of each format, what they make of bad ones, the corpus, and XML that
 * is written and read back. */
#include "topo/paths.h"
#include "topo/read.h"

#include "corpus.h"
#include "tt_test.h"

static tutti_topo *read_text(const char *text)
{
    tutti_topo *topo = NULL;

    if (tt_topo_read_text("test", text, strlen(text), &topo) != TUTTI_OK)
        fail_msg("%s", tutti_last_error());
    return topo;
}

static void assert_same_machine(const char *name, const tt_machine *a, const tt_machine *b)
{
    if (a->n_numa != b->n_numa || a->n_pci != b->n_pci || a->n_gpus != b->n_gpus ||
        a->n_nics != b->n_nics || a->n_nvlinks != b->n_nvlinks || a->n_pcilinks != b->n_pcilinks)
        fail_msg("%s: %d %d %d %d %d objects, read back %d %d %d %d %d", name, a->n_numa, a->n_pci,
                 a->n_gpus, a->n_nics, a->n_nvlinks, b->n_numa, b->n_pci, b->n_gpus, b->n_nics,
                 b->n_nvlinks);
    for (int i = 0; i < a->n_numa; i++)
        assert_true(a->numa[i].id == b->numa[i].id && a->numa[i].arch == b->numa[i].arch &&
                    a->numa[i].model == b->numa[i].model &&
                    tt_cpuset_equal(&a->numa[i].cpus, &b->numa[i].cpus));
    for (int i = 0; i < a->n_pci; i++)
        assert_true(a->pci[i].busid == b->pci[i].busid && a->pci[i].parent == b->pci[i].parent &&
                    a->pci[i].numa == b->pci[i].numa && a->pci[i].gbps == b->pci[i].gbps &&
                    a->pci[i].class_code == b->pci[i].class_code);
    for (int i = 0; i < a->n_gpus; i++)
        assert_true(a->gpus[i].pci == b->gpus[i].pci && a->gpus[i].sm == b->gpus[i].sm &&
                    a->gpus[i].dev == b->gpus[i].dev && a->gpus[i].gdr == b->gpus[i].gdr &&
                    a->gpus[i].c2c_mbps == b->gpus[i].c2c_mbps);
    for (int i = 0; i < a->n_nics; i++)
        assert_true(a->nics[i].pci == b->nics[i].pci && a->nics[i].dev == b->nics[i].dev &&
                    a->nics[i].mbps == b->nics[i].mbps && a->nics[i].guid == b->nics[i].guid &&
                    a->nics[i].card == b->nics[i].card && a->nics[i].port == b->nics[i].port &&
                    strcmp(a->nics[i].name, b->nics[i].name) == 0);
    for (int i = 0; i < a->n_nvlinks; i++)
        assert_true(a->nvlinks[i].gpu == b->nvlinks[i].gpu &&
                    a->nvlinks[i].peer == b->nvlinks[i].peer &&
                    a->nvlinks[i].peer_gpu == b->nvlinks[i].peer_gpu &&
                    a->nvlinks[i].count == b->nvlinks[i].count);
    assert_memory_equal(a->paths->gpu_gpu, b->paths->gpu_gpu,
                        (size_t)(a->n_gpus * a->n_gpus) * sizeof(tt_path));
    assert_memory_equal(a->paths->gpu_nic, b->paths->gpu_nic,
                        (size_t)(a->n_gpus * a->n_nics) * sizeof(tt_path));
}

static void round_trip(const char *name, const tutti_topo *topo)
{
    for (int host = 0; host < topo->n_hosts && host < 2; host++) {
        char *text = NULL;
        tutti_topo *back;

        if (tt_topo_write_nccl(topo, host, &text) != TUTTI_OK)
            fail_msg("%s: %s", name, tutti_last_error());
        back = read_text(text);
        assert_same_machine(name, tt_topo_machine_of(topo, host), back->machines[0]);
        tutti_topo_close(back);
        free(text);
    }
}

static void catalogue_round_trips(void **state)
{
    const tt_topo_catalogue *entry;

    (void)state;
    for (int i = 0; (entry = tt_topo_catalogue_at(i)) != NULL; i++) {
        tutti_topo *topo = NULL;

        assert_int_equal(tt_topo_read_synthetic(entry->name, &topo), TUTTI_OK);
        round_trip(entry->name, topo);
        tutti_topo_close(topo);
    }
}

typedef struct reading {
    int read, refused, written;
} reading;

static void read_one(const char *path, void *arg)
{
    reading *r = arg;
    tutti_topo *topo = NULL;

    if (tutti_topo_open_file(path, &topo) != TUTTI_OK) {
        print_message("refused: %s\n", tutti_last_error());
        assert_true(strchr(tutti_last_error(), '\n') == NULL);
        r->refused++;
        return;
    }
    r->read++;
    if (topo->format == TT_TOPO_NCCL && !topo->is_template) {
        round_trip(path, topo);
        r->written++;
    }
    tutti_topo_close(topo);
}

static void corpus_is_read(void **state)
{
    static const char *const folders[] = {"xml", "xml_derived", "matrix", "hwloc"};
    reading r = {0};

    (void)state;
    if (corpus_root() == NULL)
        skip();
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        (void)corpus_each(folders[i], "", read_one, &r);
    print_message("%d read, %d refused, %d written and read back\n", r.read, r.refused, r.written);
    assert_true(r.read >= 60);
}

static tutti_path_type type_between(const tutti_topo *topo, int one, int two)
{
    tutti_topo_path path = {TUTTI_PATH_DIS, 0, 0};

    assert_int_equal(tutti_topo_path_query(topo, one, TUTTI_DEVICE_GPU, two, &path), TUTTI_OK);
    return path.type;
}

/* Blanks for tabs, quoting, escapes of an underlined header, shuffled rows, a NIC with a name. */
static void matrix_warts(void **state)
{
    tutti_topo *topo =
        read_text("> \x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tmlx5_0\tCPU Affinity\tNUMA Affinity\x1b[0m\r\n"
                  "> GPU2   SYS SYS X PXB SYS 32-63 1\r\n"
                  "> GPU0\t X \tNV4\tSYS\tSYS\tPIX\t0-31\t0\t\tN/A\r\n"
                  "> GPU1\tNV4\tX\tSYS\tSYS\tNODE\t0-31\t0\r\n"
                  "> GPU3\tSYS\tSYS\tPXB\tX\tSYS\t\t1\r\n"
                  "> mlx5_0\tPIX\tNODE\tSYS\tSYS\t X \r\n");
    const tt_machine *m = topo->machines[0];

    (void)state;
    assert_int_equal(m->n_gpus, 4);
    assert_int_equal(m->n_nics, 1);
    assert_int_equal(type_between(topo, 0, 1), TUTTI_PATH_NVL);
    assert_int_equal(type_between(topo, 0, 2), TUTTI_PATH_SYS);
    assert_int_equal(type_between(topo, 2, 3), TUTTI_PATH_PXB);
    assert_int_equal(m->paths->gpu_nic[0].type, TUTTI_PATH_PIX);
    assert_string_equal(m->nics[0].name, "mlx5_0");
    assert_int_equal(tt_cpuset_count(&m->gpus[0].cpus), 32);
    assert_int_equal(m->gpus[3].affinity_node, 1);
    assert_int_equal(m->gpus[3].cpus.n_words, 0);
    assert_int_equal(m->gpus[3].cpus_from, TT_FROM_FILE);
    tutti_topo_close(topo);
}

static void matrix_switch_or_bridge(void **state)
{
    tutti_topo *topo = read_text("\tGPU0\tGPU1\nGPU0\t X \tNV12\nGPU1\tNV12\t X \n");

    (void)state;
    assert_int_equal(topo->machines[0]->nvlinks[0].peer, TT_PEER_GPU);
    tutti_topo_close(topo);
    topo = read_text("\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNV18\t X \n");
    assert_int_equal(topo->machines[0]->nvlinks[0].peer, TT_PEER_SWITCH);
    tutti_topo_close(topo);
}

static void p2p_table(void **state)
{
    static const char table[] = " \tGPU0\tGPU1\tGPU2\n GPU0\tX\tOK\tCNS\n GPU1\tOK\tX\tTNS\n"
                                " GPU2\tCNS\tTNS\tX\n";
    tutti_topo *topo = read_text(table);

    (void)state;
    assert_int_equal(topo->machines[0]->n_gpus, 3);
    assert_int_equal(topo->machines[0]->p2p[1], TT_P2P_OK);
    assert_int_equal(topo->machines[0]->p2p[5], TT_P2P_TOPOLOGY);
    tutti_topo_close(topo);

    assert_int_equal(tt_topo_read_synthetic("gpus=3 numa=1 tree=switch:3", &topo), TUTTI_OK);
    assert_int_equal(type_between(topo, 0, 1), TUTTI_PATH_PIX);
    assert_int_equal(tt_topo_add_p2p(topo, "p2p", table, strlen(table)), TUTTI_OK);
    assert_int_equal(type_between(topo, 0, 1), TUTTI_PATH_PIX);
    assert_int_equal(type_between(topo, 0, 2), TUTTI_PATH_PHB); /* through the host's memory */
    tutti_topo_close(topo);
}

/* Both ways of naming a GPU's own bus id as its NVLink's far end, and one that is nowhere. */
static void nvlinks_that_are_none(void **state)
{
    tutti_topo *topo = read_text(
        "<system version='1'><cpu numaid='0' arch='x86_64' vendor='AuthenticAMD' familyid='23' "
        "modelid='49'><pci busid='0001:00:00.0' class='0x030200' link_speed='' link_width='0'>"
        "<gpu dev='0' sm='80' rank='0' gdr='1'><nvlink target='0001:00:00.0' count='12' "
        "tclass='0x030200'/></gpu></pci><pci busid='0002:00:00.0' class='0x030200'><gpu dev='1' "
        "sm='80' rank='1' gdr='1'><nvlink target='0009:00:00.0' count='4' tclass='0x030200'/></gpu>"
        "</pci></cpu></system>");
    const tt_machine *m = topo->machines[0];

    (void)state;
    assert_int_equal(m->nvlinks[0].peer, TT_PEER_SELF);
    assert_int_equal(m->nvlinks[1].peer, TT_PEER_MISSING);
    assert_int_equal(m->paths->n_islands, 2);
    assert_int_equal(type_between(topo, 0, 1), TUTTI_PATH_PHB);
    tutti_topo_close(topo);
}

static void refusals(void **state)
{
    static const struct {
        const char *text, *says;
        tutti_status status;
    } bad[] = {
        {"", "empty", TUTTI_ERR_CORRUPT},
        {"  \n", "empty", TUTTI_ERR_CORRUPT},
        {"hello\n", "neither XML nor", TUTTI_ERR_UNSUPPORTED},
        {"<system version='1'>", "line 1", TUTTI_ERR_CORRUPT},
        {"<system version='2'><cpu/></system>", "version 2", TUTTI_ERR_UNSUPPORTED},
        {"<system version='1'/>", "without any <cpu>", TUTTI_ERR_CORRUPT},
        {"<graphs version='1'><graph id='0' nchannels='2' speedintra='12' "
         "typeintra='SYS'/></graphs>",
         "ring 2 x 12 GB/s SYS", TUTTI_ERR_UNSUPPORTED},
        {"<topology version='3.0'/>", "without any NUMA node", TUTTI_ERR_CORRUPT},
        {"<svg/>", "is no NCCL topology", TUTTI_ERR_UNSUPPORTED},
        {"Machine (P#0 total=1GB)\n", "lstopo", TUTTI_ERR_UNSUPPORTED},
        {"BZh91AY", "archive", TUTTI_ERR_UNSUPPORTED},
        {"<!DOCTYPE system [<!ENTITY a 'b'>]><system version='1'><cpu/></system>", "entities",
         TUTTI_ERR_CORRUPT},
        {"<system version='1'><cpu>\n<pci/></cpu></system>", "line 2: <pci> has no busid",
         TUTTI_ERR_CORRUPT},
        {"<system version='1'><cpu affinity='xyz'/></system>", "no mask", TUTTI_ERR_CORRUPT},
        {"<system version='1'><cpu><pci busid='0000:3b'/></cpu></system>", "bus id",
         TUTTI_ERR_CORRUPT},
        {"GPU0\tGPU1\nGPU200\tNS\n", "neither a processor nor", TUTTI_ERR_CORRUPT},
        {"\tGPU0\tGPU0\nGPU0\t X \tSYS\n", "two columns", TUTTI_ERR_CORRUPT},
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tutti_topo *topo = NULL;
        tutti_status status = tt_topo_read_text("test", bad[i].text, strlen(bad[i].text), &topo);

        if (status != bad[i].status || strstr(tutti_last_error(), bad[i].says) == NULL)
            fail_msg("%s: %s: %s", bad[i].text, tutti_status_name(status), tutti_last_error());
        assert_null(topo);
    }
    assert_int_equal(tutti_topo_open_file("/no/such/file", &(tutti_topo *){NULL}),
                     TUTTI_ERR_NOT_FOUND);
    assert_int_equal(tutti_topo_open_file("/dev/zero", &(tutti_topo *){NULL}), TUTTI_ERR_ARG);
}

/* Deep, wide and long input ends in an error, soon. */
static void oversize(void **state)
{
    static const char head[] = "<system version='1'><cpu>",
                      element[] = "<pci busid='0000:00:00.0'>";
    size_t bytes = sizeof head + 2000000 * sizeof element;
    char *text = malloc(bytes);
    size_t at = sizeof head - 1;
    tutti_topo *topo = NULL;

    (void)state;
    assert_non_null(text);
    memcpy(text, head, at);
    for (int i = 0; i < 100; i++, at += sizeof element - 1)
        memcpy(text + at, element, sizeof element);
    assert_int_equal(tt_topo_read_text("deep", text, at, &topo), TUTTI_ERR_CORRUPT);
    assert_non_null(strstr(tutti_last_error(), "nested too deep"));

    at = sizeof head - 1;
    for (int i = 0; i < 300000; i++, at += 6)
        memcpy(text + at, "<cpu/>", 7);
    assert_int_equal(tt_topo_read_text("wide", text, at, &topo), TUTTI_ERR_CORRUPT);
    assert_non_null(strstr(tutti_last_error(), "too many elements"));

    memset(text, '\n', 4 << 20); /* four million lines */
    memcpy(text, "GPU0\n", 5);
    assert_int_equal(tt_topo_read_text("lines", text, 4 << 20, &topo), TUTTI_ERR_UNSUPPORTED);

    memset(text, 'A', 5 << 20);
    assert_int_equal(tt_topo_read_text("long", text, 5 << 20, &topo), TUTTI_ERR_UNSUPPORTED);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(catalogue_round_trips),
        cmocka_unit_test(corpus_is_read),
        cmocka_unit_test(matrix_warts),
        cmocka_unit_test(matrix_switch_or_bridge),
        cmocka_unit_test(p2p_table),
        cmocka_unit_test(nvlinks_that_are_none),
        cmocka_unit_test(refusals),
        cmocka_unit_test(oversize),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

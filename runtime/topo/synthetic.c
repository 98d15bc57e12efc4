/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Machines described in one line of words:
 *
 *   NAME             a machine of the catalogue, whose words come first; later words replace
 *   xN               N hosts of this kind            fabric=K     each K hosts are one NVLink
 * domain gpus=8 sm=90 name=H100 mem=80                    of each GPU; memory in GB numa=2 NUMA
 * domains                    gpunuma=1,1,0,0  domain of each GPU cpu=intel:143    intel, amd, arm,
 * power; model   cores=96     processors of a domain pcie=5x16        generation and lanes
 *   tree=switch:2    PCIe switches with 2 GPUs each; tree=root: GPUs at root ports; tree=flat: a
 *                    virtual machine that shows no tree and no NUMA domain
 *   nvlink=switch:18 links to NVSwitches; mesh:4 to each other GPU; pair:12 to the neighbour;
 *                    ring:2 to both neighbours; cube: DGX-1's hybrid mesh; none
 *   c2c=5x44712      links to the processor, MB/s of one
 *   nics=8 rate=400 net=ib   ports, Gb/s of each; ib, roce, eth, efa
 *   nicorder=2,0,1   names: the NIC at place i is called (and numbered) so
 *   gdr=0            no GPUDirect RDMA
 *   -nvlink:5        GPU 5 has no NVLink; -nvlink:5:3: 3 links fewer; -nvlink:0-1: none between
 *   -nic:3 -gpu:2    taken out, after all else
 *
 * A line is read into a spec of numbers, the spec into one machine; hosts share it. Bus ids are
 * made up, but are unique and stay as they are in NCCL XML written from it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "topo/read.h"
#include "topo/spec.h"

enum { WORDS_MAX = 8192 };

static tutti_status bad(const char *word, const char *why)
{
    return tt_fail(TUTTI_ERR_ARG, "machine description: \"%.60s\": %s", word, why);
}

/* A number in [low, high] at *text, moved behind it. */
static bool number(const char **text, int low, int high, int *value_out)
{
    char *end;
    long value;

    if (**text < '0' || **text > '9')
        return false;
    value = strtol(*text, &end, 10);
    if (value < low || value > high)
        return false;
    *text = end;
    *value_out = (int)value;
    return true;
}

static bool just_number(const char *text, int low, int high, int *value_out)
{
    int value;

    if (!number(&text, low, high, &value) || *text != 0)
        return false;
    *value_out = value;
    return true;
}

/* "5x16" */
static bool product(const char *text, int most_a, int most_b, int *a_out, int *b_out)
{
    int a;

    if (!number(&text, 1, most_a, &a) || *text != 'x')
        return false;
    if (!just_number(text + 1, 1, most_b, b_out))
        return false;
    *a_out = a;
    return true;
}

static bool list(const char *text, int high, int *values, int cap, int *n_out)
{
    for (int n = 0; n < cap && number(&text, 0, high, &values[n]); text++) {
        *n_out = ++n;
        if (*text != ',')
            return *text == 0;
    }
    return false;
}

static tutti_status read_cpu(tt_spec *s, const char *word, const char *value)
{
    static const struct {
        const char *name;
        tt_cpu_arch arch;
        tt_cpu_vendor vendor;
    } known[] = {{"intel", TT_ARCH_X86, TT_VENDOR_INTEL},
                 {"amd", TT_ARCH_X86, TT_VENDOR_AMD},
                 {"arm", TT_ARCH_ARM, TT_VENDOR_UNKNOWN},
                 {"power", TT_ARCH_POWER, TT_VENDOR_UNKNOWN}};
    size_t length = strcspn(value, ":");

    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strlen(known[i].name) != length || strncmp(value, known[i].name, length) != 0)
            continue;
        s->arch = known[i].arch;
        s->vendor = known[i].vendor;
        s->cpu_model = 0;
        if (value[length] == ':' && !just_number(value + length + 1, 0, 1000, &s->cpu_model))
            return bad(word, "the model is a number");
        return TUTTI_OK;
    }
    return bad(word, "intel, amd, arm or power");
}

static tutti_status read_tree(tt_spec *s, const char *word, const char *value)
{
    if (strcmp(value, "root") == 0)
        s->tree = TT_TREE_ROOT;
    else if (strcmp(value, "flat") == 0)
        s->tree = TT_TREE_FLAT;
    else if (strncmp(value, "switch:", 7) == 0 &&
             just_number(value + 7, 1, TT_TOPO_MAX_GPUS, &s->per_switch))
        s->tree = TT_TREE_SWITCH;
    else
        return bad(word, "root, flat or switch:N with N GPUs at each");
    return TUTTI_OK;
}

static tutti_status read_nvlink(tt_spec *s, const char *word, const char *value)
{
    static const struct {
        const char *name;
        tt_spec_nvlink kind;
    } known[] = {{"switch:", TT_SPEC_SWITCH},
                 {"mesh:", TT_SPEC_MESH},
                 {"pair:", TT_SPEC_PAIR},
                 {"ring:", TT_SPEC_RING}};

    if (strcmp(value, "none") == 0) {
        s->nvlink = TT_SPEC_NONE;
        return TUTTI_OK;
    }
    if (strcmp(value, "cube") == 0) {
        s->nvlink = TT_SPEC_CUBE;
        return TUTTI_OK;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t length = strlen(known[i].name);

        if (strncmp(value, known[i].name, length) != 0)
            continue;
        if (!just_number(value + length, 1, 64, &s->links))
            return bad(word, "1 to 64 links");
        s->nvlink = known[i].kind;
        return TUTTI_OK;
    }
    return bad(word, "none, cube, switch:N, mesh:N, pair:N or ring:N with N links");
}

static tutti_status read_net(tt_spec *s, const char *word, const char *value)
{
    static const char *const names[] = {"", "eth", "ib", "roce", "efa"};

    for (int i = 1; i < 5; i++)
        if (strcmp(value, names[i]) == 0) {
            s->net = (tt_nic_kind)i;
            return TUTTI_OK;
        }
    return bad(word, "eth, ib, roce or efa");
}

/* "-nvlink:5", "-nvlink:5:3", "-nvlink:0-1", "-nic:3", "-gpu:2" */
static tutti_status read_taken(tt_spec *s, const char *word)
{
    struct taken t = {0, 0, -1, TT_SPEC_ALL_LINKS};
    const char *at = strchr(word, ':');

    if (s->n_taken == TT_SPEC_TAKEN)
        return bad(word, "too much is taken out");
    t.what = strncmp(word, "-nvlink:", 8) == 0 ? 'l'
             : strncmp(word, "-nic:", 5) == 0  ? 'n'
             : strncmp(word, "-gpu:", 5) == 0  ? 'g'
                                               : 0;
    if (t.what == 0 || ++at == NULL || !number(&at, 0, TT_TOPO_MAX_NICS, &t.a))
        return bad(word, "-nvlink:GPU, -nic:NIC or -gpu:GPU");
    if (t.what == 'l' && *at == '-' && (at++, !number(&at, 0, TT_TOPO_MAX_GPUS, &t.b)))
        return bad(word, "-nvlink:GPU-GPU");
    if (t.what == 'l' && *at == ':' && (at++, !number(&at, 1, 64, &t.count)))
        return bad(word, "-nvlink:GPU:LINKS");
    if (*at != 0)
        return bad(word, "something follows");
    s->taken[s->n_taken++] = t;
    return TUTTI_OK;
}

static tutti_status read_number(tt_spec *s, const char *word, size_t length, const char *value)
{
    struct {
        const char *key;
        int low, high, *to;
    } keys[] = {
        {"gpus", 0, TT_TOPO_MAX_GPUS, &s->gpus},
        {"sm", 30, 999, &s->sm},
        {"mem", 1, 4096, &s->mem},
        {"numa", 1, TT_TOPO_MAX_NUMA, &s->numa},
        {"cores", 1, TT_CPUS_MAX, &s->cores},
        {"nics", 0, TT_TOPO_MAX_NICS, &s->nics},
        {"rate", 1, 10000, &s->rate},
        {"gdr", 0, 1, &s->gdr},
        {"fabric", 0, TT_TOPO_MAX_HOSTS, &s->fabric},
    };

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char range[64];

        if (strlen(keys[i].key) != length || strncmp(word, keys[i].key, length) != 0)
            continue;
        if (just_number(value, keys[i].low, keys[i].high, keys[i].to))
            return TUTTI_OK;
        (void)snprintf(range, sizeof range, "a number from %d to %d", keys[i].low, keys[i].high);
        return bad(word, range);
    }
    return bad(word, "no such word; see docs/topology.md");
}

static bool is_key(const char *word, size_t length, const char *key)
{
    return strlen(key) == length && strncmp(word, key, length) == 0;
}

static tutti_status read_pair(tt_spec *s, const char *word, size_t length, const char *value)
{
    if (is_key(word, length, "cpu"))
        return read_cpu(s, word, value);
    if (is_key(word, length, "tree"))
        return read_tree(s, word, value);
    if (is_key(word, length, "nvlink"))
        return read_nvlink(s, word, value);
    if (is_key(word, length, "net"))
        return read_net(s, word, value);
    if (is_key(word, length, "name")) {
        (void)snprintf(s->name, sizeof s->name, "%s", value);
        return TUTTI_OK;
    }
    if (is_key(word, length, "pcie"))
        return product(value, 6, 32, &s->gen, &s->lanes) ? TUTTI_OK
                                                         : bad(word, "GENxLANES, such as 5x16");
    if (is_key(word, length, "c2c"))
        return product(value, 64, 1000000, &s->c2c, &s->c2c_mbps) ? TUTTI_OK
                                                                  : bad(word, "LINKSxMB/s");
    if (is_key(word, length, "gpunuma"))
        return list(value, TT_TOPO_MAX_NUMA - 1, s->gpu_numa, TT_TOPO_MAX_GPUS, &s->n_gpu_numa)
                   ? TUTTI_OK
                   : bad(word, "a list of domains, one for each GPU");
    if (is_key(word, length, "nicorder"))
        return list(value, TT_TOPO_MAX_NICS - 1, s->nic_order, TT_TOPO_MAX_NICS, &s->n_nic_order)
                   ? TUTTI_OK
                   : bad(word, "a list of numbers, one for each NIC");
    return read_number(s, word, length, value);
}

static tutti_status read_words(tt_spec *s, const char *text);

static tutti_status read_word(tt_spec *s, const char *word)
{
    const char *equals = strchr(word, '=');
    const tt_topo_catalogue *entry;

    if (equals != NULL)
        return read_pair(s, word, (size_t)(equals - word), equals + 1);
    if (word[0] == '-')
        return read_taken(s, word);
    if (word[0] == 'x' && just_number(word + 1, 1, TT_TOPO_MAX_HOSTS, &s->hosts))
        return TUTTI_OK;
    for (int i = 0; (entry = tt_topo_catalogue_at(i)) != NULL; i++)
        if (strcmp(word, entry->name) == 0 && s->depth++ == 0)
            return read_words(s, entry->line);
    return bad(word, s->depth > 0 ? "a second machine"
                                  : "no machine of the catalogue, and no word "
                                    "of the grammar");
}

static tutti_status read_words(tt_spec *s, const char *text)
{
    char word[1024];

    for (;;) {
        size_t length;

        text += strspn(text, " \t\r\n");
        length = strcspn(text, " \t\r\n");
        if (length == 0)
            return TUTTI_OK;
        if (length >= sizeof word)
            return bad(text, "too long a word");
        memcpy(word, text, length);
        word[length] = 0;
        TT_TRY(read_word(s, word));
        text += length;
    }
}

tutti_status tt_topo_read_synthetic(const char *text, tutti_topo **topo_out)
{
    tt_spec *s;
    tutti_topo *topo = NULL;
    tutti_status status;

    if (strlen(text) > WORDS_MAX)
        return tt_fail(TUTTI_ERR_ARG, "machine description: longer than %d characters", WORDS_MAX);
    TT_TRY(tt_calloc(1, sizeof *s, &s));
    *s = (tt_spec){.hosts = 1,
                   .gpus = 1,
                   .sm = 90,
                   .mem = 80,
                   .numa = 1,
                   .cores = 32,
                   .gen = 5,
                   .lanes = 16,
                   .per_switch = 1,
                   .nics = 0,
                   .rate = 100,
                   .gdr = 1,
                   .cpu_model = 143,
                   .arch = TT_ARCH_X86,
                   .vendor = TT_VENDOR_INTEL,
                   .net = TT_NIC_IB};
    status = read_words(s, text);
    if (status == TUTTI_OK)
        status = tt_topo_new(TT_TOPO_SYNTHETIC, text, &topo);
    if (status == TUTTI_OK)
        status = tt_spec_build(s, topo);
    free(s);
    if (status != TUTTI_OK)
        goto close_topo;
    *topo_out = topo;
    return TUTTI_OK;

close_topo:
    tutti_topo_close(topo);
    return status;
}

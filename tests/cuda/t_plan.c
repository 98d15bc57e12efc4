/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the library asks of NCCL is what the plan says: t_cuda_plan MESH EACH HOSTS FOLDER, one of
 * the ranks that plan.sh starts on simulated hosts.
 *
 * The plan is made here once more from the hosts' descriptions (FOLDER/H.xml), not taken from the
 * library. Then the calls that the simulated NCCL has recorded (FOLDER/RANK.log) are compared with
 * it: rank order and GPU of the world, colours and keys of the split for each axis of the mesh,
 * ncclConfig of each communicator, and the NCCL_* variables that NCCL saw at its first call.
 */
#include "tt_test.h"

#include "topo/findings.h"
#include "topo/plan.h"
#include "topo/read.h"
#include "tutti/mesh.h"

enum { MAX_RANKS = 16, MAX_AXES = 3, LOG_CAP = 1 << 22 };

typedef struct expected {
    int each, hosts, ranks, axes;
    int size[MAX_AXES], order[MAX_RANKS];
    char axis[MAX_AXES][16];
    tutti_topo *topo;
    tt_plan *plan;
} expected;

typedef struct call {
    int color, key; /* of a split; number of ranks and rank of an init */
    int device;
    int min_ctas, max_ctas, cga, share, nvls; /* -1: left to NCCL */
} call;

static expected e;
static tt_rank me;
static const char *folder;
static char log_text[LOG_CAP];

#define MUST(cond, ...)                                                                            \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            char text_[600];                                                                       \
            snprintf(text_, sizeof text_, __VA_ARGS__);                                            \
            tutti_abort(me.ctx, 1, text_);                                                         \
        }                                                                                          \
    } while (0)
#define MUST_OK(what) MUST((what) == TUTTI_OK, "%s: %s", #what, tutti_last_error())

/* What NCCL has been asked since `from`, which moves on. */
static const char *log_since(size_t *from)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%d.log", folder, me.rank);
    FILE *file = fopen(path, "r");
    MUST(file != NULL, "%s is missing: the NCCL is not the simulated one", path);
    size_t n = fread(log_text, 1, LOG_CAP - 1, file), begin = *from;
    fclose(file);
    log_text[n] = '\0';
    *from = n;
    return log_text + begin;
}

static int field(const char *line, const char *name)
{
    const char *end = strchr(line, '\n'), *at = strstr(line, name);
    return at == NULL || (end != NULL && at > end) ? -1 : atoi(at + strlen(name));
}

/* The first call of this name and the configuration that it was given. */
static bool find_call(const char *text, const char *name, const char *first, const char *second,
                      call *out)
{
    const char *at = strstr(text, name);
    if (at == NULL)
        return false;
    const char *config = strstr(at, "  config");
    MUST(config != NULL, "%s has no configuration", name);
    *out = (call){.color = field(at, first),
                  .key = field(at, second),
                  .device = field(at, " device="),
                  .min_ctas = field(config, " minCTAs="),
                  .max_ctas = field(config, " maxCTAs="),
                  .cga = field(config, " cgaClusterSize="),
                  .share = field(config, " splitShare="),
                  .nvls = field(config, " nvlsCTAs=")};
    return true;
}

/* CUDA counts the GPUs of a host by their place on the bus. */
static int gpu_at(const tt_machine *m, int place)
{
    for (int g = 0; g < m->n_gpus; g++) {
        int before = 0;
        for (int k = 0; k < m->n_gpus; k++)
            before += m->pci[m->gpus[k].pci].busid < m->pci[m->gpus[g].pci].busid;
        if (before == place)
            return g;
    }
    return -1;
}

/* Hosts described alike are one kind, the number of the first. */
static int kind_of(int host)
{
    static char first[1 << 18], second[1 << 18];
    for (int h = 0; h < host; h++) {
        char *text[2] = {first, second};
        size_t bytes[2];
        for (int i = 0; i < 2; i++) {
            char path[512];
            snprintf(path, sizeof path, "%s/%d.xml", folder, i == 0 ? h : host);
            FILE *file = fopen(path, "r");
            MUST(file != NULL, "%s is missing", path);
            bytes[i] = fread(text[i], 1, sizeof first, file);
            fclose(file);
        }
        if (bytes[0] == bytes[1] && memcmp(first, second, bytes[0]) == 0)
            return h;
    }
    return host;
}

static void expect_plan(const char *mesh)
{
    tutti_topo *part[MAX_RANKS];
    tt_plan_rank rank[MAX_RANKS];
    int kind[MAX_RANKS], all[MAX_RANKS], used;
    char path[512];
    for (const char *at = mesh; sscanf(at, "%15[a-z]=%d%n", e.axis[e.axes], &e.size[e.axes], &used);
         at += used + 1) {
        e.axes++;
        if (at[used] != ',')
            break;
    }
    for (int h = 0; h < e.hosts; h++) {
        snprintf(path, sizeof path, "%s/%d.xml", folder, h);
        MUST_OK(tutti_topo_open_file(path, &part[h]));
        kind[h] = kind_of(h);
    }
    MUST_OK(tt_topo_join(part, e.hosts, kind, e.hosts, &e.topo));
    for (int r = 0; r < e.ranks; r++) {
        rank[r].host = r / e.each;
        rank[r].gpu = gpu_at(tt_topo_machine_of(e.topo, r / e.each), r % e.each);
        all[r] = r;
    }
    const tt_plan_input in = {e.topo, e.hosts, e.ranks, rank};
    MUST_OK(tt_plan_create(&in, &e.plan));
    MUST_OK(tt_plan_order(e.plan, all, e.ranks, e.size, e.axes, e.order));
    for (int h = 0; h < e.hosts; h++)
        tutti_topo_close(part[h]);
}

/* What a value of the plan, 0 for none, is in NCCL's configuration. */
static int left(int planned)
{
    return planned > 0 ? planned : -1;
}

static void same_config(const char *what, const call *c, const int *members, int n)
{
    const char *implicit = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    const tt_comm_use use = {.in_turn = implicit == NULL || strcmp(implicit, "1") != 0};
    tt_comm_config want;
    MUST_OK(tt_plan_comm_config(e.plan, members, n, &use, &want));
    MUST(c->min_ctas == left(want.min_ctas) && c->max_ctas == left(want.max_ctas) &&
             c->cga == want.cga_cluster_size,
         "%s: minCTAs %d, maxCTAs %d, cgaClusterSize %d; the plan says %d, %d, %d (%s)", what,
         c->min_ctas, c->max_ctas, c->cga, want.min_ctas, want.max_ctas, want.cga_cluster_size,
         want.why);
    MUST(c->share == left(want.split_share) && c->nvls == left(want.nvls_ctas),
         "%s: splitShare %d, nvlsCTAs %d; the plan says %d, %d (%s)", what, c->share, c->nvls,
         want.split_share, want.nvls_ctas, want.why);
    if (me.rank == 0)
        printf("%s: maxCTAs %d, splitShare %d (%s)\n", what, c->max_ctas, c->share, want.why);
}

static void compare_world(size_t *at)
{
    int all[MAX_RANKS];
    call c;
    const char *text = log_since(at);
    MUST(find_call(text, "ncclCommInitRankConfig(", "nranks=", " rank=", &c), "no world was made");
    MUST(c.color == e.ranks && c.key == me.rank && c.device == me.rank % e.each,
         "the world: rank %d of %d on device %d", c.key, c.color, c.device);
    for (int r = 0; r < e.ranks; r++)
        all[r] = r;
    same_config("world", &c, all, e.ranks);
}

static const char *no_variable(void *arg, const char *name)
{
    (void)arg;
    (void)name;
    return NULL;
}

/* The whole block: nothing missing, nothing more. */
static void compare_environment(void)
{
    tt_plan_variable list[TT_PLAN_VARIABLES];
    size_t from = 0;
    int n, seen = 0;
    char line[400];
    const char *text = log_since(&from);
    MUST_OK(tt_plan_environment(e.plan, no_variable, NULL, list, &n, NULL));
    for (const char *at = text; (at = strstr(at, "  environment NCCL_")) != NULL; at++)
        seen++;
    for (int i = 0; i < n; i++) {
        snprintf(line, sizeof line, "  environment %s=%s\n", list[i].name, list[i].value);
        MUST(strstr(text, line) != NULL, "NCCL did not see%s", line + strlen("  environment"));
        if (me.rank == 0)
            printf("%s=%s: %s\n", list[i].name, list[i].value, list[i].why);
    }
    MUST(seen == n, "NCCL saw %d variables, the plan has %d", seen, n);
}

/* Members of this rank's part along an axis, in the plan's order. */
static int members_of(int axis, int *members)
{
    int stride = 1, place = 0;
    for (int a = axis + 1; a < e.axes; a++)
        stride *= e.size[a];
    while (e.order[place] != me.rank)
        place++;
    place -= place / stride % e.size[axis] * stride;
    for (int i = 0; i < e.size[axis]; i++)
        members[i] = e.order[place + i * stride];
    return e.size[axis];
}

static void compare_axis(tutti_mesh *mesh, int axis, size_t *at)
{
    double said[2 * MAX_RANKS] = {0};
    int members[MAX_RANKS], n = members_of(axis, members);
    tutti_comm *comm;
    call c;
    (void)log_since(at);
    MUST_OK(tutti_mesh_comm(mesh, e.axis[axis], &comm));
    if (n == 1 || n == e.ranks) /* nothing to split */
        return;
    MUST(find_call(log_since(at), "ncclCommSplit(", " color=", " key=", &c), "%s was not split off",
         e.axis[axis]);
    said[me.rank] = c.color;
    said[MAX_RANKS + me.rank] = c.key;
    MUST_OK(tutti_all_reduce_host(me.comm, said, 2 * MAX_RANKS, TUTTI_SUM));
    int alike = 0;
    for (int r = 0; r < e.ranks; r++)
        alike += (int)said[r] == c.color;
    MUST(alike == n, "%s: %d ranks have colour %d, the plan has %d", e.axis[axis], alike, c.color,
         n);
    for (int i = 0; i < n; i++)
        MUST((int)said[members[i]] == c.color && (int)said[MAX_RANKS + members[i]] == i,
             "%s: rank %d has colour %d and key %d; the plan has it at %d beside rank %d (%d)",
             e.axis[axis], members[i], (int)said[members[i]], (int)said[MAX_RANKS + members[i]], i,
             me.rank, c.color);
    same_config(e.axis[axis], &c, members, n);
}

int main(int argc, char **argv)
{
    tutti_mesh *mesh;
    size_t at = 0;
    if (argc != 5)
        return 2;
    e.each = atoi(argv[2]);
    e.hosts = atoi(argv[3]);
    e.ranks = e.each * e.hosts;
    folder = argv[4];
    if (tutti_init(NULL, &me.ctx) != TUTTI_OK) {
        fprintf(stderr, "tutti_init: %s\n", tutti_last_error());
        return 1;
    }
    me.comm = tutti_world(me.ctx);
    me.rank = tutti_rank(me.comm);
    expect_plan(argv[1]);
    compare_world(&at);
    compare_environment();
    MUST_OK(tutti_mesh_create(me.ctx, argv[1], &mesh));
    for (int axis = 0; axis < e.axes; axis++)
        compare_axis(mesh, axis, &at);
    for (int i = 0; i < e.ranks && me.rank == 0; i++)
        printf("%s%d", i == 0 ? "order " : " ", e.order[i]);
    if (me.rank == 0)
        printf("\n");
    tutti_mesh_destroy(mesh);
    tt_plan_destroy(e.plan);
    tutti_topo_close(e.topo);
    MUST_OK(tutti_finalize(me.ctx));
    return 0;
}

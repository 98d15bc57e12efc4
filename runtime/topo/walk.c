/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One pass of the search: channels are built GPU after GPU, each hop taking its bandwidth from the
 * wires of its way, and the next channel starts on what is left. All orders are tried, the
 * promising ones first, until the steps of the pass are used up.
 *
 * NCCL's result depends on this order and on these limits, as its search rarely ends by having
 * tried everything; so the order of trial, the rounding and the count of steps are its own (2.28):
 * a pass visits the same states and ends where NCCL ends.
 */
#include "topo/walk.h"

typedef enum order { ORDER_FREE, ORDER_LISTED, ORDER_REPEAT } order;

/* Where a channel still has to go: to the network after `net_at` GPUs, back to its first GPU after
 * `loop_at`; -1: not. */
typedef struct course {
    int net_at, loop_at;
    order order;
} course;

enum { CHANNELS_MAX = 64 };

static void extend(tt_walk *w);
static void go_on(tt_walk *w, int gpu, int step, course c);

static int node_count(const tt_walk *w)
{
    return w->wires->n_gpus;
}

static bool may_visit(const tt_walk *w, int from, int gpu)
{
    return w->ways->gpu_gpu[from * node_count(w) + gpu].hops != 0 &&
           (w->visited[gpu] >> w->now.n & 1) == 0;
}

/* How good a next GPU is; whole numbers, as NCCL compares them. */
typedef struct score {
    int gpu;
    int hops, pcie, gbps;
} score;

/* a before b? */
static bool before(const score *a, const score *b)
{
    if (a->gbps != b->gbps)
        return a->gbps > b->gbps;
    if (a->pcie != b->pcie)
        return a->pcie > b->pcie;
    return a->hops < b->hops;
}

/* Into its place among those sorted; of equal ones the first stays first. */
static void insert(score *scores, int n, score s)
{
    for (; n > 0 && before(&s, &scores[n - 1]); n--)
        scores[n] = scores[n - 1];
    scores[n] = s;
}

/* What is left of a GPU's PCIe slot, the lesser direction. */
static int slot_left(const tt_walk *w, int gpu)
{
    const tt_node *node = &w->wires->nodes[gpu];

    for (int l = node->first; l < node->first + node->n; l++) {
        const tt_wire *wire = &w->wires->wires[l];

        if (wire->type == TT_W_PCI && wire->back >= 0)
            return (int)(w->left[l] < w->left[wire->back] ? w->left[l] : w->left[wire->back]);
    }
    return -1;
}

/* Those near the net that the channel came by first; among equals, as they were. */
static void sort_by_net(const tt_walk *w, int *next, int count)
{
    const tt_way *from_net = &w->ways->net_gpu[w->now.net[w->now.n][0] * node_count(w)];
    score scores[TT_TOPO_MAX_GPUS];

    for (int i = 0; i < count; i++) {
        const tt_way *net = &from_net[next[i]];
        score s = {next[i], net->hops, slot_left(w, next[i]), (int)net->gbps};

        insert(scores, i, s);
    }
    for (int i = 0; i < count; i++)
        next[i] = scores[i].gpu;
}

static void turn_around(int *next, int count)
{
    for (int i = 0; i < count / 2; i++) {
        int other = next[count - 1 - i];

        next[count - 1 - i] = next[i];
        next[i] = other;
    }
}

/* Behind switches a GPU should talk to few peers: only its neighbours in number are tried. */
static int neighbours(const tt_walk *w, int gpu, int *next)
{
    int n = node_count(w), prior = (gpu - 1 + n) % n, behind = (gpu + 1) % n, found = 0;
    bool balanced = w->now.shape == TT_SHAPE_BALANCED_TREE;
    int one = balanced ? behind : prior, two = balanced ? prior : behind;

    if (w->now.shape == TT_SHAPE_TREE || prior == behind)
        one = two = behind;
    if (may_visit(w, gpu, one))
        next[found++] = one;
    if (two != one && may_visit(w, gpu, two))
        next[found++] = two;
    return found;
}

/* GPUs to try next, best first. by_net: 0 no, 1 the next one goes to the network, so it should be
 * near; -1 it must not be used up yet. */
static int sort_next(const tt_walk *w, int gpu, int by_net, int *next)
{
    const int16_t *list = &w->order[gpu * node_count(w)];
    int count = 0;
    bool equal = true;

    if (w->wires->nvs >= 0)
        return neighbours(w, gpu, next);
    for (int i = 0; i < node_count(w) && list[i] >= 0; i++)
        if ((w->visited[list[i]] >> w->now.n & 1) == 0)
            next[count++] = list[i];
    if (by_net == 0)
        return count;
    for (int i = 1; i < count; i++)
        equal = equal && tt_walk_order(w, gpu, next[i], next[0]) == 0;
    sort_by_net(w, next, count);
    if (by_net == -1 && equal)
        turn_around(next, count);
    return count;
}

/* Is `now` to be kept in place of the best so far? */
static bool is_better(const tt_walk *w)
{
    const tt_channels *a = &w->now, *b = w->best;
    float ours = (float)a->n * a->intra, theirs = (float)b->n * b->intra;

    if (a->n < a->min)
        return false;
    if (a->shape == TT_SHAPE_NVLS)
        return (a->n > b->n && a->n <= node_count(w)) ||
               (float)a->n * a->inter > (float)b->n * b->inter;
    if (ours != theirs)
        return ours > theirs;
    return a->shape == b->shape && a->cross_nic == b->cross_nic && a->hops < b->hops;
}

static void finish_channel(tt_walk *w)
{
    w->now.n++;
    if (is_better(w)) {
        *w->best = w->now;
        if (w->now.n == w->now.max)
            w->steps = -1;
    }
    if (w->now.n < w->now.max)
        extend(w);
    w->now.n--;
}

/* From a node (-1: out of nothing) to a GPU, and on from there. */
static void try_gpu(tt_walk *w, int from, int gpu, int step, course c)
{
    uint64_t bit = UINT64_C(1) << w->now.n;

    if (from >= 0 && !tt_walk_follow(w, from, gpu, 1))
        return;
    w->visited[gpu] ^= bit;
    go_on(w, gpu, step, c);
    w->visited[gpu] ^= bit;
    if (from >= 0)
        (void)tt_walk_follow(w, from, gpu, -1);
}

static bool same_rail(const tt_walk *w, int one, int two)
{
    return w->rail[one] == w->rail[two];
}

static void add_unique(int *nets, int *n, int net)
{
    for (int i = 0; i < *n; i++)
        if (nets[i] == net)
            return;
    nets[(*n)++] = net;
}

/* A GPU's nets in turn of its channels. */
static void add_own_nets(const tt_walk *w, int gpu, int *nets, int *n)
{
    int count = tt_ways_net_count(w->ways, gpu);

    for (int channel = 0; channel < count && channel < CHANNELS_MAX; channel++)
        add_unique(nets, n, tt_ways_net(w->ways, gpu, channel));
}

/* The nets of one machine come GPU by GPU, those of several in turns. */
static void add_preferred(const tt_walk *w, int gpu, int *nets, int *n)
{
    const tt_machine *m = w->wires->machine;
    bool several = m->n_numa > 0 && m->numa[m->n_numa - 1].system > 0;

    if (gpu >= 0 || !several) {
        for (int g = 0; g < node_count(w); g++)
            if (gpu < 0 || g == gpu)
                add_own_nets(w, g, nets, n);
        return;
    }
    for (int channel = 0; channel < CHANNELS_MAX; channel++)
        for (int g = 0; g < node_count(w); g++)
            if (channel < tt_ways_net_count(w->ways, g))
                add_unique(nets, n, tt_ways_net(w->ways, g, channel));
}

/* Nets to try for a GPU (-1: for any): its own, then all others no further than allowed. */
static int collect_nets(const tt_walk *w, int gpu, int *nets)
{
    int n = 0;

    add_preferred(w, gpu, nets, &n);
    for (int type = 0; type <= w->now.type_inter; type++)
        for (int g = 0; g < node_count(w); g++)
            for (int net = 0; (gpu < 0 || g == gpu) && net < w->wires->n_nets && net < CHANNELS_MAX;
                 net++)
                if (w->ways->gpu_net[g * w->wires->n_nets + net].type == type)
                    add_unique(nets, &n, net);
    return n;
}

/* The lists of all GPUs, and of none, as they are for the paths allowed in this pass. */
static void list_nets(tt_walk *w)
{
    int nets[TT_TOPO_MAX_NICS];

    if (!w->inter || w->nets_type == w->now.type_inter)
        return;
    w->nets_type = w->now.type_inter;
    for (int g = -1; g < node_count(w); g++) {
        tt_net_list *list = &w->nets[g + 1];

        list->n = collect_nets(w, g, nets);
        for (int i = 0; i < list->n; i++)
            list->net[i] = (int16_t)nets[i];
    }
}

/* May the channel that came by one net leave by the other? */
static bool may_leave(const tt_walk *w, int in, int out, int step)
{
    const tt_channels *c = &w->now;

    if (c->shape == TT_SHAPE_TREE && out != in)
        return false;
    if (c->shape == TT_SHAPE_RING && c->cross_nic == 2) {
        if ((c->n & 1) != 0 && out != c->net[c->n - 1][0])
            return false;
    } else if (c->cross_nic == 0 && !same_rail(w, in, out)) {
        return false;
    }
    return c->shape != TT_SHAPE_BALANCED_TREE || step == 0 || out == c->net[c->n][1];
}

/* To the network: in a balanced tree half each at the first two GPUs. */
static void leave(tt_walk *w, int gpu, int step, course c)
{
    const tt_net_list *nets = &w->nets[gpu + 1];
    int in = w->now.net[w->now.n][0];
    bool halves = w->now.shape == TT_SHAPE_BALANCED_TREE;
    float whole = w->now.inter;
    course on = c;

    if (!w->inter)
        return;
    on.net_at = halves && step == 0 ? 1 : -1;
    for (int i = 0; i < nets->n; i++) {
        int net = tt_net_node(w->wires, nets->net[i]);
        bool good;

        if (!may_leave(w, in, nets->net[i], step))
            continue;
        w->now.inter = halves ? whole / 2 : whole;
        good = tt_walk_follow(w, gpu, net, 1);
        w->now.inter = whole;
        if (!good)
            continue;
        w->now.net[w->now.n][1] = nets->net[i];
        go_on(w, gpu, step, on);
        w->now.inter = halves ? whole / 2 : whole;
        (void)tt_walk_follow(w, gpu, net, -1);
        w->now.inter = whole;
    }
}

/* All GPUs' traffic with the switch, the head's twice. */
static void try_nvls(tt_walk *w, int head)
{
    int n = node_count(w), nvs = w->wires->nvs, down = 0, up = 0;

    while (down < n && tt_walk_follow(w, nvs, down, down == head ? 2 : 1))
        down++;
    if (down == n) {
        while (up < n && tt_walk_follow(w, up, nvs, up == head ? 2 : 1))
            up++;
        if (up == n) {
            course none = {-1, -1, ORDER_FREE};

            go_on(w, -1, n, none);
        }
    }
    while (up-- > 0)
        (void)tt_walk_follow(w, up, nvs, up == head ? -2 : -1);
    while (down-- > 0)
        (void)tt_walk_follow(w, nvs, down, down == head ? -2 : -1);
}

static void try_next(tt_walk *w, int gpu, int step, course c)
{
    int next[TT_TOPO_MAX_GPUS], count = 1;

    if (c.order == ORDER_LISTED)
        next[0] = step + 1;
    else if (c.order == ORDER_REPEAT)
        next[0] = w->now.gpu[w->now.n - 1][step + 1];
    else
        count = sort_next(w, gpu, c.net_at == -1 ? 0 : c.net_at == step + 1 ? 1 : -1, next);
    for (int i = 0; i < count; i++)
        try_gpu(w, gpu, next[i], step + 1, c);
}

static void go_on(tt_walk *w, int gpu, int step, course c)
{
    int n = node_count(w);

    if (w->steps <= 0)
        return;
    w->steps--;
    if (step == n) {
        finish_channel(w);
        return;
    }
    w->now.gpu[w->now.n][step] = (int16_t)gpu;
    if (step == c.net_at) {
        leave(w, gpu, step, c);
    } else if (w->now.shape == TT_SHAPE_NVLS) {
        try_nvls(w, gpu);
    } else if (step < n - 1) {
        try_next(w, gpu, step, c);
    } else if (step == c.loop_at) {
        int first = w->now.gpu[w->now.n][0];

        c.loop_at = -1;
        if (tt_walk_follow(w, gpu, first, 1)) {
            go_on(w, first, step + 1, c);
            (void)tt_walk_follow(w, gpu, first, -1);
        }
    } else {
        c.net_at = c.loop_at = -1;
        go_on(w, gpu, n, c);
    }
}

/* A head for NVLS: the GPU nearest to this net, once. */
static bool try_head(tt_walk *w, int net, course c)
{
    int gpu = w->ways->net_local_gpu[net];

    if (gpu < 0)
        return false;
    for (int channel = 0; channel < w->now.n; channel++)
        if (w->now.gpu[channel][0] == gpu)
            return false;
    try_gpu(w, tt_net_node(w->wires, net), gpu, 0, c);
    return true;
}

/* From a net into the GPUs: as the channel before, or in the order listed (a quick first result),
 * and then from each of the nearest GPUs. */
static void enter(tt_walk *w, int net, course c)
{
    int from = tt_net_node(w->wires, net), near = w->ways->net_local_gpu[net];
    int gpus[TT_TOPO_MAX_GPUS], n, type;

    if (w->now.n > 0 && w->now.same) {
        c.order = ORDER_REPEAT;
        try_gpu(w, from, w->now.gpu[w->now.n - 1][0], 0, c);
        return;
    }
    if (w->now.n == 0 && w->wires->nvs < 0) {
        int saved = w->steps;

        c.order = ORDER_LISTED;
        w->steps = 1 << 10;
        try_gpu(w, from, 0, 0, c);
        w->steps = w->steps == -1 ? -1 : saved;
        c.order = ORDER_FREE;
    }
    if (near >= 0)
        try_gpu(w, from, near, 0, c);
    n = tt_ways_local_gpus(w->ways, net, gpus, &type);
    for (int i = 0; i < n && type != TUTTI_PATH_DIS; i++)
        if (gpus[i] != near)
            try_gpu(w, from, gpus[i], 0, c);
}

static void reserve_rail(tt_walk *w, int net, float gbps)
{
    for (int i = 0; i < w->wires->n_nets; i++)
        if (same_rail(w, i, net))
            w->net_left[i] -= gbps;
}

static void extend_from_nets(tt_walk *w, course c)
{
    const tt_net_list *nets = &w->nets[0];
    int n = nets->n;
    float gbps = (float)(int)w->now.inter; /* whole GB/s, as NCCL reserves them */
    bool found = false;

    for (int i = 0; i < n && !found; i++) {
        int net = nets->net[(w->now.n + i) % n];
        const tt_channels *now = &w->now;

        if (w->net_left[net] < gbps)
            continue;
        if (now->shape == TT_SHAPE_RING && now->cross_nic == 2 && (now->n & 1) != 0 &&
            net != now->net[now->n - 1][1])
            continue;
        w->now.net[now->n][0] = (int16_t)net;
        reserve_rail(w, net, gbps);
        if (now->shape != TT_SHAPE_NVLS)
            enter(w, net, c);
        else if (now->n < n)
            found = try_head(w, net, c);
        reserve_rail(w, net, -gbps);
    }
}

static void extend_inside(tt_walk *w, course c)
{
    if (w->now.shape == TT_SHAPE_NVLS) {
        try_gpu(w, -1, w->now.n, 0, c);
        return;
    }
    c.order = w->now.n == 0 ? ORDER_LISTED : ORDER_REPEAT;
    try_gpu(w, -1, w->now.n == 0 ? 0 : w->now.gpu[w->now.n - 1][0], 0, c);
    if (w->now.same && w->now.n > 0)
        return;
    c.order = ORDER_FREE;
    for (int g = 0; g < node_count(w); g++)
        try_gpu(w, -1, g, 0, c);
}

/* One more channel. */
static void extend(tt_walk *w)
{
    int last = node_count(w) - 1;
    bool ring = w->now.shape == TT_SHAPE_RING;
    course c = {-1, -1, ORDER_FREE};

    if (w->inter) {
        c.net_at = ring ? last : 0;
        extend_from_nets(w, c);
    } else {
        c.loop_at = ring ? last : -1;
        extend_inside(w, c);
    }
}

void tt_walk_run(tt_walk *walk)
{
    list_nets(walk);
    walk->now.n = 0;
    extend(walk);
}

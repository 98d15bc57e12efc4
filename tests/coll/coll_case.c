/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases. A buffer of a lane begins behind a painted border, at an offset that may be odd. It is
 * filled, and looked at, in the lane's shadow (a GPU's memory is out of the host's reach). Contents
 * of `in` are ref_value() of this rank, whatever the kind; what `out` must hold follows from the
 * kind's definition in coll.h, element by element (expected()).
 */
#include "coll_case.h"
#include "tt_memory.h"

enum { BORDER = 128, PAINT = 0xe7 };

/* This rank's buffers of a case. */
typedef struct buffers {
    unsigned char *in, *out; /* as passed, in place included */
    unsigned char *area[2]; /* what was painted: for in, for out */
    size_t in_n, out_n; /* elements */
    size_t in_at, out_at; /* offset in elements of one in the other, in place */
} buffers;

bool lanes_create(tt_rank *r, size_t bytes, lane lanes[LANES])
{
    void *registered;
    if (tutti_alloc(r->comm, bytes * LANES, &registered) != TUTTI_OK) {
        tt_say(r, "tutti_alloc: %s", tutti_last_error());
        return false;
    }
    unsigned char *plain = tt_plain_alloc(r->ctx, bytes * LANES), *shadow = malloc(bytes * LANES);
    for (size_t i = 0; i < LANES; i++)
        lanes[i] = (lane){(unsigned char *)registered + i * bytes, plain + i * bytes,
                          shadow + i * bytes, bytes};
    return plain != NULL && shadow != NULL;
}

void lanes_destroy(tt_rank *r, lane lanes[LANES])
{
    if (tutti_free(r->comm, lanes[0].registered) != TUTTI_OK)
        tt_say(r, "tutti_free: %s", tutti_last_error());
    tt_plain_free(r->ctx, lanes[0].plain);
    free(lanes[0].shadow);
}

/* Elements that a sends to b, or that r gives or gets, in v-variants. */
static size_t count_of(const coll_case *c, int a, int b)
{
    uint64_t x = ref_mix(c->seed + 17, (uint64_t)(a * MAX_TEAM + b));
    return !c->v ? c->n : x % 4 == 0 ? 0 : x / 4 % (c->n + 1);
}

static size_t before(const coll_case *c, int a, int b, bool receiving)
{
    size_t sum = 0;
    for (int i = 0; i < b; i++)
        sum += receiving ? count_of(c, i, a) : count_of(c, a, i);
    return sum;
}

static size_t in_elements(const coll_case *c, const team *t)
{
    size_t all = c->n * (size_t)t->size;
    switch (c->kind) {
    case TT_REDUCE_SCATTER:
        return before(c, 0, t->size, false);
    case TT_ALL_GATHER:
        return count_of(c, 0, t->rank);
    case TT_BROADCAST:
        return t->rank == c->root ? c->n : 0;
    case TT_SCATTER:
        return t->rank == c->root ? all : 0;
    case TT_ALL_TO_ALL:
        return before(c, t->rank, t->size, false);
    default:
        return c->n;
    }
}

static size_t out_elements(const coll_case *c, const team *t)
{
    size_t all = c->n * (size_t)t->size;
    switch (c->kind) {
    case TT_REDUCE_SCATTER:
        return count_of(c, 0, t->rank);
    case TT_ALL_GATHER:
        return before(c, 0, t->size, false);
    case TT_BROADCAST:
        return c->out_null && t->rank == c->root ? 0 : c->n;
    case TT_REDUCE:
        return t->rank == c->root ? c->n : 0;
    case TT_GATHER:
        return t->rank == c->root ? all : 0;
    case TT_ALL_TO_ALL:
        return before(c, t->rank, t->size, true);
    default:
        return c->n;
    }
}

static unsigned char *area_of(const coll_case *c, const team *t, const lane *l, int which)
{
    bool registered = c->memory == MEM_REGISTERED;
    if (c->memory == MEM_MIXED)
        registered = ref_mix(c->seed, (uint64_t)(2 * t->rank + which)) % 2 == 0;
    return (registered ? l->registered : l->plain) + (size_t)which * l->bytes / 2;
}

/* The place in the lane's shadow of an address in one of the case's areas. */
static unsigned char *shadow_of(const coll_case *c, const team *t, const lane *l,
                                const unsigned char *at)
{
    size_t half = l->bytes / 2;
    for (size_t i = 0; i < 2; i++) {
        const unsigned char *area = area_of(c, t, l, (int)i);
        if (at >= area && at < area + half)
            return l->shadow + i * half + (at - area);
    }
    return NULL;
}

static int shift_of(const coll_case *c, const team *t)
{
    int element = (int)tutti_dtype_size(c->dtype);
    return tt_on_gpu(t->comm->ctx) ? c->shift / element * element : c->shift;
}

/* NCCL's sums follow no order, and its averages divide before they add. */
static bool any_order(const coll_case *c, const team *t)
{
    return tt_on_gpu(t->comm->ctx) && !t->reproducible && tt_is_reduction(c->kind);
}

static ref_values values_of(const coll_case *c, const team *t)
{
    if (any_order(c, t) && c->op == TUTTI_PROD)
        return REF_POWERS;
    return any_order(c, t) && c->values == REF_ROUGH ? REF_EXACT : c->values;
}

static tutti_op op_of(const coll_case *c, const team *t)
{
    bool exact = (t->size & (t->size - 1)) == 0;
    return c->op == TUTTI_AVG && any_order(c, t) && !exact ? TUTTI_SUM : c->op;
}

static buffers buffers_of(const coll_case *c, const team *t, const lane *l)
{
    buffers b = {.in_n = in_elements(c, t), .out_n = out_elements(c, t)};
    size_t element = tutti_dtype_size(c->dtype);
    for (int i = 0; i < 2; i++)
        b.area[i] = area_of(c, t, l, i) + BORDER + shift_of(c, t);
    b.in = b.area[0];
    b.out = b.area[1];
    bool root = t->rank == c->root;
    if (!c->in_place || c->kind == TT_ALL_TO_ALL || c->kind == TT_SEND)
        return b;
    if (c->kind == TT_REDUCE_SCATTER)
        b.out_at = before(c, 0, t->rank, false);
    if (c->kind == TT_ALL_GATHER)
        b.in_at = before(c, 0, t->rank, false);
    if (c->kind == TT_GATHER && root)
        b.in_at = c->n * (size_t)t->rank;
    if (c->kind == TT_SCATTER && root)
        b.out_at = c->n * (size_t)t->rank;
    if (c->kind == TT_ALL_REDUCE || c->kind == TT_REDUCE_SCATTER || c->kind == TT_ALL_GATHER ||
        root) {
        b.out = b.in + b.out_at * element;
        b.in = b.in + b.in_at * element;
    }
    return b;
}

static tutti_status fill(const coll_case *c, const team *t, const lane *l, const buffers *b)
{
    size_t element = tutti_dtype_size(c->dtype), half = l->bytes / 2;
    memset(l->shadow, PAINT, l->bytes);
    unsigned char *in = shadow_of(c, t, l, b->in);
    for (size_t i = 0; i < b->in_n; i++)
        ref_value(c->seed, t->world[t->rank], i, c->dtype, values_of(c, t), in + i * element);
    for (size_t i = 0; i < 2; i++)
        TT_TRY(tt_put(t->comm->ctx, area_of(c, t, l, (int)i), l->shadow + i * half, half));
    return TUTTI_OK;
}

static tutti_status issue_p2p(const coll_case *c, const team *t, const buffers *b, tutti_stream s)
{
    int to = (t->rank + c->root) % t->size, from = (t->rank - c->root + t->size) % t->size;
    size_t element = tutti_dtype_size(c->dtype), half = c->n / 2;
    tutti_status status = tutti_group_begin();
    /* two messages each way, so that their order matters */
    if (status == TUTTI_OK)
        status = tutti_send(t->comm, b->in, half, c->dtype, to, s);
    if (status == TUTTI_OK)
        status = tutti_send(t->comm, b->in + half * element, c->n - half, c->dtype, to, s);
    if (status == TUTTI_OK)
        status = tutti_recv(t->comm, b->out, half, c->dtype, from, s);
    if (status == TUTTI_OK)
        status = tutti_recv(t->comm, b->out + half * element, c->n - half, c->dtype, from, s);
    return status == TUTTI_OK ? tutti_group_end() : status;
}

static tutti_status issue_v(const coll_case *c, const team *t, const buffers *b, tutti_stream s)
{
    size_t counts[MAX_TEAM], receives[MAX_TEAM];
    int row = c->kind == TT_ALL_TO_ALL ? t->rank : 0;
    for (int i = 0; i < t->size; i++) {
        counts[i] = count_of(c, row, i);
        receives[i] = count_of(c, i, row);
    }
    if (c->kind == TT_REDUCE_SCATTER)
        return tutti_reduce_scatterv(t->comm, b->in, b->out, counts, c->dtype, op_of(c, t), s);
    if (c->kind == TT_ALL_GATHER)
        return tutti_all_gatherv(t->comm, b->in, b->out, counts, c->dtype, s);
    return tutti_all_to_allv(t->comm, b->in, counts, b->out, receives, c->dtype, s);
}

static tutti_status issue_on(const coll_case *c, const team *t, const buffers *b, tutti_stream s)
{
    bool root = t->rank == c->root;
    if (c->v)
        return issue_v(c, t, b, s);
    switch (c->kind) {
    case TT_ALL_REDUCE:
        return tutti_all_reduce(t->comm, b->in, b->out, c->n, c->dtype, op_of(c, t), s);
    case TT_REDUCE_SCATTER:
        return tutti_reduce_scatter(t->comm, b->in, b->out, c->n, c->dtype, op_of(c, t), s);
    case TT_ALL_GATHER:
        return tutti_all_gather(t->comm, b->in, b->out, c->n, c->dtype, s);
    case TT_BROADCAST:
        return tutti_broadcast(t->comm, root ? b->in : NULL, root && c->out_null ? NULL : b->out,
                               c->n, c->dtype, c->root, s);
    case TT_REDUCE:
        return tutti_reduce(t->comm, b->in, root ? b->out : NULL, c->n,
                            (tutti_reduction){c->dtype, op_of(c, t)}, c->root, s);
    case TT_GATHER:
        return tutti_gather(t->comm, b->in, root ? b->out : NULL, c->n, c->dtype, c->root, s);
    case TT_SCATTER:
        return tutti_scatter(t->comm, root ? b->in : NULL, b->out, c->n, c->dtype, c->root, s);
    case TT_ALL_TO_ALL:
        return tutti_all_to_all(t->comm, b->in, b->out, c->n, c->dtype, s);
    default:
        return issue_p2p(c, t, b, s);
    }
}

tutti_status case_issue(const coll_case *c, const team *t, const lane *l, tutti_stream stream)
{
    buffers b = buffers_of(c, t, l);
    TT_TRY(fill(c, t, l, &b));
    return issue_on(c, t, &b, stream);
}

/* The member and the index there that element i of `out` comes from, or *member = -1: reduced. */
static void source_of(const coll_case *c, const team *t, size_t i, int *member, size_t *index)
{
    *member = -1;
    *index = i;
    switch (c->kind) {
    case TT_ALL_REDUCE:
    case TT_REDUCE:
        return;
    case TT_REDUCE_SCATTER:
        *index = before(c, 0, t->rank, false) + i;
        return;
    case TT_BROADCAST:
        *member = c->root;
        return;
    case TT_SCATTER:
        *member = c->root;
        *index = (size_t)t->rank * c->n + i;
        return;
    case TT_SEND:
        *member = (t->rank - c->root + t->size) % t->size;
        return;
    default:
        break;
    }
    bool pairs = c->kind == TT_ALL_TO_ALL;
    int from = 0;
    for (;; from++) { /* all_gather, gather, all_to_all: back to back */
        size_t n = pairs ? count_of(c, from, t->rank) : count_of(c, 0, from);
        if (*index < n)
            break;
        *index -= n;
    }
    *member = from;
    if (pairs)
        *index += before(c, from, t->rank, false);
}

static void expected(const coll_case *c, const team *t, size_t i, unsigned char *element)
{
    int member;
    size_t index;
    source_of(c, t, i, &member, &index);
    if (member < 0)
        ref_reduced(t, c->seed, index, c->dtype, op_of(c, t), values_of(c, t), element);
    else
        ref_value(c->seed, t->world[member], index, c->dtype, values_of(c, t), element);
}

static const char *const memory_names[] = {"plain", "registered", "mixed"};

void case_text(const coll_case *c, const team *t, char *buf, size_t cap)
{
    snprintf(buf, cap,
             "%s%s of %zu %s, op %d, root %d, %s%s%s, shift %d, values %d, seed %llu, rank %d of %d"
             "%s",
             tt_kind_name(c->kind), c->v ? "v" : "", c->n, tutti_dtype_name(c->dtype), (int)c->op,
             c->root, memory_names[c->memory], c->in_place ? ", in place" : "",
             c->out_null ? ", no out" : "", c->shift, (int)c->values, (unsigned long long)c->seed,
             t->rank, t->size, t->reproducible ? ", reproducible" : "");
}

static bool differs(tt_rank *r, const coll_case *c, const team *t, const char *what, size_t i)
{
    char text[256];
    case_text(c, t, text, sizeof text);
    tt_say(r, "%s: %s %zu is wrong", text, what, i);
    return false;
}

/* Everything of an area but [from, from + bytes) is still painted. */
static bool painted(const unsigned char *area, size_t area_bytes, const unsigned char *from,
                    size_t bytes)
{
    for (size_t i = 0; i < area_bytes; i++) {
        const unsigned char *at = area + i;
        if (*at != PAINT && (at < from || at >= from + bytes))
            return false;
    }
    return true;
}

static bool check_borders(tt_rank *r, const coll_case *c, const team *t, const lane *l,
                          const buffers *b)
{
    size_t element = tutti_dtype_size(c->dtype), half = l->bytes / 2;
    const unsigned char *in = shadow_of(c, t, l, b->in), *out = shadow_of(c, t, l, b->out);
    size_t in_bytes = b->in_n * element, out_bytes = b->out_n * element;
    const unsigned char *area[2] = {l->shadow, l->shadow + half};
    if (out < area[1] || out >= area[1] + half) {
        in = shadow_of(c, t, l, b->area[0]); /* in place: one area holds both */
        in_bytes = in_bytes > out_bytes ? in_bytes : out_bytes;
        out = area[1];
        out_bytes = 0;
    }
    if (!painted(area[0], half, in, in_bytes))
        return differs(r, c, t, "border of `in`", 0);
    return painted(area[1], half, out, out_bytes) || differs(r, c, t, "border of `out`", 0);
}

static bool fetch(tt_rank *r, const coll_case *c, const team *t, const lane *l)
{
    size_t half = l->bytes / 2;
    for (size_t i = 0; i < 2; i++)
        if (tt_get(t->comm->ctx, l->shadow + i * half, area_of(c, t, l, (int)i), half) !=
            TUTTI_OK) {
            tt_say(r, "cannot read the result: %s", tutti_last_error());
            return false;
        }
    return true;
}

bool case_check(tt_rank *r, const coll_case *c, const team *t, const lane *l)
{
    buffers b = buffers_of(c, t, l);
    size_t element = tutti_dtype_size(c->dtype);
    unsigned char want[8];
    bool in_place = b.out < b.area[0] + l->bytes / 2 && b.out >= b.area[0];
    if (!fetch(r, c, t, l))
        return false;
    const unsigned char *in = shadow_of(c, t, l, b.in), *out = shadow_of(c, t, l, b.out);
    for (size_t i = 0; i < b.out_n; i++) {
        expected(c, t, i, want);
        if (memcmp(want, out + i * element, element) != 0)
            return differs(r, c, t, "element", i);
    }
    for (size_t i = 0; i < b.in_n && (!in_place || b.out_n == 0); i++) {
        ref_value(c->seed, t->world[t->rank], i, c->dtype, values_of(c, t), want);
        if (memcmp(want, in + i * element, element) != 0)
            return differs(r, c, t, "element of `in`", i);
    }
    return check_borders(r, c, t, l, &b);
}

static size_t random_n(tt_rng *rng, const team *t, size_t limit, size_t chunk_elements)
{
    size_t size = (size_t)t->size, n = 0;
    switch (tt_rand_below(rng, 8)) {
    case 0:
        n = tt_rand_below(rng, 4);
        break;
    case 1:
        n = size - 1 + tt_rand_below(rng, 3);
        break;
    case 2:
        n = chunk_elements + tt_rand_below(rng, 3) - 1;
        break;
    case 3:
        n = 2 * chunk_elements * size + tt_rand_below(rng, 3) - 1;
        break;
    case 4:
        n = chunk_elements / size + tt_rand_below(rng, 3);
        break;
    case 5:
        n = tt_rand_below(rng, limit + 1);
        break;
    default:
        n = tt_rand_below(rng, 300);
    }
    return n < limit ? n : limit;
}

coll_case case_random(tt_rng *rng, const team *t, size_t lane_bytes, size_t chunk_bytes)
{
    coll_case c = {.kind = (tt_kind)tt_rand_below(rng, TT_RECV),
                   .dtype = (tutti_dtype)(1 + tt_rand_below(rng, TUTTI_UINT64)),
                   .op = (tutti_op)(1 + tt_rand_below(rng, TUTTI_PROD)),
                   .root = (int)tt_rand_below(rng, (uint64_t)t->size),
                   .in_place = tt_rand_below(rng, 3) == 0,
                   .out_null = tt_rand_below(rng, 4) == 0,
                   .memory = (case_memory)tt_rand_below(rng, 3),
                   .shift = tt_rand_below(rng, 3) == 0 ? (int)tt_rand_below(rng, 64) : 0,
                   .values = tt_rand_below(rng, 4) == 0 ? REF_EXACT : REF_ROUGH,
                   .seed = tt_rand(rng)};
    size_t element = tutti_dtype_size(c.dtype);
    size_t room = lane_bytes / 2 - 2 * BORDER - 64;
    bool each = c.kind != TT_ALL_REDUCE && c.kind != TT_BROADCAST && c.kind != TT_REDUCE &&
                c.kind != TT_SEND;
    if (c.op == TUTTI_PROD)
        c.values = REF_PRODUCT;
    c.v = (c.kind == TT_ALL_TO_ALL || c.kind == TT_ALL_GATHER || c.kind == TT_REDUCE_SCATTER) &&
          tt_rand_below(rng, 2) == 0;
    c.n = random_n(rng, t, room / element / (each ? (size_t)t->size : 1), chunk_bytes / element);
    return c;
}

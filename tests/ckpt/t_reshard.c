/* SPDX-License-Identifier: Apache-2.0 */
/* Any boxes of N ranks load as any boxes of M ranks, bit for bit. */
#include "ckpt_test.h"

#include "tt_memory.h"

enum { MAX_TENSORS = 6, MAX_BOXES = 24, MAX_RANKS = 8 };

typedef struct box {
    int64_t offset[TUTTI_CKPT_MAX_DIMS], extent[TUTTI_CKPT_MAX_DIMS];
    unsigned holders; /* bit per rank */
} box;

typedef struct model {
    char dir[PATH_CAP];
    uint64_t seed;
    int ranks, ntensor;
    struct {
        char name[32];
        tutti_dtype dtype;
        int ndim, nbox;
        int64_t shape[TUTTI_CKPT_MAX_DIMS];
        box box[MAX_BOXES];
    } tensor[MAX_TENSORS];
} model;

/* Cuts boxes at random until there are `want`, or none can be cut. */
static int cut(tt_rng *rng, box *boxes, int ndim, int want)
{
    int n = 1;
    for (int tries = 0; n < want && tries < 50; tries++) {
        box *b = &boxes[tt_rand_below(rng, (uint64_t)n)];
        int d = ndim == 0 ? 0 : (int)tt_rand_below(rng, (uint64_t)ndim);
        if (ndim == 0 || b->extent[d] < 2)
            continue;
        int64_t at = 1 + (int64_t)tt_rand_below(rng, (uint64_t)b->extent[d] - 1);
        boxes[n] = *b;
        boxes[n].offset[d] += at;
        boxes[n++].extent[d] -= at;
        b->extent[d] = at;
    }
    return n;
}

static void model_make(model *m, int ranks, uint64_t seed)
{
    tt_rng rng = {seed};
    m->seed = seed;
    m->ranks = ranks;
    m->ntensor = 1 + (int)tt_rand_below(&rng, MAX_TENSORS);
    for (int i = 0; i < m->ntensor; i++) {
        int64_t big = tt_rand_below(&rng, 4) == 0 ? 40 : 9;
        snprintf(m->tensor[i].name, sizeof m->tensor[i].name, "t%d/x%d", i % 2, i);
        m->tensor[i].dtype = (tutti_dtype)(1 + tt_rand_below(&rng, TUTTI_FLOAT8_E5M2));
        m->tensor[i].ndim = (int)tt_rand_below(&rng, 5);
        memset(&m->tensor[i].box[0], 0, sizeof m->tensor[i].box[0]);
        for (int d = 0; d < m->tensor[i].ndim; d++) {
            int64_t n = (int64_t)tt_rand_below(&rng, (uint64_t)(d < 3 ? big : 5) + 1);
            m->tensor[i].shape[d] = n > 0 || tt_rand_below(&rng, 8) == 0 ? n : 1;
            m->tensor[i].box[0].extent[d] = m->tensor[i].shape[d];
        }
        m->tensor[i].nbox =
            cut(&rng, m->tensor[i].box, m->tensor[i].ndim, 1 + (int)tt_rand_below(&rng, MAX_BOXES));
        for (int b = 0; b < m->tensor[i].nbox; b++) {
            m->tensor[i].box[b].holders = 1u << tt_rand_below(&rng, (uint64_t)ranks);
            if (tt_rand_below(&rng, 3) == 0)
                m->tensor[i].box[b].holders |= (unsigned)tt_rand(&rng) & ((1u << ranks) - 1);
        }
    }
}

/* Its data: filled, or to be read into. */
static tutti_tensor tensor_of(tt_rank *r, const model *m, int i, const box *b, bool fill)
{
    tutti_tensor t = TUTTI_TENSOR_INIT;
    t.name = m->tensor[i].name;
    t.dtype = m->tensor[i].dtype;
    t.ndim = m->tensor[i].ndim;
    memcpy(t.shape, m->tensor[i].shape, sizeof t.shape);
    memcpy(t.offset, b->offset, sizeof t.offset);
    memcpy(t.extent, b->extent, sizeof t.extent);
    if (box_make(r, &t, fill, m->seed + (uint64_t)i) != TUTTI_OK)
        tt_say(r, "no memory for %s: %s", t.name, tutti_last_error());
    return t;
}

static void save_body(tt_rank *r)
{
    const model *m = r->arg;
    tutti_ckpt *ck;
    TT_EXPECT_OK(r, tutti_ckpt_begin(r->ctx, m->dir, 7, &ck));
    tutti_tensor kept[MAX_TENSORS * MAX_BOXES];
    tutti_stream stream;
    int n = 0;
    for (int i = 0; i < m->ntensor; i++) {
        for (int b = 0; b < m->tensor[i].nbox; b++) {
            if ((m->tensor[i].box[b].holders >> r->rank & 1) == 0)
                continue;
            kept[n] = tensor_of(r, m, i, &m->tensor[i].box[b], true);
            if (tutti_ckpt_add(ck, &kept[n++]) != TUTTI_OK)
                tt_say(r, "add: %s", tutti_last_error());
        }
    }
    tutti_ckpt_save_opts opts = TUTTI_CKPT_SAVE_OPTS_INIT;
    opts.flags = TUTTI_CKPT_SYNC;
    TT_EXPECT_OK(r, tt_first_stream(r->ctx, &stream));
    tutti_status status = tutti_ckpt_commit(ck, stream, &opts);
    if (status == TUTTI_OK)
        status = tutti_stream_sync(r->ctx, stream);
    while (n > 0)
        box_free(r, &kept[--n]);
    tutti_stream_destroy(r->ctx, stream);
    TT_EXPECT_OK(r, status);
}

static void load_body(tt_rank *r)
{
    const model *m = r->arg;
    tt_rng rng = {m->seed * 31 + (uint64_t)r->rank};
    tutti_ckpt_reader *rd;
    tutti_tensor all[MAX_TENSORS * 3];
    tutti_stream stream;
    size_t n = 0;
    TT_EXPECT_OK(r, tt_first_stream(r->ctx, &stream));
    TT_EXPECT_OK(r, tutti_ckpt_open(r->ctx, m->dir, -1, &rd));
    for (int i = 0; i < m->ntensor; i++) {
        box boxes[3];
        memcpy(boxes, m->tensor[i].box, sizeof boxes[0]);
        memset(boxes[0].offset, 0, sizeof boxes[0].offset);
        memcpy(boxes[0].extent, m->tensor[i].shape, sizeof boxes[0].extent);
        int cuts = cut(&rng, boxes, m->tensor[i].ndim, 1 + (int)tt_rand_below(&rng, 3));
        for (int b = 0; b < cuts; b++)
            if (tt_rand_below(&rng, 5) != 0)
                all[n++] = tensor_of(r, m, i, &boxes[b], false);
    }
    tutti_status status = tutti_ckpt_read(rd, all, n, stream);
    tutti_ckpt_close(rd);
    if (status == TUTTI_OK)
        status = tutti_stream_sync(r->ctx, stream);
    tutti_stream_destroy(r->ctx, stream);
    if (status != TUTTI_OK)
        tt_say(r, "read: %s", tutti_last_error());
    while (n-- > 0) {
        int i = all[n].name[strlen(all[n].name) - 1] - '0';
        if (status == TUTTI_OK && !box_same(r, &all[n], m->seed + (uint64_t)i))
            tt_say(r, "%s differs", all[n].name);
        box_free(r, &all[n]);
    }
}

static void reshard(int seeds, int every, uint64_t first)
{
    model *m = calloc(1, sizeof *m);
    for (int from = 1; from <= MAX_RANKS; from++) {
        for (int s = 0; s < seeds; s++) {
            scratch_make(m->dir);
            model_make(m, from, first + (uint64_t)(from * 100 + s));
            const char *report = tt_ranks_run(from, NULL, save_body, m);
            for (int to = 1 + s % every; to <= MAX_RANKS && report[0] == '\0'; to += every)
                report = tt_ranks_run(to, NULL, load_body, m);
            if (report[0] != '\0')
                fail_msg("%d ranks, seed %llu: %s", from, (unsigned long long)m->seed, report);
            scratch_remove(m->dir);
        }
    }
    free(m);
}

static void small_blocks(void **state)
{
    (void)state;
    setenv("TUTTI_CKPT_BLOCK_BYTES", "4096", 1);
    reshard(2, 3, 1);
    unsetenv("TUTTI_CKPT_BLOCK_BYTES");
}

static void default_blocks(void **state)
{
    (void)state;
    reshard(1, 4, 1000);
}

static void many_seeds(void **state)
{
    (void)state;
    setenv("TUTTI_CKPT_BLOCK_BYTES", "8192", 1);
    reshard(40, 1, 5000);
    unsetenv("TUTTI_CKPT_BLOCK_BYTES");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(small_blocks),
                                       cmocka_unit_test(default_blocks)};
    const struct CMUnitTest longer[] = {cmocka_unit_test(many_seeds)};
    if (argc > 1 && strcmp(argv[1], "long") == 0)
        return cmocka_run_group_tests(longer, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

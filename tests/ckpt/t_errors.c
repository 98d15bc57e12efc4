/* SPDX-License-Identifier: Apache-2.0 */
/* What goes wrong in a save: every rank is told the same and why, the previous checkpoint stays,
 * nothing is left behind. */
#include "ckpt_test.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "boot/context.h"
#include "ckpt/writer.h"

static char dir[PATH_CAP];

static int setup(void **state)
{
    (void)state;
    scratch_make(dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove(dir);
    return 0;
}

/* One save of what `add` adds; all ranks must get `status` and a text with all of `says`. */
typedef struct wrong {
    const char *path; /* NULL: dir */
    void (*add)(tt_rank *r, tutti_ckpt *ck);
    tutti_status status;
    const char *says[4];
} wrong;

static tutti_status save_it(tt_rank *r, const wrong *w)
{
    tutti_ckpt *ck;
    tutti_status status = tutti_ckpt_begin(r->ctx, w->path == NULL ? dir : w->path, 2, &ck);
    if (status != TUTTI_OK)
        return status;
    w->add(r, ck);
    status = tutti_ckpt_commit(ck, (tutti_stream){0}, NULL);
    return status == TUTTI_OK ? tutti_ckpt_wait(r->ctx, NULL) : status;
}

static void wrong_body(tt_rank *r)
{
    const wrong *w = r->arg;
    tutti_status status = save_it(r, w);
    if (status != w->status)
        tt_say(r, "%s: %s", tutti_status_name(status), tutti_last_error());
    for (int i = 0; i < 4 && w->says[i] != NULL; i++)
        if (strstr(tutti_last_error(), w->says[i]) == NULL)
            tt_say(r, "'%s' does not say '%s'", tutti_last_error(), w->says[i]);
    /* reported once; the context goes on */
    TT_EXPECT_OK(r, tutti_ckpt_wait(r->ctx, NULL));
    TT_EXPECT_OK(r, small_save(r, dir, 3, NULL));
    TT_EXPECT_OK(r, tutti_ckpt_wait(r->ctx, NULL));
}

static void expect_wrong(int ranks, wrong w)
{
    tutti_status status;
    int64_t got;
    assert_string_equal(small_job_save(2, dir, 1), "");
    TT_ASSERT_RANKS(ranks, NULL, wrong_body, &w);
    assert_int_equal(count_entries(dir, ""), 2); /* steps 1 and 3 */
    assert_string_equal(small_job_load(2, dir, 1, &status, &got, NULL), "");
    assert_int_equal(status, TUTTI_OK);
    teardown(NULL);
    assert_int_equal(mkdir(dir, 0777), 0);
}

static float data[4096];

static void add(tt_rank *r, tutti_ckpt *ck, const tutti_tensor *t)
{
    (void)r;
    if (tutti_ckpt_add(ck, t) != TUTTI_OK)
        return; /* commit repeats it */
}

static void overlap(tt_rank *r, tutti_ckpt *ck)
{
    tutti_tensor t =
        tensor_1d("layer/w", TUTTI_FLOAT32, 10, r->rank * 4, r->rank == 0 ? 6 : 6, data);
    add(r, ck, &t);
}

static void hole(tt_rank *r, tutti_ckpt *ck)
{
    tutti_tensor t = TUTTI_TENSOR_INIT;
    t.name = "layer/w";
    t.dtype = TUTTI_FLOAT32;
    t.ndim = 2;
    t.shape[0] = t.shape[1] = 8;
    t.offset[0] = r->rank * 4;
    t.extent[0] = 4;
    t.extent[1] = r->rank == 1 ? 5 : 8;
    t.data = data;
    add(r, ck, &t);
}

static void shapes(tt_rank *r, tutti_ckpt *ck)
{
    tutti_tensor t = tensor_1d("w", TUTTI_FLOAT32, 10 + r->rank, 0, 0, data);
    add(r, ck, &t);
}

static void dtypes(tt_rank *r, tutti_ckpt *ck)
{
    tutti_tensor t = tensor_1d("w", r->rank == 1 ? TUTTI_INT32 : TUTTI_FLOAT32, 10, 0, 0, data);
    add(r, ck, &t);
}

static void twice(tt_rank *r, tutti_ckpt *ck)
{
    tutti_tensor t = tensor_1d("w", TUTTI_FLOAT32, 10, 0, 0, data);
    add(r, ck, &t);
    if (r->rank == 1)
        add(r, ck, &t);
}

static void clash(tt_rank *r, tutti_ckpt *ck)
{
    tutti_tensor t = tensor_1d("a/b", TUTTI_FLOAT32, 10, 0, 0, data);
    tutti_tensor u = tensor_1d("a/b/c", TUTTI_FLOAT32, 10, 0, 0, data);
    tutti_tensor v = tensor_1d("a/b-c", TUTTI_FLOAT32, 10, 0, 0, data);
    add(r, ck, &t);
    add(r, ck, &v);
    add(r, ck, &u);
}

static void bad_name(tt_rank *r, tutti_ckpt *ck)
{
    tutti_tensor t = tensor_1d(r->rank == 1 ? "../w" : "w", TUTTI_FLOAT32, 10, 0, 0, data);
    add(r, ck, &t);
}

static void nothing(tt_rank *r, tutti_ckpt *ck)
{
    (void)r;
    (void)ck;
}

static void differ(tt_rank *r, tutti_ckpt *ck)
{
    int64_t seed = r->rank, lr = 3;
    if (tutti_ckpt_add_bytes(ck, "lr", &lr, sizeof lr, TUTTI_CKPT_SAME) != TUTTI_OK ||
        tutti_ckpt_add_bytes(ck, "seed", &seed, sizeof seed, TUTTI_CKPT_SAME) != TUTTI_OK)
        tt_say(r, "add_bytes: %s", tutti_last_error());
}

static void wrong_tensors(void **state)
{
    (void)state;
    expect_wrong(2, (wrong){NULL,
                            overlap,
                            TUTTI_ERR_ARG,
                            {"layer/w", "[0:6] of rank 0", "[4:10] of rank 1", "overlap"}});
    expect_wrong(2, (wrong){NULL, hole, TUTTI_ERR_ARG, {"layer/w", "hole", "[4, 5]"}});
    expect_wrong(
        3, (wrong){NULL, shapes, TUTTI_ERR_ARG, {"w is f32 [10] on rank 0", "[11] on rank 1"}});
    expect_wrong(2, (wrong){NULL, dtypes, TUTTI_ERR_ARG, {"w is", "i32", "f32"}});
    expect_wrong(2, (wrong){NULL, twice, TUTTI_ERR_ARG, {"rank 1 added w twice"}});
    expect_wrong(2, (wrong){NULL, clash, TUTTI_ERR_ARG, {"a/b cannot be both", "a/b/c"}});
    expect_wrong(3, (wrong){NULL, bad_name, TUTTI_ERR_ARG, {"rank 1", "../w"}});
    expect_wrong(2, (wrong){NULL, nothing, TUTTI_ERR_ARG, {"no rank added anything"}});
    expect_wrong(3, (wrong){NULL, differ, TUTTI_ERR_ARG, {"seed differs between ranks 0 and 1"}});
}

static void good(tt_rank *r, tutti_ckpt *ck)
{
    tutti_tensor t = tensor_1d("w", TUTTI_FLOAT32, 4096, 0, 0, data);
    add(r, ck, &t);
}

static void large(tt_rank *r, tutti_ckpt *ck)
{
    static char big[3 << 20];
    tutti_tensor t = tensor_1d("w", TUTTI_UINT8, (int64_t)sizeof big * r->size,
                               (int64_t)sizeof big * r->rank, (int64_t)sizeof big, big);
    add(r, ck, &t);
}

static void not_a_directory(void **state)
{
    (void)state;
    char path[PATH_CAP + 32];
    snprintf(path, sizeof path, "%s/file", dir);
    for (int i = 0; i < 2; i++) {
        file_put(path, "x", 1);
        wrong w = {path, good, TUTTI_ERR_IO, {path}};
        TT_ASSERT_RANKS(3, NULL, wrong_body, &w);
        strcat(path, "/below");
        unlink(path);
        if (i == 0)
            path[strlen(path) - 6] = '\0';
    }
}

static bool private_mounts(void)
{
    return unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}

static void read_only(void **state)
{
    (void)state;
    char path[PATH_CAP + 32];
    snprintf(path, sizeof path, "%s/ro", dir);
    assert_int_equal(mkdir(path, 0777), 0);
    if (!private_mounts() || mount("tmpfs", path, "tmpfs", MS_RDONLY, NULL) != 0)
        skip();
    wrong w = {path, good, TUTTI_ERR_IO, {"Read-only file system", path}};
    const char *report = tt_ranks_run(3, NULL, wrong_body, &w);
    umount(path);
    assert_string_equal(report, "");
}

static void full(void **state)
{
    (void)state;
    char path[PATH_CAP + 32], saved[PATH_CAP];
    snprintf(path, sizeof path, "%s", dir);
    if (!private_mounts() || mount("tmpfs", path, "tmpfs", 0, "size=5m") != 0)
        skip();
    (void)saved;
    assert_string_equal(small_job_save(2, dir, 1), "");
    wrong w = {
        NULL, large, TUTTI_ERR_NO_SPACE, {"checkpoint of step 2", "are to be written", "left"}};
    const char *report = tt_ranks_run(2, NULL, wrong_body, &w);
    int entries = count_entries(dir, "");
    umount(path);
    assert_string_equal(report, "");
    assert_int_equal(entries, 2); /* what came before and after fits */
}

/* Whatever the place where the space ends: HDF5's metadata, the data, index or manifest. */
static void full_at_every_size(void **state)
{
    (void)state;
    char options[64];
    int failed = 0, saved = 0;
    if (!private_mounts())
        skip();
    for (int pages = 6; pages < 110; pages += 4) {
        tutti_status status;
        snprintf(options, sizeof options, "size=%dk", 4 * pages);
        if (mount("tmpfs", dir, "tmpfs", 0, options) != 0)
            skip();
        const char *report = small_job_save(2, dir, 1);
        int entries = count_entries(dir, "");
        if (report[0] == '\0') {
            saved++;
            report = small_job_load(1, dir, 1, &status, NULL, NULL);
        } else {
            failed++;
            report = entries == 0 ? "" : "leftovers";
        }
        umount(dir);
        assert_string_equal(report, "");
    }
    assert_true(failed > 0 && saved > 0);
}

static void state_body(tt_rank *r)
{
    tutti_ckpt *ck, *second = NULL;
    tutti_ckpt_save_opts opts = TUTTI_CKPT_SAVE_OPTS_INIT;
    char path[PATH_CAP + 32];
    TT_EXPECT_OK(r, tutti_ckpt_begin(r->ctx, dir, 1, &ck));
    TT_EXPECT(r, tutti_ckpt_begin(r->ctx, dir, 2, &second) == TUTTI_ERR_STATE);
    TT_EXPECT(r, second == NULL);
    good(r, ck);
    opts.keep_last = r->rank;
    TT_EXPECT(r, tutti_ckpt_commit(ck, (tutti_stream){0}, &opts) == TUTTI_ERR_ARG);
    TT_EXPECT(r, tutti_ckpt_begin(r->ctx, dir, r->rank, &ck) == TUTTI_ERR_ARG);
    TT_EXPECT(r, strstr(tutti_last_error(), "rank 1") != NULL);
    snprintf(path, sizeof path, "%s/%d", dir, r->rank);
    TT_EXPECT(r, tutti_ckpt_begin(r->ctx, path, 1, &ck) == TUTTI_ERR_ARG);
    TT_EXPECT(r, tutti_ckpt_begin(r->ctx, dir, r->rank == 1 ? -1 : 1, &ck) == TUTTI_ERR_ARG);
    /* begun and never committed: gone with the context */
    TT_EXPECT_OK(r, tutti_ckpt_begin(r->ctx, dir, 1, &ck));
    good(r, ck);
}

static void out_of_order(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(3, NULL, state_body, NULL);
    assert_int_equal(count_entries(dir, ""), 0);
}

static tutti_status fail_there(void *arg)
{
    (void)arg;
    return tt_fail(TUTTI_ERR_NO_SPACE, "the disk is full");
}

/* A rank whose writer failed is asked at every step until the last one is done. */
static void a_writer_is_asked_again(void **state)
{
    tt_worker worker = {0};
    (void)state;
    assert_int_equal(tt_worker_start(&worker, fail_there, NULL), TUTTI_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tt_worker_join(&worker), TUTTI_ERR_NO_SPACE);
        assert_string_equal(tutti_last_error(), "the disk is full");
        assert_int_equal(tt_fail(TUTTI_ERR_ARG, "something else"), TUTTI_ERR_ARG);
    }
}

static void failed_body(tt_rank *r)
{
    tutti_ckpt *ck, *late;
    tutti_status begun = tutti_ckpt_begin(r->ctx, dir, 2, &ck);
    tutti_ctx *ctx = r->ctx;
    r->ctx = NULL; /* finalize gives the failure: that is meant */
    if (begun != TUTTI_OK) /* another rank has failed the job while this one was leaving begin */
        return;
    good(r, ck);
    tt_ctx_fail(ctx, tt_fail(TUTTI_ERR_MISSING, "gradients of layer 3 are missing"));
    tutti_status status = tutti_ckpt_commit(ck, (tutti_stream){0}, NULL);
    TT_EXPECT(r, status != TUTTI_OK);
    TT_EXPECT(r, tutti_ckpt_begin(ctx, dir, 3, &late) == status);
}

static void failed_context_saves_nothing(void **state)
{
    (void)state;
    tutti_status status;
    int64_t got;
    assert_string_equal(small_job_save(2, dir, 1), "");
    TT_ASSERT_RANKS(2, NULL, failed_body, NULL);
    assert_string_equal(small_job_load(2, dir, -1, &status, &got, NULL), "");
    assert_int_equal(got, 1);
    assert_int_equal(count_entries(dir, ""), 1);
}

/* Ranks with directories of their own under one name, as on nodes without a shared file system. */
static void apart_body(tt_rank *r)
{
    char path[PATH_CAP + 32];
    tutti_ckpt *ck;
    snprintf(path, sizeof path, "%s/%d", dir, r->rank == 2);
    TT_EXPECT(r, unshare(CLONE_FS) == 0 && chdir(path) == 0);
    TT_EXPECT(r, tutti_ckpt_begin(r->ctx, "ckpt", 1, &ck) == TUTTI_ERR_IO);
    TT_EXPECT(r, strstr(tutti_last_error(), "rank 2") != NULL);
    TT_EXPECT(r, strstr(tutti_last_error(), "must share one directory") != NULL);
}

/* A job must not begin anew because one rank does not see the checkpoints. */
static void load_apart_body(tt_rank *r)
{
    tutti_ckpt_reader *rd;
    char path[PATH_CAP + 32];
    snprintf(path, sizeof path, "%s/%d", dir, r->rank == 2);
    TT_EXPECT(r, unshare(CLONE_FS) == 0 && chdir(path) == 0);
    TT_EXPECT(r, tutti_ckpt_open(r->ctx, "ckpt", -1, &rd) == TUTTI_ERR_IO);
    TT_EXPECT(r, strstr(tutti_last_error(), "rank 2") != NULL);
    snprintf(path, sizeof path, "%s/%d/ckpt", dir, r->rank == 2);
    if (r->rank == 2)
        TT_EXPECT(r, mkdir(path, 0777) == 0); /* there, and empty */
    TT_EXPECT(r, tutti_ckpt_open(r->ctx, "ckpt", -1, &rd) == TUTTI_ERR_IO);
    TT_EXPECT(r, strstr(tutti_last_error(), "rank 0 sees step 1") != NULL);
}

static void directories_apart(void **state)
{
    (void)state;
    char path[PATH_CAP + 32];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%d", dir, i);
        assert_int_equal(mkdir(path, 0777), 0);
    }
    TT_ASSERT_RANKS(3, NULL, apart_body, NULL);
    snprintf(path, sizeof path, "%s/0/ckpt", dir);
    assert_int_equal(count_entries(path, ""), 0);
    assert_string_equal(small_job_save(2, path, 1), "");
    TT_ASSERT_RANKS(3, NULL, load_apart_body, NULL);
}

static void load_body(tt_rank *r)
{
    tutti_ckpt_reader *rd;
    float got[16];
    char path[PATH_CAP + 32], buf[4];
    snprintf(path, sizeof path, "%s/none", dir);
    TT_EXPECT(r, tutti_ckpt_open(r->ctx, path, -1, &rd) == TUTTI_ERR_NOT_FOUND);
    TT_EXPECT(r, tutti_ckpt_open(r->ctx, dir, 5, &rd) == TUTTI_ERR_NOT_FOUND);
    TT_EXPECT(r, strstr(tutti_last_error(), "no checkpoint of step 5 in") != NULL);
    TT_EXPECT(r, tutti_ckpt_open(r->ctx, dir, r->rank == 1 ? 7 : 1, &rd) == TUTTI_ERR_ARG);
    TT_EXPECT(r, tutti_ckpt_open(r->ctx, r->rank == 1 ? NULL : dir, 1, &rd) == TUTTI_ERR_ARG);
    TT_EXPECT_OK(r, tutti_ckpt_open(r->ctx, dir, 1, &rd));
    tutti_tensor t = tensor_1d("model/v", TUTTI_FLOAT64, 10, 0, 0, got);
    TT_EXPECT(r, tutti_ckpt_read(rd, &t, 1, (tutti_stream){0}) == TUTTI_ERR_SHAPE);
    TT_EXPECT(r, strstr(tutti_last_error(), "model/v is stored as f64 [20001]") != NULL);
    t = tensor_1d("model/v", TUTTI_FLOAT32, 20001, 0, 2, got);
    TT_EXPECT(r, tutti_ckpt_read(rd, &t, 1, (tutti_stream){0}) == TUTTI_ERR_SHAPE);
    /* wrong on one rank only */
    t = tensor_1d("model/v", TUTTI_FLOAT64, 20001, 0, r->rank == 2 ? 20002 : 2, got);
    TT_EXPECT(r, tutti_ckpt_read(rd, &t, 1, (tutti_stream){0}) == TUTTI_ERR_ARG);
    t = tensor_1d(r->rank == 0 ? "model/u" : "model/v", TUTTI_FLOAT64, 20001, 0, 2, got);
    TT_EXPECT(r, tutti_ckpt_read(rd, &t, 1, (tutti_stream){0}) == TUTTI_ERR_NOT_FOUND);
    TT_EXPECT(r, strstr(tutti_last_error(), "model/u") != NULL);
    t.name = "model/v";
    TT_EXPECT_OK(r, tutti_ckpt_read(rd, &t, r->rank == 1 ? 0 : 1, (tutti_stream){0}));
    TT_EXPECT(r, tutti_ckpt_read_bytes(rd, "state", 0, buf, sizeof buf, NULL) == TUTTI_ERR_ARG);
    TT_EXPECT(r, strstr(tutti_last_error(), "64 bytes") != NULL);
    TT_EXPECT(r, tutti_ckpt_read_bytes(rd, "rng", 9, buf, sizeof buf, NULL) == TUTTI_ERR_NOT_FOUND);
    TT_EXPECT(r, tutti_ckpt_stat(rd, "nope", &t) == TUTTI_ERR_NOT_FOUND);
    tutti_ckpt_close(rd);
    tutti_ckpt_close(NULL);
}

static void wrong_loads(void **state)
{
    (void)state;
    assert_string_equal(small_job_save(2, dir, 1), "");
    TT_ASSERT_RANKS(3, NULL, load_body, NULL);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {T(wrong_tensors),
                                       T(not_a_directory),
                                       T(a_writer_is_asked_again),
                                       T(out_of_order),
                                       T(failed_context_saves_nothing),
                                       T(wrong_loads),
                                       T(directories_apart),
                                       T(read_only),
                                       T(full),
                                       T(full_at_every_size)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

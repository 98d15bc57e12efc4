/* SPDX-License-Identifier: Apache-2.0 */
/* Damaged checkpoints: every changed byte is found, the older checkpoint is taken, all ranks agree.
 */
#include "ckpt_test.h"

#include <sys/stat.h>
#include <unistd.h>

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

static const char *in_step(int step, const char *name)
{
    static char path[PATH_CAP + 64];
    snprintf(path, sizeof path, "%s/step-%012d/%s", dir, step, name);
    return path;
}

/* Step 2 is damaged: asked for by number it is CORRUPT and says why; the newest valid one is 1. */
static void expect_damaged(int ranks, const char *says)
{
    tutti_status status;
    int64_t got;
    char text[1024];
    assert_string_equal(small_job_load(ranks, dir, 2, &status, NULL, text), "");
    assert_int_equal(status, TUTTI_ERR_CORRUPT);
    if (strstr(text, says) == NULL)
        fail_msg("'%s' does not say '%s'", text, says);
    assert_string_equal(small_job_load(ranks, dir, -1, &status, &got, NULL), "");
    assert_int_equal(status, TUTTI_OK);
    assert_int_equal(got, 1);
}

static void two_checkpoints(void)
{
    assert_string_equal(small_job_save(2, dir, 1), "");
    assert_string_equal(small_job_save(2, dir, 2), "");
}

static void whole_files(void **state)
{
    (void)state;
    static const char *const names[] = {"shard-00000.h5", "shard-00001.h5", "index.h5",
                                        "manifest.json"};
    size_t bytes;
    char away[PATH_CAP + 64];
    two_checkpoints();
    for (int i = 0; i < 4; i++) {
        const char *name = names[i];
        unsigned char *data = file_get(in_step(2, name), &bytes);
        file_put(in_step(2, name), data, bytes - 1);
        expect_damaged(1 + i, name);
        file_put(in_step(2, name), data, 0);
        expect_damaged(2, name);
        snprintf(away, sizeof away, "%s/away", dir);
        assert_int_equal(rename(in_step(2, name), away), 0);
        expect_damaged(3, "is missing");
        assert_int_equal(symlink(away, in_step(2, name)), 0);
        expect_damaged(2, "is a symbolic link");
        unlink(in_step(2, name));
        assert_int_equal(mkfifo(in_step(2, name), 0666), 0);
        expect_damaged(2, "is not a regular file");
        unlink(in_step(2, name));
        assert_int_equal(rename(away, in_step(2, name)), 0);
        data[bytes / 2] ^= 16;
        file_put(in_step(2, name), data, bytes);
        expect_damaged(2, name);
        data[bytes / 2] ^= 16;
        file_put(in_step(2, name), data, bytes);
        free(data);
    }
    assert_string_equal(small_job_load(2, dir, -1, &(tutti_status){0}, &(int64_t){0}, NULL), "");
}

static void step_is_no_directory(void **state)
{
    (void)state;
    char from[PATH_CAP + 64], to[PATH_CAP + 64];
    assert_string_equal(small_job_save(2, dir, 1), "");
    snprintf(from, sizeof from, "%s/step-000000000001", dir);
    snprintf(to, sizeof to, "%s/step-000000000002", dir);
    assert_int_equal(symlink(from, to), 0);
    expect_damaged(2, "is not a directory");
    unlink(to);
    file_put(to, "x", 1);
    expect_damaged(2, "is not a directory");
    unlink(to);
    /* a checkpoint under another's name */
    assert_int_equal(mkdir(to, 0777), 0);
    char command[3 * PATH_CAP];
    snprintf(command, sizeof command, "cp %s/* %s", from, to);
    assert_int_equal(system(command), 0);
    expect_damaged(2, "it is of step 1");
}

static void all_damaged(void **state)
{
    (void)state;
    tutti_status status;
    char text[1024];
    two_checkpoints();
    unlink(in_step(1, "manifest.json"));
    unlink(in_step(2, "index.h5"));
    assert_string_equal(small_job_load(3, dir, -1, &status, NULL, text), "");
    assert_int_equal(status, TUTTI_ERR_CORRUPT);
    assert_non_null(strstr(text, "all 2 checkpoints"));
}

typedef struct flips {
    const char *name;
    size_t stride;
    int found;
} flips;

/* Flips a bit of byte after byte; each must be CORRUPT at open. */
static void flip_body(tt_rank *r)
{
    flips *f = r->arg;
    size_t bytes;
    unsigned char *data = file_get(in_step(2, f->name), &bytes);
    FILE *file = fopen(in_step(2, f->name), "r+b");
    setvbuf(file, NULL, _IONBF, 0);
    for (size_t at = 0; at < bytes;
         at += at + f->stride < bytes || at == bytes - 1 ? f->stride : bytes - 1 - at) {
        tutti_ckpt_reader *rd;
        fseek(file, (long)at, SEEK_SET);
        fputc(data[at] ^ (1 << (at % 8)), file);
        tutti_status status = tutti_ckpt_open(r->ctx, dir, 2, &rd);
        if (status != TUTTI_ERR_CORRUPT)
            tt_say(r, "byte %zu of %s: %s", at, f->name, tutti_status_name(status));
        if (status == TUTTI_OK)
            tutti_ckpt_close(rd);
        fseek(file, (long)at, SEEK_SET);
        fputc(data[at], file);
        f->found++;
    }
    fclose(file);
    free(data);
}

static void every_byte(void **state)
{
    (void)state;
    /* sanitized, some of the bytes: it is the same code for each */
    size_t step = TT_SANITIZED ? 23 : 1;
    flips manifest = {"manifest.json", step, 0}, index = {"index.h5", 3 * step, 0};
    flips shard[2] = {{"shard-00000.h5", 997 * step, 0}, {"shard-00001.h5", 997 * step, 0}};
    two_checkpoints();
    TT_ASSERT_RANKS(1, NULL, flip_body, &manifest);
    TT_ASSERT_RANKS(1, NULL, flip_body, &index);
    TT_ASSERT_RANKS(1, NULL, flip_body, &shard[0]);
    TT_ASSERT_RANKS(1, NULL, flip_body, &shard[1]);
    if (manifest.found < 500 / (int)step || index.found < 100 / (int)step || shard[0].found < 2)
        fail_msg("only %d, %d and %d bytes", manifest.found, index.found, shard[0].found);
    assert_string_equal(small_job_load(2, dir, 2, &(tutti_status){0}, NULL, NULL), "");
}

/* Damage that comes after the open is found where it is read, and not where it is not. */
static void late_body(tt_rank *r)
{
    enum { N = 100000 };
    unsigned char *data = calloc(1, N);
    tutti_ckpt *ck;
    tutti_ckpt_reader *rd;
    tutti_tensor t = tensor_1d("x", TUTTI_UINT8, N, 0, 0, data);
    TT_EXPECT_OK(r, tutti_ckpt_begin(r->ctx, dir, 1, &ck));
    TT_EXPECT_OK(r, tutti_ckpt_add(ck, &t));
    TT_EXPECT_OK(r, tutti_ckpt_commit(ck, (tutti_stream){0}, NULL));
    TT_EXPECT_OK(r, tutti_ckpt_wait(r->ctx, NULL));
    TT_EXPECT_OK(r, tutti_ckpt_open(r->ctx, dir, 1, &rd));
    if (r->rank == 0) {
        FILE *file = fopen(in_step(1, "shard-00000.h5"), "r+b");
        fseek(file, -5, SEEK_END);
        fputc(0x55, file);
        fclose(file);
    }
    /* the agreement inside makes sure that the byte is changed before the next read of any rank */
    t.extent[0] = 10;
    TT_EXPECT_OK(r, tutti_ckpt_read(rd, &t, 1, (tutti_stream){0}));
    t.offset[0] = N - 10;
    tutti_status status = tutti_ckpt_read(rd, &t, r->rank == 1 ? 1 : 0, (tutti_stream){0});
    TT_EXPECT(r, status == TUTTI_ERR_CORRUPT); /* on all, though one read it */
    TT_EXPECT(r, strstr(tutti_last_error(), "shard-00000.h5: bytes ") != NULL);
    t.offset[0] = 20;
    TT_EXPECT_OK(r, tutti_ckpt_read(rd, &t, 1, (tutti_stream){0}));
    tutti_ckpt_close(rd);
    free(data);
}

static void damage_after_open(void **state)
{
    (void)state;
    setenv("TUTTI_CKPT_BLOCK_BYTES", "8192", 1);
    TT_ASSERT_RANKS(3, NULL, late_body, NULL);
    unsetenv("TUTTI_CKPT_BLOCK_BYTES");
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(void)
{
    setenv("TUTTI_LOG_FILE", "/dev/null", 0); /* each damaged one is passed over loudly */
    const struct CMUnitTest tests[] = {T(whole_files), T(step_is_no_directory), T(all_damaged),
                                       T(every_byte), T(damage_after_open)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints whose parts lie on the nodes' own disks: folders of fake nodes, saved on some and
 * loaded on others, with parts lost, damaged, cut off between their renames.
 */
#include "nodes_test.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tt_fs.h"

static int setup(void **state)
{
    static char top[PATH_CAP];
    setenv("TUTTI_CKPT_BLOCK_BYTES", "16384", 1);
    scratch_make(top);
    *state = top;
    return 0;
}

static int teardown(void **state)
{
    scratch_remove(*state);
    return 0;
}

static void in_top(const char *top, const char *below, char path[PATH_CAP])
{
    snprintf(path, PATH_CAP, "%s/%s", top, below);
}

static int entries(const char *top, const char *below, const char *prefix)
{
    char path[PATH_CAP];
    in_top(top, below, path);
    return count_entries(path, prefix);
}

static void save(nodes_job *job, int64_t step)
{
    job->step = step;
    assert_string_equal(nodes_save(job), "");
    if (job->status != TUTTI_OK)
        fail_msg("save of step %lld: %s", (long long)step, job->text);
    assert_int_equal(job->got, step);
}

static void load(const char *top, const char *nodes, const char *folders, int64_t want)
{
    nodes_job job = {.top = top, .nodes = nodes, .folders = folders, .step = -1};
    assert_string_equal(nodes_load(&job), "");
    if (job.status != TUTTI_OK || job.got != want)
        fail_msg("%s on %s: step %lld: %s", nodes, folders, (long long)job.got, job.text);
}

static void load_fails(const char *top, const char *nodes, const char *folders, int64_t step,
                       tutti_status want, const char *word)
{
    nodes_job job = {.top = top, .nodes = nodes, .folders = folders, .step = step};
    assert_string_equal(nodes_load(&job), "");
    assert_int_equal(job.status, want);
    if (strstr(job.text, word) == NULL)
        fail_msg("'%s' lacks '%s'", job.text, word);
}

static void parts_load_anywhere(void **state)
{
    nodes_job job = {.top = *state, .nodes = "2x2", .folders = "aabb"};
    save(&job, 7);
    assert_int_equal(entries(*state, "a/step-000000000007", "shard-"), 2);
    assert_int_equal(entries(*state, "a/step-000000000007", "part-00000"), 1);
    assert_int_equal(entries(*state, "b/step-000000000007", "shard-00003"), 1);
    assert_int_equal(entries(*state, "b/step-000000000007", "part-00001"), 1);
    assert_int_equal(entries(*state, "b/step-000000000007", ""), 5);
    load(*state, "2x2", "aabb", 7);
    load(*state, "2x2", "bbaa", 7); /* disks change places */
    load(*state, "2x1", "ab", 7);
    load(*state, "2,1,2", "ccabb", 7); /* a new node first, without a folder */
    load(*state, "4x1", "abba", 7); /* two nodes share each disk */
    load_fails(*state, "1x3", "aaa", -1, TUTTI_ERR_CORRUPT, "part 1");
}

static void remove_in(const char *top, const char *below)
{
    char path[PATH_CAP];
    in_top(top, below, path);
    scratch_remove(path);
}

static void move_in(const char *top, const char *from, const char *to)
{
    char a[PATH_CAP], b[PATH_CAP];
    in_top(top, from, a);
    in_top(top, to, b);
    assert_int_equal(rename(a, b), 0);
}

static void lost_parts_are_named(void **state)
{
    nodes_job job = {.top = *state, .nodes = "2x2", .folders = "aabb"};
    save(&job, 1);
    save(&job, 2);
    move_in(*state, "b/step-000000000002", "b/elsewhere");
    load(*state, "2x2", "aabb", 1);
    load_fails(*state, "2x2", "aabb", 2, TUTTI_ERR_CORRUPT, "part 1");
    load_fails(*state, "2x2", "aabb", 2, TUTTI_ERR_CORRUPT, "model/w");
    move_in(*state, "b/elsewhere", "b/step-000000000002");
    move_in(*state, "b/step-000000000002/shard-00003.h5", "b/gone");
    load_fails(*state, "2x2", "aabb", 2, TUTTI_ERR_CORRUPT, "shard-00003.h5 is missing");
    load(*state, "2x2", "aabb", 1);
    remove_in(*state, "b");
    load_fails(*state, "2x2", "aabb", -1, TUTTI_ERR_CORRUPT, "part 1");
    load_fails(*state, "2x2", "ccdd", -1, TUTTI_ERR_NOT_FOUND, "no directory");
    load_fails(*state, "2x2", "aabb", 5, TUTTI_ERR_NOT_FOUND, "step 5");
    save(&job, 3); /* goes on with a new disk */
    load(*state, "2x2", "aabb", 3);
}

static void bits_are_caught(void **state)
{
    nodes_job job = {.top = *state, .nodes = "2x1", .folders = "ab"};
    char path[PATH_CAP];
    size_t bytes;
    save(&job, 1);
    save(&job, 2);
    in_top(*state, "b/step-000000000002/shard-00001.h5", path);
    unsigned char *data = file_get(path, &bytes);
    data[bytes / 2] ^= 4;
    file_put(path, data, bytes);
    free(data);
    load(*state, "2x1", "ab", 1);
    load_fails(*state, "2x1", "ab", 2, TUTTI_ERR_CORRUPT, "checksum differs");
}

/* Nodes that turn out to share a folder are one part: it is a checkpoint like any other. */
static void one_folder_is_one_part(void **state)
{
    nodes_job job = {.top = *state, .nodes = "2x2", .folders = "aaaa"};
    char path[PATH_CAP];
    tutti_status status;
    int64_t got;
    save(&job, 1);
    assert_int_equal(entries(*state, "a/step-000000000001", "shard-"), 4);
    in_top(*state, "a", path);
    assert_string_equal(small_job_load(3, path, -1, &status, &got, NULL), "");
    assert_int_equal(status, TUTTI_OK);
    load(*state, "2x2", "aabb", 1);
}

/* Parts that someone has put together are one, too; a part alone is told from a damaged whole. */
static void parts_put_together(void **state)
{
    nodes_job job = {.top = *state, .nodes = "3x1", .folders = "abb"};
    char path[PATH_CAP], text[1024] = "";
    tutti_status status;
    int64_t got;
    save(&job, 1);
    in_top(*state, "a", path);
    assert_string_equal(small_job_load(2, path, -1, &status, &got, text), "");
    assert_int_equal(status, TUTTI_ERR_CORRUPT);
    if (strstr(text, "TUTTI_CKPT_OPEN_NODE_LOCAL") == NULL || strstr(text, "of part 1") == NULL)
        fail_msg("'%s'", text);
    move_in(*state, "b/step-000000000001/shard-00001.h5", "a/step-000000000001/shard-00001.h5");
    move_in(*state, "b/step-000000000001/shard-00002.h5", "a/step-000000000001/shard-00002.h5");
    assert_string_equal(small_job_load(2, path, -1, &status, &got, text), "");
    assert_int_equal(status, TUTTI_OK);
}

static void the_option_is_agreed(tt_rank *r)
{
    char path[PATH_CAP];
    tutti_ckpt *ck;
    tutti_ckpt_begin_opts begin = TUTTI_CKPT_BEGIN_OPTS_INIT;
    snprintf(path, sizeof path, "%s/%d", (const char *)r->arg, r->rank);
    TT_EXPECT(r, tutti_ckpt_begin_with(r->ctx, path, 1, &begin, &ck) == TUTTI_ERR_ARG);
    TT_EXPECT(r, strstr(tutti_last_error(), "another directory") != NULL);
    begin.flags = r->rank == 0 ? TUTTI_CKPT_NODE_LOCAL : 0;
    TT_EXPECT(r, tutti_ckpt_begin_with(r->ctx, r->arg, 1, &begin, &ck) == TUTTI_ERR_ARG);
    TT_EXPECT(r, strstr(tutti_last_error(), "other flags") != NULL);
    /* two ranks of one node with folders of their own */
    begin.flags = TUTTI_CKPT_NODE_LOCAL;
    TT_EXPECT(r, tutti_ckpt_begin_with(r->ctx, path, 1, &begin, &ck) == TUTTI_ERR_IO);
    TT_EXPECT(r, strstr(tutti_last_error(), "ranks of a node must share") != NULL);
    TT_EXPECT(r, strstr(tutti_last_error(), "rank 1") != NULL);
}

static void wrong_choices(void **state)
{
    TT_ASSERT_RANKS(2, NULL, the_option_is_agreed, *state);
}

static void retention_is_of_all_parts(void **state)
{
    nodes_job job = {.top = *state, .nodes = "2x1", .folders = "ab", .keep_last = 2};
    for (int64_t step = 1; step <= 3; step++)
        save(&job, step);
    assert_int_equal(entries(*state, "a", "step-"), 2);
    assert_int_equal(entries(*state, "b", "step-"), 2);
    /* half of one is lost: it counts as none, and does not push the last whole one out */
    remove_in(*state, "b/step-000000000003");
    save(&job, 4);
    load(*state, "2x1", "ab", 4);
    remove_in(*state, "a/step-000000000004");
    load(*state, "2x1", "ab", 2);
}

/* Every so many file operations of a save fail, on either node. */
static void faults(void **state)
{
    nodes_job job = {.top = *state, .nodes = "2x1", .folders = "ab", .keep_last = 2};
    int64_t step = 2, last = 1;
    int failed = 0;
    save(&job, 1);
    for (uint64_t at = 1; at < 88; at += 5) {
        tt_fs_plan plan = {.root = *state, .at = at, .error = at % 2 == 0 ? EIO : ENOSPC};
        plan.kinds = TT_FS_WRITE | TT_FS_SYNC | TT_FS_NAME | TT_FS_SPACE;
        job.step = step;
        tt_fs_begin(&plan);
        const char *report = nodes_save(&job);
        tt_fs_end();
        assert_string_equal(report, "");
        failed += job.status != TUTTI_OK;
        bool cleaning = strncmp(tt_fs_hit(), "unlink", 6) == 0;
        nodes_job look = {.top = *state, .nodes = "2x1", .folders = "ab", .step = -1};
        assert_string_equal(nodes_load(&look), "");
        if (look.status != TUTTI_OK || (look.got != step && look.got != last) ||
            (job.status == TUTTI_OK && look.got != step))
            fail_msg("%s: save %s, then step %lld of %lld: %s", tt_fs_hit(),
                     tutti_status_name(job.status), (long long)look.got, (long long)step,
                     look.text);
        if (!cleaning && job.status != TUTTI_OK &&
            entries(*state, "a", ".") + entries(*state, "b", ".") > 0)
            fail_msg("%s: leftovers", tt_fs_hit());
        last = look.got;
        step += look.got == step ? (int64_t)(at % 2) : 0; /* a step is saved again, too */
    }
    assert_true(failed > 8);
    save(&job, step + 1);
    assert_int_equal(entries(*state, "a", ".") + entries(*state, "b", "."), 0);
}

#define TEST(body) cmocka_unit_test_setup_teardown(body, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(parts_load_anywhere),       TEST(lost_parts_are_named),
        TEST(bits_are_caught),           TEST(one_folder_is_one_part),
        TEST(parts_put_together),        TEST(wrong_choices),
        TEST(retention_is_of_all_parts), TEST(faults)};
    setenv("TUTTI_LOG", "error", 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

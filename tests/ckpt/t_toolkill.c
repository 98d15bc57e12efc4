/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tutti ckpt` commands that write, killed or failing at a counted file operation: import, export,
 * merge, prune. Afterwards a folder's checkpoints are those of before or those of after, and a file
 * that was to be written is the old one or the whole new one; what a killed command left beside it
 * goes with the next; a command that did not do its work does not end with 0.
 */
#include "ckpt_test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/loader.h"
#include "tt_fs.h"

int command_ckpt(int argc, char **argv);

enum { ALL = TT_FS_WRITE | TT_FS_SYNC | TT_FS_NAME | TT_FS_SPACE, STEPS = 3 };
static const char old_text[] = "what was there before";

static char top[PATH_CAP];
static char paths[8][PATH_CAP + 32];

/* A path in the folder; eight of them at a time. */
static const char *in(const char *name)
{
    static int next;
    next = (next + 1) % 8;
    snprintf(paths[next], sizeof paths[0], "%s/%s", top, name);
    return paths[next];
}

static rlim_t cpu_s; /* processor time that a command may take; 0: what it likes */

static void die(void)
{
    kill(getpid(), SIGKILL);
}

/* The command in a process of its own; its exit status, or minus the signal that ended it. The
 * number of its file operations goes to *events_out. */
static int run(char **argv, const tt_fs_plan *plan, uint64_t *events_out)
{
    int argc = 0, rc, pipes[2];
    uint64_t events = 0;
    while (argv[argc] != NULL)
        argc++;
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    pid_t child = fork();
    if (child == 0) {
        struct rlimit cpu = {cpu_s, RLIM_INFINITY};
        if (cpu_s > 0)
            setrlimit(RLIMIT_CPU, &cpu);
        int null = open("/dev/null", O_WRONLY);
        dup2(null, STDOUT_FILENO);
        dup2(open(in("said"), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
        tt_fs_begin(plan);
        int status = command_ckpt(argc, argv);
        events = tt_fs_end();
        if (write(pipes[1], &events, sizeof events) != sizeof events)
            status = 99;
        _exit(status);
    }
    close(pipes[1]);
    if (read(pipes[0], &events, sizeof events) != sizeof events)
        events = 0;
    close(pipes[0]);
    assert_int_equal(waitpid(child, &rc, 0), child);
    if (events_out != NULL)
        *events_out = events;
    return WIFSIGNALED(rc) ? -WTERMSIG(rc) : WEXITSTATUS(rc);
}

/* One command: what there is before, what must hold after. */
typedef struct scene {
    const char *name;
    char *argv[8];
    void (*before)(void);
    void (*after)(bool done, const char *where); /* done: it ended with 0 */
} scene;

static bool whole(int64_t step)
{
    tt_buf text = {0};
    tt_source src = {0};
    int dir = -1;
    tutti_status status = tt_dir_open(in("run"), &dir);
    if (status == TUTTI_OK)
        status = tt_source_open(dir, step, &text, &src);
    if (status == TUTTI_OK)
        status = tt_source_verify(&src, 0, 1);
    tt_source_close(&src);
    tt_buf_free(&text);
    if (dir >= 0)
        close(dir);
    return status == TUTTI_OK;
}

static bool there(int64_t step)
{
    char name[TT_STEP_NAME_MAX], path[64];
    tt_step_name(step, name);
    snprintf(path, sizeof path, "run/%s", name);
    return access(in(path), F_OK) == 0;
}

#define CHECK(cond, where)                                                                         \
    do {                                                                                           \
        if (!(cond))                                                                               \
            fail_msg("%s: %s", (where), #cond);                                                    \
    } while (0)

static void fresh_run(void)
{
    scratch_remove(in("run"));
    for (int64_t step = 1; step <= STEPS; step++)
        assert_string_equal(small_job_save(1, in("run"), step), "");
}

static void before_import(void)
{
    scratch_remove(in("run"));
    assert_string_equal(small_job_save(1, in("run"), 1), "");
}

static void after_import(bool done, const char *where)
{
    CHECK(whole(1), where);
    CHECK(there(9) ? whole(9) : !done, where);
}

static void before_new_import(void)
{
    scratch_remove(in("run"));
}

static void after_new_import(bool done, const char *where)
{
    CHECK(there(9) ? whole(9) : !done, where);
}

static void before_file(void)
{
    file_put(in("out"), old_text, sizeof old_text);
}

static char good_file[2][PATH_CAP]; /* what export and merge write when nothing happens */

static void after_file(bool done, const char *where, const char *good)
{
    size_t bytes, want_bytes;
    unsigned char *data = file_get(in("out"), &bytes), *want = file_get(good, &want_bytes);
    bool old = bytes == sizeof old_text && memcmp(data, old_text, bytes) == 0;
    bool new = bytes == want_bytes &&memcmp(data, want, bytes) == 0;
    free(data);
    free(want);
    CHECK(done ? new : old || new, where);
    CHECK(whole(STEPS), where);
}

static void after_export(bool done, const char *where)
{
    after_file(done, where, good_file[0]);
}

static void after_merge(bool done, const char *where)
{
    after_file(done, where, good_file[1]);
}

static void after_prune(bool done, const char *where)
{
    CHECK(whole(STEPS), where);
    for (int64_t step = 1; step < STEPS; step++)
        CHECK(there(step) ? whole(step) && !done : true, where);
}

static scene scenes[] = {
    {"import", {0}, before_import, after_import},
    {"import into a new folder", {0}, before_new_import, after_new_import},
    {"prune", {0}, fresh_run, after_prune},
    {"export", {0}, before_file, after_export},
    {"merge", {0}, before_file, after_merge},
};
enum { SCENES = sizeof scenes / sizeof scenes[0], PRUNE = 2, EXPORT = 3, MERGE = 4 };

static void words(scene *s, const char *a, const char *b, const char *c, const char *d,
                  const char *e)
{
    const char *const all[] = {"ckpt", a, b, c, d, e};
    for (int i = 0; i < 6; i++)
        s->argv[i] = all[i] == NULL ? NULL : strdup(all[i]);
}

static void keep(scene *s, char good[PATH_CAP])
{
    before_file();
    assert_int_equal(run(s->argv, &(tt_fs_plan){.root = top}, NULL), 0);
    snprintf(good, PATH_CAP, "%s", in(s->name));
    assert_int_equal(rename(in("out"), good), 0);
}

static int setup(void **state)
{
    (void)state;
    scratch_make(top);
    fresh_run();
    words(&scenes[EXPORT], "export", in("run"), in("out"), "--format", "safetensors");
    words(&scenes[MERGE], "merge", in("run"), in("out"), NULL, NULL);
    words(&scenes[PRUNE], "prune", in("run"), "--keep-last", "1", NULL);
    keep(&scenes[EXPORT], good_file[0]);
    keep(&scenes[MERGE], good_file[1]);
    char source[PATH_CAP];
    snprintf(source, sizeof source, "%s/in.safetensors", top);
    size_t bytes;
    unsigned char *data = file_get(good_file[0], &bytes);
    file_put(source, data, bytes);
    free(data);
    for (int i = 0; i < 2; i++)
        words(&scenes[i], "import", source, in("run"), "--step", "9");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < SCENES; i++)
        for (int k = 0; k < 8; k++)
            free(scenes[i].argv[k]);
    scratch_remove(top);
    return 0;
}

static int leftovers(void)
{
    return count_entries(top, "out.") +
           (access(in("run"), F_OK) == 0
                ? count_entries(in("run"), ".tmp-") + count_entries(in("run"), ".del-") +
                      count_entries(in("run"), ".old-")
                : 0);
}

/* The same command once more, without anything happening: it goes through (an import that was done
 * already is refused), and nothing is left of the one before. */
static void once_more(scene *s, bool killed, const char *where)
{
    bool done_before = s->after == after_import || s->after == after_new_import ? there(9) : false;
    int status = run(s->argv, &(tt_fs_plan){.root = top}, NULL);
    CHECK(status == (done_before ? 1 : 0), where);
    if (!done_before) {
        s->after(true, where);
        CHECK(leftovers() == 0, where);
    } else if (killed) { /* refused before it looked at the folder: a save does */
        assert_string_equal(small_job_save(1, in("run"), 12), "");
        CHECK(leftovers() == 0, where);
    }
}

static void happens(scene *s, uint64_t every, uint64_t from, tt_fs_plan plan, uint64_t *tried)
{
    uint64_t events;
    char where[256];
    plan.root = top;
    plan.kinds = ALL;
    s->before();
    assert_int_equal(run(s->argv, &(tt_fs_plan){.root = top, .kinds = ALL}, &events), 0);
    s->after(true, s->name);
    assert_true(events >= 4);
    for (uint64_t at = 1 + from % every; at <= events; at += every) {
        bool killed = plan.call != NULL;
        plan.at = at;
        s->before();
        int status = run(s->argv, &plan, NULL);
        snprintf(where, sizeof where, "%s, %s at event %llu of %llu, status %d", s->name,
                 killed     ? "killed"
                 : plan.cut ? "short write"
                            : strerror(plan.error),
                 (unsigned long long)at, (unsigned long long)events, status);
        CHECK(killed ? status == -SIGKILL : status == 0 || status == 1, where);
        s->after(status == 0, where);
        CHECK(killed || status != 0 || !plan.stays || leftovers() == 0, where);
        once_more(s, killed, where);
        ++*tried;
    }
}

static void all_of(uint64_t every, tt_fs_plan plan)
{
    uint64_t tried = 0;
    for (int i = 0; i < SCENES; i++)
        happens(&scenes[i], every, (uint64_t)i, plan, &tried);
    print_message("%llu times\n", (unsigned long long)tried);
}

static void some_killed(void **state)
{
    (void)state;
    all_of(9, (tt_fs_plan){.call = die});
}

static void some_fail(void **state)
{
    (void)state;
    all_of(17, (tt_fs_plan){.error = EIO});
}

static void all_killed(void **state)
{
    (void)state;
    all_of(1, (tt_fs_plan){.call = die});
}

static void all_fail(void **state)
{
    (void)state;
    all_of(1, (tt_fs_plan){.error = EIO});
    all_of(1, (tt_fs_plan){.error = ENOSPC, .stays = true});
    all_of(1, (tt_fs_plan){.cut = true});
}

/* The files' checksums and the manifest's, made right again. */
static void rehash(const char *name, const unsigned char *data, size_t size)
{
    tt_manifest m = {0};
    tt_buf out = {0};
    size_t bytes;
    unsigned char *text = file_get(in("run/step-000000000003/manifest.json"), &bytes);
    assert_int_equal(tt_manifest_read(text, bytes, -1, &m), TUTTI_OK);
    for (size_t i = 0; i < m.cat.nfile; i++)
        for (size_t k = 0; k < m.cat.file[i].blocks && strcmp(m.cat.file[i].name, name) == 0; k++) {
            size_t at = k * m.block_bytes, left = size - at;
            m.cat.file[i].hash[k] =
                tt_hash128_of(data + at, left < m.block_bytes ? left : m.block_bytes);
        }
    assert_int_equal(tt_manifest_write(&m, &out), TUTTI_OK);
    file_put(in("run/step-000000000003/manifest.json"), out.data, out.size);
    tt_buf_free(&out);
    tt_manifest_free(&m);
    free(text);
}

/* An index behind right checksums on which HDF5 1.10 goes round for ever: an object of no size in
 * its heap. verify tells of it, in the processor time that it has. */
static void endless(void **state)
{
    (void)state;
    scene verify = {0};
    size_t bytes;
    fresh_run();
    unsigned char *data = file_get(in("run/step-000000000003/index.h5"), &bytes);
    unsigned char *heap = memmem(data, bytes, "GCOL", 4);
    assert_non_null(heap);
    memset(heap + 16, 0, 16);
    file_put(in("run/step-000000000003/index.h5"), data, bytes);
    rehash("index.h5", data, bytes);
    free(data);
    words(&verify, "verify", in("run"), NULL, NULL, NULL);
    assert_true(whole(STEPS)); /* as far as a load looks */
    cpu_s = 1; /* without it, a minute */
    int status = run(verify.argv, &(tt_fs_plan){.root = top}, NULL);
    cpu_s = 0;
    assert_int_equal(status, 3);
    char *said = (char *)file_get(in("said"), &bytes);
    said[bytes - 1] = '\0';
    assert_non_null(strstr(said, "while it read its files in HDF5"));
    free(said);
    for (int i = 0; i < 8; i++)
        free(verify.argv[i]);
}

/* HDF5 notes the time in what it writes: the same, so that files can be compared. */
__attribute__((visibility("default"))) time_t time(time_t *out)
{
    if (out != NULL)
        *out = 1700000000;
    return 1700000000;
}

__attribute__((visibility("default"))) int gettimeofday(struct timeval *restrict out,
                                                        void *restrict zone)
{
    (void)zone;
    *out = (struct timeval){1700000000, 0};
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(some_killed), cmocka_unit_test(some_fail)};
    const struct CMUnitTest longer[] = {cmocka_unit_test(all_killed), cmocka_unit_test(all_fail),
                                        cmocka_unit_test(endless)};
    setenv("TUTTI_CKPT_BLOCK_BYTES", "65536", 1);
    if (argc > 1 && strcmp(argv[1], "long") == 0)
        return cmocka_run_group_tests(longer, setup, teardown);
    return cmocka_run_group_tests(tests, setup, teardown);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job that saves all the time is killed at a counted file operation of its protocol: by SIGKILL,
 * by SIGTERM, one rank of it stopped and then killed, all ranks, mpirun itself; with threads as
 * ranks (all of them die at once) and under mpirun. Afterwards there is a complete checkpoint, with
 * the content of its step, no older than the last one that the job was told is durable; and the
 * next job goes on from it and leaves nothing of its predecessors. Power cuts are t_crash.c's. Also
 * with ranks that are nodes with folders of their own, of which one may have committed; and with a
 * second tier, killed in the middle of copies, which holds what was copied by itself.
 */
#include "nodes_test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "boot/context.h"
#include "tt_fs.h"

enum { RANKS = 2, KEEP = 2, SAVES = 5, ALL = TT_FS_WRITE | TT_FS_SYNC | TT_FS_NAME | TT_FS_SPACE };

/* In a victim: what it is to do, from its command line. Files beside the folder: DIR.ack gets every
 * acknowledged step, DIR.pid.R the process of rank R, DIR.stopped one that stopped itself. */
static struct victim {
    char dir[PATH_CAP];
    const char *how;
    uint64_t event;
    int rank; /* that counts */
    bool nodes; /* the ranks save into a/ and b/ of the folder */
    bool copies; /* and every checkpoint is copied into c/ */
} victim;

static void beside(const char *name, int number, char path[PATH_CAP + 32])
{
    snprintf(path, PATH_CAP + 32, number < 0 ? "%s.%s" : "%s.%s.%d", victim.dir, name, number);
}

static void put_number(const char *name, int number, int64_t value, int flags)
{
    char path[PATH_CAP + 32];
    beside(name, number, path);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0666);
    if (fd < 0 || write(fd, &value, sizeof value) != sizeof value)
        abort();
    close(fd);
}

/* The last number in the file; `none` if there is none. */
static int64_t get_number(const char *name, int number, int64_t none)
{
    char path[PATH_CAP + 32];
    int64_t value = none, next;
    beside(name, number, path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && read(fd, &next, sizeof next) == sizeof next)
        value = next;
    if (fd >= 0)
        close(fd);
    return value;
}

static void strike(void)
{
    if (strcmp(victim.how, "term") == 0) {
        kill(getpid(), SIGTERM);
        return;
    }
    if (strcmp(victim.how, "stop") == 0) {
        put_number("stopped", -1, getpid(), O_TRUNC);
        kill(getpid(), SIGSTOP);
    }
    if (strcmp(victim.how, "mpirun") == 0) {
        kill(getppid(), SIGKILL);
        return;
    }
    for (int r = 0; strcmp(victim.how, "all") == 0 && r < RANKS; r++)
        if (get_number("pid", r, getpid()) != getpid())
            kill((pid_t)get_number("pid", r, 0), SIGKILL);
    kill(getpid(), SIGKILL);
}

static const char *folder(const tt_rank *r, char dir[PATH_CAP])
{
    snprintf(dir, PATH_CAP, "%s%s", victim.dir, !victim.nodes ? "" : r->rank == 0 ? "/a" : "/b");
    return dir;
}

/* Of the second tier, NULL: there is none. */
static const char *second_tier(char dir[PATH_CAP])
{
    snprintf(dir, PATH_CAP, "%s/c", victim.dir);
    return victim.copies ? dir : NULL;
}

/* Every other one is still being copied while the next is saved. */
static bool victim_copy(tt_rank *r, int64_t step)
{
    tutti_ckpt_copy_info info = TUTTI_CKPT_COPY_INFO_INIT;
    if (!victim.copies)
        return true;
    if (tutti_ckpt_copy_wait(r->ctx, step % 2 == 0 ? 60 : 0, &info) != TUTTI_OK ||
        info.failed > 0) {
        tt_say(r, "copy of step %lld: %s %s", (long long)step, tutti_last_error(), info.text);
        return false;
    }
    if (r->rank == 0 && info.step >= 0)
        put_number("copied", -1, info.step, O_APPEND);
    return true;
}

/* One save after the other; true: told to stop. */
static bool victim_save(tt_rank *r, int64_t step)
{
    tutti_ckpt_save_opts opts = TUTTI_CKPT_SAVE_OPTS_INIT;
    tutti_ckpt_begin_opts begin = TUTTI_CKPT_BEGIN_OPTS_INIT;
    char dir[PATH_CAP], copies[PATH_CAP];
    uint32_t todo = 0;
    int64_t durable;
    opts.keep_last = KEEP;
    opts.copy_to = second_tier(copies);
    begin.flags = victim.nodes ? TUTTI_CKPT_NODE_LOCAL : 0;
    if (small_save_with(r, folder(r, dir), step, &begin, &opts) != TUTTI_OK ||
        tutti_step(r->ctx, step, &todo) != TUTTI_OK ||
        tutti_ckpt_wait(r->ctx, &durable) != TUTTI_OK || durable != step) {
        tt_say(r, "step %lld: %s", (long long)step, tutti_last_error());
        return true;
    }
    if (r->rank == 0)
        put_number("ack", -1, durable, O_APPEND);
    return !victim_copy(r, step) || todo != 0;
}

static void victim_body(tt_rank *r)
{
    tutti_ckpt_reader *rd;
    tutti_ckpt_open_opts open = TUTTI_CKPT_OPEN_OPTS_INIT;
    char dir[PATH_CAP], copies[PATH_CAP];
    int64_t step = 0;
    open.copy = second_tier(copies);
    open.flags = victim.nodes ? TUTTI_CKPT_OPEN_NODE_LOCAL : 0;
    tutti_status status = tutti_ckpt_open_with(r->ctx, folder(r, dir), -1, &open, &rd);
    if (status == TUTTI_OK) {
        step = tutti_ckpt_step(rd);
        status = small_check(r, rd, step);
        tutti_ckpt_close(rd);
    }
    TT_EXPECT(r, status == TUTTI_OK || status == TUTTI_ERR_NOT_FOUND);
    for (int i = 0; i < SAVES; i++)
        if (victim_save(r, victim.nodes && i == 0 && step > 0 ? step : ++step))
            return; /* what it went on from is saved again: the old version must last until then */
}

static void begin_counting(void)
{
    tt_fs_plan plan = {.root = victim.dir, .kinds = ALL, .at = victim.event, .call = strike};
    tt_fs_begin(&plan);
}

/* argv: victim DIR HOW EVENT RANK TIERS; RANK -1: ranks are threads. TIERS: 0 one folder, 1 nodes',
 * 2 these and copies. */
static int victim_main(char **argv)
{
    snprintf(victim.dir, sizeof victim.dir, "%s", argv[2]);
    victim.how = argv[3];
    victim.event = strtoull(argv[4], NULL, 10);
    victim.rank = atoi(argv[5]);
    victim.nodes = atoi(argv[6]) != 0;
    victim.copies = atoi(argv[6]) == 2;
    if (victim.rank < 0) {
        begin_counting();
        const char *report = tt_ranks_run(RANKS, victim.nodes ? "2x1" : NULL, victim_body, NULL);
        put_number("events", -1, (int64_t)tt_fs_end(), O_TRUNC);
        return report[0] != '\0';
    }
    tt_rank r = {0};
    /* before init, so that no rank is struck while another has not said who it is */
    put_number("pid", atoi(getenv("OMPI_COMM_WORLD_RANK")), getpid(), O_TRUNC);
    if (victim.nodes) /* each rank a node of its own */
        setenv("TUTTI_HOST_ID", getenv("OMPI_COMM_WORLD_RANK"), 1);
    if (tutti_init(NULL, &r.ctx) != TUTTI_OK)
        return 1;
    r.rank = r.ctx->world.rank;
    r.size = r.ctx->world.size;
    if (r.rank == victim.rank)
        begin_counting();
    victim_body(&r);
    uint64_t events = tt_fs_end();
    if (r.rank == victim.rank)
        put_number("events", -1, (int64_t)events, O_TRUNC);
    return tutti_finalize(r.ctx) != TUTTI_OK || r.failed;
}

/* Waits until no rank of an mpirun that was killed is left; kills the one that stopped itself. */
static void wait_for_ranks(void)
{
    for (int i = 0; i < 6000; i++) {
        int left = 0;
        for (int r = 0; r < RANKS; r++) {
            pid_t pid = (pid_t)get_number("pid", r, 0);
            left += pid > 0 && kill(pid, 0) == 0;
        }
        if (left == 0)
            return;
        usleep(10000);
    }
    fail_msg("ranks do not end");
}

static void forget(const char *name, int number)
{
    char path[PATH_CAP + 32];
    beside(name, number, path);
    unlink(path);
}

static void wait_for_victim(pid_t child)
{
    int rc;
    bool struck = false;
    while (waitpid(child, &rc, struck ? 0 : WNOHANG) == 0) {
        pid_t stopped = (pid_t)get_number("stopped", -1, 0);
        usleep(5000);
        if (stopped == 0)
            continue;
        usleep(100000);
        kill(stopped, SIGKILL);
        struck = true;
    }
}

/* One victim; under mpirun where `rank` is not -1. */
static void run_victim(const char *how, uint64_t event, int rank)
{
    char command[2 * PATH_CAP], exe[PATH_CAP];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    assert_true(n > 0);
    exe[n] = '\0';
    snprintf(command, sizeof command, "exec %s '%s' victim '%s' %s %llu %d %d >'%s.out' 2>&1",
             rank < 0 ? "" : getenv("TT_MPIRUN"), exe, victim.dir, how, (unsigned long long)event,
             rank, victim.nodes + victim.copies, victim.dir);
    for (int r = 0; r < RANKS; r++)
        forget("pid", r);
    forget("stopped", -1);
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    assert_true(child > 0);
    wait_for_victim(child);
    if (rank >= 0)
        wait_for_ranks();
}

static const char *load(int ranks, tutti_status *status, int64_t *got, char text[1024])
{
    static const char *const places[] = {"a", "ab", "bac"};
    nodes_job job = {.top = victim.dir, .nodes = ranks == 2 ? "2x1" : "3x1", .step = -1};
    if (!victim.nodes)
        return small_job_load(ranks, victim.dir, -1, status, got, text);
    job.folders = places[ranks == 2 ? 1 : 2];
    job.copy = victim.copies ? "c" : NULL;
    const char *report = nodes_load(&job);
    *status = job.status;
    *got = job.got;
    memcpy(text, job.text, sizeof job.text);
    return report;
}

static int leftovers(const char *prefix)
{
    static const char *const places[] = {"a", "b", "c"};
    char dir[PATH_CAP + 8];
    int n = 0;
    if (!victim.nodes)
        return count_entries(victim.dir, prefix);
    for (int i = 0; i < 3; i++) {
        snprintf(dir, sizeof dir, "%s/%s", victim.dir, places[i]);
        n += access(dir, F_OK) == 0 ? count_entries(dir, prefix) : 0;
    }
    return n;
}

static const char *save(int64_t step)
{
    nodes_job job = {.top = victim.dir, .nodes = "2x1", .folders = "ab", .step = step};
    job.copy = victim.copies ? "c" : NULL;
    if (!victim.nodes)
        return small_job_save(2, victim.dir, step);
    const char *report = nodes_save(&job);
    return report[0] == '\0' && job.status != TUTTI_OK ? "the next save fails" : report;
}

/* The second tier alone, as if the nodes were gone. */
static void check_copies(int i, const char *how, uint64_t event)
{
    tutti_status status;
    int64_t got = -1, copied = get_number("copied", -1, -1);
    char copies[PATH_CAP], text[1024] = "";
    if (second_tier(copies) == NULL || copied < 0)
        return;
    const char *report = small_job_load(1 + i % 3, copies, -1, &status, &got, text);
    if (report[0] != '\0' || status != TUTTI_OK || got < copied)
        fail_msg("kill %d (%s at event %llu): step %lld is copied, of %lld: %s %s", i, how,
                 (unsigned long long)event, (long long)got, (long long)copied, report, text);
}

static void check(int i, const char *how, uint64_t event, int64_t *acknowledged)
{
    tutti_status status;
    int64_t got = -1;
    char text[1024] = "";
    *acknowledged = get_number("ack", -1, *acknowledged);
    const char *report = load(1 + i % 3, &status, &got, text);
    if (report[0] != '\0' ||
        (status != TUTTI_OK && (status != TUTTI_ERR_NOT_FOUND || *acknowledged >= 0)) ||
        (status == TUTTI_OK && got < *acknowledged))
        fail_msg("kill %d (%s at event %llu): got step %lld after %lld was durable: %s %s", i, how,
                 (unsigned long long)event, (long long)got, (long long)*acknowledged, report, text);
    check_copies(i, how, event);
    assert_in_range(leftovers(""), 0, (1 + victim.nodes + victim.copies) * (KEEP + 5));
}

/* tiers: as in a victim's arguments. */
static void killed(int times, bool mpi, int tiers, uint64_t seed)
{
    static const char *const hows[] = {"kill", "stop", "all", "mpirun", "term"};
    tt_rng rng = {seed};
    int64_t acknowledged = -1, unfinished = 0;
    victim.nodes = tiers > 0;
    victim.copies = tiers > 1;
    scratch_make_on_disk(victim.dir);
    run_victim("kill", 0, mpi ? 0 : -1);
    uint64_t events = (uint64_t)get_number("events", -1, 0);
    assert_true(events > 50);
    for (int i = 0; i < times; i++) {
        const char *how = mpi ? hows[i % 5] : hows[i % 2];
        uint64_t event = 1 + tt_rand_below(&rng, mpi && i % 2 == 1 ? events / 2 : events);
        run_victim(how, event, mpi ? i % 2 : -1);
        unfinished += leftovers(".") > 0;
        check(i, how, event, &acknowledged);
    }
    print_message("%d kills at %llu events, %lld within a save; step %lld was the last\n", times,
                  (unsigned long long)events, (long long)unfinished, (long long)acknowledged);
    assert_string_equal(save(acknowledged + 10), "");
    assert_int_equal(leftovers("."), 0);
    static const char *const files[] = {"ack", "copied", "events", "out", "stopped"};
    for (int i = 0; i < 5; i++)
        forget(files[i], -1);
    for (int r = 0; r < RANKS; r++)
        forget("pid", r);
    scratch_remove(victim.dir);
}

static void threads_killed(void **state)
{
    (void)state;
    killed(15, false, 0, 11);
    killed(6, false, 2, 41);
}

static void ranks_killed(void **state)
{
    (void)state;
    if (getenv("TT_MPIRUN") == NULL)
        skip();
    killed(5, true, 0, 21);
    killed(4, true, 1, 31);
}

static void threads_killed_often(void **state)
{
    (void)state;
    killed(300, false, 0, 12);
}

static void nodes_killed_often(void **state)
{
    (void)state;
    killed(100, false, 1, 32);
}

static void copies_killed_often(void **state)
{
    (void)state;
    killed(200, false, 2, 42);
}

static void ranks_killed_often(void **state)
{
    (void)state;
    if (getenv("TT_MPIRUN") == NULL)
        skip();
    killed(100, true, 0, 22);
}

static void rank_nodes_killed_often(void **state)
{
    (void)state;
    if (getenv("TT_MPIRUN") == NULL)
        skip();
    killed(200, true, 1, 33);
}

static void rank_copies_killed_often(void **state)
{
    (void)state;
    if (getenv("TT_MPIRUN") == NULL)
        skip();
    killed(50, true, 2, 43);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_killed),
                                       cmocka_unit_test(ranks_killed)};
    const struct CMUnitTest longer[] = {
        cmocka_unit_test(threads_killed_often),    cmocka_unit_test(nodes_killed_often),
        cmocka_unit_test(copies_killed_often),     cmocka_unit_test(ranks_killed_often),
        cmocka_unit_test(rank_nodes_killed_often), cmocka_unit_test(rank_copies_killed_often)};
    if (argc == 7 && strcmp(argv[1], "victim") == 0)
        return victim_main(argv);
    if (argc > 2) /* long, and which of them */
        cmocka_set_test_filter(argv[2]);
    if (argc > 1 && strcmp(argv[1], "long") == 0)
        return cmocka_run_group_tests(longer, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

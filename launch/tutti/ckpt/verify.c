/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verify: all checksums, then the files through HDF5's eyes, in a child: HDF5's parser has had its
 * crashes and its endless loops, and a file that brings them about is to be told, not to take the
 * caller along. The child may not dump core, and HDF5 not run for ever: it gets a minute of
 * processor time and a second for each thousand tensors, of which it needs a hundredth. The child
 * says what it is at in memory that both share.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/h5.h"

#include "ckpt.h"

enum { H5_CPU_S = 60, PARTS = 1000 };

typedef struct board {
    tutti_status status;
    char at[64];
    char text[TT_ERROR_TEXT_MAX];
    int64_t step;
    uint64_t bytes;
    size_t absent; /* files of other parts */
} board;

static tutti_status check_blocks(const tt_source *src)
{
    ckpt_progress p = {.what = "verifying"};
    tutti_status status = TUTTI_OK;
    size_t absent;
    p.total = tt_source_bytes(src, &absent);
    for (int part = 0; part < PARTS && status == TUTTI_OK; part++) {
        status = tt_source_verify(src, part, PARTS);
        ckpt_progress_add(&p, p.total / PARTS);
    }
    ckpt_progress_end(&p);
    return status;
}

/* For what is to come; one that is lower already stays. */
static void limit_cpu(uint64_t tensors)
{
    struct rlimit cpu;
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    rlim_t limit = (rlim_t)used.tv_sec + 1 + H5_CPU_S + tensors / 1000;
    if (getrlimit(RLIMIT_CPU, &cpu) != 0 || (cpu.rlim_cur != RLIM_INFINITY && cpu.rlim_cur < limit))
        return;
    cpu.rlim_cur = limit;
    setrlimit(RLIMIT_CPU, &cpu);
}

static void check_one(int dir, int64_t step, board *b)
{
    tt_buf text = {0};
    tt_source src = {0};
    snprintf(b->at, sizeof b->at, "its manifest");
    b->status = tt_source_open(dir, step, &text, &src);
    if (b->status == TUTTI_OK) {
        b->bytes = tt_source_bytes(&src, &b->absent);
        snprintf(b->at, sizeof b->at, "its checksums");
        b->status = check_blocks(&src);
    }
    if (b->status == TUTTI_OK) {
        snprintf(b->at, sizeof b->at, "its files in HDF5");
        limit_cpu(src.m.cat.ntensor);
        b->status = tt_h5_verify(src.dir, &src.m, src.absent);
    }
    if (b->status != TUTTI_OK)
        snprintf(b->text, sizeof b->text, "%s", tutti_last_error());
    tt_source_close(&src);
    tt_buf_free(&text);
}

/* The board says what came out. */
static tutti_status check_in_child(int dir, int64_t step, board *b)
{
    int rc;
    *b = (board){.step = step, .at = "the start"};
    fflush(stdout);
    pid_t child = fork();
    if (child < 0)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot start a process");
    if (child == 0) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        check_one(dir, step, b);
        _exit(0);
    }
    while (waitpid(child, &rc, 0) < 0 && errno == EINTR) {
    }
    if (WIFEXITED(rc) && WEXITSTATUS(rc) == 0)
        return TUTTI_OK;
    b->status = TUTTI_ERR_CORRUPT;
    if (WIFSIGNALED(rc))
        snprintf(b->text, sizeof b->text,
                 "step %lld: the checker was killed by %s while it read %s", (long long)step,
                 strsignal(WTERMSIG(rc)), b->at);
    else
        snprintf(b->text, sizeof b->text, "step %lld: the checker ended with %d while it read %s",
                 (long long)step, WEXITSTATUS(rc), b->at);
    return TUTTI_OK;
}

static int report(const ckpt_args *a, const board *b, json_t *array)
{
    char size[32];
    if (array != NULL) {
        json_t *object = json_object();
        json_object_set_new(object, "step", json_integer(b->step));
        json_object_set_new(object, "good", json_boolean(b->status == TUTTI_OK));
        json_object_set_new(object, "status", json_string(tutti_status_name(b->status)));
        if (b->status != TUTTI_OK)
            json_object_set_new(object, "reason", json_string(b->text));
        else
            json_object_set_new(object, "bytes", json_integer((json_int_t)b->bytes));
        json_object_set_new(object, "files_elsewhere", json_integer((json_int_t)b->absent));
        json_array_append_new(array, object);
    } else if (b->status == TUTTI_OK) {
        printf("step %lld: good, %s", (long long)b->step, ckpt_size_text(b->bytes, size));
        if (b->absent > 0)
            printf("; it is one part, %zu files are on other nodes", b->absent);
        putchar('\n');
    }
    if (b->status == TUTTI_OK)
        return 0;
    return ckpt_fail(a, tt_fail_text(b->status, b->text));
}

static int check_steps(const ckpt_args *a, int dir, const int64_t *steps, size_t n)
{
    json_t *array = a->json ? json_array() : NULL;
    int worst = 0;
    board *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b == MAP_FAILED)
        return ckpt_fail(a, tt_fail_errno(TUTTI_ERR_NO_MEMORY, errno, "no memory"));
    for (size_t i = 0; i < n; i++) {
        tutti_status status = check_in_child(dir, steps[i], b);
        int result = status == TUTTI_OK ? report(a, b, array) : ckpt_fail(a, status);
        worst = worst == 0 || result == EXIT_DAMAGED ? result : worst;
    }
    munmap(b, sizeof *b);
    int printed = array != NULL ? ckpt_print_json(array) : 0;
    return worst != 0 ? worst : printed;
}

int ckpt_verify(const ckpt_args *a)
{
    int dir;
    int64_t one, *steps = &one, *all = NULL;
    size_t n = 1;
    tutti_status status =
        a->all ? tt_dir_open(a->word[0], &dir) : ckpt_locate(a, a->word[0], &dir, &one);
    if (status != TUTTI_OK)
        return ckpt_fail(a, status);
    if (a->all) {
        status = tt_dir_steps(dir, &all, &n);
        steps = all;
        if (status == TUTTI_OK && n == 0)
            status = tt_fail(TUTTI_ERR_NOT_FOUND, "there is no checkpoint in %s", a->word[0]);
    }
    int result = status == TUTTI_OK ? check_steps(a, dir, steps, n) : ckpt_fail(a, status);
    free(all);
    close(dir);
    return result;
}

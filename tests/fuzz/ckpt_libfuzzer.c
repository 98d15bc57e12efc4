/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The targets as libFuzzer wants them. The environment's TT_FUZZ_READER is the reader's number in
 * fuzz_ckpt.h; with TT_FUZZ_SEEDS the seeds are written into that folder instead.
 *
 * verify reads in a child. Its coverage is seen here because the counters' memory is made shared;
 * what the sanitizers find in it is in a report, which decides: HDF5, which is not ours and not
 * instrumented, may fall over a file (that is what the child is for), our code may not.
 */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ckpt_targets.h"

enum { CHILD_CPU_S = 4, PAGE = 4096, REPORT_BYTES = 1 << 16 };

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t cap, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t bytes, size_t cap);
void __sanitizer_set_report_path(const char *path);
const char *__asan_default_options(void);

extern uint8_t __start___sancov_cntrs[] __attribute__((weak));
extern uint8_t __stop___sancov_cntrs[] __attribute__((weak));

static int reader;
static unsigned long h5_fell;

/* A malloc of what a broken length says fails, as it would; the child's end is told apart. */
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1:detect_stack_use_after_return=1:handle_abort=1";
}

static void share_counters(void)
{
    uintptr_t from = ((uintptr_t)__start___sancov_cntrs + PAGE - 1) / PAGE * PAGE;
    uintptr_t to = (uintptr_t)__stop___sancov_cntrs / PAGE * PAGE;
    void *at = (void *)from, *copy;

    if (from >= to || (copy = malloc(to - from)) == NULL)
        return;
    memcpy(copy, at, to - from);
    if (mmap(at, to - from, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1,
             0) == MAP_FAILED)
        abort();
    memcpy(at, copy, to - from);
    free(copy);
}

static void in_child(void)
{
    char path[160];
    struct rlimit cpu = {CHILD_CPU_S, CHILD_CPU_S + 1};

    (void)snprintf(path, sizeof path, "%s/report", tt_fuzz_root());
    __sanitizer_set_report_path(path);
    (void)setrlimit(RLIMIT_CPU, &cpu);
}

/* The innermost frame that is of HDF5 or of ours is HDF5's. */
static bool is_of_h5(const char *text)
{
    const char *of_h5 = strstr(text, "libhdf5");
    const char *library = strstr(text, "/runtime/"), *tool = strstr(text, "/launch/");

    return of_h5 != NULL && (library == NULL || of_h5 < library) && (tool == NULL || of_h5 < tool);
}

static void judge(const char *path)
{
    static char text[REPORT_BYTES];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);

    if (fd >= 0)
        (void)close(fd);
    (void)unlink(path);
    text[n > 0 ? n : 0] = 0;
    if (n <= 0 || is_of_h5(text)) {
        h5_fell++;
        return;
    }
    (void)fprintf(stderr, "in the checker's child:\n%s\n", text);
    abort();
}

static void child_ended(void)
{
    DIR *folder = opendir(tt_fuzz_root());
    struct dirent *entry;

    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        char path[512];

        if (strncmp(entry->d_name, "report", 6) != 0)
            continue;
        (void)snprintf(path, sizeof path, "%s/%s", tt_fuzz_root(), entry->d_name);
        judge(path);
    }
    if (folder != NULL)
        (void)closedir(folder);
}

static void say_falls(void)
{
    (void)fprintf(stderr, "HDF5 fell over %lu inputs, in the child\n", h5_fell);
}

static void write_seeds(const char *folder)
{
    uint8_t *data;
    size_t bytes;

    for (int i = 0; (bytes = tt_fuzz_ckpt_seed(reader, i, &data)) > 0; i++) {
        char path[512];

        (void)snprintf(path, sizeof path, "%s/seed-%d", folder, i);
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        must(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
        (void)close(fd);
        free(data);
    }
    exit(0);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const char *number = getenv("TT_FUZZ_READER"), *seeds = getenv("TT_FUZZ_SEEDS");

    (void)argc, (void)argv;
    reader = number == NULL ? TT_FUZZ_MANIFEST : atoi(number);
    (void)setenv("TUTTI_LOG_FILE", "/dev/null", 0);
    if (seeds != NULL)
        write_seeds(seeds);
    if (reader != TT_FUZZ_VERIFY)
        return 0;
    share_counters();
    (void)tt_fuzz_root();
    tt_fuzz_child_ended = child_ended;
    (void)atexit(say_falls);
    return pthread_atfork(NULL, NULL, in_child);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    (void)tt_fuzz_ckpt_one(reader, data, bytes);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t cap, unsigned seed)
{
    return tt_fuzz_ckpt_mutate(reader, data, bytes, cap, seed, LLVMFuzzerMutate);
}

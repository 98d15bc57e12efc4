/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run GROUP: runs every case of the group in the schedules late, eager and random with three seeds,
 * each in a process of its own (this program again, with the case's name), and holds what it
 * reported against what it must report: the finding's id, both sides, the status of the process.
 */
#include "cases.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const case_list *const lists[] = {&legal_cases,   &order_cases, &memory_cases, &object_cases,
                                         &capture_cases, &fault_cases, &engine_cases, &random_cases,
#ifdef SIMGPU_KERNEL_CASES
                                         &kernel_cases
#endif
};
static const char *const schedules[] = {"late", "eager", "random:1", "random:2", "random:3"};

void must(cudaError_t got, cudaError_t wanted, const char *call, int line)
{
    if (got != wanted) {
        printf("line %d: %s gives %s, not %s\n", line, call, cudaGetErrorName(got),
               cudaGetErrorName(wanted));
        exit(3);
    }
}

void hold(bool condition, const char *text, int line)
{
    if (!condition) {
        printf("line %d: %s does not hold\n", line, text);
        exit(3);
    }
}

pair pair_make(void)
{
    pair p;
    OK(cudaStreamCreateWithFlags(&p.a, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&p.b, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&p.event, cudaEventDisableTiming));
    OK(cudaMalloc((void **)&p.x, BYTES));
    OK(cudaMalloc((void **)&p.y, BYTES));
    OK(cudaMallocHost((void **)&p.host, BYTES));
    return p;
}

void pair_free(pair *p)
{
    OK(cudaDeviceSynchronize());
    OK(cudaFreeHost(p->host));
    OK(cudaFree(p->y));
    OK(cudaFree(p->x));
    OK(cudaEventDestroy(p->event));
    OK(cudaStreamDestroy(p->b));
    OK(cudaStreamDestroy(p->a));
}

/* A test that ran on another cudart would prove nothing. */
static void must_be_simulated(void)
{
    Dl_info info;
    if (dladdr((void *)(uintptr_t)cudaMalloc, &info) == 0 ||
        strstr(info.dli_fname, "/simgpu/libcudart.so") == NULL) {
        printf("cudaMalloc comes from %s, not from the simulated libcudart\n", info.dli_fname);
        exit(3);
    }
}

static void set_env(const case_entry *c, const char *schedule, const char *report)
{
    setenv("SIMGPU_REPORT", report, 1);
    setenv("SIMGPU_SCHEDULE", schedule, 1);
    setenv("SIMGPU_MACHINE", "dgx-a100:2", 1);
    char *copy = c->env != NULL ? strdup(c->env) : NULL, *rest = NULL;
    for (char *one = copy != NULL ? strtok_r(copy, " ", &rest) : NULL; one != NULL;
         one = strtok_r(NULL, " ", &rest)) {
        char *equals = strchr(one, '=');
        *equals = '\0';
        setenv(one, equals + 1, 1);
    }
    free(copy);
}

static int child(const case_entry *c, const char *schedule, const char *report, const char *output)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        set_env(c, schedule, report);
        if (freopen(output, "w", stdout) == NULL || dup2(1, 2) < 0) {
            _exit(4);
        }
        alarm(60);
        execl("/proc/self/exe", "t_simgpu_cases", "--case", c->name, (char *)NULL);
        _exit(4);
    }
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static char *read_all(const char *path)
{
    FILE *f = fopen(path, "r");
    char *text = calloc(1, 65536);
    if (f != NULL) {
        text[fread(text, 1, 65535, f)] = '\0';
        fclose(f);
    }
    return text;
}

/* Every line of the report must be the finding that is expected. */
static bool right(const case_entry *c, int status, const char *report)
{
    char wanted[64];
    if (c->finding == NULL) {
        return status == 0 && report[0] == '\0';
    }
    snprintf(wanted, sizeof(wanted), "]: %s: ", c->finding);
    bool found = false, both = c->both == NULL;
    for (const char *line = report; *line != '\0';) {
        const char *end = strchr(line, '\n');
        const char *id = strstr(line, wanted);
        if (id == NULL || id > end) {
            return false;
        }
        found = true;
        const char *other = c->both != NULL ? strstr(line, c->both) : NULL;
        both = both || (other != NULL && other < end);
        line = end + 1;
    }
    return found && both && (status == 96 || status == 97 || status == 128 + SIGABRT);
}

static int run_case(const case_entry *c, const char *schedule)
{
    char report[64], output[64];
    snprintf(report, sizeof(report), "/tmp/simgpu-%d.report", (int)getpid());
    snprintf(output, sizeof(output), "/tmp/simgpu-%d.out", (int)getpid());
    unlink(report);
    int status = child(c, schedule, report, output);
    char *found = read_all(report), *said = read_all(output);
    bool ok = right(c, status, found);
    if (!ok) {
        printf("%s in schedule %s: status %d, expected %s%s%s\n%s\n", c->name, schedule, status,
               c->finding != NULL ? c->finding : "no finding", c->both != NULL ? " with " : "",
               c->both != NULL ? c->both : "", said);
    }
    free(found);
    free(said);
    unlink(report);
    unlink(output);
    return ok ? 0 : 1;
}

static int run_group(const case_list *list)
{
    int failed = 0, runs = 0;
    for (size_t i = 0; i < list->n; i++) {
        size_t n = list->cases[i].late ? 1 : sizeof(schedules) / sizeof(schedules[0]);
        for (size_t s = 0; s < n; s++) {
            failed += run_case(&list->cases[i], schedules[s]);
            runs++;
        }
    }
    printf("%s: %zu cases, %d runs, %d failed\n", list->group, list->n, runs, failed);
    return failed == 0 ? 0 : 1;
}

static int run_one(const char *name)
{
    must_be_simulated();
    for (size_t l = 0; l < sizeof(lists) / sizeof(lists[0]); l++) {
        for (size_t i = 0; i < lists[l]->n; i++) {
            if (strcmp(lists[l]->cases[i].name, name) == 0) {
                lists[l]->cases[i].run();
                return 0;
            }
        }
    }
    return 2;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--case") == 0) {
        return run_one(argv[2]);
    }
    for (size_t l = 0; argc == 2 && l < sizeof(lists) / sizeof(lists[0]); l++) {
        if (strcmp(lists[l]->group, argv[1]) == 0) {
            return run_group(lists[l]);
        }
    }
    printf("run GROUP, or run --case NAME\n");
    return 2;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log: levels from TUTTI_LOG, one line per call, written with one write(2) so that the lines
 * of threads and processes that share a descriptor do not mix.
 *
 * The levels are an array of atomics, so that the test before every log call costs one relaxed
 * load. Files are opened at the first line that goes to them: with %r in the name each rank of the
 * threads bootstrap has its own, hence the small list of open files. A line of a thread that is
 * not yet a rank goes to standard error when the name needs the rank. A file that cannot be opened
 * is said once, and its lines go to standard error: a log never fails the program.
 */
#include "core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/env.h"

enum { LINE_MAX_BYTES = 4096, PATH_BYTES = 512, HOST_BYTES = 65 };

typedef struct log_file {
    struct log_file *next;
    int fd;
    char path[];
} log_file;

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace"};
static const char *const subsys_names[TT_SUBSYS_COUNT] = {"core", "boot", "dev",  "topo",
                                                          "coll", "red",  "ckpt", "trace"};
enum { LEVELS = sizeof level_names / sizeof level_names[0] };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int levels[TT_SUBSYS_COUNT];
static _Atomic bool loaded;
static int64_t start_ns;
static char host[HOST_BYTES];
static char pattern[PATH_BYTES]; /* under lock */
static log_file *files; /* under lock */

static _Thread_local int my_rank = -1, my_size;

static int index_of(const char *word, size_t bytes, const char *const *names, int n)
{
    for (int i = 0; i < n; i++)
        if (strlen(names[i]) == bytes && memcmp(names[i], word, bytes) == 0)
            return i;
    return -1;
}

static tutti_status parse_item(const char *item, size_t bytes, int levels_out[])
{
    const char *colon = memchr(item, ':', bytes);
    size_t head = colon != NULL ? (size_t)(colon - item) : 0;
    const char *word = colon != NULL ? colon + 1 : item;
    int level = index_of(word, bytes - (size_t)(word - item), level_names, LEVELS);
    int subsys = colon != NULL ? index_of(item, head, subsys_names, TT_SUBSYS_COUNT) : 0;
    if (level < 0 || subsys < 0)
        return tt_fail(TUTTI_ERR_ARG,
                       "\"%.*s\" is not a level (error, warn, info, debug, trace) or subsys:level "
                       "(core, boot, dev, topo, coll, red, ckpt, trace)",
                       (int)(bytes < 100 ? bytes : 100), item);
    if (colon != NULL)
        levels_out[subsys] = level;
    else
        for (int i = 0; i < TT_SUBSYS_COUNT; i++)
            levels_out[i] = level;
    return TUTTI_OK;
}

tutti_status tt_log_parse(const char *text, int levels_out[TT_SUBSYS_COUNT])
{
    int parsed[TT_SUBSYS_COUNT];
    for (int i = 0; i < TT_SUBSYS_COUNT; i++)
        parsed[i] = TT_LOG_WARN;
    for (const char *item = text;; item++) {
        size_t bytes = strcspn(item, ",");
        TT_TRY(parse_item(item, bytes, parsed));
        item += bytes;
        if (*item == '\0')
            break;
    }
    memcpy(levels_out, parsed, sizeof parsed);
    return TUTTI_OK;
}

static void load(void)
{
    int parsed[TT_SUBSYS_COUNT];
    const char *text, *path;
    tt_env_get_string(TT_ENV_LOG, &text);
    tt_env_get_string(TT_ENV_LOG_FILE, &path);
    if (tt_log_parse(text, parsed) != TUTTI_OK)
        for (int i = 0; i < TT_SUBSYS_COUNT; i++)
            parsed[i] = TT_LOG_WARN;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < TT_SUBSYS_COUNT; i++)
        atomic_store_explicit(&levels[i], parsed[i], memory_order_relaxed);
    snprintf(pattern, sizeof pattern, "%s", path);
    pthread_mutex_unlock(&lock);
    atomic_store(&loaded, true);
}

static void first_use(void)
{
    start_ns = tt_now_ns();
    if (gethostname(host, sizeof host - 1) != 0)
        snprintf(host, sizeof host, "?");
    host[strcspn(host, ".")] = '\0';
    load();
}

void tt_log_reload(void)
{
    int saved = errno;
    pthread_once(&once, first_use);
    load();
    errno = saved;
}

bool tt_log_on(tt_log_level level, tt_log_subsys subsys)
{
    if (!atomic_load_explicit(&loaded, memory_order_acquire)) {
        int saved = errno;
        pthread_once(&once, first_use);
        errno = saved;
    }
    return (int)level <= atomic_load_explicit(&levels[subsys], memory_order_relaxed);
}

void tt_log_identity(int rank, int size)
{
    my_rank = rank;
    my_size = size;
}

void tt_log_identity_get(int *rank_out, int *size_out)
{
    *rank_out = my_rank;
    *size_out = my_size;
}

/* False when the name needs a rank and the thread has none. */
static bool expand(const char *from, char *to, size_t cap)
{
    size_t used = 0;
    for (; *from != '\0' && used + 1 < cap; from++) {
        int n = -1;
        if (*from == '%' && from[1] == 'h')
            n = snprintf(to + used, cap - used, "%s", host);
        else if (*from == '%' && from[1] == 'p')
            n = snprintf(to + used, cap - used, "%d", (int)getpid());
        else if (*from == '%' && from[1] == 'r' && my_rank < 0)
            return false;
        else if (*from == '%' && from[1] == 'r')
            n = snprintf(to + used, cap - used, "%d", my_rank);
        if (n >= 0) {
            used += (size_t)n;
            from++;
        } else {
            to[used++] = *from;
        }
    }
    to[used < cap ? used : cap - 1] = '\0';
    return true;
}

static int open_file(const char *path)
{
    log_file *file;
    for (file = files; file != NULL; file = file->next)
        if (strcmp(file->path, path) == 0)
            return file->fd;
    size_t bytes = strlen(path) + 1;
    file = malloc(sizeof *file + bytes);
    if (file == NULL)
        return STDERR_FILENO;
    memcpy(file->path, path, bytes);
    file->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (file->fd < 0) {
        dprintf(STDERR_FILENO, "[%s] core: cannot write the log to %s: %s\n", host, path,
                strerrordesc_np(errno));
        file->fd = STDERR_FILENO;
    }
    file->next = files;
    files = file;
    return file->fd;
}

static int descriptor(void)
{
    char path[PATH_BYTES];
    int fd = STDERR_FILENO;
    pthread_mutex_lock(&lock);
    if (pattern[0] != '\0' && expand(pattern, path, sizeof path))
        fd = open_file(path);
    pthread_mutex_unlock(&lock);
    return fd;
}

void tt_log_write(tt_log_level level, tt_log_subsys subsys, const char *fmt, ...)
{
    int saved = errno;
    char line[LINE_MAX_BYTES], who[32] = "";
    va_list args;
    (void)level;
    pthread_once(&once, first_use);
    if (my_rank >= 0)
        snprintf(who, sizeof who, " r%d/%d", my_rank, my_size);
    int head = snprintf(line, sizeof line, "[%s%s +%.3fs] %s: ", host, who,
                        (double)(tt_now_ns() - start_ns) / 1e9, subsys_names[subsys]);
    size_t used = (size_t)head;
    va_start(args, fmt);
    int body = vsnprintf(line + used, sizeof line - used, fmt, args);
    va_end(args);
    used += body > 0 ? (size_t)body : 0;
    if (used > sizeof line - 1)
        used = sizeof line - 1;
    line[used++] = '\n';
    ssize_t n = write(descriptor(), line, used);
    (void)n; /* a log that cannot be written has nowhere to say so */
    errno = saved;
}

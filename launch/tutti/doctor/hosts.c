/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between ranks: environments, reachability by TCP, clocks.
 *
 * Reachability: one rank of each host listens on all its addresses; every host tries every address
 * of every other. What answers must return the other host's token, because 172.17.0.1 is the bridge
 * of every host and answers from the host itself.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "doctor.h"

extern char **environ;

static bool matters(const char *entry)
{
    static const char *const prefix[] = {
        "TUTTI_",           "NCCL_",     "CUDA_", "OMP_",       "UCX_", "FI_",
        "LD_LIBRARY_PATH=", "OPENBLAS_", "MKL_",  "LD_PRELOAD="};
    for (size_t i = 0; i < sizeof prefix / sizeof prefix[0]; i++)
        if (strncmp(entry, prefix[i], strlen(prefix[i])) == 0)
            return true;
    return false;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

char *environment_text(void)
{
    char **list = NULL, *text = NULL;
    size_t n = 0, cap = 0, bytes = 1;
    for (char **e = environ; *e != NULL; e++)
        if (matters(*e) && tt_grow(&list, &cap, n + 1, sizeof *list) == TUTTI_OK) {
            list[n++] = *e;
            bytes += strlen(*e) + 1;
        }
    if (n > 1)
        qsort(list, n, sizeof *list, by_text);
    if (tt_calloc(bytes, 1, &text) == TUTTI_OK) {
        size_t at = 0;
        for (size_t i = 0; i < n; i++)
            at += (size_t)snprintf(text + at, bytes - at, "%s\n", list[i]);
    }
    free(list);
    return text;
}

/* The line of `name` in an environment text; NULL: none. */
static const char *find_line(const char *text, const char *name, size_t length, size_t *bytes)
{
    while (*text != '\0') {
        size_t n = strcspn(text, "\n");
        if (n > length && strncmp(text, name, length) == 0 && text[length] == '=') {
            *bytes = n;
            return text;
        }
        text += n + (text[n] == '\n');
    }
    return NULL;
}

/* Names in `a` that `b` has otherwise or not at all. */
static void compare(report *r, const char *a, const char *b, bool missing_only)
{
    for (const char *at = a; *at != '\0';) {
        size_t n = strcspn(at, "\n"), name = strcspn(at, "="), other_n;
        const char *other = find_line(b, at, name, &other_n);
        /* each rank sees its own GPU, that is what a launcher is for */
        bool own = strncmp(at, "CUDA_VISIBLE_DEVICES=", 21) == 0;
        if (other == NULL && !own)
            say(r, SAID_WARNING, "environment", "Set it on all ranks or on none (mpirun -x).",
                "%.*s is set %s", (int)name, at,
                missing_only ? "on rank 0 and not here" : "here and not on rank 0");
        else if (!missing_only && !own && other != NULL &&
                 (other_n != n || strncmp(at, other, n) != 0))
            say(r, SAID_WARNING, "environment", "Give all ranks one value.",
                "%.*s differs from rank 0's (%.*s)", (int)(n < 200 ? n : 200), at,
                (int)(other_n - name - 1 < 200 ? other_n - name - 1 : 200), other + name + 1);
        at += n + (at[n] == '\n');
    }
}

tutti_status check_environment(report *r, tutti_ctx *ctx, const char *mine)
{
    tt_buf first = {0};
    TT_TRY(tt_bcast_blob(&ctx->world, "doctor, environment", 0, mine, strlen(mine) + 1, &first));
    if (ctx->world.rank > 0) {
        compare(r, mine, (const char *)first.data, false);
        compare(r, (const char *)first.data, mine, true);
    }
    if (ctx->world.size > 1)
        say(r, SAID_OK, "environment", "", "compared over %d ranks", ctx->world.size);
    tt_buf_free(&first);
    return TUTTI_OK;
}

enum { ADDRESSES = 16 };
typedef struct listener {
    uint32_t address[ADDRESSES]; /* network order */
    char name[ADDRESSES][IFNAMSIZ];
    uint32_t n;
    uint16_t port;
    uint64_t token;
    int32_t node;
} listener;

static void own_addresses(listener *l)
{
    struct ifaddrs *list;
    if (getifaddrs(&list) != 0)
        return;
    for (struct ifaddrs *i = list; i != NULL && l->n < ADDRESSES; i = i->ifa_next) {
        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_INET ||
            (i->ifa_flags & IFF_LOOPBACK) != 0 || (i->ifa_flags & IFF_UP) == 0)
            continue;
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)i->ifa_addr;
        l->address[l->n] = in->sin_addr.s_addr;
        snprintf(l->name[l->n++], IFNAMSIZ, "%s", i->ifa_name);
    }
    freeifaddrs(list);
}

static int listen_all(listener *l)
{
    struct sockaddr_in any = {.sin_family = AF_INET};
    socklen_t bytes = sizeof any;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (bind(fd, (struct sockaddr *)&any, sizeof any) != 0 || listen(fd, 128) != 0 ||
        getsockname(fd, (struct sockaddr *)&any, &bytes) != 0) {
        close(fd);
        return -1;
    }
    l->port = any.sin_port;
    return fd;
}

/* Answers callers with the token. */
static void answer(int fd, uint64_t token)
{
    for (int caller; (caller = accept4(fd, NULL, NULL, SOCK_CLOEXEC)) >= 0;) {
        if (send(caller, &token, sizeof token, MSG_NOSIGNAL) != (ssize_t)sizeof token)
            errno = 0; /* the caller finds out */
        close(caller);
    }
}

typedef struct attempt {
    int fd, host, address;
    bool done, reached;
} attempt;

static void begin(attempt *a, const listener *l)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = l->port, .sin_addr.s_addr = l->address[a->address]};
    a->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (a->fd < 0 ||
        (connect(a->fd, (struct sockaddr *)&to, sizeof to) != 0 && errno != EINPROGRESS))
        a->done = true;
}

static void look(attempt *a, const listener *l)
{
    uint64_t token = 0;
    ssize_t got = recv(a->fd, &token, sizeof token, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOTCONN))
        return;
    a->done = true;
    a->reached = got == (ssize_t)sizeof token && token == l->token;
}

/* All attempts at once, for at most `seconds`; answers the others meanwhile. */
static void try_all(attempt *list, int n, const listener *all, int fd, uint64_t token)
{
    const double seconds = 2;
    int64_t end = tt_now_ns() + (int64_t)(seconds * 1e9);
    for (int i = 0; i < n; i++)
        begin(&list[i], &all[list[i].host]);
    while (tt_now_ns() < end) {
        answer(fd, token);
        for (int i = 0; i < n; i++)
            if (!list[i].done)
                look(&list[i], &all[list[i].host]);
        poll(NULL, 0, 10);
    }
    for (int i = 0; i < n; i++)
        if (list[i].fd >= 0)
            close(list[i].fd);
}

static void tell(report *r, const tutti_ctx *ctx, const attempt *list, int n, const listener *all)
{
    for (int h = 0; h < ctx->world.size; h++) {
        char text[512] = "", failed[512] = "";
        size_t at = 0, bad = 0;
        int tried = 0;
        for (int i = 0; i < n; i++) {
            if (list[i].host != h)
                continue;
            tried++;
            const char *name = all[h].name[list[i].address];
            if (list[i].reached && at < sizeof text)
                at += (size_t)snprintf(text + at, sizeof text - at, " %s", name);
            else if (!list[i].reached && bad < sizeof failed)
                bad += (size_t)snprintf(failed + bad, sizeof failed - bad, " %s", name);
        }
        if (tried == 0)
            continue;
        if (at == 0)
            say(r, SAID_FAILED, "reachability", "Open the firewall between the hosts.",
                "%s reaches no address of %s", ctx->place[ctx->world.rank].host,
                ctx->place[h].host);
        else
            say(r, SAID_OK, "reachability", "", "%s reaches %s by%s%s%s",
                ctx->place[ctx->world.rank].host, ctx->place[h].host, text,
                bad > 0 ? "; not by" : "", failed);
    }
}

static bool leads_host(const tutti_ctx *ctx, int rank)
{
    return ctx->place[rank].local_rank == 0;
}

tutti_status check_reach(report *r, tutti_ctx *ctx)
{
    listener mine = {.node = -1}, *all = NULL;
    attempt *list = NULL;
    int fd = -1, n = 0, me = ctx->world.rank;
    if (ctx->node_count < 2)
        return TUTTI_OK;
    if (leads_host(ctx, me)) {
        own_addresses(&mine);
        mine.node = ctx->place[me].node;
        mine.token = (uint64_t)getpid() << 32 ^ (uint64_t)tt_now_ns();
        fd = listen_all(&mine);
    }
    tutti_status status = tt_calloc((size_t)ctx->world.size, sizeof *all, &all);
    if (status == TUTTI_OK)
        status = tt_calloc((size_t)ctx->world.size * ADDRESSES, sizeof *list, &list);
    status = tt_agree(&ctx->world, "doctor, reachability", status);
    if (status == TUTTI_OK)
        status = tt_all_gather_fixed(&ctx->world, "doctor, addresses", &mine, sizeof mine, all);
    if (status == TUTTI_OK && fd >= 0) {
        for (int h = 0; h < ctx->world.size; h++)
            for (uint32_t k = 0; h != me && k < all[h].n && k < ADDRESSES; k++)
                list[n++] = (attempt){.fd = -1, .host = h, .address = (int)k};
        try_all(list, n, all, fd, mine.token);
        tell(r, ctx, list, n, all);
    }
    if (fd >= 0)
        close(fd);
    if (status == TUTTI_OK)
        status = tt_barrier(&ctx->world, "doctor, reachability"); /* nobody hangs up early */
    free(list);
    free(all);
    return status;
}

static double wall(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Between two barriers every host reads its clock; the span of the barriers bounds the error. */
tutti_status check_clocks(report *r, tutti_ctx *ctx)
{
    double *all, now, best_span = 1e9, offset = 0;
    if (ctx->node_count < 2)
        return TUTTI_OK;
    TT_TRY(tt_calloc((size_t)ctx->world.size, sizeof *all, &all));
    tutti_status status = TUTTI_OK;
    for (int round = 0; round < 5 && status == TUTTI_OK; round++) {
        status = tt_barrier(&ctx->world, "doctor, clocks");
        double before = wall();
        now = before;
        if (status == TUTTI_OK)
            status = tt_all_gather_fixed(&ctx->world, "doctor, clocks", &now, sizeof now, all);
        double span = wall() - before;
        if (status == TUTTI_OK && span < best_span) {
            best_span = span;
            offset = now - all[0];
        }
    }
    if (status == TUTTI_OK && leads_host(ctx, ctx->world.rank) && ctx->world.rank > 0) {
        bool far = offset > 1 + best_span || offset < -1 - best_span;
        say(r, far ? SAID_WARNING : SAID_OK, "clock",
            far ? "Run a time service (chrony) on all hosts." : "",
            "%s is %.3f s %s %s, give or take %.3f s", ctx->place[ctx->world.rank].host,
            offset < 0 ? -offset : offset, offset < 0 ? "behind" : "ahead of", ctx->place[0].host,
            best_span);
    }
    free(all);
    return status;
}

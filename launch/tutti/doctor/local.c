/* SPDX-License-Identifier: Apache-2.0 */
/* This process and its host: limits, processors, interfaces. */
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <arpa/inet.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "core/env.h"
#include "doctor.h"

enum { TMPFS = 0x01021994 };

static void bytes_text(double bytes, char text[32])
{
    static const char unit[] = "KMGT";
    int at = -1;
    for (; bytes >= 1024 && at < 3; at++)
        bytes /= 1024;
    if (at < 0)
        snprintf(text, 32, "%.0f B", bytes);
    else
        snprintf(text, 32, "%.1f %ciB", bytes, unit[at]);
}

static void check_shm(report *r, int local_ranks)
{
    const char *dir;
    struct statfs fs;
    char free_text[32], size_text[32];
    if (tt_env_get_string(TT_ENV_SHM_DIR, &dir) != TUTTI_OK || statfs(dir, &fs) != 0) {
        say(r, SAID_FAILED, "shared memory", "Mount a tmpfs there, or set TUTTI_SHM_DIR.",
            "%s cannot be looked at", dir);
        return;
    }
    double size = (double)fs.f_blocks * (double)fs.f_bsize;
    double free_bytes = (double)fs.f_bavail * (double)fs.f_bsize;
    double wanted = 256.0 * 1024 * 1024 * (local_ranks > 0 ? local_ranks : 1);
    bytes_text(free_bytes, free_text);
    bytes_text(size, size_text);
    if (fs.f_type != TMPFS)
        say(r, SAID_WARNING, "shared memory", "Set TUTTI_SHM_DIR to a tmpfs.",
            "%s is no tmpfs: shared memory would be written to a disk", dir);
    if (size <= 65.0 * 1024 * 1024)
        say(r, SAID_FAILED, "shared memory",
            "Start the container with --shm-size=8g (Kubernetes: an emptyDir of medium Memory).",
            "%s has %s, a container's default: too small for any training job", dir, size_text);
    else if (free_bytes < wanted)
        say(r, SAID_WARNING, "shared memory", "Free some, or give it more (--shm-size).",
            "%s: %s free of %s, for %d ranks", dir, free_text, size_text, local_ranks);
    else
        say(r, SAID_OK, "shared memory", "", "%s: %s", dir, size_text);
}

static void check_memlock(report *r)
{
    struct rlimit limit;
    char text[32];
    bool rdma = access("/sys/class/infiniband", F_OK) == 0 || access("/dev/nvidiactl", F_OK) == 0;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0)
        return;
    if (limit.rlim_cur == RLIM_INFINITY) {
        say(r, SAID_OK, "memlock", "", "unlimited");
        return;
    }
    bytes_text((double)limit.rlim_cur, text);
    say(r, rdma ? SAID_WARNING : SAID_NOTE, "memlock",
        rdma ? "ulimit -l unlimited (containers: --ulimit memlock=-1; Slurm: "
               "PropagateResourceLimits)."
             : "",
        "%s may be locked in memory%s", text,
        rdma ? ": RDMA and pinned buffers need more" : "; enough without RDMA and GPUs");
}

static void check_files(report *r)
{
    enum { WANTED = 4096 };
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    if (limit.rlim_cur < WANTED)
        say(r, SAID_WARNING, "open files", "ulimit -n 65536.",
            "%llu files may be open: connections between many ranks need more",
            (unsigned long long)limit.rlim_cur);
    else
        say(r, SAID_OK, "open files", "", "%llu may be open", (unsigned long long)limit.rlim_cur);
}

static void check_stack(report *r)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_CORE, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY)
        say(r, SAID_NOTE, "core files", "ulimit -c 0, unless you want them.",
            "unlimited: when a job dies, every rank writes all its memory to disk");
}

void check_limits(report *r, int local_ranks)
{
    check_shm(r, local_ranks);
    check_memlock(r);
    check_files(r);
    check_stack(r);
}

/* Processors that the cgroup pays for; 0: no limit. */
static double quota(void)
{
    char text[64];
    double run, period;
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (file != NULL) {
        bool got =
            fgets(text, sizeof text, file) != NULL && sscanf(text, "%lf %lf", &run, &period) == 2;
        fclose(file);
        return got && period > 0 ? run / period : 0;
    }
    file = fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "re");
    if (file == NULL)
        return 0;
    bool got = fscanf(file, "%lf", &run) == 1;
    fclose(file);
    file = fopen("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "re");
    if (file == NULL)
        return 0;
    got = got && fscanf(file, "%lf", &period) == 1;
    fclose(file);
    return got && run > 0 && period > 0 ? run / period : 0;
}

static void check_threads(report *r, int cores)
{
    const char *text = getenv("OMP_NUM_THREADS");
    int threads = text != NULL ? atoi(text) : 0;
    if (threads > cores)
        say(r, SAID_WARNING, "threads", "Set OMP_NUM_THREADS to what a rank has of processors.",
            "OMP_NUM_THREADS=%d on %d processors", threads, cores);
}

void check_cpus(report *r, int local_ranks)
{
    cpu_set_t mask;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (sched_getaffinity(0, sizeof mask, &mask) != 0) {
        say(r, SAID_NOTE, "processors", "", "the mask cannot be read (more than %d processors?)",
            CPU_SETSIZE);
        return;
    }
    int cores = CPU_COUNT(&mask);
    double paid = quota();
    if (paid > 0 && paid < cores)
        say(r, SAID_WARNING, "processors",
            "Give the container as many processors as it may use, or bind to fewer.",
            "the container may use %d processors but is paid for %.1f: it stands still in every "
            "period when they are used up",
            cores, paid);
    if (local_ranks > online)
        say(r, SAID_WARNING, "processors", "Start fewer ranks on this host.",
            "%d ranks share %ld processors: a waiting rank takes the time of one that computes",
            local_ranks, online);
    else if (cores == 1 && local_ranks > 1)
        say(r, SAID_NOTE, "processors", "",
            "a rank has 1 of %ld processors: its streams and progress share it with the program",
            online);
    else
        say(r, SAID_OK, "processors", "", "%d of %ld for a rank", cores, online);
    check_threads(r, cores);
}

static int speed_of(const char *name)
{
    char path[256];
    int mbps = -1;
    snprintf(path, sizeof path, "/sys/class/net/%s/speed", name);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return -1;
    if (fscanf(file, "%d", &mbps) != 1)
        mbps = -1;
    fclose(file);
    return mbps;
}

void check_interfaces(report *r, bool several_hosts)
{
    struct ifaddrs *list, *i;
    char text[512] = "";
    size_t at = 0;
    if (getifaddrs(&list) != 0)
        return;
    for (i = list; i != NULL; i = i->ifa_next) {
        char address[INET_ADDRSTRLEN];
        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_INET ||
            (i->ifa_flags & IFF_LOOPBACK) != 0 || (i->ifa_flags & IFF_UP) == 0)
            continue;
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)i->ifa_addr;
        inet_ntop(AF_INET, &in->sin_addr, address, sizeof address);
        int mbps = speed_of(i->ifa_name);
        if (at < sizeof text)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%s %s", at > 0 ? ", " : "",
                                   i->ifa_name, address);
        if (mbps > 0 && at < sizeof text)
            at += (size_t)snprintf(text + at, sizeof text - at, " (%.4g Gb/s)", mbps / 1000.0);
    }
    freeifaddrs(list);
    if (text[0] == '\0')
        say(r, several_hosts ? SAID_FAILED : SAID_NOTE, "interfaces", "",
            "none but the loopback: this host reaches no other");
    else
        say(r, SAID_OK, "interfaces", "", "%s", text);
}

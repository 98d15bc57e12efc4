/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plain memory of the node's other ranks, read and written by way of the kernel
 * (process_vm_readv, process_vm_writev), so that it is copied once and not twice. Ranks that are
 * threads of one process copy it themselves.
 *
 * Whether the system allows this depends on users, containers and its settings, so each rank tries:
 * when a communicator is made, every rank reads a word of every other rank on its node, at an
 * address that it was told, compares it with what it was told, and writes it back, since a filter
 * of system calls may let it do one and not the other. One that cannot makes all of the node go
 * without (sum.c, spread.c and pairs.c then stage plain memory in slots). A process with the same
 * number in another container is found out by the word.
 *
 * It must end when the peer's call ends, also when that fails because this rank is late: the peer's
 * program may free the memory then, or use it for something else. So a rank first says whose memory
 * it is in and then looks whether the owner has withdrawn it; an owner whose call fails first
 * withdraws its memory and then waits until nobody is in it. A process that is stopped in those few
 * microseconds is waited for for some seconds only.
 */
#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/env.h"
#include "host/control.h"

static const int64_t withdraw_ns = 5000000000;

tutti_status tt_reach_offer(tt_host *host, tt_reach_offered *out)
{
    bool wanted;
    TT_TRY(tt_env_get_bool(TT_ENV_CMA, &wanted));
    host->proof = (uint64_t)tt_now_ns() ^ (uint64_t)getpid() << 40 ^ (uintptr_t)host << 4;
    *out = (tt_reach_offered){.pid = (uint64_t)getpid(),
                              .address = (uintptr_t)&host->proof,
                              .proof = host->proof,
                              .wanted = wanted};
    return TUTTI_OK;
}

static bool move(pid_t pid, uint64_t address, void *buf, size_t bytes, bool write)
{
    for (size_t done = 0; done < bytes;) {
        struct iovec here = {(char *)buf + done, bytes - done};
        struct iovec there = {(void *)((uintptr_t)address + done), bytes - done};
        ssize_t moved = write ? process_vm_writev(pid, &here, 1, &there, 1, 0)
                              : process_vm_readv(pid, &here, 1, &there, 1, 0);
        if (moved <= 0) {
            errno = moved == 0 ? EFAULT : errno;
            return false;
        }
        done += (size_t)moved;
    }
    return true;
}

bool tt_reach_try(tt_host *host, int local, const tt_reach_offered *offered)
{
    uint64_t seen = 0;
    bool able = offered->wanted && host->locals <= TT_REACH_MOST &&
                (local == host->local ||
                 (move((pid_t)offered->pid, offered->address, &seen, sizeof seen, false) &&
                  seen == offered->proof &&
                  move((pid_t)offered->pid, offered->address, &seen, sizeof seen, true)));
    host->pid[local] = offered->pid == (uint64_t)getpid() ? 0 : (pid_t)offered->pid;
    return able;
}

/* A peer that has withdrawn its memory knows why its call failed, and the news is on its way. */
static void hear(tutti_ctx *ctx)
{
    const int64_t began_ns = tt_now_ns();
    while (tt_ctx_check(ctx) == TUTTI_OK && tt_now_ns() - began_ns < withdraw_ns)
        tt_sleep_ns(100000);
}

static tutti_status failed(const tt_run *run, int local, const char *how)
{
    const tutti_comm *comm = run->host->comm;
    const int code = errno;
    char name[TT_HOST_MAX + 64];
    if (code == ECANCELED)
        hear(comm->ctx);
    TT_TRY(tt_ctx_check(comm->ctx)); /* most likely the peer has gone, and somebody has said why */
    tt_ctx_rank_name(comm->ctx, comm->group.world[run->host->ranks[local]], name, sizeof name);
    return tt_fail(TUTTI_ERR_REMOTE,
                   "%s on comm %s: the memory of %s cannot be %s: %s (TUTTI_CMA=0 stages it)",
                   tt_kind_name(run->call->kind), comm->name, name, how, strerror(code));
}

/* bytes between `buf` here and `address` of a peer. */
static tutti_status reach(const tt_run *run, int local, uint64_t address, void *buf, size_t bytes,
                          bool write)
{
    const tt_host *host = run->host;
    tt_block *mine = &host->control->block[host->local], *theirs = &host->control->block[local];
    bool done = false;

    if (bytes == 0)
        return TUTTI_OK;
    atomic_store(&mine->inside, (uint32_t)local + 1); /* ordered before the look */
    errno = ECANCELED;
    if (atomic_load(&theirs->withdrawn) == 0) {
        void *there = (void *)(uintptr_t)address;
        done = true;
        if (host->pid[local] != 0)
            done = move(host->pid[local], address, buf, bytes, write);
        else
            memcpy(write ? there : buf, write ? buf : there, bytes);
    }
    atomic_store_explicit(&mine->inside, 0, memory_order_release);
    return done ? TUTTI_OK : failed(run, local, write ? "written" : "read");
}

tutti_status tt_reach_read(const tt_run *run, int local, uint64_t address, void *to, size_t bytes)
{
    return reach(run, local, address, to, bytes, false);
}

tutti_status tt_reach_write(const tt_run *run, int local, uint64_t address, const void *from,
                            size_t bytes)
{
    return reach(run, local, address, (void *)(uintptr_t)from, bytes, true);
}

void tt_reach_withdraw(const tt_host *host)
{
    tt_block *block = host->control->block;
    const uint32_t me = (uint32_t)host->local + 1;
    const int64_t began_ns = tt_now_ns();

    atomic_store(&block[host->local].withdrawn, 1);
    for (int i = 0; i < host->locals; i++)
        while (atomic_load(&block[i].inside) == me && tt_now_ns() - began_ns < withdraw_ns)
            tt_sleep_ns(1000);
}

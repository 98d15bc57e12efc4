/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cliques: how the ranks of a communicator find each other, within a process and across processes.
 *
 * A clique has one control block, a memory file without a name that whoever makes the unique id
 * creates; the id carries pid and descriptor, and others open it through /proc. So a job that is
 * killed at any moment leaves nothing behind. When all ranks have registered, each process knows
 * whether the clique is its own alone (`local`: operations meet in memory, with the engine's order
 * between them) or not (data goes through shared memory, order ends at the process).
 *
 * Small exchanges (split, windows) are an all-gather of one record in a ring of slots per rank. A
 * rank posts at most half a ring before it has seen all of the others', so nobody overwrites what
 * is unread.
 */
#include "sim.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

static const char token_magic[8] = "simnccl";
static sn_clique *cliques;

bool sn_token_make(uint64_t number, sn_token *out)
{
    sn_token token = {.number = number, .pid = (int32_t)getpid()};
    memcpy(token.magic, token_magic, sizeof(token.magic));
    if (getrandom(&token.token, sizeof(token.token), 0) != (ssize_t)sizeof(token.token))
        return false;
    token.fd = memfd_create("simgpu-nccl", MFD_CLOEXEC);
    if (token.fd < 0)
        return false;
    if (ftruncate(token.fd, sizeof(sn_control)) != 0) {
        close(token.fd);
        return false;
    }
    *out = token;
    return true;
}

void sn_token_drop(const sn_token *token)
{
    if (token->pid == (int32_t)getpid())
        close(token->fd);
}

static int open_of(int pid, int fd)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

static sn_control *map_control(const sn_token *where)
{
    int fd = open_of(where->pid, where->fd);
    if (fd < 0)
        return NULL;
    void *at = mmap(NULL, sizeof(sn_control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return at != MAP_FAILED ? at : NULL;
}

static sn_clique *clique_find(const sn_token *where, int size)
{
    static int count;
    for (sn_clique *c = cliques; c != NULL; c = c->next)
        if (c->where.token == where->token)
            return c;
    sn_control *ctl = map_control(where);
    if (ctl == NULL)
        return NULL;
    sn_clique *c = calloc(1, sizeof(*c));
    if (c == NULL)
        sg_fatal("memory", "out of memory for a clique");
    c->where = *where;
    c->size = size;
    c->id = ++count;
    c->ctl = ctl;
    c->next = cliques;
    cliques = c;
    return c;
}

ncclResult_t sn_clique_join(const sn_token *where, int size, int rank, ncclComm_t comm,
                            sn_clique **out)
{
    if (memcmp(where->magic, token_magic, sizeof(token_magic)) != 0) {
        sg_finding("nccl-id", "a unique id that ncclGetUniqueId has not made");
        return sn_error(comm, ncclInvalidArgument, "the unique id is not one");
    }
    sn_clique *c = clique_find(where, size);
    if (c == NULL)
        return sn_error(comm, ncclSystemError, "the maker of the unique id (pid %d) is gone",
                        where->pid);
    uint32_t others = 0;
    if (!atomic_compare_exchange_strong(&c->ctl->size, &others, (uint32_t)size) &&
        others != (uint32_t)size) {
        sg_finding("nccl-nranks", "rank %d says %d ranks, others of the same id said %u", rank,
                   size, others);
        return sn_error(comm, ncclInvalidArgument, "the ranks differ in their number");
    }
    sn_member *m = &c->ctl->member[rank];
    uint32_t none = 0;
    if (!atomic_compare_exchange_strong(&m->present, &none, 1)) {
        sg_finding("nccl-rank", "rank %d of comm %d is taken: two ranks say the same number", rank,
                   c->id);
        return sn_error(comm, ncclInvalidUsage, "rank %d is taken", rank);
    }
    m->pid = (int32_t)getpid();
    m->host = sg_host_index();
    atomic_store(&m->data_fd, -1);
    const sg_gpu *gpu = sg_device(comm->device);
    if (gpu != NULL)
        memcpy(m->uuid, gpu->uuid_bytes, sizeof(m->uuid));
    c->member[rank] = comm;
    c->refs++;
    atomic_store(&m->present, 2);
    *out = c;
    sg_changed();
    return ncclSuccess;
}

bool sn_clique_poll(sn_clique *c)
{
    if (c->complete)
        return true;
    bool local = true;
    for (int r = 0; r < c->size; r++) {
        if (atomic_load(&c->ctl->member[r].present) != 2)
            return false;
        local = local && c->ctl->member[r].pid == (int32_t)getpid();
    }
    c->local = local;
    c->complete = true;
    return true;
}

/* The last of this process's ranks to leave unmaps what the peers showed. Rounds that will never
 * meet are left behind by an abort; they go with it. */
void sn_clique_leave(sn_clique *c, int rank)
{
    c->member[rank] = NULL;
    if (--c->refs > 0)
        return;
    for (int r = 0; r < c->size; r++)
        if (c->data[r] != NULL)
            munmap(c->data[r], SN_DATA_BYTES);
    memset(c->data, 0, sizeof(c->data));
    for (int r = 0; r < c->size; r++)
        if (c->complete && c->ctl->member[r].pid == (int32_t)getpid() &&
            atomic_load(&c->ctl->member[r].data_fd) >= 0)
            close(atomic_load(&c->ctl->member[r].data_fd));
    /* Only when all have mapped it may the file go: a rank that is late opens it by this one. */
    if (c->complete && c->where.pid == (int32_t)getpid())
        close(c->where.fd);
    munmap(c->ctl, sizeof(*c->ctl));
    c->ctl = NULL;
    c->where.token = 0;
}

char *sn_clique_data(sn_clique *c, int rank)
{
    if (c->data[rank] != NULL)
        return c->data[rank];
    sn_member *m = &c->ctl->member[rank];
    int fd = atomic_load(&m->data_fd);
    bool own = m->pid == (int32_t)getpid();
    if (fd < 0 && own) {
        fd = memfd_create("simgpu-nccl-data", MFD_CLOEXEC);
        if (fd < 0 || ftruncate(fd, SN_DATA_BYTES) != 0)
            return NULL;
        atomic_store(&m->data_fd, fd);
    }
    int opened = own ? fd : open_of(m->pid, fd);
    if (opened < 0)
        return NULL;
    void *at = mmap(NULL, SN_DATA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0);
    if (!own)
        close(opened);
    if (at == MAP_FAILED)
        return NULL;
    c->data[rank] = at;
    return at;
}

/* ---- exchanges ---- */

uint64_t sn_xchg_post(ncclComm_t comm, uint32_t kind, const void *data, size_t bytes)
{
    uint64_t seq = ++comm->exchanges;
    sn_xrec *mine = &comm->clique->ctl->xchg[comm->rank][seq % SN_XCHGS];
    mine->kind = kind;
    memset(mine->data, 0, sizeof(mine->data));
    memcpy(mine->data, data, bytes);
    atomic_store(&mine->seq, seq);
    sg_changed();
    return seq;
}

bool sn_xchg_done(ncclComm_t comm, uint64_t seq)
{
    sn_clique *c = comm->clique;
    const sn_xrec *mine = &c->ctl->xchg[comm->rank][seq % SN_XCHGS];
    for (int r = 0; r < c->size; r++) {
        const sn_xrec *theirs = &c->ctl->xchg[r][seq % SN_XCHGS];
        if (atomic_load(&theirs->seq) < seq)
            return false;
        if (theirs->kind != mine->kind)
            sg_finding("nccl-sequence",
                       "comm %d: rank %d and rank %d are in different calls that all ranks make "
                       "together (ncclCommSplit, ncclCommWindowRegister, ...)",
                       c->id, comm->rank, r);
    }
    return true;
}

const void *sn_xchg_get(ncclComm_t comm, uint64_t seq, int rank)
{
    return comm->clique->ctl->xchg[rank][seq % SN_XCHGS].data;
}

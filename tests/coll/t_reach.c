/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plain memory of other processes where the system refuses process_vm_readv or _writev to one rank
 * only: all ranks of the communicator go without, and results are right. A communicator that is
 * made when nothing is refused uses them again. Wants to be linked with both wrapped.
 */
#include <errno.h>
#include <stdatomic.h>
#include <sys/uio.h>

#include "tt_test.h"

enum { N = 40000 /* elements: far more than what travels with a call */, RANKS_MAX = 4 };

static atomic_int calls; /* of either, allowed */
static atomic_bool no_reads, no_writes, never; /* never: the system itself refused */

#define WRAP(name, refused)                                                                        \
    ssize_t __real_##name(pid_t, const struct iovec *, unsigned long, const struct iovec *,        \
                          unsigned long, unsigned long);                                           \
    ssize_t __wrap_##name(pid_t pid, const struct iovec *here, unsigned long n_here,               \
                          const struct iovec *there, unsigned long n_there, unsigned long flags);  \
    ssize_t __wrap_##name(pid_t pid, const struct iovec *here, unsigned long n_here,               \
                          const struct iovec *there, unsigned long n_there, unsigned long flags)   \
    {                                                                                              \
        if (atomic_load(&refused)) {                                                               \
            errno = EPERM;                                                                         \
            return -1;                                                                             \
        }                                                                                          \
        ssize_t moved = __real_##name(pid, here, n_here, there, n_there, flags);                   \
        atomic_fetch_add(&calls, 1);                                                               \
        if (moved < 0 && (errno == EPERM || errno == ENOSYS))                                      \
            atomic_store(&never, true);                                                            \
        return moved;                                                                              \
    }
WRAP(process_vm_readv, no_reads)
WRAP(process_vm_writev, no_writes)

/* Every kind that moves plain memory, with inputs that tell rank and place. */
static void collectives(tt_rank *r, tutti_comm *comm)
{
    static float in[RANKS_MAX * N], out[RANKS_MAX * N];
    const tutti_stream s = {0};
    const tutti_dtype f32 = TUTTI_FLOAT32;
    const int size = r->size, last = size - 1;
    const float sum = (float)(size * (size + 1) / 2);
    for (int i = 0; i < size * N; i++)
        in[i] = (float)(r->rank + 1) + (float)(i / N * 10);
    TT_EXPECT_OK(r, tutti_all_reduce(comm, in, out, N, f32, TUTTI_SUM, s));
    for (int i = 0; i < N; i++)
        TT_EXPECT(r, out[i] == sum);
    TT_EXPECT_OK(r, tutti_all_gather(comm, in, out, N, f32, s));
    for (int i = 0; i < size * N; i++)
        TT_EXPECT(r, out[i] == (float)(i / N + 1));
    TT_EXPECT_OK(r, tutti_all_to_all(comm, in, out, N, f32, s));
    for (int i = 0; i < size * N; i++)
        TT_EXPECT(r, out[i] == (float)(i / N + 1) + (float)(r->rank * 10));
    TT_EXPECT_OK(r, tutti_gather(comm, in, r->rank == last ? out : NULL, N, f32, last, s));
    for (int i = 0; i < size * N && r->rank == last; i++)
        TT_EXPECT(r, out[i] == (float)(i / N + 1));
    TT_EXPECT_OK(r, tutti_scatter(comm, r->rank == last ? in : NULL, out, N, f32, last, s));
    for (int i = 0; i < N; i++)
        TT_EXPECT(r, out[i] == (float)size + (float)(r->rank * 10));
    TT_EXPECT_OK(r, tutti_broadcast(comm, in, out, N, f32, last, s));
    for (int i = 0; i < N; i++)
        TT_EXPECT(r, out[i] == (float)size);
}

/* Splits off a communicator of all, while `refused` is so on the last rank. */
static void with(tt_rank *r, atomic_bool *refused, bool expected)
{
    tutti_comm *comm = NULL;
    double uses, no;
    if (refused != NULL)
        atomic_store(refused, r->rank == r->size - 1);
    TT_EXPECT_OK(r, tutti_comm_split(r->comm, 0, r->rank, NULL, &comm));
    if (refused != NULL)
        atomic_store(refused, false);
    atomic_store(&calls, 0);
    collectives(r, comm);
    uses = atomic_load(&calls) > 0 ? 1 : 0;
    no = atomic_load(&never) ? 1 : 0;
    TT_EXPECT_OK(r, tutti_all_reduce_host(r->comm, &no, 1, TUTTI_MAX));
    if (no == 0 && uses != (expected ? 1 : 0))
        tt_say(r, "%s used by rank %d", uses != 0 ? "the kernel's copies are" : "nothing is",
               r->rank);
    tutti_comm_destroy(comm);
}

int main(void)
{
    tt_rank r = {0};
    if (tutti_init(NULL, &r.ctx) != TUTTI_OK) {
        fprintf(stderr, "tutti_init: %s\n", tutti_last_error());
        return 1;
    }
    r.comm = tutti_world(r.ctx);
    r.rank = tutti_rank(r.comm);
    r.size = tutti_size(r.comm);
    if (r.size < 2 || r.size > RANKS_MAX)
        tutti_abort(r.ctx, 1, "for 2 to 4 ranks");
    with(&r, &no_reads, false);
    with(&r, NULL, true);
    with(&r, &no_writes, false);
    if (r.failed)
        tutti_abort(r.ctx, 1, r.message);
    if (tutti_finalize(r.ctx) != TUTTI_OK) {
        fprintf(stderr, "tutti_finalize: %s\n", tutti_last_error());
        return 1;
    }
    return 0;
}

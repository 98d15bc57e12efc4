/* SPDX-License-Identifier: Apache-2.0 */
/* Joins the job, says where each rank is, one after the other, and leaves. */
#include <stdio.h>

#include <tutti/tutti.h>

static tutti_status hello(tutti_ctx *ctx)
{
    tutti_comm *world = tutti_world(ctx);
    tutti_status status = TUTTI_OK;

    for (int turn = 0; turn < tutti_size(world) && status == TUTTI_OK; turn++) {
        if (turn == tutti_rank(world)) {
            printf("hello from rank %d of %d: number %d of %d on node %d of %d\n", turn,
                   tutti_size(world), tutti_local_rank(ctx), tutti_local_size(ctx), tutti_node(ctx),
                   tutti_node_count(ctx));
            fflush(stdout);
        }
        status = tutti_barrier(world);
    }
    return status;
}

int main(void)
{
    tutti_ctx *ctx;
    tutti_status status = tutti_init(NULL, &ctx), left;

    if (status != TUTTI_OK) { /* the same status on every rank */
        fprintf(stderr, "hello: %s\n", tutti_last_error());
        return 1;
    }
    status = hello(ctx);
    if (status != TUTTI_OK)
        fprintf(stderr, "hello: %s\n", tutti_last_error());
    left = tutti_finalize(ctx);
    if (fclose(stdout) != 0) { /* a full disk */
        perror("hello: standard output");
        return 1;
    }
    return status == TUTTI_OK && left == TUTTI_OK ? 0 : 1;
}

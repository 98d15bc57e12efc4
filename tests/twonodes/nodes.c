/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Are these really two nodes? Every rank tells its host name and node; there must be two of each,
 * they must go together, and a rank must not see the shared memory of the other node. TUTTI_*
 * variables set for rank 0 alone must be known to all. Exits 0 when all of that is so on every
 * rank.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tutti/tutti.h>

enum { NAME_MAX_BYTES = 64, RANKS_MAX = 64 };

typedef struct seen {
    char host[NAME_MAX_BYTES];
    char bucket_bytes[NAME_MAX_BYTES];
    int node, local_rank, local_size;
} seen;

static int wrong(const char *what, int rank)
{
    fprintf(stderr, "two nodes: rank %d: %s\n", rank, what);
    return 1;
}

static int compare(const seen *all, int size)
{
    for (int a = 0; a < size; a++) {
        if (strcmp(all[a].bucket_bytes, all[0].bucket_bytes) != 0)
            return wrong("rank 0's TUTTI_BUCKET_BYTES is not known here", a);
        if (all[a].local_size != size / 2)
            return wrong("the ranks are not half and half on the nodes", a);
        for (int b = 0; b < size; b++)
            if ((strcmp(all[a].host, all[b].host) == 0) != (all[a].node == all[b].node))
                return wrong("host name and node do not go together", a);
    }
    return 0;
}

int main(void)
{
    tutti_ctx *ctx = NULL;
    tutti_stream inline_stream = {0};
    seen mine, all[RANKS_MAX];

    if (tutti_init(NULL, &ctx) != TUTTI_OK) {
        fprintf(stderr, "tutti_init: %s\n", tutti_last_error());
        return 1;
    }
    tutti_comm *world = tutti_world(ctx);
    int size = tutti_size(world), failed = 0;
    memset(&mine, 0, sizeof mine);
    if (gethostname(mine.host, sizeof mine.host - 1) != 0)
        tutti_abort(ctx, 1, "gethostname");
    const char *bucket_bytes = getenv("TUTTI_BUCKET_BYTES");
    snprintf(mine.bucket_bytes, sizeof mine.bucket_bytes, "%s", bucket_bytes ? bucket_bytes : "");
    mine.node = tutti_node(ctx);
    mine.local_rank = tutti_local_rank(ctx);
    mine.local_size = tutti_local_size(ctx);
    if (size > RANKS_MAX)
        tutti_abort(ctx, 1, "too many ranks");
    TUTTI_MUST(ctx, tutti_all_gather(world, &mine, all, sizeof mine, TUTTI_UINT8, inline_stream));

    if (tutti_node_count(ctx) != 2)
        failed = wrong("there are not two nodes", tutti_rank(world));
    if (compare(all, size) != 0)
        failed = 1;
    if (tutti_rank(world) == 0)
        printf("%d ranks on %s and %s\n", size, all[0].host, all[size - 1].host);
    if (tutti_finalize(ctx) != TUTTI_OK)
        failed = 1;
    return failed;
}

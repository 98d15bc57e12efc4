/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums an array over all ranks, in place, in memory that the ranks share, and checks every element.
 */
#include <stdio.h>

#include <tutti/tutti.h>

enum { COUNT = 1 << 20 };

/* Element i of rank r is r + i % 1000: whole numbers, so the sum is exact. */
static void fill(float *x, int rank)
{
    for (int i = 0; i < COUNT; i++)
        x[i] = (float)(rank + i % 1000);
}

static int wrong_elements(const float *x, int ranks)
{
    const int of_ranks = ranks * (ranks - 1) / 2; /* 0 + 1 + ... */
    int wrong = 0;

    for (int i = 0; i < COUNT; i++)
        wrong += x[i] != (float)(of_ranks + ranks * (i % 1000));
    return wrong;
}

static tutti_status sum(tutti_comm *world, int *wrong_out)
{
    const tutti_stream in_this_thread = {0};
    void *memory;
    tutti_status status = tutti_alloc(world, COUNT * sizeof(float), &memory), freed;

    if (status != TUTTI_OK)
        return status;
    fill(memory, tutti_rank(world));
    status =
        tutti_all_reduce(world, memory, memory, COUNT, TUTTI_FLOAT32, TUTTI_SUM, in_this_thread);
    if (status == TUTTI_OK)
        *wrong_out = wrong_elements(memory, tutti_size(world));
    freed = tutti_free(world, memory);
    return status != TUTTI_OK ? status : freed;
}

int main(void)
{
    tutti_ctx *ctx;
    int wrong = 0;
    tutti_status status = tutti_init(NULL, &ctx), left;

    if (status != TUTTI_OK) {
        fprintf(stderr, "all_reduce: %s\n", tutti_last_error());
        return 1;
    }
    status = sum(tutti_world(ctx), &wrong);
    if (status != TUTTI_OK)
        fprintf(stderr, "all_reduce: %s\n", tutti_last_error());
    else
        printf("rank %d of %d: sum of %d elements, %d wrong\n", tutti_rank(tutti_world(ctx)),
               tutti_size(tutti_world(ctx)), COUNT, wrong);
    left = tutti_finalize(ctx);
    if (fclose(stdout) != 0) { /* a full disk */
        perror("all_reduce: standard output");
        return 1;
    }
    return status == TUTTI_OK && left == TUTTI_OK && wrong == 0 ? 0 : 1;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What a user writes first: every rank gives its number plus one, all get the sum. */
#include <stdio.h>

#include <tutti/tutti.h>

int main(void)
{
    tutti_ctx *ctx = NULL;
    tutti_stream inline_stream = {0};
    void *memory = NULL;

    if (tutti_init(NULL, &ctx) != TUTTI_OK) {
        fprintf(stderr, "tutti_init: %s\n", tutti_last_error());
        return 1;
    }
    tutti_comm *world = tutti_world(ctx);
    int size = tutti_size(world);
    TUTTI_MUST(ctx, tutti_alloc(world, sizeof(float), &memory));
    float *value = memory;
    *value = (float)(tutti_rank(world) + 1);
    TUTTI_MUST(ctx,
               tutti_all_reduce(world, value, value, 1, TUTTI_FLOAT32, TUTTI_SUM, inline_stream));
    float sum = *value;
    TUTTI_MUST(ctx, tutti_free(world, memory));
    if (tutti_rank(world) == 0)
        printf("tutti %s: %d ranks, sum %g\n", tutti_version(), size, (double)sum);
    if (tutti_finalize(ctx) != TUTTI_OK)
        return 1;
    return sum == (float)(size * (size + 1) / 2) ? 0 : 2;
}

// SPDX-License-Identifier: Apache-2.0
// The headers and the library from C++17, initialisers included.
#include <cstdio>
#include <numeric>
#include <vector>

#include <tutti/tutti.h>

int main()
{
    tutti_init_opts opts = TUTTI_INIT_OPTS_INIT;
    tutti_ctx *ctx = nullptr;
    if (tutti_init(&opts, &ctx) != TUTTI_OK) {
        std::fprintf(stderr, "tutti_init: %s\n", tutti_last_error());
        return 1;
    }
    tutti_comm *world = tutti_world(ctx);
    const int size = tutti_size(world);
    std::vector<double> in(1, 1.0 + tutti_rank(world)), all(static_cast<std::size_t>(size));
    TUTTI_MUST(ctx, tutti_all_gather(world, in.data(), all.data(), 1, TUTTI_FLOAT64, tutti_stream{}));
    const double sum = std::accumulate(all.begin(), all.end(), 0.0);
    if (tutti_rank(world) == 0)
        std::printf("tutti %s from C++: %d ranks, sum %g\n", tutti_version(), size, sum);
    if (tutti_finalize(ctx) != TUTTI_OK)
        return 1;
    return sum == size * (size + 1) / 2 ? 0 : 2;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random calls of ranks that are processes. t_coll_mpi [nodes [batches [seed]]]: with nodes, as in
 * TUTTI_NODES, the ranks take each other for neighbours only inside of them (TUTTI_HOST_ID). Under
 * tests/support/two-nodes the nodes are real ones, and `nodes` says which they have to be.
 */
#include "coll_random.h"

int main(int argc, char **argv)
{
    random_world w = {.chunk_bytes = 4096, .seed = 11, .batches = 100};
    tt_rank r = {0};
    if (argc > 1 && strcmp(argv[1], "one") != 0) {
        w.nodes = argv[1];
        if (getenv("TT_TWO_NODES") == NULL)
            random_play_node(w.nodes);
    }
    if (argc > 2)
        w.batches = strtol(argv[2], NULL, 10);
    if (argc > 3)
        w.seed = strtoull(argv[3], NULL, 10);
    setenv("TUTTI_CHUNK_BYTES", "4K", 1);
    if (tutti_init(NULL, &r.ctx) != TUTTI_OK) {
        fprintf(stderr, "tutti_init: %s\n", tutti_last_error());
        return 1;
    }
    r.comm = tutti_world(r.ctx);
    r.rank = tutti_rank(r.comm);
    r.size = tutti_size(r.comm);
    if (w.nodes != NULL && tutti_node_count(r.ctx) < 2)
        tutti_abort(r.ctx, 1, "the ranks do not play nodes");
    random_calls(&r, &w);
    if (r.failed)
        tutti_abort(r.ctx, 1, r.message);
    if (tutti_finalize(r.ctx) != TUTTI_OK) {
        fprintf(stderr, "tutti_finalize: %s\n", tutti_last_error());
        return 1;
    }
    return 0;
}

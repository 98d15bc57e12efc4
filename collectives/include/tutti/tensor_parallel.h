/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor parallelism (Shoeybi et al., 2019): the ranks of a communicator share the matrices of each
 * layer and see the same tokens.
 *
 * A pair of linear layers is split so that nothing is exchanged between them: the first by columns
 * (each rank has some of the outputs), the second by rows (each rank has the inputs that fit), so
 * that each rank's product is one term of the result. Four places are left where ranks meet:
 *
 *                        forward                           backward
 *   column-parallel      tutti_tp_gather, then product     product for d_in, then tutti_tp_reduce
 *   row-parallel         product, then tutti_tp_reduce     tutti_tp_gather, then products
 *
 * Plainly, activations between such pairs are whole on every rank: gather has nothing to move, and
 * reduce is an all-reduce. With TUTTI_TP_SEQUENCE (Korthikanti et al., 2022) the rows of what lies
 * between (norms, dropout, residuals) are dealt out to the ranks: gather is an all-gather, reduce a
 * reduce-scatter; the same bytes on the wire, 1/n of the memory. The rows are dealt in `chunks`
 * rounds, so that a chunk is one piece of memory on every rank: rank r's part holds, one after the
 * other, of each chunk of rows/chunks rows the r-th of n equal parts (tutti_tp_row).
 *
 * Products are given as a function of rows, called chunk by chunk: while a chunk is computed, the
 * chunk before it is reduced, or the one behind it gathered, on a stream of the group's own. On the
 * inline stream they follow each other.
 */
#ifndef TUTTI_TENSOR_PARALLEL_H
#define TUTTI_TENSOR_PARALLEL_H

#include "tutti/comm.h"
#include "tutti/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tutti_tp tutti_tp;

enum { TUTTI_TP_SEQUENCE = 1u << 0 };

/* Zero in any field means its default; begin with TUTTI_TP_OPTS_INIT. */
typedef struct tutti_tp_opts {
    size_t size; /* sizeof(tutti_tp_opts) */
    int chunks; /* pieces in which products and transfers overlap, at most 256; 0: 4; 1: no overlap,
                   and everything stays on the caller's stream */
    uint32_t flags; /* TUTTI_TP_SEQUENCE */
} tutti_tp_opts;
#define TUTTI_TP_OPTS_INIT                                                                         \
    {                                                                                              \
        sizeof(tutti_tp_opts), 0, 0                                                                \
    }

/* Activations: rows x cols, row major. With TUTTI_TP_SEQUENCE rows must be a multiple of chunks *
 * n. */
typedef struct tutti_tp_matrix {
    void *full; /* all rows, on every rank */
    void *part; /* this rank's rows / n; TUTTI_TP_SEQUENCE only */
    size_t rows, cols;
    tutti_dtype dtype;
} tutti_tp_matrix;

/* Queues on `stream` (inline: carries out) the product for rows first ... first + rows - 1 of
 * `full`. */
typedef tutti_status (*tutti_tp_fn)(void *arg, size_t first, size_t rows, tutti_stream stream);

/*
 * Ranks that share matrices: usually the "tp" communicator of a mesh, which they may go on using.
 * opts may be NULL. Errors: ARG, MISMATCH (ranks gave different options), NO_MEMORY, TIMEOUT,
 * REMOTE. Collective: yes, over comm. Blocks: host. Stream: none. Threads: one at a time per
 * communicator. Graph-capture: refused. After a failure: refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_tp_create(tutti_comm *comm, const tutti_tp_opts *opts,
                                                       tutti_tp **tp_out);

/*
 * Frees it after its pending work, before its communicator; NULL is ignored. tutti_finalize frees
 * what is left.
 * Collective: no. Blocks: host. Stream: none. Threads: one. Graph-capture: refused. After a
 * failure: allowed.
 */
TUTTI_API void tutti_tp_destroy(tutti_tp *tp);

/*
 * The range of n things (heads, columns) that this rank has: n / ranks each. ARG if that leaves a
 * rest, with a sentence that names both numbers.
 * Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_tp_range(const tutti_comm *comm, const char *what,
                                                      size_t n, size_t *first_out,
                                                      size_t *count_out);

/*
 * Which of `rows` rows stands at row `local` of this rank's part: itself without
 * TUTTI_TP_SEQUENCE. 0 of NULL.
 * Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API size_t tutti_tp_row(const tutti_tp *tp, size_t rows, size_t local);

/*
 * fn makes every rank's term of the rows in m->full; then their sum over the ranks stands in
 * m->full, or with TUTTI_TP_SEQUENCE this rank's rows of it in m->part (m->full is scratch). A
 * status other than OK of fn fails the context, since other ranks wait. Errors: ARG, those of
 * all_reduce and reduce_scatter, fn's. Collective: yes, over the communicator. Blocks: inline
 * stream host, else no. Stream: ordered on `stream`. Threads: one at a time per communicator.
 * Graph-capture: allowed (CUDA). After a failure: refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_tp_reduce(tutti_tp *tp, const tutti_tp_matrix *m,
                                                       tutti_tp_fn fn, void *arg,
                                                       tutti_stream stream);

/*
 * With TUTTI_TP_SEQUENCE the rows of all m->part are put together in m->full, and fn is called for
 * the rows of each chunk once they are there; without, fn is called for all rows. fn may be NULL.
 * Errors: ARG, those of all_gather, fn's.
 * Collective: yes, over the communicator. Blocks: inline stream host, else no. Stream: ordered on
 * `stream`. Threads: one at a time per communicator. Graph-capture: allowed (CUDA). After a
 * failure: refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_tp_gather(tutti_tp *tp, const tutti_tp_matrix *m,
                                                       tutti_tp_fn fn, void *arg,
                                                       tutti_stream stream);

/* This rank's columns of the logits of a vocabulary. */
typedef struct tutti_tp_logits {
    float *logits; /* [rows][count]; become the probabilities */
    const int32_t *targets; /* [rows], in the whole vocabulary; the same on all ranks */
    size_t rows, count;
    int32_t first; /* the vocabulary index of column 0 */
} tutti_tp_logits;

/*
 * Cross entropy over a vocabulary whose columns the ranks share: loss[i] = -log p(targets[i]) on
 * every rank, and the logits become this rank's columns of the probabilities, from which the
 * gradient is (p - [column is the target]). Two all-reduces of rows and 3 rows floats, whatever the
 * vocabulary. A target outside of it makes that row's loss infinite. Arrays, the device's memory,
 * must stay until the stream has passed. A call with more rows than any before makes memory of 16
 * bytes a row. Errors: ARG, STATE, NO_MEMORY, those of all_reduce.
 * Collective: yes, over the communicator. Blocks: inline stream host, else no. Stream: ordered on
 * `stream`. Threads: one at a time per communicator. Graph-capture: refused. After a failure:
 * refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_tp_cross_entropy(tutti_tp *tp,
                                                              const tutti_tp_logits *l, float *loss,
                                                              tutti_stream stream);

#ifdef __cplusplus
}
#endif
#endif

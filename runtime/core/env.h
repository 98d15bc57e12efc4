/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one table of environment variables. Every TUTTI_* variable is a row of TT_ENV_TABLE; nothing
 * else calls getenv for one. docs/environment.md is generated from it (`tutti env --markdown`).
 * Values are read anew at each call, so that several contexts and tests in one process may differ;
 * hot paths cache them.
 */
#ifndef TT_CORE_ENV_H
#define TT_CORE_ENV_H

#include <stdbool.h>
#include <stdio.h>

#include "core/status.h"

typedef enum tt_env_type {
    TT_ENV_STRING,
    TT_ENV_WORD, /* one of TT_ENV_WORDS */
    TT_ENV_BOOL,
    TT_ENV_INT,
    TT_ENV_SECONDS,
    TT_ENV_BYTES
} tt_env_type;

/* X(id, type, default text, must agree over ranks, help) */
#define TT_ENV_TABLE(X)                                                                            \
    X(BACKEND, TT_ENV_WORD, "auto", true, "auto, host or cuda: where collectives run")             \
    X(BIND, TT_ENV_BOOL, "1", false,                                                               \
      "1: tutti_init narrows a rank to the processors near its GPU, or to its share of the NUMA "  \
      "domains, within what the launcher gave it; 0: leaves them")                                 \
    X(BUCKET_BYTES, TT_ENV_BYTES, "0", true,                                                       \
      "cap of a gradient bucket when the program gives none; 0: measured")                         \
    X(CARRY_BYTES, TT_ENV_BYTES, "0", true,                                                        \
      "input of plain memory up to this size travels with the call; 0: measured")                  \
    X(CHECK, TT_ENV_BOOL, "0", true,                                                               \
      "1: compare op, count, dtype and root of every collective over all ranks, also across "      \
      "nodes (blocks the host)")                                                                   \
    X(CHUNK_BYTES, TT_ENV_BYTES, "256K", true,                                                     \
      "piece in which plain memory is staged and nodes exchange data")                             \
    X(CKPT_BLOCK_BYTES, TT_ENV_BYTES, "4M", true,                                                  \
      "bytes covered by one checksum of a checkpoint file")                                        \
    X(CKPT_COPY_WAIT, TT_ENV_SECONDS, "300", true,                                                 \
      "seconds that tutti_finalize waits for a checkpoint to be copied into the second tier")      \
    X(CKPT_DIRECT, TT_ENV_BOOL, "1", false,                                                        \
      "0: checkpoints are written through the page cache, not past it (O_DIRECT)")                 \
    X(CKPT_LOCK, TT_ENV_WORD, "auto", true,                                                        \
      "how two jobs are kept from saving into one folder: auto (a file lock, else a lease), "      \
      "lease (where locks do not reach other nodes), off")                                         \
    X(CKPT_WAIT_LOCK, TT_ENV_SECONDS, "60", true,                                                  \
      "seconds that a save waits for a folder that another job saves into")                        \
    X(CMA, TT_ENV_BOOL, "1", true,                                                                 \
      "1: host collectives copy plain memory of other processes of a node straight "               \
      "(process_vm_readv) where the system allows it; 0: through shared memory")                   \
    X(HIERARCHICAL, TT_ENV_WORD, "auto", true,                                                     \
      "all_reduce over NCCL in two levels (node, then between nodes): 1, 0, or auto: as planned")  \
    X(HOST_ID, TT_ENV_STRING, "", false,                                                           \
      "name of this machine in place of its boot id, mount namespace and host name: ranks with "   \
      "equal ones share a node")                                                                   \
    X(INIT_TIMEOUT, TT_ENV_SECONDS, "300", true,                                                   \
      "seconds that tutti_init waits for the other ranks")                                         \
    X(LEADER_BYTES, TT_ENV_BYTES, "0", true,                                                       \
      "calls between nodes of up to this size go by one rank of each node; 0: measured")           \
    X(LOG, TT_ENV_STRING, "warn", false,                                                           \
      "levels: error, warn, info, debug, trace; a comma list may add subsys:level (core, boot, "   \
      "dev, topo, coll, red, ckpt, trace)")                                                        \
    X(LOG_FILE, TT_ENV_STRING, "", false,                                                          \
      "file for the log instead of standard error; %h host, %r rank, %p process")                  \
    X(NCCL_ENV, TT_ENV_BOOL, "1", true,                                                            \
      "1: tutti_init sets the NCCL_* variables for which the plan has a reason and which no rank " \
      "has set (`tutti topo --plan` lists them); 0: leaves the environment as it is")              \
    X(NCCL_ONE, TT_ENV_BOOL, "0", true,                                                            \
      "1: a communicator of a single rank uses NCCL too (to try NCCL on one GPU)")                 \
    X(NODE_CHUNK, TT_ENV_BYTES, "0", true,                                                         \
      "bytes of a reduction that a rank exchanges between nodes as one piece; 0: measured")        \
    X(NODE_LAG, TT_ENV_INT, "0", true,                                                             \
      "chunks of a reduction that are under way between two nodes at once; 0: measured")           \
    X(NODE_WAY, TT_ENV_WORD, "auto", true,                                                         \
      "how nodes exchange the parts of a reduction: direct, halving, doubling, or auto: by size "  \
      "and number of nodes")                                                                       \
    X(NODES, TT_ENV_STRING, "", false, "2x4 or 3,1,4: fake nodes for the threads bootstrap")       \
    X(NT_BYTES, TT_ENV_BYTES, "0", false,                                                          \
      "outputs of host collectives from this size on are written past the cache; 0: measured")     \
    X(REPRODUCIBLE, TT_ENV_BOOL, "0", true,                                                        \
      "1: the world communicator sums in one tree over all ranks, whatever the layout")            \
    X(SHM_DIR, TT_ENV_STRING, "/dev/shm", false, "where shared memory is made; a tmpfs")           \
    X(SIMD, TT_ENV_WORD, "auto", false,                                                            \
      "instruction set of host reductions: auto, plain, avx2, avx512 or neon; one that the CPU "   \
      "lacks is auto")                                                                             \
    X(SMALL_BYTES, TT_ENV_BYTES, "0", true,                                                        \
      "input up to this size travels with the call on the host; 0: measured")                      \
    X(SPIN_US, TT_ENV_INT, "-1", false,                                                            \
      "microseconds a waiting rank spins before it yields the core; -1: by the number of ranks "   \
      "per core")                                                                                  \
    X(TIMEOUT, TT_ENV_SECONDS, "600", true,                                                        \
      "seconds after which an operation that does not finish fails the job; 0: never")             \
    X(TOPO, TT_ENV_STRING, "", false,                                                              \
      "the machine to plan for in place of the one found: a file (NCCL XML, hwloc XML, "           \
      "nvidia-smi topo -m) or a machine of `tutti topo --machine list`")                           \
    X(TOPO_FSROOT, TT_ENV_STRING, "", false,                                                       \
      "directory with a recorded sys/ and proc/ that is looked at in place of this machine's")     \
    X(WARN_AFTER, TT_ENV_SECONDS, "30", false,                                                     \
      "seconds after which a waiting operation says who is late; 0: never")

/* X(id, words ...) */
#define TT_ENV_WORDS(X)                                                                            \
    X(BACKEND, "auto", "host", "cuda")                                                             \
    X(CKPT_LOCK, "auto", "lease", "off")                                                           \
    X(HIERARCHICAL, "auto", "0", "1")                                                              \
    X(NODE_WAY, "auto", "direct", "halving", "doubling")                                           \
    X(SIMD, "auto", "plain", "avx2", "avx512", "neon")

typedef enum tt_env_id {
#define TT_ENV_ID(id, type, def, agree, help) TT_ENV_##id,
    TT_ENV_TABLE(TT_ENV_ID)
#undef TT_ENV_ID
        TT_ENV_COUNT
} tt_env_id;

typedef struct tt_env_row {
    const char *name; /* "TUTTI_..." */
    tt_env_type type;
    const char *def;
    bool must_agree;
    const char *help;
} tt_env_row;

const tt_env_row *tt_env_rows(void); /* TT_ENV_COUNT of them */
const tt_env_row *tt_env_find(const char *name); /* NULL: no row has that name */

/* The value in force; a malformed one is ARG, the text names the variable and what was expected. */
tutti_status
tt_env_get_string(tt_env_id id, /* a STRING, or a WORD */
                  const char **value_out); /* borrowed from the environment or the table */
tutti_status tt_env_get_bool(tt_env_id id, bool *value_out);
tutti_status tt_env_get_int(tt_env_id id, long long *value_out);
tutti_status tt_env_get_seconds(tt_env_id id, double *value_out);
tutti_status tt_env_get_bytes(tt_env_id id, size_t *value_out); /* 4096, 64K, 25M, 1G: binary */

/* Checks one variable, or every one: values parse (else ARG). An empty value counts as not set. */
tutti_status tt_env_check_one(tt_env_id id);
tutti_status tt_env_check(void);

/* Warns, once in a process, of TUTTI_* names that are no row, with the nearest known name. */
void tt_env_warn_unknown(void);
/* The known name nearest to `name`, or NULL when none is near. */
const char *tt_env_nearest(const char *name);

/* Parsers shared with command lines. Text that is malformed or out of range is ARG. */
tutti_status tt_parse_bytes(const char *text, size_t *value_out);
tutti_status tt_parse_seconds(const char *text, double *value_out); /* 30, 0.5 */
tutti_status tt_parse_bool(const char *text, bool *value_out); /* 0 1 no yes off on false true */
tutti_status tt_parse_int(const char *text, long long *value_out);

/* The table as the Markdown page docs/environment.md. */
void tt_env_markdown(FILE *out);

#endif

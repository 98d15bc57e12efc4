/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sharded checkpoints: one directory per step, one HDF5 file per writing rank, a manifest, and an
 * index HDF5 that shows every tensor whole to h5py, h5dump and the like. A checkpoint is there
 * completely or not at all; what N ranks wrote, any M ranks load.
 *
 * Tensors are boxes of named global tensors: every rank adds the box it holds. Equal boxes of
 * several ranks are replicas (written once) unless marked per rank. Nothing that a load reads is
 * trusted: names, sizes, shapes and checksums are verified before data is handed out.
 */
#ifndef TUTTI_CKPT_H
#define TUTTI_CKPT_H

#include "tutti/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TUTTI_CKPT_MAX_DIMS 8

typedef struct tutti_ckpt tutti_ckpt;
typedef struct tutti_ckpt_reader tutti_ckpt_reader;

enum {
    TUTTI_CKPT_PER_RANK =
        1u << 0, /* every rank's value is its own, kept apart by rank (random-number state) */
    TUTTI_CKPT_SAME = 1u << 1, /* bytes: the same on all ranks, kept once */
    TUTTI_CKPT_CONVERT = 1u << 2 /* reading: floats may be of another type than is stored */
};

/* A box of a global tensor: elements offset ... offset+extent of a tensor of `shape`, row major and
 * dense at data. What is kept per rank can be read by any rank under the name rank/N/NAME; no other
 * name begins with rank/. Begin with TUTTI_TENSOR_INIT. */
typedef struct tutti_tensor {
    size_t size; /* sizeof(tutti_tensor) */
    const char *
        name; /* [A-Za-z0-9._/-], at most 200 bytes, '/' makes groups; no empty, "." or ".." part */
    tutti_dtype dtype;
    int ndim; /* 0 (a scalar) ... TUTTI_CKPT_MAX_DIMS */
    int64_t shape[TUTTI_CKPT_MAX_DIMS], offset[TUTTI_CKPT_MAX_DIMS];
    int64_t extent[TUTTI_CKPT_MAX_DIMS]; /* all zero with all-zero offset: the whole tensor */
    void *data;
    uint32_t flags; /* TUTTI_CKPT_PER_RANK; reading: TUTTI_CKPT_CONVERT */
} tutti_tensor;
#define TUTTI_TENSOR_INIT                                                                          \
    {                                                                                              \
        sizeof(tutti_tensor), NULL, (tutti_dtype)0, 0, {0}, {0}, {0}, NULL, 0                      \
    }

enum {
    TUTTI_CKPT_SYNC = 1u << 0, /* commit returns when the checkpoint is durable and committed */
    TUTTI_CKPT_BEST = 1u << 1 /* tags it as the best so far, which retention never removes */
};
#define TUTTI_CKPT_STEP_NEWEST (-1)
#define TUTTI_CKPT_STEP_BEST (-2)

/* Zero in any field means its default; begin with TUTTI_CKPT_SAVE_OPTS_INIT. */
typedef struct tutti_ckpt_save_opts {
    size_t size; /* sizeof(tutti_ckpt_save_opts) */
    uint32_t flags; /* TUTTI_CKPT_SYNC, TUTTI_CKPT_BEST */
    int keep_last; /* after the commit remove all but the newest K checkpoints (at least 1); default
                      0: keep all */
    int64_t keep_every; /* with keep_last: also keep every checkpoint whose step this divides */
    const char *mesh; /* said by `tutti ckpt ls`: how the ranks divided the model, "dp4.tp2"; at
                         most 100 printable characters, rank 0's counts */
    const char *copy_to; /* a second tier: another folder, seen by all ranks, into which the
                            checkpoint is copied once it is committed; default NULL: none */
    int copy_keep_last; /* in there; default 0: as keep_last, -1: keep all */
    int64_t copy_keep_every; /* default 0: as keep_every, -1: none */
    double timeout_s; /* from commit until it is durable; default 0: TUTTI_TIMEOUT and what the
                         largest shard takes at 10 MiB/s */
} tutti_ckpt_save_opts;
#define TUTTI_CKPT_SAVE_OPTS_INIT                                                                  \
    {                                                                                              \
        sizeof(tutti_ckpt_save_opts), 0, 0, 0, NULL, NULL, 0, 0, 0                                 \
    }

/*
 * Begins the checkpoint of step `step` (>= 0) in directory dir (made if missing, equal on all
 * ranks). Waits for an earlier save that is still being written. Errors: ARG, STATE (one is begun
 * already), IO, NO_SPACE, TIMEOUT (an earlier save was given up and its disk still hangs), and
 * those of the earlier save; on a failed context its first failure: NaNs are never saved.
 * Collective: yes, over the job. Blocks: host. Stream: none. Threads: the one that called
 * tutti_init. Graph-capture: refused. After a failure: refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_ckpt_begin(tutti_ctx *ctx, const char *dir,
                                                        int64_t step, tutti_ckpt **ck_out);

enum {
    /* while an earlier save is still being written: */
    TUTTI_CKPT_BUSY_MERGE = 1u << 0, /* *ck_out is NULL; the first tutti_step after the earlier one
                                        ends asks for one save, however many were merged */
    TUTTI_CKPT_BUSY_REFUSE = 1u << 1, /* STATE; the earlier one goes on */
    TUTTI_CKPT_NODE_LOCAL = 1u << 2 /* the nodes' folders are their own, and may have other names */
};

/* Zero in any field means its default; begin with TUTTI_CKPT_BEGIN_OPTS_INIT. */
typedef struct tutti_ckpt_begin_opts {
    size_t size; /* sizeof(tutti_ckpt_begin_opts) */
    uint32_t flags; /* TUTTI_CKPT_BUSY_... (default: wait for the earlier save),
                       TUTTI_CKPT_NODE_LOCAL; equal on all ranks */
} tutti_ckpt_begin_opts;
#define TUTTI_CKPT_BEGIN_OPTS_INIT                                                                 \
    {                                                                                              \
        sizeof(tutti_ckpt_begin_opts), 0                                                           \
    }

/*
 * As tutti_ckpt_begin, with options (NULL: none). With TUTTI_CKPT_BUSY_MERGE, OK with *ck_out NULL
 * on all ranks means that nothing is to be added now: TUTTI_DO_SAVE will come, and the save that
 * then begins holds newer data.
 *
 * Without TUTTI_CKPT_NODE_LOCAL all ranks must see one folder; ranks that do not are named (IO).
 * With it every node commits the part of the checkpoint that its ranks write into its own folder
 * dir (nodes that share one commit one part), all or none of them; to load it takes
 * TUTTI_CKPT_OPEN_NODE_LOCAL and every part, on whatever nodes. Errors: as there.
 * Collective: yes, over the job. Blocks: host. Stream: none. Threads: the one that called
 * tutti_init. Graph-capture: refused. After a failure: refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_ckpt_begin_with(tutti_ctx *ctx, const char *dir,
                                                             int64_t step,
                                                             const tutti_ckpt_begin_opts *opts,
                                                             tutti_ckpt **ck_out);

/*
 * Adds this rank's box of a tensor. tensor->data is read by tutti_ckpt_commit, in stream order.
 * Errors: ARG, NO_MEMORY.
 * Collective: no. Blocks: no. Stream: none. Threads: one. Graph-capture: refused. After a failure:
 * allowed.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_ckpt_add(tutti_ckpt *ck, const tutti_tensor *tensor);

/*
 * Adds a small value (at most 16 MiB), copied at once. flags: TUTTI_CKPT_SAME or
 * TUTTI_CKPT_PER_RANK. Errors: ARG, NO_MEMORY.
 * Collective: no, but every rank adds the same names. Blocks: no. Stream: none. Threads: one.
 * Graph-capture: refused. After a failure: allowed.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_ckpt_add_bytes(tutti_ckpt *ck, const char *name,
                                                            const void *data, size_t bytes,
                                                            uint32_t flags);

/*
 * Copies the data in stream order (it may change again after that) and hands it to the writer
 * thread; ck is gone whatever the status. The copy is of what this rank is to write (a replica is
 * written by one of its holders), in memory that is kept for the next save until tutti_finalize.
 * The checkpoint is committed at a later tutti_step, tutti_ckpt_wait or tutti_finalize, or here
 * with TUTTI_CKPT_SYNC. The boxes of all ranks must cover every tensor exactly once (replicas
 * aside). With TUTTI_CHECK=1 replicas are compared first (ARG names one that differs; this
 * waits for the stream). opts may be NULL. Errors: ARG (boxes overlap or leave holes, shapes
 * differ: named), NO_MEMORY, IO, NO_SPACE, TIMEOUT, REMOTE. After an error the previous checkpoint
 * is untouched and nothing of this one is left.
 *
 * A disk that hangs does not hang the job: a save that is not durable within timeout_s is given up
 * on all ranks (TIMEOUT, which names the ranks whose disk has not answered), and the program may go
 * on. Until the disk has come back a save that begins is TIMEOUT too; then leftovers are removed.
 * If the disk carries out the commit after all, the checkpoint counts.
 * Collective: yes, over the job. Blocks: host, for
 * the copy (inline stream). Stream: ordered. Threads: the one that called tutti_init.
 * Graph-capture: refused. After a failure: refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_ckpt_commit(tutti_ckpt *ck, tutti_stream stream,
                                                         const tutti_ckpt_save_opts *opts);

/*
 * The second tier. With copy_to in the options of a commit, every rank's writer reads the files
 * that it wrote again after the commit, compares the checksum of every block, and writes them into
 * copy_to, where they become one ordinary checkpoint by the protocol of a save, also of a
 * node-local one: parts are put together. Copies are made beside the training, at low priority, and
 * give way to saves. They advance in tutti_step, tutti_ckpt_wait and tutti_finalize.
 *
 * One copy is made at a time. Of the checkpoints that are finished meanwhile only the newest waits,
 * the others are skipped; retention of the first tier spares what is being copied or waits. A copy
 * that fails (NO_SPACE, IO, CORRUPT: the first tier has lost it, STATE: another job copies into
 * that folder and TUTTI_CKPT_WAIT_LOCK was too short) is a warning and is told here; the save that
 * it is of stays acknowledged, and the next checkpoint is copied again. TUTTI_CKPT_BEST tags the
 * copy too, unless it was skipped.
 *
 * tutti_finalize waits up to TUTTI_CKPT_COPY_WAIT seconds for copies, then gives them up. After
 * SIGTERM the save comes first and the copy takes what is left: killed on the way it leaves what
 * the next copy removes.
 */
typedef struct tutti_ckpt_copy_info {
    size_t size; /* sizeof(tutti_ckpt_copy_info) */
    int64_t step; /* the newest that this context has copied; -1: none */
    int64_t pending; /* being copied or, newer, waiting to be; -1: none */
    int64_t copied, skipped, failed; /* checkpoints */
    tutti_status status; /* of the copy that ended last */
    double seconds; /* that it took, from the commit on */
    char text[256]; /* why it failed, else "" */
} tutti_ckpt_copy_info;
#define TUTTI_CKPT_COPY_INFO_INIT                                                                  \
    {                                                                                              \
        sizeof(tutti_ckpt_copy_info), -1, -1, 0, 0, 0, TUTTI_OK, 0,                                \
        {                                                                                          \
            0                                                                                      \
        }                                                                                          \
    }

/*
 * How the second tier stands: the same on all ranks between two calls that advance it. Errors: ARG.
 * Collective: no. Blocks: no. Stream: none. Threads: the one that called tutti_init. Graph-capture:
 * allowed. After a failure: allowed.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_ckpt_copy_state(tutti_ctx *ctx,
                                                             tutti_ckpt_copy_info *info_out);

/*
 * tutti_ckpt_wait, and then until no copy is pending or `seconds` are over, by rank 0's clock (0:
 * looks once; below 0: TUTTI_CKPT_COPY_WAIT, and tutti_finalize waits no more). *info_out (may be
 * NULL) says how it stands; a copy that failed or is not finished is no error here. Errors: ARG,
 * and as tutti_ckpt_wait. Collective: yes, over the job. Blocks: host. Stream: none. Threads: the
 * one that called tutti_init. Graph-capture: refused. After a failure: returns it.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_ckpt_copy_wait(tutti_ctx *ctx, double seconds,
                                                            tutti_ckpt_copy_info *info_out);

/* When a checkpoint is due; begin with TUTTI_CKPT_SCHEDULE_OPTS_INIT. With nothing set: every 10
 * minutes. With several: whichever comes first. */
typedef struct tutti_ckpt_schedule_opts {
    size_t size; /* sizeof(tutti_ckpt_schedule_opts) */
    int64_t every_steps; /* calls of tutti_step since the last save; 0: no matter */
    double every_s; /* seconds since the last save was begun; 0: no matter */
    bool automatic; /* the interval that loses least: see tutti_ckpt_interval */
    double
        mtbf_s; /* automatic: mean seconds between failures of the job; 0: learnt in the folder */
} tutti_ckpt_schedule_opts;
#define TUTTI_CKPT_SCHEDULE_OPTS_INIT                                                              \
    {                                                                                              \
        sizeof(tutti_ckpt_schedule_opts), 0, 0, false, 0                                           \
    }

/*
 * From now on tutti_step reports TUTTI_DO_SAVE on all ranks in the same call when a checkpoint is
 * due, by rank 0's clock. dir is the folder of the checkpoints; where `automatic` learns, the file
 * `.runs` in it counts the runs that did not end well. NULL opts: every 10 minutes. May be called
 * again. Errors: ARG, IO, NO_MEMORY.
 * Collective: yes, over the job. Blocks: host. Stream: none. Threads: the one that called
 * tutti_init. Graph-capture: refused. After a failure: refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_ckpt_schedule(tutti_ctx *ctx, const char *dir,
                                                           const tutti_ckpt_schedule_opts *opts);

/*
 * The interval in seconds that loses least time to saves and to what failures undo (J. T. Daly, A
 * higher order estimate of the optimum checkpoint interval, 2006, eq. 37): for a cost c below 2m
 * sqrt(2cm) (1 + sqrt(c / 2m) / 3 + c / 18m) - c, else m. cost_s: that a save stops the program
 * for; mtbf_s: between failures. 0 where either is not above 0.
 * Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API double tutti_ckpt_interval(double cost_s, double mtbf_s);

/*
 * Waits until no save is being written and all that were handed over are committed or failed.
 * *last_durable_step_out (may be NULL) gets the newest step committed by this context, -1 if none.
 * Errors: those of a failed save (each reported once), TIMEOUT, REMOTE.
 * Collective: yes, over the job. Blocks: host. Stream: none. Threads: the one that called
 * tutti_init. Graph-capture: refused. After a failure: returns it.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_ckpt_wait(tutti_ctx *ctx,
                                                       int64_t *last_durable_step_out);

/*
 * Opens the checkpoint of `step` in dir; TUTTI_CKPT_STEP_NEWEST takes the newest valid one (one
 * that is damaged is passed over with a loud message), TUTTI_CKPT_STEP_BEST the one last saved with
 * TUTTI_CKPT_BEST. Errors, the same on all ranks: NOT_FOUND (no directory or no
 * checkpoint: a fresh start), CORRUPT (the step asked for, or every one there, is damaged), IO.
 * Collective: yes, over the job. Blocks: host. Stream: none. Threads: the one that called
 * tutti_init. Graph-capture: refused. After a failure: refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_ckpt_open(tutti_ctx *ctx, const char *dir,
                                                       int64_t step, tutti_ckpt_reader **rd_out);

enum {
    TUTTI_CKPT_OPEN_LAZY = 1u << 0, /* data is verified when it is read, not when it is opened */
    TUTTI_CKPT_OPEN_STRICT = 1u << 1, /* a damaged newest checkpoint is an error */
    TUTTI_CKPT_OPEN_NODE_LOCAL = 1u << 2 /* the nodes' folders together hold the checkpoint */
};

/* Zero in any field means its default; begin with TUTTI_CKPT_OPEN_OPTS_INIT. */
typedef struct tutti_ckpt_open_opts {
    size_t size; /* sizeof(tutti_ckpt_open_opts) */
    uint32_t flags; /* TUTTI_CKPT_OPEN_... */
    int64_t before; /* with STEP_NEWEST: only steps below it; 0: all */
    const char *copy; /* the second tier's folder, equal on all ranks; default NULL: none */
} tutti_ckpt_open_opts;
#define TUTTI_CKPT_OPEN_OPTS_INIT                                                                  \
    {                                                                                              \
        sizeof(tutti_ckpt_open_opts), 0, 0, NULL                                                   \
    }

/*
 * As tutti_ckpt_open, with options (NULL: none). By default all data is verified here, once, by all
 * ranks together, so that a damaged checkpoint is passed over; a read then verifies what it touches
 * again. LAZY leaves it at manifest and sizes, and so reads everything once: when a read then says
 * CORRUPT, open again with `before` that step.
 *
 * With NODE_LOCAL dir is each node's own folder (it may have other names, or be missing on some
 * nodes), and the newest checkpoint is the newest of which all parts are found on the nodes of this
 * job, on whichever; one with a part missing is passed over like a damaged one, with the part and
 * its tensors named. What a rank reads and its node lacks comes from a node that has it, through a
 * file in dir that is gone when the reader is closed. It also opens what was saved into one folder.
 *
 * With `copy` the checkpoints of both folders are candidates: the newest first, at equal steps that
 * in dir. One that is damaged, or dir as a whole where it is lost (missing, on all nodes or on
 * some), is passed over for what the other has, with a loud message. The errors are dir's where
 * neither has one. STRICT allows the same step's copy, but no older step.
 * Collective: yes, over the job. Blocks: host. Stream: none. Threads: the one that called
 * tutti_init. Graph-capture: refused. After a failure: refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_ckpt_open_with(tutti_ctx *ctx, const char *dir,
                                                            int64_t step,
                                                            const tutti_ckpt_open_opts *opts,
                                                            tutti_ckpt_reader **rd_out);

/*
 * The step of an open checkpoint and the number of ranks that wrote it; -1 and 0 of NULL.
 * Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API int64_t tutti_ckpt_step(const tutti_ckpt_reader *rd);
TUTTI_API int tutti_ckpt_world(const tutti_ckpt_reader *rd);

/*
 * The folder that it was opened from: dir or the second tier's, as the program named it; NULL of
 * NULL. Borrowed from rd.
 * Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API const char *tutti_ckpt_dir(const tutti_ckpt_reader *rd);

/*
 * Name, dtype, ndim and shape of a stored tensor (info_out->name is borrowed from rd; extent is the
 * shape; flags say whether it is this rank's own of those kept per rank). Errors: ARG, NOT_FOUND.
 * Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_ckpt_stat(const tutti_ckpt_reader *rd,
                                                       const char *name, tutti_tensor *info_out);

/*
 * The next stored tensor or value whose full name matches a shell's pattern ("layer.*", "*"; '*'
 * matches '/' too), in order of name: *at_inout is 0 before the first call. *info_out as from
 * tutti_ckpt_stat, with its full name, also of what was kept per rank. Errors: ARG, NOT_FOUND (no
 * more).
 * Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_ckpt_next(const tutti_ckpt_reader *rd,
                                                       const char *pattern, size_t *at_inout,
                                                       tutti_tensor *info_out);

/*
 * Reads this rank's boxes tensors[0 ... n-1] (ranks may ask for different boxes); each must lie
 * within the stored tensor and have its shape and dtype; with TUTTI_CKPT_CONVERT in its flags, a
 * tensor of floats may have another float's dtype. Values are rounded to nearest, ties to even; NaN
 * stays NaN; what is then beyond the largest number becomes infinity, or NaN in TUTTI_FLOAT8_E4M3,
 * whose largest is 448 (464 still rounds to it) and which has no infinity. For the 8-bit types that
 * is the mode without saturation of the OCP 8-bit Floating Point Specification (OFP8, revision 1.0,
 * 2023), and what casts in PyTorch do: values that lack a scale are not clipped in silence. Stored
 * checksums of all that is touched are verified first. Data is there when the call returns;
 * `stream` orders it behind earlier work on the buffers. Errors, the same on all ranks: ARG,
 * NOT_FOUND, SHAPE, CORRUPT, IO; buffers are then unspecified. Collective: yes, over the job.
 * Blocks: host. Stream: ordered. Threads: the one that called tutti_init. Graph-capture: refused.
 * After a failure: refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_ckpt_read(tutti_ckpt_reader *rd,
                                                       const tutti_tensor *tensors, size_t n,
                                                       tutti_stream stream);

/*
 * Reads a value stored by tutti_ckpt_add_bytes. saved_rank: whose, for TUTTI_CKPT_PER_RANK values;
 * ignored for TUTTI_CKPT_SAME. *bytes_out (may be NULL) gets its size; cap too small is ARG and
 * says the size. Errors: ARG, NOT_FOUND, CORRUPT, IO.
 * Collective: no. Blocks: host. Stream: none. Threads: one. Graph-capture: refused. After a
 * failure: allowed.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_ckpt_read_bytes(tutti_ckpt_reader *rd,
                                                             const char *name, int saved_rank,
                                                             void *buf, size_t cap,
                                                             size_t *bytes_out);

/*
 * Closes it. NULL is ignored.
 * Collective: no. Blocks: no. Stream: none. Threads: one. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API void tutti_ckpt_close(tutti_ckpt_reader *rd);

#ifdef __cplusplus
}
#endif
#endif

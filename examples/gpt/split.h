/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the job's ranks share the work: a mesh of data-parallel copies (dp), pipeline stages (pp) and
 * shares of every matrix (tp).
 */
#ifndef GPT_SPLIT_H
#define GPT_SPLIT_H

#include <tutti/tutti.h>

#include "args.h"
#include "model.h"

typedef struct split {
    tutti_mesh *mesh;
    tutti_comm *dp, *pp, *tp, *model; /* of the mesh; model: all ranks of one copy */
    int dp_rank, dp_size, pp_size, tp_size;
    tutti_tp *shares; /* NULL: matrices are whole */
    tutti_pipe *pipe;
    int32_t *targets; /* for tutti_tp_cross_entropy, on the host */
    const gpt_device *dev;
    tutti_stream stream; /* of the computation */
    float *sums; /* [4][rows]: for a cross entropy of the device's */
} split;

/* Makes the mesh of --mesh. `wrong_out` gets what is wrong with the options for it, the same on all
 * ranks (static memory), or NULL. Collective over the job. */
tutti_status split_create(split *s, tutti_ctx *ctx, const args *o, const char **wrong_out);
/* The pipeline for micro-steps of `sequences`. */
tutti_status split_pipe(split *s, const args *o, int sequences);
void split_destroy(split *s);

/* This rank's part of the model. */
model_part split_part(const split *s, model_shape shape);
/* What the ranks that share matrices do together, on this device and stream; `tokens`: rows of a
 * pass at most. False: out of memory. */
bool split_links(split *s, const gpt_device *dev, tutti_stream stream, size_t tokens,
                 model_links *links_out);

/* Whether this rank counts when each thing that the model's ranks have is to be counted once: a
 * replica is, on the first of those that hold it. */
static inline bool split_counts(const split *s, bool replica)
{
    return !replica || tutti_rank(s->tp) == 0;
}

/* "pp2.dp2.tp2" */
void split_name(const split *s, char *buf, size_t cap);

#endif

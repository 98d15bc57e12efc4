/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text: which bytes are learnt, which are held out, and which of them make a batch.
 */
#ifndef GPT_DATA_H
#define GPT_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The first nine tenths of every distinct file, one after the other, and their last tenths. Files
 * are distinct when they are not the same file on disk under another name or link. */
typedef struct corpus {
    uint8_t *train, *held_out;
    size_t train_bytes, held_out_bytes;
    int files;
} corpus;

/* Reads files and folders (their regular files, by name). On failure *problem_out gets a sentence
 * (static memory) and nothing is left. `context`: both parts must be long enough for it. */
bool text_load(corpus *t, const char *const *paths, int count, int context,
               const char **problem_out);
void text_free(corpus *t);
/* A number that differs when the text does; exact in a double. */
double text_fingerprint(const corpus *t);

/* `count` sequences of step `step`, the first being number `first` of the step's batch. Which bytes
 * a sequence holds depends on (seed, step, its number) alone. */
typedef struct batch_request {
    uint64_t seed;
    int64_t step, first;
    int count, context;
} batch_request;
/* targets are the inputs' next bytes; both [count][context]. */
void text_batch(const corpus *t, const batch_request *request, uint8_t *inputs, uint8_t *targets);

#endif

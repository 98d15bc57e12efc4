/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the fuzzers of checkpoints share. */
#ifndef TT_CKPT_TARGETS_H
#define TT_CKPT_TARGETS_H

#include "ckpt/loader.h"

#include "fuzz_ckpt.h"

void tt_must_be(bool good, const char *what); /* aborts, which is what fuzzers look for */
#define must(good) tt_must_be((good), #good)

void tt_fuzz_compare(const tt_manifest *m, const tt_arc *made, const tt_ctensor *t,
                     const int64_t *dim, const uint8_t *data);
void tt_fuzz_export(const tt_source *src); /* closed by the caller */
int tt_fuzz_import(bool llmc, const uint8_t *data, size_t bytes);
int tt_fuzz_verify(const tt_arc *arc);
int tt_fuzz_nodes(const tt_arc *arc);

/* What a child of the fuzzer's does first; NULL: nothing. */
extern void (*tt_fuzz_child)(void);
/* Looks at what the checker's child left; aborts if it fell over something of ours. */
extern void (*tt_fuzz_child_ended)(void);

#endif

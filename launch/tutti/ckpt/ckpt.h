/* SPDX-License-Identifier: Apache-2.0 */
/* What the subcommands of `tutti ckpt` share. */
#ifndef TUTTI_CKPT_COMMAND_H
#define TUTTI_CKPT_COMMAND_H

#include <jansson.h>
#include <stdio.h>

#include "ckpt/loader.h"

/* Exit statuses besides 0 and EXIT_USAGE (2), for scripts. */
enum {
    EXIT_FAILED = 1, /* it could not be done */
    EXIT_DAMAGED = 3, /* verify: damaged; diff: they differ */
    EXIT_NOTHING = 4 /* there is no such checkpoint */
};

typedef struct ckpt_args {
    const char *name; /* of the subcommand */
    bool json, brief, dry_run, all;
    const char *format;
    int64_t step; /* -1: not given */
    int64_t keep_last, keep_every; /* -1: not given */
    const char **word; /* what is no option */
    int words;
} ckpt_args;

/* Errors go to standard error with the subcommand in front; the exit status that fits. */
int ckpt_fail(const ckpt_args *a, tutti_status status);
int ckpt_complain(const ckpt_args *a, const char *fmt, ...) TT_PRINTF(2, 3);

/* A checkpoint named by a run's folder (its newest whole one, or --step) or by a step's folder. */
typedef struct ckpt_file {
    int dir; /* the run's folder */
    int64_t step;
    tt_source src;
} ckpt_file;
tutti_status ckpt_locate(const ckpt_args *a, const char *path, int *dir_out, int64_t *step_out);
tutti_status ckpt_open(const ckpt_args *a, const char *path, ckpt_file *file_out);
void ckpt_close(ckpt_file *file);

/* The tensors whose names match one of the patterns (of a shell; none given: all); without `all`
 * neither values of bytes nor what was kept per rank. The caller frees. */
tutti_status ckpt_select(const ckpt_args *a, const ckpt_file *file, int first_word,
                         const tt_ctensor ***list_out, size_t *n_out);
uint64_t ckpt_bytes(const tt_ctensor *const *list, size_t n);

/* A line on standard error that says how far it is, where that is a terminal. */
typedef struct ckpt_progress {
    const char *what;
    uint64_t done, total;
    int64_t next_ns;
} ckpt_progress;
void ckpt_progress_add(ckpt_progress *p, uint64_t bytes);
void ckpt_progress_end(ckpt_progress *p);

const char *ckpt_size_text(uint64_t bytes, char text[32]); /* "1.5 GiB" */
int ckpt_print_json(json_t *value); /* takes it */
json_t *ckpt_shape_json(const tt_ctensor *t);

/* Tensors in memory become a checkpoint of one rank. */
tutti_status ckpt_save(const char *dir, int64_t step, const tutti_tensor *tensors, size_t n,
                       const char *value_name, const void *value, size_t value_bytes);

/* A foreign file, mapped. */
typedef struct ckpt_input {
    const unsigned char *data;
    size_t bytes;
} ckpt_input;
tutti_status ckpt_input_open(const char *path, ckpt_input *in_out);
void ckpt_input_close(ckpt_input *in);

tutti_status ckpt_export_safetensors(const ckpt_args *a, const ckpt_file *file, const char *path);
tutti_status ckpt_import_safetensors(const ckpt_args *a, const ckpt_input *in, const char *dir);
tutti_status ckpt_export_llmc(const ckpt_args *a, const ckpt_file *file, const char *path);
tutti_status ckpt_import_llmc(const ckpt_args *a, const ckpt_input *in, const char *dir);

int ckpt_ls(const ckpt_args *a);
int ckpt_show(const ckpt_args *a);
int ckpt_verify(const ckpt_args *a);
int ckpt_diff(const ckpt_args *a);
int ckpt_merge(const ckpt_args *a);
int ckpt_export(const ckpt_args *a);
int ckpt_import(const ckpt_args *a);
int ckpt_prune(const ckpt_args *a);

enum { CKPT_SCAN_BYTES = 64 << 20 };

#endif

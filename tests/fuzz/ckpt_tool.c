/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The readers of `tutti ckpt`: imports, whose save is caught (--wrap=ckpt_save) and now and then
 * made; exports and merge of a mutated checkpoint; verify, whose child runs HDF5.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt.h"
#include "core/log.h"

#include "ckpt_targets.h"

void (*tt_fuzz_child)(void);
void (*tt_fuzz_child_ended)(void);

/* What an import hands to its save. */
static struct caught {
    const ckpt_input *in;
    bool real, any;
    uint64_t sum;
} caught;

static void sum_bytes(const void *data, size_t bytes)
{
    const unsigned char *at = data;

    for (size_t i = 0; i < bytes; i++)
        caught.sum = (caught.sum ^ at[i]) * 0x100000001b3u;
}

static void catch_tensor(const tutti_tensor *t)
{
    const unsigned char *data = t->data, *end = caught.in->data + caught.in->bytes;
    uint64_t elems = 0;

    must(t->name != NULL && t->ndim >= 0 && t->ndim <= TUTTI_CKPT_MAX_DIMS);
    must(tt_dims_elems(t->shape, t->ndim, &elems));
    uint64_t bytes = elems * tutti_dtype_size(t->dtype);
    must(data >= caught.in->data && data <= end && bytes <= (uint64_t)(end - data));
    sum_bytes(data, bytes);
}

tutti_status __real_ckpt_save(const char *dir, int64_t step, const tutti_tensor *tensors, size_t n,
                              const char *value_name, const void *value, size_t value_bytes);
tutti_status __wrap_ckpt_save(const char *dir, int64_t step, const tutti_tensor *tensors, size_t n,
                              const char *value_name, const void *value, size_t value_bytes);

tutti_status __wrap_ckpt_save(const char *dir, int64_t step, const tutti_tensor *tensors, size_t n,
                              const char *value_name, const void *value, size_t value_bytes)
{
    caught.any = true;
    for (size_t i = 0; i < n; i++)
        catch_tensor(&tensors[i]);
    sum_bytes(value, value_bytes);
    return caught.real ? __real_ckpt_save(dir, step, tensors, n, value_name, value, value_bytes)
                       : TUTTI_OK;
}

static tutti_status import(bool llmc, const ckpt_input *in, const char *dir, int64_t step)
{
    const ckpt_args a = {.name = "import", .step = step};

    caught = (struct caught){.in = in, .real = dir != NULL};
    return llmc ? ckpt_import_llmc(&a, in, dir) : ckpt_import_safetensors(&a, in, dir);
}

/* Really saved, exported and imported again it is the same; llm.c's file also in every byte. */
static void there_and_back(bool llmc, const ckpt_input *in)
{
    static int64_t step;
    const ckpt_args a = {.name = "export", .step = ++step, .all = true};
    char dir[128], out[128];
    ckpt_file file;
    ckpt_input back;
    uint64_t sum = caught.sum;

    (void)snprintf(dir, sizeof dir, "%s/imported", tt_fuzz_root());
    (void)snprintf(out, sizeof out, "%s/exported", tt_fuzz_root());
    if (import(llmc, in, dir, step) != TUTTI_OK)
        return; /* a name that a checkpoint cannot have */
    must(ckpt_open(&a, dir, &file) == TUTTI_OK);
    must((llmc ? ckpt_export_llmc(&a, &file, out) : ckpt_export_safetensors(&a, &file, out)) ==
         TUTTI_OK);
    ckpt_close(&file);
    must(ckpt_input_open(out, &back) == TUTTI_OK);
    must(import(llmc, &back, NULL, 0) == TUTTI_OK);
    must(!llmc || caught.sum == sum);
    must(!llmc || (back.bytes == in->bytes && memcmp(back.data, in->data, in->bytes) == 0));
    ckpt_input_close(&back);
    (void)snprintf(out, sizeof out, "step-%012lld", (long long)step);
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    must(tt_dir_remove(fd, out) == TUTTI_OK);
    (void)close(fd);
}

int tt_fuzz_import(bool llmc, const uint8_t *data, size_t bytes)
{
    static unsigned taken;
    uint8_t *exact = malloc(bytes); /* so that a byte too many is seen */
    const ckpt_input in = {exact, bytes};

    if (exact == NULL || bytes == 0) {
        free(exact);
        return 0;
    }
    memcpy(exact, data, bytes);
    bool good = import(llmc, &in, NULL, 0) == TUTTI_OK;
    must(good ? caught.any : *tutti_last_error() != 0);
    if (good && taken++ % 64 == 0)
        there_and_back(llmc, &in);
    free(exact);
    return good;
}

/* What a command says goes nowhere. */
typedef struct hush {
    int out, err;
} hush;

static void hush_begin(hush *h)
{
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

    (void)fflush(stdout);
    (void)fflush(stderr);
    h->out = dup(STDOUT_FILENO);
    h->err = dup(STDERR_FILENO);
    (void)dup2(null, STDOUT_FILENO);
    (void)dup2(null, STDERR_FILENO);
    (void)close(null);
}

static void hush_end(const hush *h)
{
    (void)fflush(stdout);
    (void)fflush(stderr);
    (void)dup2(h->out, STDOUT_FILENO);
    (void)dup2(h->err, STDERR_FILENO);
    (void)close(h->out);
    (void)close(h->err);
}

static int count(const char *name, size_t name_bytes)
{
    char path[128];
    struct stat st;

    (void)snprintf(path, sizeof path, "%s/%.*s", tt_fuzz_root(), (int)name_bytes, name);
    return stat(path, &st) == 0 ? 1 : 0;
}

/* Whether it can be done depends on the bytes; a file is there only if it was. */
void tt_fuzz_export(const tt_source *src)
{
    const ckpt_args a = {.name = "export", .step = 7, .all = true};
    const ckpt_file file = {.dir = -1, .step = 7, .src = *src};
    char out[128];

    (void)snprintf(out, sizeof out, "%s/exported", tt_fuzz_root());
    (void)unlink(out);
    bool good = ckpt_export_safetensors(&a, &file, out) == TUTTI_OK;
    must(good == (count("exported", 8) == 1));
    if (good) {
        ckpt_input back;

        must(ckpt_input_open(out, &back) == TUTTI_OK);
        must(import(false, &back, NULL, 0) == TUTTI_OK || src->m.cat.ntensor == 0);
        ckpt_input_close(&back);
    }
    (void)unlink(out);
    must((ckpt_export_llmc(&a, &file, out) == TUTTI_OK) == (count("exported", 8) == 1));
}

int tt_fuzz_verify(const tt_arc *arc)
{
    char step[128];
    const char *words[] = {step, step};
    ckpt_args a = {.name = "verify", .step = -1, .word = words, .words = 1};
    tt_arc made;
    hush h;

    if (!tt_arc_make(arc, "step-000000000007", ~0u, &made))
        return 0;
    (void)snprintf(step, sizeof step, "%s/step-000000000007", tt_fuzz_root());
    hush_begin(&h);
    int status = ckpt_verify(&a);
    if (status == 0 && (arc->knob[0] & TT_ARC_EXPORT) != 0) {
        char out[128];

        (void)snprintf(out, sizeof out, "%s/merged", tt_fuzz_root());
        words[1] = out;
        a.words = 2;
        int merged = ckpt_merge(&a);
        tt_must_be(merged == 0, "what is verified can be merged");
    }
    hush_end(&h);
    if (tt_fuzz_child_ended != NULL)
        tt_fuzz_child_ended();
    must(status == 0 || status == EXIT_DAMAGED || status == EXIT_FAILED || status == EXIT_NOTHING);
    return status == 0;
}

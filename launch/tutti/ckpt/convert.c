/* SPDX-License-Identifier: Apache-2.0 */
/* export and import: which foreign format, and what is said. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "ckpt.h"

typedef struct format {
    const char *name, *suffix;
    tutti_status (*write)(const ckpt_args *a, const ckpt_file *file, const char *path);
    tutti_status (*read)(const ckpt_args *a, const ckpt_input *in, const char *dir);
} format;

static const format formats[] = {
    {"safetensors", ".safetensors", ckpt_export_safetensors, ckpt_import_safetensors},
    {"llmc", ".bin", ckpt_export_llmc, ckpt_import_llmc},
};

/* By --format, else by how the file's name ends; NULL: none. */
static const format *format_of(const ckpt_args *a, const char *path)
{
    size_t bytes = strlen(path);
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        size_t suffix = strlen(formats[i].suffix);
        if (a->format != NULL
                ? strcmp(a->format, formats[i].name) == 0
                : bytes > suffix && strcmp(path + bytes - suffix, formats[i].suffix) == 0)
            return &formats[i];
    }
    return NULL;
}

static int no_format(const ckpt_args *a, const char *path)
{
    if (a->format != NULL)
        return ckpt_complain(a, "there is no format '%s': safetensors or llmc", a->format);
    return ckpt_complain(a, "%s ends in neither .safetensors nor .bin: name the --format", path);
}

int ckpt_export(const ckpt_args *a)
{
    const format *f = format_of(a, a->word[1]);
    ckpt_file file;
    if (f == NULL)
        return no_format(a, a->word[1]);
    tutti_status status = ckpt_open(a, a->word[0], &file);
    if (status != TUTTI_OK)
        return ckpt_fail(a, status);
    status = f->write(a, &file, a->word[1]);
    ckpt_close(&file);
    if (status != TUTTI_OK)
        return ckpt_fail(a, status);
    if (a->json)
        return ckpt_print_json(json_pack("{s:s, s:s}", "file", a->word[1], "format", f->name));
    printf("%s: written as %s\n", a->word[1], f->name);
    return 0;
}

/* A step that is there is not replaced: its optimizer state would be lost for its weights. */
static tutti_status check_new(const char *path, int64_t step)
{
    char name[TT_STEP_NAME_MAX];
    int dir;
    tutti_status status = tt_dir_open(path, &dir);
    if (status == TUTTI_ERR_NOT_FOUND)
        return TUTTI_OK;
    if (status != TUTTI_OK)
        return status;
    tt_step_name(step, name);
    bool there = faccessat(dir, name, F_OK, 0) == 0;
    close(dir);
    return there ? tt_fail(TUTTI_ERR_STATE, "%s/%s is there already", path, name) : TUTTI_OK;
}

int ckpt_import(const ckpt_args *a)
{
    const format *f = format_of(a, a->word[0]);
    ckpt_args with_step = *a;
    ckpt_input in;
    if (f == NULL)
        return no_format(a, a->word[0]);
    if (a->step < 0)
        with_step.step = 0;
    tutti_status status = check_new(a->word[1], with_step.step);
    if (status == TUTTI_OK)
        status = ckpt_input_open(a->word[0], &in);
    if (status != TUTTI_OK)
        return ckpt_fail(a, status);
    status = f->read(&with_step, &in, a->word[1]);
    ckpt_input_close(&in);
    if (status != TUTTI_OK)
        return ckpt_fail(a, tt_fail_more(status, "%s", a->word[0]));
    if (a->json)
        return ckpt_print_json(
            json_pack("{s:s, s:I}", "folder", a->word[1], "step", (json_int_t)with_step.step));
    printf("%s: step %lld\n", a->word[1], (long long)with_step.step);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"

/* The folder and the number of a path that ends in a step's name. */
static bool split_step(const char *path, char folder[PATH_MAX], int64_t *step_out)
{
    size_t bytes = strlen(path);
    while (bytes > 1 && path[bytes - 1] == '/')
        bytes--;
    if (bytes >= PATH_MAX)
        return false;
    snprintf(folder, PATH_MAX, "%.*s", (int)bytes, path);
    char *slash = strrchr(folder, '/');
    if (!tt_step_parse(slash == NULL ? folder : slash + 1, step_out))
        return false;
    if (slash == NULL)
        snprintf(folder, PATH_MAX, ".");
    else
        slash[slash == folder] = '\0';
    return true;
}

static tutti_status newest_whole(int dir, const char *path, int64_t *step_out)
{
    int64_t *steps;
    size_t n;
    TT_TRY(tt_dir_steps(dir, &steps, &n));
    tutti_status status =
        tt_fail(n == 0 ? TUTTI_ERR_NOT_FOUND : TUTTI_ERR_CORRUPT,
                n == 0 ? "there is no checkpoint in %s" : "no checkpoint in %s is whole", path);
    for (size_t i = 0; i < n && status != TUTTI_OK; i++) {
        if (!tt_step_looks_whole(dir, steps[i]))
            continue;
        *step_out = steps[i];
        status = TUTTI_OK;
    }
    free(steps);
    return status;
}

tutti_status ckpt_locate(const ckpt_args *a, const char *path, int *dir_out, int64_t *step_out)
{
    char folder[PATH_MAX];
    int64_t step = a->step;
    int dir;
    bool split = split_step(path, folder, &step);
    TT_TRY(tt_dir_open(split ? folder : path, &dir));
    tutti_status status = step >= 0 ? TUTTI_OK : newest_whole(dir, path, &step);
    if (status != TUTTI_OK) {
        close(dir);
        return status;
    }
    *dir_out = dir;
    *step_out = step;
    return TUTTI_OK;
}

tutti_status ckpt_open(const ckpt_args *a, const char *path, ckpt_file *file_out)
{
    ckpt_file file = {.dir = -1};
    tt_buf text = {0};
    TT_TRY(ckpt_locate(a, path, &file.dir, &file.step));
    tutti_status status = tt_source_open(file.dir, file.step, &text, &file.src);
    tt_buf_free(&text);
    if (status != TUTTI_OK) {
        close(file.dir);
        return tt_fail_more(status, "%s", path);
    }
    *file_out = file;
    return TUTTI_OK;
}

void ckpt_close(ckpt_file *file)
{
    tt_source_close(&file->src);
    close(file->dir);
}

static bool selected(const ckpt_args *a, const tt_ctensor *t, int first_word)
{
    bool matches = first_word >= a->words;
    for (int i = first_word; i < a->words && !matches; i++)
        matches = fnmatch(a->word[i], t->name, 0) == 0;
    return matches && (a->all || (!t->bytes && strncmp(t->name, "rank/", 5) != 0));
}

tutti_status ckpt_select(const ckpt_args *a, const ckpt_file *file, int first_word,
                         const tt_ctensor ***list_out, size_t *n_out)
{
    const tt_catalog *cat = &file->src.m.cat;
    const tt_ctensor **list;
    size_t n = 0;
    TT_TRY(tt_calloc(cat->ntensor, sizeof *list, &list));
    for (size_t i = 0; i < cat->ntensor; i++)
        if (selected(a, &cat->tensor[i], first_word))
            list[n++] = &cat->tensor[i];
    if (n == 0 && first_word < a->words) {
        free(list);
        return tt_fail(TUTTI_ERR_NOT_FOUND, "no tensor matches %s", a->word[first_word]);
    }
    *list_out = list;
    *n_out = n;
    return TUTTI_OK;
}

uint64_t ckpt_bytes(const tt_ctensor *const *list, size_t n)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += tt_tensor_bytes(list[i]);
    return bytes;
}

void ckpt_progress_add(ckpt_progress *p, uint64_t bytes)
{
    char done[32], total[32];
    int64_t now = tt_now_ns();
    p->done += bytes;
    if (p->next_ns == 0)
        p->next_ns = now + 500000000;
    if (now < p->next_ns || isatty(STDERR_FILENO) == 0)
        return;
    p->next_ns = now + 200000000;
    fprintf(stderr, "\r%s: %s of %s, %.0f %%  ", p->what, ckpt_size_text(p->done, done),
            ckpt_size_text(p->total, total),
            p->total == 0 ? 100.0 : 100.0 * (double)p->done / (double)p->total);
}

void ckpt_progress_end(ckpt_progress *p)
{
    if (p->next_ns != 0 && isatty(STDERR_FILENO) != 0)
        fprintf(stderr, "\r%60s\r", "");
}

const char *ckpt_size_text(uint64_t bytes, char text[32])
{
    static const char *const unit[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes;
    int u = 0;
    for (; value >= 1024 && u < 5; u++)
        value /= 1024;
    snprintf(text, 32, u == 0 ? "%.0f %s" : "%.1f %s", value, unit[u]);
    return text;
}

int ckpt_print_json(json_t *value)
{
    int result = json_dumpf(value, stdout, JSON_INDENT(2));
    json_decref(value);
    return result == 0 && putchar('\n') != EOF ? 0 : EXIT_FAILED;
}

json_t *ckpt_shape_json(const tt_ctensor *t)
{
    json_t *shape = json_array();
    for (int d = 0; d < t->ndim; d++)
        json_array_append_new(shape, json_integer(t->shape[d]));
    return shape;
}

tutti_status ckpt_input_open(const char *path, ckpt_input *in_out)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot open %s", path);
    void *data = MAP_FAILED;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0)
        data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (data == MAP_FAILED)
        return tt_fail(TUTTI_ERR_CORRUPT, "%s is empty or no regular file", path);
    *in_out = (ckpt_input){data, (size_t)st.st_size};
    return TUTTI_OK;
}

void ckpt_input_close(ckpt_input *in)
{
    munmap((void *)(size_t)in->data, in->bytes);
}

static tutti_status add_and_commit(tutti_ckpt *ck, const tutti_tensor *tensors, size_t n,
                                   const char *value_name, const void *value, size_t value_bytes)
{
    tutti_ckpt_save_opts opts = TUTTI_CKPT_SAVE_OPTS_INIT;
    tutti_status status = TUTTI_OK;
    for (size_t i = 0; i < n && status == TUTTI_OK; i++)
        status = tutti_ckpt_add(ck, &tensors[i]);
    if (status == TUTTI_OK && value_name != NULL)
        status = tutti_ckpt_add_bytes(ck, value_name, value, value_bytes, TUTTI_CKPT_SAME);
    opts.flags = TUTTI_CKPT_SYNC;
    /* a failed add is repeated by the commit, which also takes ck */
    tutti_status committed = tutti_ckpt_commit(ck, (tutti_stream){0}, &opts);
    return status != TUTTI_OK ? status : committed;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const tt_ctensor *)a)->name, ((const tt_ctensor *)b)->name);
}

/* Before anything is made on the disk: a name that is refused leaves no folder and no lock. */
static tutti_status check_names(const tutti_tensor *tensors, size_t n)
{
    tt_catalog cat = {0};
    const char *shorter, *longer;
    tutti_status status = tt_calloc(n, sizeof *cat.tensor, &cat.tensor);
    for (size_t i = 0; i < n && status == TUTTI_OK; i++) {
        const char *name = tensors[i].name;
        cat.tensor[i].name = name;
        if (!tt_name_ok(name, TT_CKPT_NAME_MAX) || strcmp(name, "rank") == 0 ||
            strncmp(name, "rank/", 5) == 0)
            status = tt_fail(TUTTI_ERR_ARG,
                             "'%.200s' cannot be a name in a checkpoint: [A-Za-z0-9._/-], at most "
                             "%d bytes, no empty, '.' or '..' part, not in rank/",
                             name, TT_CKPT_NAME_MAX);
    }
    cat.ntensor = n;
    if (status == TUTTI_OK && n > 0) {
        qsort(cat.tensor, n, sizeof *cat.tensor, compare_names);
        shorter = tt_catalog_name_clash(&cat, &longer);
        if (shorter != NULL)
            status = tt_fail(TUTTI_ERR_ARG,
                             "'%s' cannot be in a checkpoint beside '%s': a tensor "
                             "and a group of one name",
                             longer, shorter);
    }
    free(cat.tensor);
    return status;
}

tutti_status ckpt_save(const char *dir, int64_t step, const tutti_tensor *tensors, size_t n,
                       const char *value_name, const void *value, size_t value_bytes)
{
    tutti_init_opts opts = TUTTI_INIT_OPTS_INIT;
    tutti_threads *threads;
    tutti_ctx *ctx;
    tutti_ckpt *ck;
    TT_TRY(check_names(tensors, n));
    TT_TRY(tutti_threads_create(1, &threads));
    opts.threads = threads;
    opts.backend = TUTTI_BACKEND_HOST;
    opts.flags = TUTTI_INIT_NO_SIGNALS;
    tutti_status status = tutti_init(&opts, &ctx);
    if (status == TUTTI_OK) {
        status = tutti_ckpt_begin(ctx, dir, step, &ck);
        if (status == TUTTI_OK)
            status = add_and_commit(ck, tensors, n, value_name, value, value_bytes);
        char text[TT_ERROR_TEXT_MAX];
        snprintf(text, sizeof text, "%s", tutti_last_error());
        tutti_status ended = tutti_finalize(ctx);
        status = status != TUTTI_OK ? tt_fail_text(status, text) : ended;
    }
    tutti_threads_destroy(threads);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* ls and prune: whole checkpoints of a run's folder. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/identity.h"
#include "ckpt/saver.h"
#include "core/env.h"

#include "ckpt.h"

static const char *age_text(int64_t seconds, char text[32])
{
    static const struct {
        int64_t seconds;
        const char *name;
    } unit[] = {{86400, "days"}, {3600, "hours"}, {60, "minutes"}, {0, "seconds"}};
    int u = 0;
    if (seconds < 0)
        seconds = 0;
    while (unit[u].seconds > 0 && seconds < 2 * unit[u].seconds)
        u++;
    snprintf(text, 32, "%lld %s",
             (long long)(unit[u].seconds > 0 ? seconds / unit[u].seconds : seconds), unit[u].name);
    return text;
}

/* One step as JSON, or as a line. */
static void list_step(int dir, int64_t step, json_t *array)
{
    tt_buf text = {0};
    tt_source src = {0};
    char size[32], age[32], part[64] = "";
    size_t absent = 0;
    tutti_status status = tt_source_open(dir, step, &text, &src);
    uint64_t bytes = status == TUTTI_OK ? tt_source_bytes(&src, &absent) + text.size : 0;
    int64_t seconds = status == TUTTI_OK ? (int64_t)time(NULL) - src.m.time : 0;
    json_t *object = json_object();
    json_object_set_new(object, "step", json_integer(step));
    json_object_set_new(object, "whole", json_boolean(status == TUTTI_OK));
    if (status != TUTTI_OK) {
        json_object_set_new(object, "reason", json_string(tutti_last_error()));
    } else {
        json_object_set_new(object, "bytes", json_integer((json_int_t)bytes));
        json_object_set_new(object, "time", json_integer(src.m.time));
        json_object_set_new(object, "age_seconds", json_integer(seconds));
        json_object_set_new(object, "mesh", json_string(src.m.mesh));
        json_object_set_new(object, "world", json_integer(src.m.world));
        json_object_set_new(object, "files", json_integer((json_int_t)src.m.cat.nfile));
        json_object_set_new(object, "files_elsewhere", json_integer((json_int_t)absent));
        json_object_set_new(object, "tensors", json_integer((json_int_t)src.m.cat.ntensor));
    }
    if (absent > 0)
        snprintf(part, sizeof part, "  a part: %zu of %zu files are on other nodes", absent,
                 src.m.cat.nfile);
    if (array != NULL)
        json_array_append(array, object);
    else if (status != TUTTI_OK)
        printf("%12lld  damaged: %s\n", (long long)step, tutti_last_error());
    else
        printf("%12lld  %10s  %4d rank%s %6zu tensors  %s ago%s%s%s\n", (long long)step,
               ckpt_size_text(bytes, size), src.m.world, src.m.world == 1 ? ", " : "s,",
               src.m.cat.ntensor, age_text(seconds, age), src.m.mesh[0] == '\0' ? "" : "  ",
               src.m.mesh, part);
    json_decref(object);
    tt_source_close(&src);
    tt_buf_free(&text);
}

typedef struct pending {
    json_t *array;
} pending;

static tutti_status list_pending(void *arg, const char *name)
{
    pending *p = arg;
    tt_identity owner;
    int64_t step;
    if (!tt_identity_parse(name, TT_TEMP_HEAD, &owner, &step))
        return TUTTI_OK;
    const char *life = tt_identity_life(&owner) == TT_DEAD ? "its process is gone"
                       : tt_identity_life(&owner) == TT_ALIVE
                           ? "its process is running"
                           : "of a process that cannot be seen from here";
    if (p->array == NULL) {
        printf("%12lld  incomplete, %s (%s)\n", (long long)step, life, name);
        return TUTTI_OK;
    }
    json_t *object = json_object();
    json_object_set_new(object, "step", json_integer(step));
    json_object_set_new(object, "whole", json_false());
    json_object_set_new(object, "incomplete", json_true());
    json_object_set_new(object, "reason", json_string(life));
    json_array_append_new(p->array, object);
    return TUTTI_OK;
}

int ckpt_ls(const ckpt_args *a)
{
    int64_t *steps = NULL;
    size_t n = 0;
    int dir;
    pending p = {a->json ? json_array() : NULL};
    tutti_status status = tt_dir_open(a->word[0], &dir);
    if (status == TUTTI_OK) {
        status = tt_dir_steps(dir, &steps, &n);
        for (size_t i = n; i-- > 0;)
            list_step(dir, steps[i], p.array);
        if (status == TUTTI_OK)
            status = tt_dir_each(dir, list_pending, &p);
        close(dir);
    }
    free(steps);
    if (status != TUTTI_OK || n == 0) {
        json_decref(p.array);
        return status != TUTTI_OK
                   ? ckpt_fail(a, status)
                   : ckpt_fail(a, tt_fail(TUTTI_ERR_NOT_FOUND, "there is no checkpoint in %s",
                                          a->word[0]));
    }
    return a->json ? ckpt_print_json(p.array) : 0;
}

static void say_removal(const ckpt_args *a, int64_t step, json_t *array)
{
    if (array != NULL)
        json_array_append_new(array, json_integer(step));
    else
        printf("%s step %lld\n", a->dry_run ? "would remove" : "removed", (long long)step);
}

/* Of those that were to go: what is gone. */
static void say_removed(const ckpt_args *a, int dir, const int64_t *planned, size_t n,
                        json_t *array)
{
    for (size_t i = 0; i < n; i++) {
        char name[TT_STEP_NAME_MAX];
        tt_step_name(planned[i], name);
        if (faccessat(dir, name, F_OK, AT_SYMLINK_NOFOLLOW) != 0)
            say_removal(a, planned[i], array);
    }
}

static tutti_status prune_locked(const ckpt_args *a, int dir, const tt_retention *keep,
                                 json_t *array)
{
    tt_folder_lock *lock;
    int64_t *steps;
    size_t n;
    double wait_s;
    TT_TRY(tt_env_get_seconds(TT_ENV_CKPT_WAIT_LOCK, &wait_s));
    TT_TRY(tt_folder_lock_take(dir, a->word[0], wait_s, &lock));
    tutti_status status = tt_leftovers_remove(dir, a->word[0]);
    if (status == TUTTI_OK)
        status = tt_retain_plan(dir, -1, keep, &steps, &n);
    if (status == TUTTI_OK) {
        status = tt_retain_remove(dir, a->word[0], steps, n);
        say_removed(a, dir, steps, n, array);
        free(steps);
    }
    tt_folder_lock_release(lock);
    return status;
}

static tutti_status prune_dry(const ckpt_args *a, int dir, const tt_retention *keep, json_t *array)
{
    int64_t *steps;
    size_t n;
    TT_TRY(tt_retain_plan(dir, -1, keep, &steps, &n));
    for (size_t i = 0; i < n; i++)
        say_removal(a, steps[i], array);
    free(steps);
    return TUTTI_OK;
}

/* Nobody waits for prune as for a save: what stays is read, so that the last good one is not
 * removed in favour of newer ones with a byte changed in their data. */
static bool part_reads_well(int dir, int64_t step, bool part)
{
    tt_buf text = {0};
    tt_source src = {0};
    tutti_status status = tt_source_open(dir, step, &text, &src);
    if (status == TUTTI_OK && src.absent != NULL && !part)
        status = tt_fail(TUTTI_ERR_CORRUPT,
                         "it is one node's part, and whether the others have theirs cannot be seen "
                         "from here: name the steps that are whole (tutti ckpt prune DIR STEP...)");
    if (status == TUTTI_OK)
        status = tt_source_verify(&src, 0, 1);
    tt_source_close(&src);
    tt_buf_free(&text);
    if (status != TUTTI_OK)
        fprintf(stderr, "tutti ckpt prune: step %lld counts as none: %s\n", (long long)step,
                tutti_last_error());
    return status == TUTTI_OK;
}

static bool reads_well(int dir, int64_t step)
{
    return part_reads_well(dir, step, false);
}

static bool known_reads_well(int dir, int64_t step)
{
    return part_reads_well(dir, step, true);
}

/* The steps named behind the folder. */
static tutti_status parse_known(const ckpt_args *a, int64_t **known_out)
{
    int64_t *known = NULL;
    TT_TRY(tt_calloc((size_t)a->words, sizeof *known, &known));
    for (int i = 1; i < a->words; i++) {
        long long step;
        if (tt_parse_int(a->word[i], &step) != TUTTI_OK || step < 0) {
            free(known);
            return tt_fail(TUTTI_ERR_ARG, "'%.40s' is no step", a->word[i]);
        }
        known[i - 1] = step;
    }
    *known_out = known;
    return TUTTI_OK;
}

int ckpt_prune(const ckpt_args *a)
{
    int dir;
    int64_t *known = NULL;
    tt_retention keep = {.last = a->keep_last, .every = a->keep_every < 0 ? 0 : a->keep_every};
    if (a->keep_last < 1)
        return ckpt_complain(a, "how many of the newest are to stay? --keep-last K, at least 1");
    if (parse_known(a, &known) != TUTTI_OK)
        return ckpt_complain(a, "%s", tutti_last_error());
    keep.whole = a->words > 1 ? known_reads_well : reads_well;
    keep.known = a->words > 1 ? known : NULL;
    keep.nknown = (size_t)a->words - 1;
    json_t *array = a->json ? json_array() : NULL;
    tutti_status status = tt_dir_open(a->word[0], &dir);
    if (status == TUTTI_OK) {
        status = a->dry_run ? prune_dry(a, dir, &keep, array) : prune_locked(a, dir, &keep, array);
        close(dir);
    }
    free(known);
    if (status != TUTTI_OK) {
        json_decref(array);
        return ckpt_fail(a, status);
    }
    return a->json ? ckpt_print_json(array) : 0;
}

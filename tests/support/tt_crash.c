/* SPDX-License-Identifier: Apache-2.0 */
#include "tt_crash.h"

#include <limits.h>
#include <sys/stat.h>

enum { INODES = 1024, ENTRIES = 64, NAME = 300 };

typedef struct entry {
    char name[NAME];
    int file;
} entry;

typedef struct entry_list {
    entry entry[ENTRIES];
    int n;
} entry_list;

typedef struct content {
    unsigned char *data;
    size_t bytes;
} content;

typedef struct node {
    bool dir;
    entry_list names; /* of a directory as programs see it */
    entry_list kept; /* and as it survives */
    content disk; /* of a file: what survives */
    size_t synced; /* operation behind the last fsync */
} node;

static entry *find(entry_list *list, const char *name)
{
    for (int i = 0; i < list->n; i++)
        if (strcmp(list->entry[i].name, name) == 0)
            return &list->entry[i];
    return NULL;
}

static void set(entry_list *list, const char *name, int file)
{
    entry *e = find(list, name);
    if (e == NULL) {
        if (list->n == ENTRIES)
            abort();
        e = &list->entry[list->n++];
        snprintf(e->name, NAME, "%s", name);
    }
    e->file = file;
}

static void unset(entry_list *list, const char *name)
{
    entry *e = find(list, name);
    if (e != NULL)
        *e = list->entry[--list->n];
}

static void resize(content *c, size_t bytes)
{
    unsigned char *data = calloc(1, bytes + 1);
    memcpy(data, c->data, c->bytes < bytes ? c->bytes : bytes);
    free(c->data);
    *c = (content){data, bytes};
}

static void write_content(content *c, const tt_fs_op *op, size_t from, size_t to)
{
    if ((size_t)op->at + to > c->bytes)
        resize(c, (size_t)op->at + to);
    memcpy(c->data + op->at + from, op->data + from, to - from);
}

/* One operation on the names of a directory. `files`: what the two names meant when it happened. */
static void change_names(entry_list *list, const tt_fs_op *op, const int files[2])
{
    switch (op->kind) {
    case TT_FS_OP_CREATE:
    case TT_FS_OP_MKDIR:
        set(list, op->name, op->file);
        break;
    case TT_FS_OP_REMOVE:
        unset(list, op->name);
        break;
    case TT_FS_OP_RENAME:
        unset(list, op->name);
        set(list, op->to, files[0]);
        break;
    case TT_FS_OP_EXCHANGE:
        set(list, op->name, files[1]);
        set(list, op->to, files[0]);
        break;
    default:
        break;
    }
}

static bool is_name_op(const tt_fs_op *op)
{
    return op->kind == TT_FS_OP_CREATE || op->kind == TT_FS_OP_MKDIR ||
           op->kind == TT_FS_OP_REMOVE || op->kind == TT_FS_OP_RENAME ||
           op->kind == TT_FS_OP_EXCHANGE;
}

static bool survives(tt_crash_fate fate, tt_rng *rng)
{
    return fate == TT_CRASH_ALL || (fate == TT_CRASH_RANDOM && tt_rand_below(rng, 2) == 0);
}

/* The operation happens to what survives: certainly before the last fsync, else by fate. */
static void change_content(node *file, const tt_fs_op *op, bool certain, tt_crash_fate fate,
                           tt_rng *rng)
{
    if (!certain && !survives(fate, rng)) {
        if (op->kind == TT_FS_OP_WRITE && fate == TT_CRASH_RANDOM) { /* torn */
            size_t from = (size_t)tt_rand_below(rng, op->bytes + 1);
            size_t to = from + (size_t)tt_rand_below(rng, op->bytes - from + 1);
            if (to > from)
                write_content(&file->disk, op, from, to);
        }
        return;
    }
    if (op->kind == TT_FS_OP_WRITE)
        write_content(&file->disk, op, 0, op->bytes);
    else
        resize(&file->disk, (size_t)op->at);
}

static void materialise(const node *all, int number, const char *path)
{
    for (int i = 0; i < all[number].kept.n; i++) {
        const entry *e = &all[number].kept.entry[i];
        const node *child = &all[e->file];
        char below[PATH_MAX];
        snprintf(below, sizeof below, "%s/%s", path, e->name);
        if (child->dir) {
            if (mkdir(below, 0777) != 0)
                abort();
            materialise(all, e->file, below);
            continue;
        }
        FILE *file = fopen(below, "wb");
        if (file == NULL ||
            (child->disk.bytes > 0 &&
             fwrite(child->disk.data, 1, child->disk.bytes, file) != child->disk.bytes) ||
            fclose(file) != 0)
            abort();
    }
}

/* When each inode was last synced. */
static void note_syncs(node *all, const tt_fs_op *ops, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (ops[i].kind == TT_FS_OP_SYNC)
            all[ops[i].file].synced = i + 1;
}

void tt_crash_make(const tt_fs_op *ops, size_t n, tt_crash_fate fate, tt_rng *rng, const char *to)
{
    node *all = calloc(INODES, sizeof *all);
    all[0].dir = true;
    note_syncs(all, ops, n);
    for (size_t i = 0; i < n; i++) {
        const tt_fs_op *op = &ops[i];
        if (op->kind == TT_FS_OP_WRITE || op->kind == TT_FS_OP_SIZE)
            change_content(&all[op->file], op, i < all[op->file].synced, fate, rng);
        if (op->kind == TT_FS_OP_MKDIR)
            all[op->file].dir = true;
        if (!is_name_op(op) || op->dir < 0)
            continue;
        node *dir = &all[op->dir];
        const entry *a = find(&dir->names, op->name);
        const entry *b = op->to == NULL ? NULL : find(&dir->names, op->to);
        const int files[2] = {a == NULL ? -1 : a->file, b == NULL ? -1 : b->file};
        change_names(&dir->names, op, files);
        if (i < dir->synced || survives(fate, rng))
            change_names(&dir->kept, op, files);
    }
    materialise(all, 0, to);
    for (int i = 0; i < INODES; i++)
        free(all[i].disk.data);
    free(all);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Directories and files of checkpoints. Names below a checkpoint directory are opened relative to
 * its descriptor and never through a symbolic link; only names of our own patterns are removed.
 */
#ifndef TT_CKPT_DIR_H
#define TT_CKPT_DIR_H

#include "core/status.h"

enum { TT_STEP_NAME_MAX = 32, TT_TEMP_NAME_MAX = 256, TT_PARTS_MAX = 1 << 20 };

#define TT_MANIFEST_NAME "manifest.json"
#define TT_INDEX_NAME "index.h5"
#define TT_SPOOL_NAME "spool" /* what a load fetched from other nodes, while it runs */
#define TT_OWNER_NAME "owner"
#define TT_OWNER_NEW_NAME "owner.new" /* not yet locked */

void tt_step_name(int64_t step, char name[TT_STEP_NAME_MAX]); /* "step-000000000012" */
bool tt_step_parse(const char *name, int64_t *step_out); /* exactly what tt_step_name makes */
void tt_shard_name(int rank, char *name, size_t cap);
bool tt_ckpt_file_name_ok(const char *name); /* a shard or the index */

/* "part-00002": an empty file that says which part of a node-local checkpoint the directory has. */
void tt_part_name(uint32_t part, char name[TT_STEP_NAME_MAX]);
bool tt_part_parse(const char *name, uint32_t *part_out); /* exactly what tt_part_name makes */
tutti_status tt_dir_is_part(int dir, const char *name, bool *part_out);

tutti_status tt_dir_make(const char *path); /* with its parents, made durable */
/* The directory a program named; NOT_FOUND where there is none. */
tutti_status tt_dir_open(const char *path, int *fd_out);
void tt_fd_close(int *fd); /* -1: nothing is open, and is what it leaves */
tutti_status tt_dir_open_at(int dir, const char *name, int *fd_out);
tutti_status tt_dir_sync(int dir, const char *what);

void tt_steps_sort(int64_t *steps, size_t n); /* newest first */
/* Steps that are there, newest first; the caller frees *steps_out. */
tutti_status tt_dir_steps(int dir, int64_t **steps_out, size_t *n_out);

/* Names below dir that `take` says yes to; visits them after the listing is complete. */
typedef tutti_status (*tt_dir_visit)(void *arg, const char *name);
tutti_status tt_dir_each(int dir, tt_dir_visit visit, void *arg);

/* Removes our files in the directory `name` and then itself. With `only_ours`, a directory that
 * holds anything else is left whole and *foreign_out says so. */
tutti_status tt_dir_remove(int dir, const char *name);
tutti_status tt_dir_has_foreign(int dir, const char *name, bool *foreign_out);

/* A regular file, read only; its size. */
tutti_status tt_file_open(int dir, const char *name, int *fd_out, uint64_t *bytes_out);
tutti_status tt_file_create(int dir, const char *name, int *fd_out); /* must not exist */
tutti_status tt_file_read(int fd, const char *name, void *buf, size_t bytes, uint64_t at);
tutti_status tt_file_write(int fd, const char *name, const void *buf, size_t bytes, uint64_t at);

/* A small file in the folder that names a step: what it is called is what it means. */
#define TT_BEST_NAME "best"
tutti_status tt_tag_write(int dir, const char *name, int64_t step);
tutti_status tt_tag_read(int dir, const char *name, int64_t *step_out); /* NOT_FOUND: no tag */

/* Bytes that the file system of the descriptor has left for us; false: it does not say. */
bool tt_dir_space(int dir, uint64_t *bytes_out);

/*
 * One job at a time saves into a folder: rank 0 holds a lock from its first save there to its end.
 * An OFD lock on the file `.lock`, which goes with the process however it ends; where the file
 * system has no locks (or by TUTTI_CKPT_LOCK) a lease `.lease`, renewed every 10 s and expired
 * after 60.
 */
typedef struct tt_folder_lock tt_folder_lock;
/* Waits for it; STATE names who holds it. */
tutti_status tt_folder_lock_take(int dir, const char *path, double wait_s,
                                 tt_folder_lock **lock_out);
bool tt_folder_lock_is_of(const tt_folder_lock *lock, int dir); /* takes NULL */
tutti_status tt_folder_lock_check(tt_folder_lock *lock); /* still held: asked before a commit */
void tt_folder_lock_release(tt_folder_lock *lock); /* takes NULL */

#define TT_LOCK_NAME ".lock"
#define TT_LEASE_NAME ".lease"

/*
 * Who makes a temporary directory. Its name carries host, boot, process and start time; a file
 * `owner` in it is locked for as long as the owner lives. What a dead owner left is removed, what a
 * live one is writing never is, however old.
 */
tutti_status tt_owner_temp_name(int64_t step, const char *head, char name[TT_TEMP_NAME_MAX]);
tutti_status tt_owner_lock(int dir, const char *token, int *fd_out);
tutti_status tt_leftovers_remove(int dir, const char *path); /* of dead owners */
/* A new directory for the step in dir, owned and locked, in a folder free of leftovers; temp_name
 * is "" where none was made. */
tutti_status tt_owner_make_temp(int dir, const char *path, int64_t step,
                                char temp_name[TT_TEMP_NAME_MAX], int *temp_out, int *owner_out);
/* Removes what other machines left of copies: nobody holds the owner's lock, and by the clock of
 * temp, which was made just now, nothing in it has changed for an hour. */
tutti_status tt_leftovers_remove_idle(int dir, const char *path, int temp);
/* Whether that directory of another process is seen in the folder `path`, after a while for network
 * file systems; opens both, unless they are (-1). */
bool tt_owner_sees_temp(const char *path, const char *temp_name, int *dir, int *temp);

#define TT_TEMP_HEAD ".tmp-" /* being written */
#define TT_GONE_HEAD ".del-" /* being removed */
#define TT_OLD_HEAD ".old-" /* gave way to a new version of its step, which is about to come */

/* A complete directory becomes the step's: the commit. */
typedef struct tt_commit {
    int dir, temp; /* the folder; the directory in it */
    const char *path; /* of the folder */
    char *temp_name; /* TT_TEMP_NAME_MAX bytes; "" once it is committed */
    int64_t step;
    tt_folder_lock *lock;
} tt_commit;
tutti_status tt_commit_rename(tt_commit *commit);

/* The name under which the step is to be found: its own or, without that, one that gave way. */
tutti_status tt_step_find(int dir, int64_t step, char name[TT_TEMP_NAME_MAX]);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt_test.h"

#include <dirent.h>
#include <ftw.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "tt_memory.h"

enum { W_ROWS = 37, W_COLS = 11, V_ELEMS = 20001, MEMORY_MIN_BYTES = 512 << 20 };

static void make_in(const char *base, char path[PATH_CAP])
{
    const char *wanted = getenv("TMPDIR");
    snprintf(path, PATH_CAP, "%s/tt-ckpt-XXXXXX", wanted == NULL ? base : wanted);
    assert_non_null(mkdtemp(path));
}

void scratch_make(char path[PATH_CAP])
{
    struct statvfs fs;
    bool room = access("/dev/shm", W_OK) == 0 && statvfs("/dev/shm", &fs) == 0 &&
                (uint64_t)fs.f_bavail * fs.f_frsize >= MEMORY_MIN_BYTES;
    make_in(room ? "/dev/shm" : "/tmp", path);
}

void scratch_make_on_disk(char path[PATH_CAP])
{
    if (TT_SANITIZED)
        scratch_make(path);
    else
        scratch_make_shared(path);
}

void scratch_make_shared(char path[PATH_CAP])
{
    make_in("/tmp", path);
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    (void)st;
    (void)kind;
    (void)where;
    return remove(path);
}

void scratch_remove(const char *path)
{
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

int count_entries(const char *path, const char *prefix)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    int n = 0;
    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            strcmp(entry->d_name, ".lock") != 0)
            n += strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    closedir(dir);
    return n;
}

unsigned char *file_get(const char *path, size_t *bytes_out)
{
    struct stat st;
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fstat(fileno(file), &st), 0);
    unsigned char *data = malloc((size_t)st.st_size + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, (size_t)st.st_size, file), st.st_size);
    fclose(file);
    *bytes_out = (size_t)st.st_size;
    return data;
}

void file_put(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static uint64_t pattern_word(uint64_t seed, uint64_t word)
{
    uint64_t z = (word + 1) * 0x9e3779b97f4a7c15u + seed * 0xbf58476d1ce4e5b9u;
    return (z ^ (z >> 29)) * 0x94d049bb133111ebu;
}

unsigned char pattern(uint64_t seed, uint64_t byte)
{
    return (unsigned char)(pattern_word(seed, byte / 8) >> (8 * (byte % 8)));
}

static int64_t extent_of(const tutti_tensor *t, int d)
{
    for (int i = 0; i < t->ndim; i++)
        if (t->offset[i] != 0 || t->extent[i] != 0)
            return t->extent[d];
    return t->shape[d];
}

size_t box_bytes(const tutti_tensor *t)
{
    size_t bytes = tutti_dtype_size(t->dtype);
    for (int d = 0; d < t->ndim; d++)
        bytes *= (size_t)extent_of(t, d);
    return bytes;
}

/* Bytes that follow one another in the whole tensor too; word by word, for under a sanitizer each
 * access costs. */
typedef bool (*run_fn)(unsigned char *at, uint64_t seed, uint64_t first, size_t bytes);

static bool put_run(unsigned char *at, uint64_t seed, uint64_t first, size_t bytes)
{
    for (size_t take; bytes > 0; at += take, first += take, bytes -= take) {
        uint64_t word = pattern_word(seed, first / 8) >> (8 * (first % 8));
        take = 8 - first % 8 < bytes ? 8 - first % 8 : bytes;
        if (take == 8)
            memcpy(at, &word, 8);
        else
            memcpy(at, &word, take);
    }
    return true;
}

static bool same_run(unsigned char *at, uint64_t seed, uint64_t first, size_t bytes)
{
    for (size_t take; bytes > 0; at += take, first += take, bytes -= take) {
        uint64_t word = pattern_word(seed, first / 8) >> (8 * (first % 8)), have = 0;
        take = 8 - first % 8 < bytes ? 8 - first % 8 : bytes;
        if (take == 8)
            memcpy(&have, at, 8);
        else
            memcpy(&have, at, take);
        if (((word ^ have) & (UINT64_MAX >> (64 - 8 * take))) != 0)
            return false;
    }
    return true;
}

static bool each_run(const tutti_tensor *t, uint64_t seed, run_fn fn)
{
    int64_t index[TUTTI_CKPT_MAX_DIMS] = {0};
    int rows = t->ndim > 0 ? t->ndim - 1 : 0; /* axes of rows; a row is a run */
    size_t size = tutti_dtype_size(t->dtype), bytes = box_bytes(t);
    size_t row = size * (size_t)(t->ndim > 0 ? extent_of(t, rows) : 1);
    unsigned char *at = t->data;
    for (size_t done = 0; done < bytes; done += row, at += row) {
        uint64_t linear = 0;
        for (int d = 0; d < t->ndim; d++)
            linear = linear * (uint64_t)t->shape[d] + (uint64_t)(t->offset[d] + index[d]);
        if (!fn(at, seed, linear * size, row))
            return false;
        for (int d = rows - 1; d >= 0; d--) {
            if (++index[d] < extent_of(t, d))
                break;
            index[d] = 0;
        }
    }
    return true;
}

void box_fill(const tutti_tensor *t, uint64_t seed)
{
    each_run(t, seed, put_run);
}

bool box_check(const tutti_tensor *t, uint64_t seed)
{
    return each_run(t, seed, same_run);
}

tutti_status box_make(tt_rank *r, tutti_tensor *t, bool fill, uint64_t seed)
{
    tutti_tensor host = *t;
    tutti_status status = TUTTI_OK;
    t->data = tt_plain_alloc(r->ctx, box_bytes(t) + 1);
    if (t->data == NULL)
        return TUTTI_ERR_NO_MEMORY;
    host.data = tt_staging_alloc(r->ctx, box_bytes(t) + 1);
    if (host.data == NULL)
        return TUTTI_ERR_NO_MEMORY;
    memset(host.data, 0xff, box_bytes(t));
    if (fill)
        box_fill(&host, seed);
    if (box_bytes(t) > 0)
        status = tt_put(r->ctx, t->data, host.data, box_bytes(t));
    tt_staging_free(r->ctx, host.data);
    return status;
}

bool box_same(tt_rank *r, const tutti_tensor *t, uint64_t seed)
{
    tutti_tensor host = *t;
    bool same = true;
    host.data = tt_staging_alloc(r->ctx, box_bytes(t) + 1);
    if (host.data == NULL)
        return false;
    if (box_bytes(t) > 0)
        same = tt_get(r->ctx, host.data, t->data, box_bytes(t)) == TUTTI_OK;
    same = same && box_check(&host, seed);
    tt_staging_free(r->ctx, host.data);
    return same;
}

void box_free(tt_rank *r, tutti_tensor *t)
{
    tt_plain_free(r->ctx, t->data);
    t->data = NULL;
}

tutti_tensor tensor_1d(const char *name, tutti_dtype dtype, int64_t n, int64_t offset,
                       int64_t extent, void *data)
{
    tutti_tensor t = TUTTI_TENSOR_INIT;
    t.name = name;
    t.dtype = dtype;
    t.ndim = 1;
    t.shape[0] = n;
    t.offset[0] = offset;
    t.extent[0] = extent;
    t.data = data;
    return t;
}

typedef struct small {
    tutti_tensor w, v;
} small;

static tutti_status small_make(tt_rank *r, small *s, bool fill, int64_t step)
{
    int64_t low = (int64_t)W_ROWS * r->rank / r->size,
            high = (int64_t)W_ROWS * (r->rank + 1) / r->size;
    s->w = (tutti_tensor)TUTTI_TENSOR_INIT;
    s->w.name = "model/w";
    s->w.dtype = TUTTI_FLOAT32;
    s->w.ndim = 2;
    s->w.shape[0] = W_ROWS;
    s->w.shape[1] = W_COLS;
    s->w.offset[0] = low;
    s->w.extent[0] = high - low;
    s->w.extent[1] = W_COLS;
    s->v = tensor_1d("model/v", TUTTI_FLOAT64, V_ELEMS, 0, 0, NULL);
    tutti_status status = box_make(r, &s->w, fill, (uint64_t)step);
    return status == TUTTI_OK ? box_make(r, &s->v, fill, (uint64_t)step + 1000) : status;
}

static void small_free(tt_rank *r, small *s)
{
    box_free(r, &s->w);
    box_free(r, &s->v);
}

tutti_status small_save(tt_rank *r, const char *dir, int64_t step, const tutti_ckpt_save_opts *opts)
{
    return small_save_with(r, dir, step, NULL, opts);
}

tutti_status small_save_with(tt_rank *r, const char *dir, int64_t step,
                             const tutti_ckpt_begin_opts *begin, const tutti_ckpt_save_opts *opts)
{
    small s;
    tutti_ckpt *ck;
    tutti_stream stream;
    char state[64] = "", rng[64];
    if (small_make(r, &s, true, step) != TUTTI_OK || tt_first_stream(r->ctx, &stream) != TUTTI_OK)
        tt_say(r, "no memory for the data");
    snprintf(state, sizeof state, "state of step %lld", (long long)step);
    snprintf(rng, sizeof rng, "rank %d of step %lld", r->rank, (long long)step);
    tutti_status status = tutti_ckpt_begin_with(r->ctx, dir, step, begin, &ck);
    if (status == TUTTI_OK) {
        if (tutti_ckpt_add(ck, &s.w) != TUTTI_OK || tutti_ckpt_add(ck, &s.v) != TUTTI_OK ||
            tutti_ckpt_add_bytes(ck, "state", state, sizeof state, TUTTI_CKPT_SAME) != TUTTI_OK ||
            tutti_ckpt_add_bytes(ck, "rng", rng, strlen(rng) + 1, TUTTI_CKPT_PER_RANK) != TUTTI_OK)
            tt_say(r, "add: %s", tutti_last_error());
        status = tutti_ckpt_commit(ck, stream, opts);
    }
    if (!tt_on_gpu(r->ctx))
        memset(s.v.data, 0xff, box_bytes(&s.v)); /* the snapshot is the saver's by now */
    else if (tutti_stream_sync(r->ctx, stream) != TUTTI_OK && status == TUTTI_OK)
        status = TUTTI_ERR_DEVICE; /* on GPUs commit only queues it */
    tutti_stream_destroy(r->ctx, stream);
    small_free(r, &s);
    return status;
}

static tutti_status small_values(tutti_ckpt_reader *rd, int64_t step)
{
    char want[64], have[64];
    size_t bytes;
    tutti_status status = tutti_ckpt_read_bytes(rd, "state", 0, have, sizeof have, &bytes);
    snprintf(want, sizeof want, "state of step %lld", (long long)step);
    if (status == TUTTI_OK && strcmp(want, have) != 0)
        return TUTTI_ERR_CORRUPT;
    for (int k = 0; k < tutti_ckpt_world(rd) && status == TUTTI_OK; k++) {
        status = tutti_ckpt_read_bytes(rd, "rng", k, have, sizeof have, &bytes);
        snprintf(want, sizeof want, "rank %d of step %lld", k, (long long)step);
        if (status == TUTTI_OK && (bytes != strlen(want) + 1 || strcmp(want, have) != 0))
            return TUTTI_ERR_CORRUPT;
    }
    return status;
}

tutti_status small_check(tt_rank *r, tutti_ckpt_reader *rd, int64_t step)
{
    small s;
    tutti_tensor both[2];
    tutti_stream stream;
    tutti_status status = small_make(r, &s, false, 0);
    if (status != TUTTI_OK || tt_first_stream(r->ctx, &stream) != TUTTI_OK)
        tt_say(r, "no memory for the data");
    both[0] = s.w;
    both[1] = s.v;
    status = tutti_ckpt_read(rd, both, 2, stream);
    if (tutti_stream_sync(r->ctx, stream) != TUTTI_OK && status == TUTTI_OK)
        status = TUTTI_ERR_DEVICE;
    if (status == TUTTI_OK &&
        (!box_same(r, &s.w, (uint64_t)step) || !box_same(r, &s.v, (uint64_t)step + 1000)))
        status = TUTTI_ERR_CORRUPT;
    tutti_stream_destroy(r->ctx, stream);
    small_free(r, &s);
    return status == TUTTI_OK ? small_values(rd, step) : status;
}

typedef struct small_job {
    const char *dir;
    int64_t step, got[64];
    tutti_status status[64];
    char text[1024];
} small_job;

static void save_body(tt_rank *r)
{
    small_job *job = r->arg;
    int64_t last;
    TT_EXPECT_OK(r, small_save(r, job->dir, job->step, NULL));
    TT_EXPECT_OK(r, tutti_ckpt_wait(r->ctx, &last));
    TT_EXPECT(r, last == job->step);
}

const char *small_job_save(int n, const char *dir, int64_t step)
{
    small_job job = {.dir = dir, .step = step};
    return tt_ranks_run(n, NULL, save_body, &job);
}

tutti_status small_check_opened(tt_rank *r, tutti_ckpt_reader *rd, int64_t *step_out)
{
    *step_out = tutti_ckpt_step(rd);
    tutti_status status = small_check(r, rd, *step_out);
    if (status != TUTTI_OK)
        tt_say(r, "opened, but: %s: %s", tutti_status_name(status), tutti_last_error());
    tutti_ckpt_close(rd);
    return status;
}

static void load_body(tt_rank *r)
{
    small_job *job = r->arg;
    tutti_ckpt_reader *rd;
    tutti_status status = tutti_ckpt_open(r->ctx, job->dir, job->step, &rd);
    if (status == TUTTI_OK)
        status = small_check_opened(r, rd, &job->got[r->rank]);
    else if (r->rank == r->size - 1)
        snprintf(job->text, sizeof job->text, "%s", tutti_last_error());
    job->status[r->rank] = status;
}

const char *small_job_load(int n, const char *dir, int64_t step, tutti_status *status_out,
                           int64_t *step_out, char text_out[1024])
{
    small_job job = {.dir = dir, .step = step};
    const char *report = tt_ranks_run(n, NULL, load_body, &job);
    for (int i = 1; i < n && report[0] == '\0'; i++)
        if (job.status[i] != job.status[0] || job.got[i] != job.got[0])
            return "the ranks disagree";
    *status_out = job.status[0];
    if (step_out != NULL)
        *step_out = job.got[0];
    if (text_out != NULL)
        memcpy(text_out, job.text, sizeof job.text);
    return report;
}

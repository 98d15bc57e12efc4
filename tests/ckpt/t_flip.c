/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Damage, bit by bit and at random, through the loader as programs use it and through HDF5 in a
 * child: every flipped bit of data is found; one of metadata is found or harms nothing; whatever is
 * cut, zeroed, repeated or overwritten, nobody crashes the loader and no wrong data is handed out.
 */
#include "ckpt_test.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/h5.h"
#include "ckpt/loader.h"

static char dir[PATH_CAP];
static const char *const names[] = {"shard-00000.h5", "shard-00001.h5", "index.h5",
                                    "manifest.json"};
enum { FILES = 4 };

static const char *in_step(const char *name)
{
    static char path[PATH_CAP + 64];
    snprintf(path, sizeof path, "%s/step-000000000001/%s", dir, name);
    return path;
}

static int setup(void **state)
{
    (void)state;
    scratch_make(dir);
    setenv("TUTTI_CKPT_BLOCK_BYTES", "4096", 1);
    return strcmp(small_job_save(2, dir, 1), "");
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove(dir);
    unsetenv("TUTTI_CKPT_BLOCK_BYTES");
    return 0;
}

typedef struct sum {
    uint64_t hash;
} sum;

static tutti_status take(void *arg, const tt_piece *piece)
{
    sum *s = arg;
    const unsigned char *data = piece->data;
    for (uint64_t i = 0; i < piece->bytes; i++)
        s->hash = (s->hash ^ data[i]) * 0x100000001b3u;
    return TUTTI_OK;
}

/* All that a checkpoint holds, read as a load reads it: its status, and a hash of it. */
static tutti_status read_all(uint64_t *hash_out, bool verify)
{
    tt_buf text = {0};
    tt_source src = {0};
    sum s = {0xcbf29ce484222325u};
    int top = -1;
    tutti_status status = tt_dir_open(dir, &top);
    if (status == TUTTI_OK)
        status = tt_source_open(top, 1, &text, &src);
    const tt_ctensor **list = NULL;
    if (status == TUTTI_OK) {
        list = calloc(src.m.cat.ntensor + 1, sizeof *list);
        for (size_t i = 0; i < src.m.cat.ntensor; i++)
            list[i] = &src.m.cat.tensor[i];
        status = tt_source_scan(&src, list, src.m.cat.ntensor, 1 << 20, take, &s);
    }
    if (status == TUTTI_OK && verify)
        status = tt_source_verify(&src, 0, 1);
    free(list);
    tt_source_close(&src);
    tt_buf_free(&text);
    close(top);
    *hash_out = s.hash;
    return status;
}

/* One changed bit of one file; *caught_out: whether a full verification finds it. */
static void flip_one(const char *name, unsigned char *data, size_t bytes, uint64_t bit,
                     uint64_t good, bool *caught_out)
{
    uint64_t hash;
    data[bit / 8] ^= (unsigned char)(1u << (bit % 8));
    file_put(in_step(name), data, bytes);
    tutti_status lazy = read_all(&hash, false);
    if (lazy == TUTTI_OK && hash != good)
        fail_msg("%s, bit %llu: wrong data was handed out", name, (unsigned long long)bit);
    *caught_out = lazy != TUTTI_OK || read_all(&hash, true) != TUTTI_OK;
    data[bit / 8] ^= (unsigned char)(1u << (bit % 8));
}

static void flips(uint64_t every)
{
    uint64_t good, tried = 0;
    assert_int_equal(read_all(&good, true), TUTTI_OK);
    for (int f = 0; f < FILES; f++) {
        size_t bytes;
        bool caught;
        unsigned char *data = file_get(in_step(names[f]), &bytes);
        for (uint64_t bit = (uint64_t)f; bit < 8 * (uint64_t)bytes; bit += every) {
            flip_one(names[f], data, bytes, bit, good, &caught);
            tried++;
            if (!caught)
                fail_msg("%s, bit %llu is not found", names[f], (unsigned long long)bit);
        }
        file_put(in_step(names[f]), data, bytes);
        free(data);
    }
    print_message("%llu flipped bits, all found\n", (unsigned long long)tried);
    assert_int_equal(read_all(&good, true), TUTTI_OK);
}

static void mutate(tt_rng *rng, unsigned char **data, size_t *bytes)
{
    size_t at = (size_t)tt_rand_below(rng, *bytes), n = 1 + (size_t)tt_rand_below(rng, 64);
    n = n < *bytes - at ? n : *bytes - at;
    switch (tt_rand_below(rng, 6)) {
    case 0:
        *bytes = at;
        break;
    case 1:
        memset(*data + at, 0, n);
        break;
    case 2:
        memset(*data + at, 0xff, n);
        break;
    case 3:
        memmove(*data + at, *data, n);
        break;
    default:
        for (size_t i = 0; i < n; i += 1 + (size_t)tt_rand_below(rng, 8))
            (*data)[at + i] = (unsigned char)tt_rand(rng);
    }
}

/* HDF5 on a mutated file, as `tutti ckpt verify` would if its checksums were right too. */
static int h5_in_child(void)
{
    int rc = 0;
    pid_t child = fork();
    if (child == 0) {
        struct rlimit none = {0, 0};
        tt_buf text = {0};
        tt_manifest m = {0};
        size_t bytes;
        int top = -1, step = -1;
        static const int deadly[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
        for (int i = 0; i < 5; i++)
            signal(deadly[i], SIG_DFL); /* cmocka has its own, and would go on from there */
        setrlimit(RLIMIT_CORE, &none);
        alarm(60);
        unsigned char *kept = file_get(in_step("manifest.kept"), &bytes);
        if (tt_manifest_read(kept, bytes, 1, &m) != TUTTI_OK ||
            tt_dir_open(dir, &top) != TUTTI_OK ||
            tt_dir_open_at(top, "step-000000000001", &step) != TUTTI_OK)
            _exit(9);
        tt_buf_free(&text);
        _exit(tt_h5_verify(step, &m, NULL) == TUTTI_OK ? 0 : 3);
    }
    waitpid(child, &rc, 0);
    return rc;
}

static void fuzz(int times, uint64_t seed)
{
    tt_rng rng = {seed};
    uint64_t good, hash, found = 0, refused = 0, crashed = 0;
    size_t size[FILES];
    unsigned char *whole[FILES];
    assert_int_equal(read_all(&good, true), TUTTI_OK);
    for (int f = 0; f < FILES; f++)
        whole[f] = file_get(in_step(names[f]), &size[f]);
    file_put(in_step("manifest.kept"), whole[3], size[3]);
    for (int i = 0; i < times; i++) {
        int f = (int)tt_rand_below(&rng, FILES);
        size_t bytes = size[f];
        unsigned char *data = malloc(bytes + 1);
        memcpy(data, whole[f], bytes);
        mutate(&rng, &data, &bytes);
        bool same = bytes == size[f] && memcmp(data, whole[f], bytes) == 0;
        file_put(in_step(names[f]), data, bytes);
        tutti_status status = read_all(&hash, true);
        if (status == TUTTI_OK && (hash != good || !same))
            fail_msg("mutation %d of %s is not found", i, names[f]);
        found += status != TUTTI_OK;
        if (f < 3) {
            int rc = h5_in_child();
            refused += WIFEXITED(rc) && WEXITSTATUS(rc) == 3;
            crashed += WIFSIGNALED(rc);
        }
        file_put(in_step(names[f]), whole[f], size[f]);
        free(data);
    }
    print_message("%d mutations, %llu found; to HDF5 alone: %llu refused, %llu crashed it\n", times,
                  (unsigned long long)found, (unsigned long long)refused,
                  (unsigned long long)crashed);
    unlink(in_step("manifest.kept"));
    for (int f = 0; f < FILES; f++)
        free(whole[f]);
}

static void some_bits(void **state)
{
    (void)state;
    flips(20011);
}

static void some_mutations(void **state)
{
    (void)state;
    fuzz(60, 5);
}

static void many_bits(void **state)
{
    (void)state;
    flips(97);
}

static void many_mutations(void **state)
{
    (void)state;
    fuzz(4000, 6);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {T(some_bits), T(some_mutations)};
    const struct CMUnitTest longer[] = {T(many_bits), T(many_mutations)};
    if (argc > 1 && strcmp(argv[1], "long") == 0)
        return cmocka_run_group_tests(longer, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

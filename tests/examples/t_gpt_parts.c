/* SPDX-License-Identifier: Apache-2.0 */
/* The command line, the text and the optimizer of examples/gpt. */
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tt_test.h"

#include "args.h"
#include "data.h"
#include "evaluate.h"
#include "optim.h"
#include "simd.h"

/* Parses a line of words; what is wrong with it, or NULL. */
static const char *parse(args *a, const char *line)
{
    static char words[1024];
    static char program[] = "gpt";
    char *argv[64] = {program};
    int argc = 1;

    snprintf(words, sizeof words, "%s", line);
    for (char *w = strtok(words, " "); w != NULL; w = strtok(NULL, " "))
        argv[argc++] = w;
    return args_parse(a, argc, argv);
}

static void refuses(const char *line, const char *says)
{
    args a;
    const char *wrong = parse(&a, line);

    if (wrong == NULL || strstr(wrong, says) == NULL)
        fail_msg("'%s': expected a message with '%s', got '%s'", line, says,
                 wrong == NULL ? "none" : wrong);
    args_free(&a);
}

static void test_args(void **state)
{
    args a;

    (void)state;
    assert_null(parse(&a, ""));
    assert_int_equal(a.text_count, 1);
    assert_int_equal(a.layers, 4);
    args_free(&a);
    assert_null(parse(&a, "--text a b --steps 7 --lr=0.5 --ckpt d --resume --text c --seed 0"));
    assert_int_equal(a.text_count, 3);
    assert_string_equal(a.text[2], "c");
    assert_int_equal(a.steps, 7);
    assert_true(a.lr == 0.5);
    assert_true(a.resume);
    assert_string_equal(a.ckpt, "d");
    assert_int_equal(a.batch % 4, 0);
    args_free(&a);
    assert_null(parse(&a, "--help --steps"));
    args_free(&a);
}

static void test_args_refused(void **state)
{
    (void)state;
    refuses("--stepz 3", "unknown option '--stepz'");
    refuses("--step 3", "unknown option");
    refuses("words", "unknown option 'words'");
    refuses("--steps", "needs a value");
    refuses("--steps 3x", "not a whole number");
    refuses("--steps=", "not a whole number");
    refuses("--steps -1", "out of range");
    refuses("--batch 0", "out of range");
    refuses("--seed 99999999999999999999999", "out of range");
    refuses("--lr fast", "not a number");
    refuses("--lr nan", "not a number");
    refuses("--lr -1", "out of range");
    refuses("--ckpt=", "needs a value");
    refuses("--text", "needs at least one");
    refuses("--text --steps 3", "needs at least one");
    refuses("--resume", "needs --ckpt");
    refuses("--resume=1 --ckpt d", "takes no value");
    refuses("--width 30 --heads 4", "not a multiple");
}

static void folder_make(char *dir)
{
    strcpy(dir, "/tmp/gpt-parts-XXXXXX");
    assert_non_null(mkdtemp(dir));
}

static void folder_remove(const char *dir)
{
    char command[128];

    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    assert_int_equal(system(command), 0);
}

static const char *put(const char *dir, const char *name, size_t bytes, char fill)
{
    static char path[4][256];
    static int next;
    char *p = path[next++ % 4];
    FILE *f;

    snprintf(p, sizeof path[0], "%s/%s", dir, name);
    f = fopen(p, "w");
    assert_non_null(f);
    for (size_t i = 0; i < bytes; i++)
        fputc(fill, f);
    fclose(f);
    return p;
}

/* Links and names given twice count once; the last tenth of each file is held out. */
static void test_text_distinct(void **state)
{
    char dir[64], link[256];
    const char *paths[3], *problem = NULL;
    corpus t;

    (void)state;
    folder_make(dir);
    paths[0] = put(dir, "b", 100, 'b');
    paths[1] = put(dir, "a", 50, 'a');
    paths[2] = dir;
    snprintf(link, sizeof link, "%s/z", dir);
    assert_int_equal(symlink("a", link), 0);
    snprintf(link, sizeof link, "%s/y", dir);
    assert_int_equal(linkat(AT_FDCWD, paths[0], AT_FDCWD, link, 0), 0);
    snprintf(link, sizeof link, "%s/folder", dir);
    assert_int_equal(mkdir(link, 0700), 0);
    assert_true(text_load(&t, paths, 3, 16, &problem));
    assert_int_equal(t.files, 2);
    assert_int_equal(t.train_bytes, 90 + 45);
    assert_int_equal(t.held_out_bytes, 10 + 5);
    assert_int_equal(t.train[89], 'b');
    assert_int_equal(t.train[90], 'a');
    assert_int_equal(t.held_out[10], 'a');
    text_free(&t);
    folder_remove(dir);
}

static void text_refused(const char *path, const char *says)
{
    const char *problem = NULL;
    corpus t;

    assert_false(text_load(&t, &path, 1, 16, &problem));
    assert_non_null(problem);
    if (strstr(problem, says) == NULL)
        fail_msg("expected '%s', got '%s'", says, problem);
    assert_null(t.train);
}

static void test_text_refused(void **state)
{
    char dir[64], path[256];

    (void)state;
    folder_make(dir);
    text_refused(dir, "too few");
    text_refused(put(dir, "empty", 0, 'x'), "is empty");
    text_refused(put(dir, "short", 17, 'x'), "too few");
    text_refused("/dev/zero", "not a regular file");
    snprintf(path, sizeof path, "%s/none", dir);
    text_refused(path, "No such file");
    assert_int_equal(mkfifo(path, 0600), 0);
    text_refused(path, "not a regular file");
    folder_remove(dir);
}

/* A sequence is a function of (seed, step, number): any cut of the batch gives the same ones. */
static void test_batch_does_not_depend_on_ranks(void **state)
{
    uint8_t bytes[4096], whole[8 * 16], targets[8 * 16], part[2 * 16], part_targets[2 * 16];
    const corpus t = {bytes, bytes, sizeof bytes, 2, 1};
    batch_request request = {5, 3, 0, 8, 16};
    bool equal_to_next_step;

    (void)state;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 7 + i / 256);
    text_batch(&t, &request, whole, targets);
    for (int i = 0; i < 8; i++)
        assert_memory_equal(whole + i * 16 + 1, targets + i * 16, 15);
    for (int first = 0; first < 8; first += 2) {
        request.first = first;
        request.count = 2;
        text_batch(&t, &request, part, part_targets);
        assert_memory_equal(part, whole + first * 16, sizeof part);
        assert_memory_equal(part_targets, targets + first * 16, sizeof part);
    }
    request.first = 0;
    request.step = 4;
    text_batch(&t, &request, part, part_targets);
    equal_to_next_step = memcmp(part, whole, sizeof part) == 0;
    assert_false(equal_to_next_step);
}

/* Text that a trigram determines is predicted nearly surely, random bytes at about ln 256. */
static void test_trigram_bounds(void **state)
{
    const size_t n = 40000;
    uint8_t *bytes = malloc(n);
    corpus t = {bytes, bytes, n, 4000, 1};
    tt_rng rng = {11};

    (void)state;
    assert_non_null(bytes);
    for (size_t i = 0; i < n; i++)
        bytes[i] = "abcabd"[i % 6];
    assert_true(trigram_held_out_loss(&t, 64) < 0.5);
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)tt_rand(&rng);
    t.held_out_bytes = 2;
    bytes[0] = 'x';
    assert_true(trigram_held_out_loss(&t, 64) > 4);
    free(bytes);
}

static int whole_pass(void *arg, token_buffers b, int rows, int time, real *losses_out)
{
    model *m = arg;

    model_forward(m, b.inputs, rows, time);
    (void)model_loss(m, b.targets);
    memcpy(losses_out, m->loss, (size_t)rows * (size_t)time * sizeof *losses_out);
    return 0;
}

static loss_sum share_of(model *m, const corpus *t, token_buffers b, int copy, int copies)
{
    static real losses[512];
    const held_out_job job = {m, t, b, losses, copy, copies, whole_pass, m};
    loss_sum s = {0, 0};

    assert_int_equal(held_out_share(&job, &s), 0);
    return s;
}

/* The ranks' shares add up to each held-out byte once, whatever the ranks and the pass size. */
static void test_held_out_shares(void **state)
{
    const model_shape shape = {1, 8, 2, 10};
    uint8_t bytes[95], inputs[60], targets[60];
    const corpus t = {bytes, bytes, sizeof bytes, sizeof bytes, 1};
    token_buffers b = {inputs, targets};
    double expected = 0;
    model m;

    (void)state;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * i);
    for (int ranks = 1; ranks <= 5; ranks++) {
        loss_sum total = {0, 0};

        assert_true(model_create(&m, shape, 1 + ranks, 3));
        for (int r = 0; r < ranks; r++) {
            loss_sum s = share_of(&m, &t, b, r, ranks);

            total.sum += s.sum;
            total.count += s.count;
        }
        assert_true(total.count == (double)(sizeof bytes - 1));
        if (ranks == 1)
            expected = total.sum;
        assert_true(fabs(total.sum - expected) < 1e-4 * expected);
        model_destroy(&m);
    }
}

/* A long text is scored in places only, a bounded number of them, and never twice. */
static void test_held_out_long(void **state)
{
    const model_shape shape = {1, 4, 1, 4};
    const size_t n = 200000;
    uint8_t *bytes = calloc(1, n), inputs[256], targets[256];
    const corpus t = {bytes, bytes, n, n, 1};
    loss_sum s;
    model m;

    (void)state;
    assert_non_null(bytes);
    assert_true(model_create(&m, shape, 64, 3));
    s = share_of(&m, &t, (token_buffers){inputs, targets}, 0, 1);
    assert_true(s.count >= 4096 * 2 && s.count <= 4200 * 2);
    model_destroy(&m);
    free(bytes);
}

/* Parts and shares of a model have the weights that the whole model has there. */
static void test_parts_have_the_weights_of_the_whole(void **state)
{
    const model_shape shape = {3, 12, 6, 5};
    model whole, part;
    int found = 0;

    (void)state;
    assert_true(model_create(&whole, shape, 1, 9));
    assert_int_equal(whole.weight_count, whole.whole_count);
    for (int stage = 0; stage < 2; stage++)
        for (int shard = 0; shard < 2; shard++) {
            const model_part p = {2 * stage, 2 - stage, stage == 0, stage == 1, shard, 2, 1};

            assert_true(model_create_part(&part, &gpt_device_host, shape, p, 1, 9));
            assert_int_equal(part.whole_count, whole.weight_count);
            for (int i = 0; i < part.param_count; i++) {
                const param *a = part.params[i], *b = whole.params[a->id];
                const int cols = a->cols == 0 ? 1 : a->cols, all = b->cols == 0 ? 1 : b->cols;

                assert_string_equal(a->name, b->name);
                for (int r = 0; r < a->rows; r++)
                    for (int c = 0; c < cols; c++)
                        assert_true(a->value[r * cols + c] ==
                                    b->value[(a->first_row + r) * all + a->first_col + c]);
                found += a->rows * cols / (a->replica ? 2 : 1);
            }
            model_destroy(&part);
        }
    assert_int_equal(found, whole.weight_count);
    model_destroy(&whole);
}

static void test_exp_fast(void **state)
{
    (void)state;
    for (double x = -87; x < 88; x += 0.001) {
        double error = (double)exp_fast((float)x) / exp((double)(float)x) - 1;

        if (fabs(error) > 3e-7)
            fail_msg("exp(%g): relative error %g", x, error);
    }
    assert_true(exp_fast(-1000.0f) < 1e-37f);
    assert_true(isfinite(exp_fast(1000.0f)));
}

/* AdamW against its definition in double, one weight, and decay only where it belongs. */
static void test_adamw(void **state)
{
    float w[2] = {0.5f, 0.5f}, g[2];
    const tutti_piece pieces[2] = {{0, GROUP_DECAY, 0, 1, 0, &g[0], &w[0]},
                                   {1, GROUP_PLAIN, 0, 1, 1, &g[1], &w[1]}};
    double x[2] = {0.5, 0.5}, m[2] = {0, 0}, v[2] = {0, 0};
    adamw opt;

    (void)state;
    assert_true(adamw_create(&opt, &gpt_device_host, 2));
    for (int step = 0; step < 50; step++) {
        for (int i = 0; i < 2; i++) {
            g[i] = (float)sin(step + 3 * i);
            m[i] = 0.9 * m[i] + 0.1 * (double)g[i];
            v[i] = 0.99 * v[i] + 0.01 * (double)g[i] * (double)g[i];
            x[i] -= 0.01 * (i == 0 ? 0.1 : 0) * x[i] +
                    0.01 * (m[i] / (1 - pow(0.9, step + 1))) /
                        (sqrt(v[i] / (1 - pow(0.99, step + 1))) + 1e-8);
        }
        adamw_update(&opt, pieces, 2, (adamw_step){step, 0.01, 1});
    }
    for (int i = 0; i < 2; i++)
        assert_true(fabs((double)w[i] - x[i]) < 1e-5);
    assert_true(fabs(clip_factor(5) - 0.2) < 1e-6);
    assert_true(clip_factor(0.1) == 1);
    assert_false(clip_factor(NAN) > 0);
    assert_false(clip_factor(INFINITY) > 0);
    assert_true(learning_rate(1, 0, 1000) < 0.05);
    assert_true(fabs(learning_rate(1, 1000, 1000) - 0.1) < 1e-6);
    adamw_destroy(&opt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_args),
                                       cmocka_unit_test(test_args_refused),
                                       cmocka_unit_test(test_text_distinct),
                                       cmocka_unit_test(test_text_refused),
                                       cmocka_unit_test(test_batch_does_not_depend_on_ranks),
                                       cmocka_unit_test(test_trigram_bounds),
                                       cmocka_unit_test(test_held_out_shares),
                                       cmocka_unit_test(test_held_out_long),
                                       cmocka_unit_test(test_parts_have_the_weights_of_the_whole),
                                       cmocka_unit_test(test_exp_fast),
                                       cmocka_unit_test(test_adamw)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

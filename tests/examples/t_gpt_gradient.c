/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPT's gradients against finite differences, for every parameter tensor.
 *
 * Built twice from the model's own files: in double, where a central difference is good to about
 * nine digits and a wrong term cannot hide, and in float, as the program runs, with the bound that
 * its rounding allows. Per tensor: the derivative along a random direction (every element takes
 * part) and those of single elements, the one with the largest gradient among them.
 */
#include <math.h>

#include "tt_test.h"

#include "model.h"
#include "random.h"

#ifdef GPT_DOUBLE
#define STEP 1e-4
#define BOUND 1e-6
#else
#define STEP 3e-2
#define BOUND 1e-2
#endif

enum { BATCH = 3, TIME = 7, ROWS = BATCH * TIME };

typedef struct fixture {
    model m;
    real *grad;
    uint8_t inputs[ROWS], targets[ROWS];
    int ready[128]; /* how often a parameter was made ready */
    int last_first; /* the order of the calls must be falling */
} fixture;

static int note_ready(void *arg, int first, int count)
{
    fixture *f = arg;

    if (first + count != f->last_first)
        return -1;
    f->last_first = first;
    for (int i = first; i < first + count; i++)
        f->ready[i]++;
    return 0;
}

static double loss_of(fixture *f)
{
    model_forward(&f->m, f->inputs, BATCH, TIME);
    return model_loss(&f->m, f->targets);
}

/* Weights large enough that no part of the model is close to linear. */
static void fixture_make(fixture *f)
{
    const model_shape shape = {2, 24, 3, 9};
    size_t at = 0;

    memset(f, 0, sizeof *f);
    assert_true(model_create(&f->m, shape, BATCH, 7));
    assert_true(f->m.param_count <= 128);
    f->grad = calloc(f->m.weight_count, sizeof *f->grad);
    assert_non_null(f->grad);
    for (int i = 0; i < f->m.param_count; i++) {
        param *p = f->m.params[i];

        p->grad = f->grad + at;
        at += p->count;
        for (size_t j = 0; j < p->count; j++)
            p->value[j] += (real)(0.3 * (random_unit(random_at(1, (uint64_t)i, j)) - 0.5));
    }
    for (int i = 0; i < ROWS; i++) {
        f->inputs[i] = (uint8_t)random_at(2, 0, (uint64_t)i);
        f->targets[i] = (uint8_t)random_at(2, 1, (uint64_t)i);
    }
    f->inputs[1] = f->inputs[0]; /* one token twice: its gradients add up */
}

static void gradients(fixture *f)
{
    memset(f->grad, 0, f->m.weight_count * sizeof *f->grad);
    (void)loss_of(f);
    f->last_first = f->m.param_count;
    assert_int_equal(model_backward(&f->m, f->targets, (real)(1.0 / ROWS), note_ready, f), 0);
}

/* The derivative along `direction` by central differences, the h^2 term removed. */
static double difference(fixture *f, param *p, const real *direction)
{
    double d[2];
    real *saved = malloc(p->count * sizeof *saved);

    assert_non_null(saved);
    memcpy(saved, p->value, p->count * sizeof *saved);
    for (int i = 0; i < 2; i++) {
        double h = i == 0 ? STEP : STEP / 2, loss[2];

        for (int side = 0; side < 2; side++) {
            for (size_t j = 0; j < p->count; j++)
                p->value[j] = saved[j] + (real)(side == 0 ? h : -h) * direction[j];
            loss[side] = loss_of(f);
        }
        d[i] = (loss[0] - loss[1]) / (2 * h);
    }
    memcpy(p->value, saved, p->count * sizeof *saved);
    free(saved);
    return (4 * d[1] - d[0]) / 3;
}

static double dot_grad(const param *p, const real *direction)
{
    double sum = 0;

    for (size_t j = 0; j < p->count; j++)
        sum += (double)p->grad[j] * (double)direction[j];
    return sum;
}

/* Relative to the tensor's gradient, so that an element whose derivative is zero is no trouble. */
static void compare(const param *p, const char *what, double found, double expected, double scale)
{
    double error = fabs(found - expected) / scale;

    if (error > BOUND)
        fail_msg("%s, %s: gradient %.9g, by differences %.9g, relative error %.2g", p->name, what,
                 found, expected, error);
}

static void check_param(fixture *f, param *p, int id)
{
    real *direction = calloc(p->count, sizeof *direction);
    double norm = 0, size = 0;
    size_t largest = 0;

    assert_non_null(direction);
    for (size_t j = 0; j < p->count; j++) {
        norm += (double)p->grad[j] * (double)p->grad[j];
        if (fabs((double)p->grad[j]) > fabs((double)p->grad[largest]))
            largest = j;
    }
    norm = sqrt(norm);
    assert_true(norm > 1e-4);
    /* Half the gradient's own direction, half random: a derivative well away from zero. */
    for (size_t j = 0; j < p->count; j++) {
        double noise = (random_unit(random_at(3, (uint64_t)id, j)) - 0.5) / sqrt((double)p->count);

        direction[j] = (real)((double)p->grad[j] / norm + 3 * noise);
        size += (double)direction[j] * (double)direction[j];
    }
    for (size_t j = 0; j < p->count; j++)
        direction[j] /= (real)sqrt(size);
    compare(p, "along a direction", dot_grad(p, direction), difference(f, p, direction), norm);
    for (int i = 0; i < 3; i++) {
        size_t at = i == 0 ? largest : (size_t)(random_at(4, (uint64_t)id, (uint64_t)i) % p->count);

        memset(direction, 0, p->count * sizeof *direction);
        direction[at] = 1;
        compare(p, "one element", dot_grad(p, direction), difference(f, p, direction), norm);
    }
    free(direction);
}

static void test_every_parameter(void **state)
{
    fixture f;

    (void)state;
    fixture_make(&f);
    gradients(&f);
    for (int i = 0; i < f.m.param_count; i++)
        assert_int_equal(f.ready[i], 1);
    assert_int_equal(f.last_first, 0);
    for (int i = 0; i < f.m.param_count; i++)
        check_param(&f, f.m.params[i], i);
    free(f.grad);
    model_destroy(&f.m);
}

/* Two passes add up to twice one pass: what micro-steps rely on. */
static void test_gradients_accumulate(void **state)
{
    fixture f;
    double once = 0, twice = 0;

    (void)state;
    fixture_make(&f);
    gradients(&f);
    for (size_t i = 0; i < f.m.weight_count; i++)
        once += fabs((double)f.grad[i]);
    (void)loss_of(&f);
    f.last_first = f.m.param_count;
    assert_int_equal(model_backward(&f.m, f.targets, (real)(1.0 / ROWS), note_ready, &f), 0);
    for (size_t i = 0; i < f.m.weight_count; i++)
        twice += fabs((double)f.grad[i]);
    assert_true(fabs(twice - 2 * once) < 1e-5 * once);
    free(f.grad);
    model_destroy(&f.m);
}

/* A token's loss depends on no later token, and a shorter pass gives what the longer one gave. */
static void test_causal(void **state)
{
    fixture f;
    real before[ROWS];

    (void)state;
    fixture_make(&f);
    (void)loss_of(&f);
    memcpy(before, f.m.loss, sizeof before);
    f.inputs[TIME - 1] ^= 1;
    (void)loss_of(&f);
    for (int t = 0; t < TIME - 1; t++)
        assert_true(fabs((double)(f.m.loss[t] - before[t])) < 1e-5);
    assert_true(fabs((double)(f.m.loss[TIME - 1] - before[TIME - 1])) > 1e-4);
    model_forward(&f.m, f.inputs, 1, 4);
    (void)model_loss(&f.m, f.targets);
    for (int t = 0; t < 4; t++)
        assert_true(fabs((double)(f.m.loss[t] - before[t])) < 1e-5);
    free(f.grad);
    model_destroy(&f.m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_parameter),
                                       cmocka_unit_test(test_gradients_accumulate),
                                       cmocka_unit_test(test_causal)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

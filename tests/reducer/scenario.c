/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values are small integers, so that sums are exact in every dtype and order, and the mean is one
 * rounding of sum * (1/n). Gradients are added onto what is there, as backward passes do; thus a
 * gradient that was not zeroed, or was reduced twice or too early, gives a wrong mean.
 *
 * A backward pass is a function on a stream. On GPUs it works in page-locked memory between two
 * copies, and every way of feeding has streams of its own.
 */
#include "scenario.h"

#include <math.h>
#include <pthread.h>
#include <time.h>

#include "core/hash.h"
#include "tt_memory.h"

enum { PARAMS = 40, FEEDERS = 3, SCALARS = 3 };

typedef struct tensor {
    tutti_dtype dtype;
    size_t count;
    char *given; /* the program's gradient memory, or NULL */
    float *param; /* of PARAM_FLOATS, or NULL */
    void *grad;
    void *work; /* where the host's functions work on it: grad itself, or staging */
} tensor;

typedef struct job {
    tt_rank *r;
    const scenario *s;
    tutti_reducer *red;
    int n;
    tensor tensor[PARAMS];
    char *arena; /* of gradients given */
    tutti_stream stream[FEEDERS];
    int step, micro, micros;
    int order[PARAMS];
    float *scalar, *values; /* for the host's functions, for the reducer */
    bool gpu;
    char *staging; /* of all tensors */
    bool narrow, folds; /* has 16-bit tensors; the reducer adds micro-steps up */
    bool wrong; /* set on a stream's worker, read after it was synchronised */
    char text[256];
} job;

enum { PARAM_FLOATS = 5 };

static uint32_t mix(uint32_t a, uint32_t b)
{
    a = (a ^ b) * 0x9e3779b1u;
    return a ^ (a >> 15);
}

static uint32_t key(const job *j, int rank, int micro, int id)
{
    return mix(
        mix(mix(mix((uint32_t)j->s->seed, (uint32_t)j->step), (uint32_t)micro), (uint32_t)rank),
        (uint32_t)id);
}

static bool is_absent(const job *j, int rank, int micro, int id)
{
    return key(j, rank, micro, id + 1000) % 8 == 0;
}

static double value(const job *j, uint32_t k, size_t i)
{
    uint32_t h = mix(k, (uint32_t)i);
    return j->s->fractions ? (double)h * 0x1p-32 - 0.4 : (double)(h % 9) - 4;
}

/* float to a 16-bit type with `mantissa` bits, round to nearest even; no overflow here. */
static float rounded(float x, int mantissa)
{
    int exponent;
    float scale, whole, up;

    if (x == 0.0f)
        return x;
    (void)frexpf(x, &exponent);
    if (mantissa == 10 && exponent < -13)
        exponent = -13; /* subnormal halves */
    scale = ldexpf(1.0f, mantissa + 1 - exponent);
    whole = floorf(x * scale);
    up = x * scale - whole;
    if (up > 0.5f || (up == 0.5f && fmodf(whole, 2.0f) != 0.0f))
        whole += 1.0f;
    return whole / scale;
}

static double get(const void *at, size_t i, tutti_dtype dtype)
{
    uint16_t bits;
    uint32_t wide;
    float f;

    if (dtype == TUTTI_FLOAT64)
        return ((const double *)at)[i];
    if (dtype == TUTTI_FLOAT32)
        return (double)((const float *)at)[i];
    bits = ((const uint16_t *)at)[i];
    if (dtype == TUTTI_BFLOAT16) {
        wide = (uint32_t)bits << 16;
        memcpy(&f, &wide, sizeof f);
        return (double)f;
    }
    f = (float)(bits & 0x3ff);
    f = (bits & 0x7c00) == 0 ? ldexpf(f, -24) : ldexpf(f + 1024.0f, ((bits >> 10) & 31) - 25);
    return (double)((bits & 0x8000) != 0 ? -f : f);
}

static uint16_t half_bits(float x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    int exponent;

    x = fabsf(x);
    if (x == 0.0f)
        return sign;
    (void)frexpf(x, &exponent);
    if (exponent < -13)
        return (uint16_t)(sign | (uint16_t)ldexpf(x, 24));
    return (uint16_t)(sign | (uint16_t)((exponent + 14) << 10) |
                      (uint16_t)((uint16_t)ldexpf(x, 11 - exponent) & 0x3ff));
}

static void put(void *at, size_t i, tutti_dtype dtype, double x)
{
    float f = (float)x;
    uint32_t wide;

    if (dtype == TUTTI_FLOAT64) {
        ((double *)at)[i] = x;
    } else if (dtype == TUTTI_FLOAT32) {
        ((float *)at)[i] = f;
    } else if (dtype == TUTTI_BFLOAT16) {
        f = rounded(f, 7);
        memcpy(&wide, &f, sizeof wide);
        ((uint16_t *)at)[i] = (uint16_t)(wide >> 16);
    } else {
        ((uint16_t *)at)[i] = half_bits(rounded(f, 10));
    }
}

static double mean(double sum, int n, tutti_dtype dtype)
{
    if (dtype == TUTTI_FLOAT64)
        return sum * (1.0 / n);
    sum = (double)((float)sum * (1.0f / (float)n));
    if (dtype == TUTTI_BFLOAT16)
        return (double)rounded((float)sum, 7);
    return dtype == TUTTI_FLOAT16 ? (double)rounded((float)sum, 10) : sum;
}

static void backward(const job *j, const tensor *t, uint32_t k)
{
    for (size_t i = 0; i < t->count; i++)
        put(t->work, i, t->dtype, get(t->work, i, t->dtype) + value(j, k, i));
}

static void wrong(job *j, int id, size_t i, double got, double want)
{
    if (!j->wrong)
        snprintf(j->text, sizeof j->text,
                 "seed %llu feed %d step %d: %s %d element %zu is %.9g, not %.9g",
                 (unsigned long long)j->s->seed, (int)j->s->feed, j->step,
                 id >= PARAMS ? "scalar" : tutti_dtype_name(j->tensor[id].dtype), id, i, got, want);
    j->wrong = true;
}

static void check_tensor(job *j, int id)
{
    const tensor *t = &j->tensor[id];
    uint32_t k[64];
    int keys = 0;

    for (int r = 0; r < j->r->size; r++)
        for (int m = 0; m < j->micros; m++)
            if (!is_absent(j, r, m, id))
                k[keys++] = key(j, r, m, id);
    for (size_t i = 0; i < t->count; i++) {
        double sum = 0, got = get(t->work, i, t->dtype);
        for (int n = 0; n < keys; n++)
            sum += value(j, k[n], i);
        if (got != mean(sum, j->r->size, t->dtype))
            wrong(j, id, i, got, mean(sum, j->r->size, t->dtype));
    }
}

static float scalar_of(const job *j, int rank, int i)
{
    return (float)(key(j, rank, 77, i) % 100);
}

static void check_scalars(job *j)
{
    double sum = 0, max = -1, min = 1e9;

    for (int r = 0; r < j->r->size; r++) {
        sum += (double)scalar_of(j, r, 0);
        max = fmax(max, (double)scalar_of(j, r, 1));
        min = fmin(min, (double)scalar_of(j, r, 2));
    }
    if ((double)j->scalar[0] != mean(sum, j->r->size, TUTTI_FLOAT32))
        wrong(j, PARAMS, 0, (double)j->scalar[0], mean(sum, j->r->size, TUTTI_FLOAT32));
    if ((double)j->scalar[1] != max)
        wrong(j, PARAMS, 1, (double)j->scalar[1], max);
    if ((double)j->scalar[2] != min)
        wrong(j, PARAMS, 2, (double)j->scalar[2], min);
}

/* In stream order after wait. */
static void check_all(void *arg)
{
    job *j = arg;
    scenario *s = j->r->arg;
    uint64_t hash = s->hash[j->r->rank];

    for (int id = 0; id < j->n; id++) {
        const tensor *t = &j->tensor[id];
        hash = tt_hash64(t->work, t->count * tutti_dtype_size(t->dtype), hash);
        if (!s->fractions)
            check_tensor(j, id);
    }
    check_scalars(j);
    s->hash[j->r->rank] = hash;
}

/* Carries all it needs: when it runs on a stream, the caller may be further. */
typedef struct feed_one {
    const job *j;
    const tensor *t;
    uint32_t key;
} feed_one;

static void feed_fn(void *arg)
{
    feed_one *f = arg;
    backward(f->j, f->t, f->key);
    free(f);
}

static tutti_status fetch(job *j, int id, tutti_stream stream)
{
    const tensor *t = &j->tensor[id];
    size_t bytes = t->count * tutti_dtype_size(t->dtype);
    return j->gpu ? tt_copy(j->r->ctx, t->work, t->grad, bytes, stream) : TUTTI_OK;
}

static tutti_status store(job *j, int id, tutti_stream stream)
{
    const tensor *t = &j->tensor[id];
    size_t bytes = t->count * tutti_dtype_size(t->dtype);
    return j->gpu ? tt_copy(j->r->ctx, t->grad, t->work, bytes, stream) : TUTTI_OK;
}

static tutti_status feed(job *j, int id, tutti_stream stream)
{
    feed_one *f;
    tutti_status status;

    if (is_absent(j, j->r->rank, j->micro,
                  id)) /* nothing on the stream to wait for, except zeroing */
        return tutti_reducer_absent(j->red, &id, 1,
                                    j->micros == 1 && !j->gpu ? (tutti_stream){0} : stream);
    f = malloc(sizeof *f);
    if (f == NULL)
        return TUTTI_ERR_NO_MEMORY;
    *f = (feed_one){j, &j->tensor[id], key(j, j->r->rank, j->micro, id)};
    status = fetch(j, id, stream);
    if (status == TUTTI_OK)
        status = tt_call_host(j->r->ctx, stream, feed_fn, f);
    if (status == TUTTI_OK)
        status = store(j, id, stream);
    return status != TUTTI_OK ? status : tutti_reducer_ready(j->red, &id, 1, stream);
}

typedef struct feeder {
    job *j;
    int part;
    tutti_status status;
} feeder;

static void *feeder_main(void *arg)
{
    feeder *f = arg;
    for (int i = 0; i < f->j->n && f->status == TUTTI_OK; i++)
        if (f->j->order[i] % FEEDERS == f->part)
            f->status = feed(f->j, f->j->order[i], f->j->stream[f->part]);
    return NULL;
}

static tutti_status feed_by_threads(job *j)
{
    feeder f[FEEDERS];
    pthread_t thread[FEEDERS];
    tutti_status status = TUTTI_OK;

    for (int i = 0; i < FEEDERS; i++) {
        f[i] = (feeder){j, i, TUTTI_OK};
        if (pthread_create(&thread[i], NULL, feeder_main, &f[i]) != 0)
            abort();
    }
    for (int i = 0; i < FEEDERS; i++) {
        pthread_join(thread[i], NULL);
        status = f[i].status != TUTTI_OK ? f[i].status : status;
    }
    return status;
}

static tutti_status feed_all(job *j)
{
    if (j->s->feed == FEED_THREADS)
        return feed_by_threads(j);
    for (int i = 0; i < j->n; i++) {
        int id = j->order[i], lane = j->s->feed == FEED_STREAMS ? (id + j->step) % FEEDERS : 0;
        tutti_status status = feed(j, id, j->stream[lane]);
        if (status != TUTTI_OK)
            return status;
    }
    return TUTTI_OK;
}

/* Every feeder's stream goes on where all of them are. */
static void meet(job *j)
{
    if (j->s->feed != FEED_STREAMS && !j->gpu)
        return;
    for (int i = 1; i < FEEDERS; i++)
        TT_EXPECT_OK(j->r, tutti_stream_wait(j->r->ctx, j->stream[0], j->stream[i]));
    for (int i = 1; i < FEEDERS; i++)
        TT_EXPECT_OK(j->r, tutti_stream_wait(j->r->ctx, j->stream[i], j->stream[0]));
}

static void shuffle(job *j, tt_rng *rng)
{
    for (int i = 0; i < j->n; i++)
        j->order[i] = j->n - 1 - i;
    for (int i = j->n - 1; i > 0; i--) { /* near the expected order, as in life */
        int reach = tt_rand_below(rng, 4) == 0 ? i + 1 : (i < 4 ? i + 1 : 4);
        int k = i - (int)tt_rand_below(rng, (uint64_t)reach), kept = j->order[i];
        j->order[i] = j->order[k];
        j->order[k] = kept;
    }
}

static void give_scalars(job *j)
{
    static const tutti_op ops[SCALARS] = {TUTTI_AVG, TUTTI_MAX, TUTTI_MIN};

    for (int i = 0; i < SCALARS; i++) {
        j->scalar[i] = scalar_of(j, j->r->rank, i);
        if (j->gpu)
            TT_EXPECT_OK(j->r, tt_copy(j->r->ctx, &j->values[i], &j->scalar[i], sizeof(float),
                                       j->stream[0]));
        TT_EXPECT_OK(j->r, tutti_reducer_scalar(j->red, &j->values[i], 1, ops[i], j->stream[0]));
    }
}

static void pause_fn(void *arg)
{
    struct timespec t = {0, 300000};
    (void)arg;
    nanosleep(&t, NULL);
}

static void train_step(job *j, tt_rng *shared, tt_rng *own)
{
    tt_rank *r = j->r;

    j->micros = 1 + (int)tt_rand_below(shared, 3);
    if (j->folds) /* powers of two, which the reducer adds up itself */
        j->micros = 1 << (j->micros - 1);
    for (j->micro = 0; j->micro < j->micros; j->micro++) {
        if (tt_rand_below(own, 4) == 0)
            TT_EXPECT_OK(r, tt_call_host(r->ctx, j->stream[0], pause_fn, NULL));
        TT_EXPECT_OK(r, tutti_reducer_begin(j->red, j->micro, j->micros, j->stream[0]));
        meet(j);
        shuffle(j, own);
        if (j->micro == j->micros - 1)
            give_scalars(j);
        TT_EXPECT_OK(r, feed_all(j));
        if (j->micro < j->micros - 1)
            meet(j);
    }
    TT_EXPECT_OK(r, tutti_reducer_wait(j->red, j->stream[0]));
    for (int id = 0; id < j->n; id++)
        TT_EXPECT_OK(r, fetch(j, id, j->stream[0]));
    if (j->gpu)
        TT_EXPECT_OK(r,
                     tt_copy(r->ctx, j->scalar, j->values, SCALARS * sizeof(float), j->stream[0]));
    TT_EXPECT_OK(r, tt_call_host(r->ctx, j->stream[0], check_all, j));
    TT_EXPECT_OK(r, tutti_stream_sync(r->ctx, j->stream[0]));
    if (j->wrong)
        tt_say(r, "%s", j->text);
    for (int id = 0; id < j->n; id++)
        TT_EXPECT(r, tutti_reducer_grad(j->red, id) == j->tensor[id].grad);
}

static void make_tensors(job *j, tt_rng *rng)
{
    static const tutti_dtype dtypes[] = {TUTTI_FLOAT32, TUTTI_BFLOAT16, TUTTI_FLOAT16,
                                         TUTTI_FLOAT64};
    static const tutti_dtype wide[] = {TUTTI_FLOAT32, TUTTI_FLOAT64};
    bool only_wide = tt_rand_below(rng, 2) == 0;
    int kinds = 1 + (int)tt_rand_below(rng, only_wide ? 2 : 4),
        given_of_8 = (int)tt_rand_below(rng, 3) * 4;
    size_t at = 0;

    j->n = 1 + (int)tt_rand_below(rng, PARAMS - 1);
    j->arena = tt_plain_alloc(j->r->ctx, (size_t)PARAMS * 4096 * 8 + PARAMS * 8);
    j->scalar = tt_staging_alloc(j->r->ctx, SCALARS * sizeof(float));
    j->values = j->gpu ? tt_plain_alloc(j->r->ctx, SCALARS * sizeof(float)) : j->scalar;
    if (j->gpu)
        j->staging = tt_staging_alloc(j->r->ctx, (size_t)PARAMS * 4096 * 8);
    for (int id = 0; id < j->n; id++) {
        tensor *t = &j->tensor[id];
        t->dtype = (only_wide ? wide : dtypes)[tt_rand_below(rng, (uint64_t)kinds)];
        j->narrow = j->narrow || tutti_dtype_size(t->dtype) == 2;
        t->count = tt_rand_below(rng, tt_rand_below(rng, 8) == 0 ? 4000 : 300);
        if ((int)tt_rand_below(rng, 8) >= given_of_8)
            continue;
        at = (at + 7) / 8 * 8 + 8 * tt_rand_below(rng, 2);
        t->given = j->arena + at;
        at += t->count * tutti_dtype_size(t->dtype);
    }
}

static void describe(job *j)
{
    for (int id = 0; id < j->n; id++) {
        tensor *t = &j->tensor[id];
        tutti_param p = TUTTI_PARAM_INIT;
        char name[16];
        int got = -1;
        snprintf(name, sizeof name, "t%d", id);
        p.name = name;
        p.dtype = t->dtype;
        p.ndim = 1;
        p.shape[0] = (int64_t)t->count;
        p.grad = t->given;
        TT_EXPECT_OK(j->r, tutti_reducer_add(j->red, &p, &got));
        TT_EXPECT(j->r, got == id);
    }
    for (int k = 0; k < 2; k++) { /* with memory of their own, to be broadcast */
        tutti_param p = TUTTI_PARAM_INIT;
        tensor *t = &j->tensor[j->n];
        t->given = NULL;
        p.name = k == 0 ? "p0" : "p1";
        p.dtype = t->dtype = TUTTI_FLOAT32;
        p.ndim = 1;
        p.shape[0] = PARAM_FLOATS;
        t->count = PARAM_FLOATS;
        float first[PARAM_FLOATS];
        t->param = tt_plain_alloc(j->r->ctx, sizeof first);
        for (int i = 0; i < PARAM_FLOATS; i++)
            first[i] = (float)(100 * j->r->rank + 10 * k + i);
        TT_EXPECT_OK(j->r, tt_put(j->r->ctx, t->param, first, sizeof first));
        p.param = t->param;
        TT_EXPECT_OK(j->r, tutti_reducer_add(j->red, &p, NULL));
        j->n++;
    }
}

static void setup(job *j, tt_rng *shared)
{
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;
    const tutti_piece *piece;
    size_t state = 0;

    make_tensors(j, shared);
    j->n = j->n > PARAMS - 2 ? PARAMS - 2 : j->n;
    opts.bucket_bytes = 64 + tt_rand_below(shared, 12000);
    opts.first_bucket_bytes = 64 + tt_rand_below(shared, 2000);
    opts.flags =
        j->narrow || tt_rand_below(shared, 2) == 0 ? 0 : (uint32_t)TUTTI_REDUCER_REPRODUCIBLE;
    j->folds = opts.flags != 0;
    TT_EXPECT_OK(j->r, tutti_reducer_create(j->r->comm, &opts, &j->red));
    describe(j);
    TT_EXPECT_OK(j->r, tutti_reducer_commit(j->red));
    for (int id = 0; id < j->n; id++) {
        tensor *t = &j->tensor[id];
        t->grad = tutti_reducer_grad(j->red, id);
        TT_EXPECT(j->r, t->grad != NULL && (t->given == NULL || t->grad == t->given));
        t->work = j->gpu ? j->staging + (size_t)id * 4096 * 8 : t->grad;
        if (t->param == NULL)
            continue;
        float now[PARAM_FLOATS];
        TT_EXPECT_OK(j->r, tt_get(j->r->ctx, now, t->param, sizeof now));
        for (int i = 0; i < PARAM_FLOATS; i++)
            TT_EXPECT(j->r, now[i] == (float)(10 * (id - j->n + 2) + i));
    }
    TT_EXPECT(j->r, tutti_reducer_pieces(j->red, &piece) == (size_t)j->n);
    for (int id = 0; id < j->n; id++) {
        TT_EXPECT(j->r, piece[id].id == id && piece[id].grad == j->tensor[id].grad &&
                            piece[id].param == j->tensor[id].param &&
                            piece[id].state_offset == (int64_t)state);
        state += (size_t)piece[id].count;
    }
    TT_EXPECT(j->r, tutti_reducer_shard_count(j->red) == state);
}

void scenario_run(tt_rank *r)
{
    const scenario *s = r->arg;
    job *j = calloc(1, sizeof *j);
    tt_rng shared = {s->seed}, own = {s->order_seed * 31 + (uint64_t)r->rank};
    int streams = s->feed == FEED_STREAMS ? FEEDERS : s->feed == FEED_STREAM ? 1 : 0;

    if (j == NULL)
        abort();
    j->r = r;
    j->s = s;
    j->gpu = tt_on_gpu(r->ctx);
    streams = j->gpu ? FEEDERS : streams;
    ((scenario *)r->arg)->hash[r->rank] = 0;
    for (int i = 0; i < streams && !r->failed; i++)
        if (tutti_stream_create(r->ctx, "feeder", 0, &j->stream[i]) != TUTTI_OK)
            tt_say(r, "no stream: %s", tutti_last_error());
    setup(j, &shared);
    for (j->step = 0; j->step < s->steps && !r->failed; j->step++)
        train_step(j, &shared, &own);
    if (!r->failed && tutti_reducer_check(j->red) != TUTTI_OK)
        tt_say(r, "replica check: %s", tutti_last_error());
    tutti_reducer_destroy(j->red);
    for (int i = 0; i < streams; i++)
        tutti_stream_destroy(r->ctx, j->stream[i]);
    for (int id = 0; id < j->n; id++)
        tt_plain_free(r->ctx, j->tensor[id].param);
    tt_plain_free(r->ctx, j->arena);
    tt_staging_free(r->ctx, j->staging);
    if (j->gpu)
        tt_plain_free(r->ctx, j->values);
    tt_staging_free(r->ctx, j->scalar);
    free(j);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Manifests that someone made up: the checksum is right, what they say is not to be trusted. */
#include "ckpt_test.h"

#include "ckpt/manifest.h"

/* Two files, a [4, 6] tensor of two boxes, a value of bytes. */
static const char good[] =
    "\"tutti-checkpoint\":1,\"library\":\"0.1.0\",\"step\":7,\"world\":2,\"time\":1700000000,"
    "\"save_id\":\"x\",\"mesh\":\"\",\"block_bytes\":4096,\"files\":["
    "{\"name\":\"shard-00000.h5\",\"bytes\":5000,\"xxh3_128\":"
    "\"00000000000000000000000000000001000000000000000000000000000000a2\"},"
    "{\"name\":\"index.h5\",\"bytes\":100,\"xxh3_128\":\"00000000000000000000000000000003\"}],"
    "\"tensors\":[{\"name\":\"a/"
    "w\",\"kind\":\"tensor\",\"dtype\":\"f32\",\"shape\":[4,6],\"boxes\":"
    "[[0,4096,[0,0],[2,6]],[0,4144,[2,0],[2,6]]]},"
    "{\"name\":\"b\",\"kind\":\"bytes\",\"dtype\":\"u8\",\"shape\":[3],\"boxes\":"
    "[[0,4192,[0],[3]]]}]}";

static tutti_status read_body(const char *body, size_t bytes, tt_manifest *m)
{
    char *text = malloc(bytes + 64), hex[33];
    tt_hash_text(tt_hash128_of(body, bytes), hex);
    int n = sprintf(text, "{\"hash\":\"%s\",", hex);
    memcpy(text + n, body, bytes);
    tutti_status status = tt_manifest_read(text, bytes + (size_t)n, 7, m);
    free(text);
    return status;
}

/* The first `from` replaced by `to`. */
static tutti_status read_changed(const char *from, const char *to)
{
    char body[8192];
    tt_manifest m = {0};
    const char *found = strstr(good, from);
    assert_non_null(found);
    int n = snprintf(body, sizeof body, "%.*s%s%s", (int)(found - good), good, to,
                     found + strlen(from));
    tutti_status status = read_body(body, (size_t)n, &m);
    if (status == TUTTI_OK)
        tt_manifest_free(&m);
    return status;
}

static void good_one(void **state)
{
    (void)state;
    tt_manifest m = {0};
    assert_int_equal(read_body(good, strlen(good), &m), TUTTI_OK);
    assert_int_equal(m.step, 7);
    assert_int_equal(m.world, 2);
    assert_int_equal(m.cat.nfile, 2);
    assert_int_equal(m.cat.file[0].hash[1].low, 0xa2);
    const tt_ctensor *t = tt_catalog_find(&m.cat, "a/w");
    assert_non_null(t);
    assert_int_equal(t->box[1].at, 4144);
    assert_null(tt_catalog_find(&m.cat, "a"));
    tt_manifest_free(&m);
}

static void written_is_read(void **state)
{
    (void)state;
    tt_manifest m = {0}, again = {0};
    tt_buf text = {0};
    assert_int_equal(read_body(good, strlen(good), &m), TUTTI_OK);
    assert_int_equal(tt_manifest_write(&m, &text), TUTTI_OK);
    assert_int_equal(tt_manifest_read(text.data, text.size, 7, &again), TUTTI_OK);
    assert_int_equal(again.cat.nbox, 3);
    assert_int_equal(tt_manifest_read(text.data, text.size, 8, &again), TUTTI_ERR_CORRUPT);
    tt_manifest_free(&again);
    tt_manifest_free(&m);
    tt_buf_free(&text);
}

typedef struct change {
    const char *from, *to;
} change;

static void changed(void **state)
{
    (void)state;
    static const change changes[] = {
        /* names that lead elsewhere */
        {"shard-00000.h5", "../shard-00000.h5"},
        {"shard-00000.h5", "/etc/passwd"},
        {"shard-00000.h5", "shard-00000.h5/../x"},
        {"shard-00000.h5", "manifest.json"},
        {"shard-00000.h5", "index.h5"},
        {"shard-00000.h5", ""},
        {"shard-00000.h5", "shard-00000.h5\\u0000x"},
        {"index.h5", "shard-00001.h5"},
        {"a/w", "../w"},
        {"a/w", "a//w"},
        {"a/w", "/w"},
        {"a/w", ""},
        {"a/w", "a\\u0000w"},
        {"a/w", "a w"},
        /* shapes and places */
        {"[4,6]", "[4611686018427387904,6]"},
        {"[4,6]", "[9223372036854775807,9223372036854775807]"},
        {"[4,6]", "[1000000,6]"},
        {"[4,6]", "[-4,6]"},
        {"[4,6]", "[4.0,6]"},
        {"[4,6]", "[4,6,1]"},
        {"[4,6]", "[4,\"6\"]"},
        {"[4,6]", "[1,1,1,1,1,1,1,1,24]"},
        {"[4,6]", "6"},
        {"[4,6]", "[99999999999999999999,6]"},
        {"4096,[0,0]", "4980,[0,0]"},
        {"4096,[0,0]", "9223372036854775800,[0,0]"},
        {"4096,[0,0]", "-1,[0,0]"},
        {"4096,[0,0]", "4170,[0,0]"}, /* into the other box's bytes */
        {"[0,4096", "[1,10"}, /* into the index */
        {"[0,4096", "[2,10"},
        {"[0,4096", "[-1,10"},
        {"[2,0],[2,6]", "[1,0],[2,6]"}, /* overlap */
        {"[2,0],[2,6]", "[3,0],[1,6]"}, /* hole */
        {"[2,0],[2,6]", "[2,0],[3,6]"}, /* outside */
        {"[2,0],[2,6]", "[2,1],[2,9223372036854775807]"},
        {"[2,0],[2,6]", "[2,0],[0,6]"},
        {"[2,0],[2,6]", "[0,0],[2,6]"}, /* twice */
        {",[0,4144,[2,0],[2,6]]", ""},
        /* schema */
        {"\"f32\"", "\"f31\""},
        {"\"f32\"", "\"f64\""}, /* twice the bytes: the boxes run into one another */
        {"\"f32\"", "4"},
        {"\"tensor\"", "\"link\""},
        {"\"bytes\",\"dtype\":\"u8\"", "\"bytes\",\"dtype\":\"i8\""},
        {"\"step\":7", "\"step\":8"},
        {"\"step\":7", "\"step\":7,\"step\":7"},
        {"\"step\":7", "\"stop\":7"},
        {"\"step\":7", "\"step\":7,\"more\":1"},
        {"\"step\":7", "\"step\":true"},
        {"\"world\":2", "\"world\":0"},
        {"\"world\":2", "\"world\":99999999999"},
        {"\"block_bytes\":4096", "\"block_bytes\":0"},
        {"\"block_bytes\":4096", "\"block_bytes\":1"},
        {"\"block_bytes\":4096", "\"block_bytes\":8192"},
        {"\"bytes\":5000", "\"bytes\":9223372036854775807"},
        {"\"bytes\":5000", "\"bytes\":-5000"},
        {"00000000000000000000000000000001", "0000000000000000000000000000001"},
        {"00000000000000000000000000000001", "0000000000000000000000000000000G"},
        {"{\"name\":\"b\"", "{\"name\":\"a/w\""},
        {"{\"name\":\"b\"", "{\"name\":\"a/w/b\""},
        {"{\"name\":\"b\"", "{\"name\":\"a\""},
        {"\"tensors\":[", "\"tensors\":[null,"},
        {"\"files\":[", "\"files\":[[],"},
        {"\"files\":[", "\"files\":[{\"name\":\"shard-00000.h5\",\"bytes\":0,\"xxh3_128\":\"\"},"},
        {"[[0,4192,[0],[3]]]}]}", "[[0,4192,[0],[3]]]}]"},
        {"[[0,4192,[0],[3]]]}]}", "[[0,4192,[0],[3]]]}]} x"}};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        tutti_status status = read_changed(changes[i].from, changes[i].to);
        if (status != TUTTI_ERR_CORRUPT)
            fail_msg("%s -> %s: %s", changes[i].from, changes[i].to, tutti_status_name(status));
    }
    assert_int_equal(read_changed("\"tutti-checkpoint\":1", "\"tutti-checkpoint\":2"),
                     TUTTI_ERR_UNSUPPORTED);
}

static void nested(void **state)
{
    (void)state;
    enum { DEEP = 200000 };
    char *body = malloc(DEEP + 16);
    tt_manifest m = {0};
    memcpy(body, "\"x\":", 4);
    memset(body + 4, '[', DEEP);
    assert_int_equal(read_body(body, DEEP + 4, &m), TUTTI_ERR_CORRUPT);
    free(body);
}

/* Random damage behind a right checksum: refused, or the same kind of thing; never a crash. */
static void random_changes(void **state)
{
    (void)state;
    static const char alphabet[] = "0123456789[]{},:\"-.eabx\\/ ";
    char body[sizeof good];
    tt_rng rng = {5};
    for (int i = 0; i < 20000; i++) {
        tt_manifest m = {0};
        memcpy(body, good, sizeof body);
        size_t bytes = sizeof good - 1;
        for (uint64_t k = 1 + tt_rand_below(&rng, 4); k > 0; k--) {
            size_t at = (size_t)tt_rand_below(&rng, bytes);
            body[at] = tt_rand_below(&rng, 8) == 0
                           ? (char)tt_rand(&rng)
                           : alphabet[tt_rand_below(&rng, sizeof alphabet - 1)];
        }
        if (read_body(body, bytes, &m) != TUTTI_OK)
            continue;
        for (size_t t = 0; t < m.cat.ntensor; t++)
            assert_int_equal(tt_boxes_cover(&m.cat.tensor[t], NULL), TT_COVER_EXACT);
        tt_manifest_free(&m);
    }
}

/* A hundred thousand boxes side by side in the second axis: comparing them in pairs takes hours. */
static void many_boxes(void **state)
{
    (void)state;
    enum { N = 300000 };
    static const int64_t shape[2] = {3, N};
    int64_t(*dims)[4] = calloc(N + 1, sizeof *dims);
    tt_cbox *boxes = calloc(N + 1, sizeof *boxes);
    for (int64_t i = 0; i < N; i++) {
        memcpy(dims[i], (int64_t[4]){0, i, 3, 1}, sizeof dims[i]);
        boxes[i].dim = dims[i];
    }
    tt_ctensor t = {
        .name = "t", .shape = shape, .ndim = 2, .elems = 3 * N, .box = boxes, .nbox = N};
    assert_int_equal(tt_boxes_cover(&t, NULL), TT_COVER_EXACT);
    dims[N / 2][2] = 2; /* one element less, and as much more elsewhere */
    assert_int_equal(tt_boxes_cover(&t, NULL), TT_COVER_HOLE);
    dims[N / 3][3] = 2;
    assert_int_equal(tt_boxes_cover(&t, NULL), TT_COVER_HOLE);
    free(boxes);
    free(dims);
}

static void holes_are_found(void **state)
{
    (void)state;
    static const int64_t shape[3] = {3, 4, 5};
    int64_t dims[2][6] = {{0, 0, 0, 3, 4, 3}, {0, 0, 3, 2, 4, 2}};
    tt_cbox boxes[2] = {{.dim = dims[0]}, {.dim = dims[1]}};
    tt_ctensor t = {.name = "t", .shape = shape, .ndim = 3, .elems = 60, .box = boxes, .nbox = 2};
    tt_cover_fault fault;
    assert_int_equal(tt_boxes_cover(&t, &fault), TT_COVER_HOLE);
    assert_int_equal(fault.hole[0], 2);
    assert_int_equal(fault.hole[1], 0);
    assert_int_equal(fault.hole[2], 3);
    dims[1][3] = 3;
    assert_int_equal(tt_boxes_cover(&t, &fault), TT_COVER_EXACT);
    dims[1][2] = 2;
    assert_int_equal(tt_boxes_cover(&t, &fault), TT_COVER_OVERLAP);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_one),       cmocka_unit_test(written_is_read),
        cmocka_unit_test(changed),        cmocka_unit_test(nested),
        cmocka_unit_test(random_changes), cmocka_unit_test(many_boxes),
        cmocka_unit_test(holes_are_found)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

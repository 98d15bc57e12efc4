/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of `tutti bench step` and `tutti bench scaling`. */
#include <getopt.h>
#include <string.h>

#include "core/env.h"
#include "models.h"

enum {
    MODEL,
    LAYERS,
    BYTES,
    MS,
    FORWARD,
    SCALE,
    BUCKET,
    ZERO,
    WIRE,
    COMPUTE,
    STEPS,
    JSON,
    LIMIT,
    SVG,
    STRONG,
    RANKS,
    MATCH,
    HELP
};

static const struct option longs[] = {{"model", 1, NULL, MODEL},
                                      {"layers", 1, NULL, LAYERS},
                                      {"bytes", 1, NULL, BYTES},
                                      {"ms", 1, NULL, MS},
                                      {"forward", 1, NULL, FORWARD},
                                      {"scale", 1, NULL, SCALE},
                                      {"bucket", 1, NULL, BUCKET},
                                      {"zero", 0, NULL, ZERO},
                                      {"wire", 1, NULL, WIRE},
                                      {"compute", 1, NULL, COMPUTE},
                                      {"steps", 1, NULL, STEPS},
                                      {"json", 0, NULL, JSON},
                                      {"limit", 1, NULL, LIMIT},
                                      {"svg", 1, NULL, SVG},
                                      {"strong", 0, NULL, STRONG},
                                      {"ranks", 1, NULL, RANKS},
                                      {"match", 1, NULL, MATCH},
                                      {"help", 0, NULL, HELP},
                                      {NULL, 0, NULL, 0}};

static bool parse_wire(const char *text, tutti_dtype *out)
{
    if (strcmp(text, "bf16") == 0)
        *out = TUTTI_BFLOAT16;
    else if (strcmp(text, "f16") == 0)
        *out = TUTTI_FLOAT16;
    else if (strcmp(text, "f32") != 0)
        return false;
    return true;
}

static bool take_size(int opt, const char *value, synth_options *o)
{
    switch (opt) {
    case LAYERS:
        return bench_count(value, 1, 4096, &o->layers);
    case BYTES:
        return tt_parse_bytes(value, &o->bytes) == TUTTI_OK && o->bytes >= sizeof(float);
    case MS:
        return bench_number(value, 0, 60000, &o->ms);
    case FORWARD:
        return bench_number(value, 0, 100, &o->forward);
    case SCALE:
        return bench_number(value, 1e-6, 16, &o->scale);
    default: /* BUCKET */
        return tt_parse_bytes(value, &o->bucket_bytes) == TUTTI_OK && o->bucket_bytes > 0;
    }
}

static bool take(int opt, const char *value, void *into)
{
    synth_options *o = into;
    switch (opt) {
    case MODEL:
        o->model = value;
        return synth_model_known(value);
    case ZERO:
        o->zero = true;
        return true;
    case JSON:
        o->json = true;
        return true;
    case STRONG:
        o->strong = true;
        return true;
    case WIRE:
        return parse_wire(value, &o->wire);
    case COMPUTE:
        o->device = strcmp(value, "device") == 0;
        return o->device || strcmp(value, "cpu") == 0;
    case STEPS:
        return bench_count(value, 1, SYNTH_STEPS_MAX, &o->steps);
    case LIMIT:
        return bench_number(value, 0.01, 1000, &o->limit);
    case RANKS:
        return bench_count(value, 1, 1 << 20, &o->ranks);
    case SVG:
        o->svg = value;
        return *value != '\0';
    case MATCH:
        o->match = value;
        return *value != '\0';
    default:
        return take_size(opt, value, o);
    }
}

int synth_parse(int argc, char **argv, const char *usage, synth_options *out, int *end_out)
{
    synth_options o = {.model = "uniform",
                       .layers = 12,
                       .bytes = 4 << 20,
                       .ms = 100,
                       .scale = 1,
                       .steps = 9,
                       .match = "tokens/s"};
    const bench_syntax syntax = {"+:", longs, HELP, usage, take};
    int rc = bench_take_options(argc, argv, &syntax, &o);

    if (rc != 0)
        return rc;
    *end_out = optind;
    *out = o;
    return 0;
}

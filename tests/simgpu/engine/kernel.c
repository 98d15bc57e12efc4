/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels: the table that plug-ins fill, and launches. A launch copies the arguments, asks the
 * table's entry for the ranges, and queues an operation that runs the blocks one after another. The
 * threads of a block run one after another too, or as fibers (fiber.c) if the entry says that they
 * meet. Blocks run in a seeded order: a kernel that relies on the order of its blocks is wrong.
 */
#include "../device_code.h"
#include "internal.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_KERNELS = 1024 };

__thread sg_thread_state sg_thread;

static const sg_kernel *kernels[MAX_KERNELS];
static size_t n_kernels;

struct sg_ranges {
    sg_range *items;
    size_t n, cap;
};

typedef struct launch {
    int refs;
    const sg_kernel *kernel;
    sg_launch shape;
    sg_ranges ranges;
    void **args;
} launch;

static __thread size_t shared_bytes;
static __thread void *shared_memory;

void *sg_dynamic_shared(void)
{
    return shared_memory;
}

void sg_kernel_register(const sg_kernel *kernel)
{
    sg_lock();
    if (n_kernels == MAX_KERNELS) {
        sg_fatal("limit", "more than %d kernels", MAX_KERNELS);
    }
    kernels[n_kernels++] = kernel;
    sg_unlock();
}

static void load(const char *path)
{
    if (dlopen(path, RTLD_NOW | RTLD_LOCAL) == NULL) {
        sg_fatal("setting", "a plug-in with kernels cannot be loaded: %s", dlerror());
    }
}

static void load_beside(void)
{
    Dl_info info;
    char pattern[1024];
    glob_t found;
    if (dladdr((void *)&kernels, &info) == 0 || strrchr(info.dli_fname, '/') == NULL) {
        return;
    }
    int folder = (int)(strrchr(info.dli_fname, '/') - info.dli_fname);
    snprintf(pattern, sizeof(pattern), "%.*s/libsimgpu-kernels-*.so", folder, info.dli_fname);
    if (glob(pattern, 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++) {
            load(found.gl_pathv[i]);
        }
        globfree(&found);
    }
}

static void load_plugins(void)
{
    static bool loaded;
    if (loaded) {
        return;
    }
    loaded = true;
    load_beside();
    if (sg_set.kernels != NULL) {
        char *copy = sg_must(strdup(sg_set.kernels)), *rest = NULL;
        for (char *one = strtok_r(copy, ":", &rest); one != NULL;
             one = strtok_r(NULL, ":", &rest)) {
            load(one);
        }
        free(copy);
    }
}

/* The function's own name within a mangled one: `_Z3addPfi` and `_ZN2ns3addEPfi` have "add". */
static bool plain_name(const char *mangled, char *out, size_t cap)
{
    if (strncmp(mangled, "_Z", 2) != 0) {
        return false;
    }
    const char *at = mangled + 2;
    bool nested = *at == 'N', found = false;
    at += nested;
    while (*at == 'L' || *at == 'K') {
        at++;
    }
    while (*at >= '0' && *at <= '9') {
        char *end;
        size_t n = strtoul(at, &end, 10);
        if (strlen(end) < n || n >= cap) {
            return false;
        }
        memcpy(out, end, n);
        out[n] = '\0';
        found = true;
        at = end + n;
        if (!nested) {
            break;
        }
    }
    return found;
}

const sg_kernel *sg_kernel_find(const char *name)
{
    const sg_kernel *found = NULL;
    char plain[256];
    sg_lock();
    load_plugins();
    for (size_t i = 0; i < n_kernels && found == NULL; i++) {
        found = strcmp(kernels[i]->name, name) == 0 ? kernels[i] : NULL;
    }
    if (found == NULL && plain_name(name, plain, sizeof(plain))) {
        for (size_t i = 0; i < n_kernels && found == NULL; i++) {
            found = strcmp(kernels[i]->name, plain) == 0 ? kernels[i] : NULL;
        }
    }
    sg_unlock();
    return found;
}

static void add_range(sg_ranges *ranges, const void *ptr, size_t bytes, bool write)
{
    if (bytes == 0) {
        return;
    }
    if (ranges->n == ranges->cap) {
        ranges->cap = ranges->cap == 0 ? 8 : 2 * ranges->cap;
        ranges->items = sg_must(realloc(ranges->items, ranges->cap * sizeof(ranges->items[0])));
    }
    ranges->items[ranges->n++] = (sg_range){ptr, bytes, write};
}

void sg_reads(sg_ranges *ranges, const void *ptr, size_t bytes)
{
    add_range(ranges, ptr, bytes, false);
}

void sg_writes(sg_ranges *ranges, const void *ptr, size_t bytes)
{
    add_range(ranges, ptr, bytes, true);
}

static const launch *running;

static void enter(unsigned index)
{
    const unsigned *b = running->shape.block;
    sg_thread.thread = (sg_index3){index % b[0], index / b[0] % b[1], index / b[0] / b[1]};
}

static void run_block(const launch *l, size_t index)
{
    const unsigned *g = l->shape.grid, *b = l->shape.block;
    unsigned threads = b[0] * b[1] * b[2];
    sg_thread.block = (sg_index3){(unsigned)(index % g[0]), (unsigned)(index / g[0] % g[1]),
                                  (unsigned)(index / g[0] / g[1])};
    if (shared_bytes > 0) {
        memset(shared_memory, 0xff, shared_bytes);
    }
    if ((l->kernel->flags & SG_KERNEL_SYNCS) != 0) {
        sg_fiber_block(l->kernel->body, l->args, threads, enter, l->kernel->name);
        return;
    }
    for (unsigned t = 0; t < threads; t++) {
        enter(t);
        l->kernel->body(l->args);
    }
}

static sg_step run_launch(void *arg, sg_op *op)
{
    (void)op;
    launch *l = arg;
    const unsigned *g = l->shape.grid, *b = l->shape.block;
    size_t blocks = (size_t)g[0] * g[1] * g[2];
    size_t first = blocks > 1 ? sg_random("blocks") % blocks : 0;
    running = l;
    sg_thread.block_dim = (sg_index3){b[0], b[1], b[2]};
    sg_thread.grid_dim = (sg_index3){g[0], g[1], g[2]};
    shared_bytes = l->shape.shared_bytes;
    shared_memory = shared_bytes > 0 ? sg_must(malloc(shared_bytes)) : NULL;
    for (size_t i = 0; i < blocks; i++) {
        run_block(l, (first + i) % blocks);
    }
    free(shared_memory);
    shared_memory = NULL;
    running = NULL;
    return SG_DONE;
}

static void drop(void *arg)
{
    launch *l = arg;
    if (--l->refs > 0) {
        return;
    }
    for (int i = 0; i < l->kernel->n_args; i++) {
        free(l->args[i]);
    }
    free(l->args);
    free(l->ranges.items);
    free(l);
}

static void *keep(void *arg)
{
    launch *l = arg;
    l->refs++;
    return l;
}

static launch *launch_new(const sg_kernel *kernel, const sg_launch *shape, void *const *args)
{
    launch *l = sg_must(calloc(1, sizeof(*l)));
    l->refs = 1;
    l->kernel = kernel;
    l->shape = *shape;
    l->args = sg_must(calloc((size_t)kernel->n_args + 1, sizeof(l->args[0])));
    for (int i = 0; i < kernel->n_args; i++) {
        l->args[i] = sg_must(malloc(kernel->arg_sizes[i]));
        memcpy(l->args[i], args[i], kernel->arg_sizes[i]);
    }
    kernel->ranges(l->args, shape, &l->ranges);
    return l;
}

int sg_kernel_launch(sg_stream *stream, const sg_kernel *kernel, const sg_launch *shape,
                     void *const *args, const void *site)
{
    char label[160];
    sg_lock();
    launch *l = launch_new(kernel, shape, args);
    snprintf(label, sizeof(label), "kernel %s<<<%u,%u>>>", kernel->name, shape->grid[0],
             shape->block[0]);
    sg_op_desc desc = {.label = label,
                       .site = site,
                       .ranges = l->ranges.items,
                       .n_ranges = l->ranges.n,
                       .run = run_launch,
                       .arg = l,
                       .release = drop,
                       .again = keep,
                       .flags = SG_OP_KERNEL};
    int error = sg_enqueue(stream, &desc);
    if (error != SG_OK) {
        drop(l);
    }
    sg_unlock();
    return error;
}

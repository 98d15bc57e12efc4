/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies and fills. A copy from pageable memory reads its source before the call returns, one to
 * pageable memory has happened when the call returns, as the runtime does it by staging; only
 * device and pinned memory make a copy asynchronous.
 */
#include "api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct copy {
    int refs;
    void *dst;
    const void *src; /* NULL: fill with `value` */
    void *staged; /* owned: what pageable memory held at the call */
    int value;
    size_t bytes, rows, dst_pitch, src_pitch;
} copy;

static sg_step run(void *arg, sg_op *op)
{
    const copy *c = arg;
    char *dst = sg_view(c->dst);
    (void)op;
    if (c->src == NULL) {
        for (size_t r = 0; r < c->rows; r++) {
            memset(dst + r * c->dst_pitch, c->value, c->bytes);
        }
        return SG_DONE;
    }
    const char *src = c->staged != NULL ? c->staged : sg_view(c->src);
    for (size_t r = 0; r < c->rows; r++) {
        memmove(dst + r * c->dst_pitch, src + r * c->src_pitch, c->bytes);
    }
    return SG_DONE;
}

static void drop(void *arg)
{
    copy *c = arg;
    if (--c->refs == 0) {
        free(c->staged);
        free(c);
    }
}

static void *keep(void *arg)
{
    copy *c = arg;
    c->refs++;
    return c;
}

static bool pageable(const void *ptr)
{
    sg_memory m;
    return !sg_memory_find(ptr, &m);
}

static size_t extent(const copy *c, size_t pitch)
{
    return c->rows == 0 || c->bytes == 0 ? 0 : (c->rows - 1) * pitch + c->bytes;
}

/* Is the memory on the side that `kind` says? */
static bool sides_right(const copy *c, enum cudaMemcpyKind kind)
{
    sg_memory m;
    bool to = sg_memory_find(c->dst, &m) && m.kind == SG_MEM_DEVICE;
    bool from = sg_memory_find(c->src, &m) && m.kind == SG_MEM_DEVICE;
    switch (kind) {
    case cudaMemcpyHostToHost:
        return !to && !from;
    case cudaMemcpyHostToDevice:
        return to && !from;
    case cudaMemcpyDeviceToHost:
        return !to && from;
    case cudaMemcpyDeviceToDevice:
        return to && from;
    default:
        return true;
    }
}

/* Ranges: one per row, or one for all if the rows touch. */
static size_t add_rows(sg_range *out, const copy *c, const void *ptr, size_t pitch, bool write)
{
    if (pitch == c->bytes || c->rows == 1) {
        out[0] = (sg_range){ptr, c->bytes * c->rows, write};
        return 1;
    }
    for (size_t r = 0; r < c->rows; r++) {
        out[r] = (sg_range){(const char *)ptr + r * pitch, c->bytes, write};
    }
    return c->rows;
}

static cudaError_t queue(sg_stream *stream, const copy *what, const char *label, const void *site)
{
    copy *c = malloc(sizeof(*c));
    sg_range *ranges = malloc((2 * what->rows + 2) * sizeof(*ranges));
    cudaError_t error = cudaErrorMemoryAllocation;
    if (c != NULL && ranges != NULL) {
        *c = *what;
        c->refs = 1;
        size_t n = add_rows(ranges, c, c->dst, c->dst_pitch, true);
        if (c->src != NULL && c->staged == NULL) {
            n += add_rows(ranges + n, c, c->src, c->src_pitch, false);
        }
        sg_op_desc desc = {.label = label,
                           .site = site,
                           .ranges = ranges,
                           .n_ranges = n,
                           .run = run,
                           .arg = c,
                           .release = drop,
                           .again = keep};
        error = (cudaError_t)sg_enqueue(stream, &desc);
    }
    free(ranges);
    if (error != cudaSuccess) {
        free(what->staged);
        free(c);
    }
    return error;
}

typedef struct request {
    const char *call;
    cudaStream_t stream;
    const void *site;
    bool sync;
    enum cudaMemcpyKind kind;
} request;

static cudaError_t submit(copy *c, const request *r)
{
    cudaError_t error;
    char label[96];
    int state;
    sg_stream *s = rt_stream(r->stream, r->call, &error);
    if (s == NULL || c->bytes == 0 || c->rows == 0) {
        return error;
    }
    if (c->dst == NULL || (c->src != NULL && !sides_right(c, r->kind))) {
        sg_finding("copy-kind", "%s of %zu bytes: memory is not on the side that the call says",
                   r->call, c->bytes);
        return rt_done(cudaErrorInvalidValue);
    }
    if (r->sync) {
        int forbidden = sg_capture_forbids(s, r->call);
        if (forbidden != SG_OK) {
            return rt_done((cudaError_t)forbidden);
        }
    }
    bool capturing = sg_capture_id(s, &state) != 0;
    bool wait = r->sync || (pageable(c->dst) && !capturing);
    if (c->src != NULL && pageable(c->src) && !wait && !capturing) {
        c->staged = malloc(extent(c, c->src_pitch));
        if (c->staged == NULL) {
            return rt_done(cudaErrorMemoryAllocation);
        }
        memcpy(c->staged, c->src, extent(c, c->src_pitch));
    }
    snprintf(label, sizeof(label), "%s of %zu bytes", r->call, c->bytes * c->rows);
    error = queue(s, c, label, r->site);
    if (error == cudaSuccess && wait) {
        error = (cudaError_t)sg_wait_stream(s, r->call);
    }
    return rt_done(error);
}

static copy flat(void *dst, const void *src, size_t bytes)
{
    return (copy){
        .dst = dst, .src = src, .bytes = bytes, .rows = 1, .dst_pitch = bytes, .src_pitch = bytes};
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind)
{
    char d[96], s[96];
    ENTER("%s <- %s, %zu kind=%d", log_pointer(dst, d, sizeof(d)), log_pointer(src, s, sizeof(s)),
          bytes, (int)kind);
    copy c = flat(dst, src, bytes);
    if (src == NULL && bytes > 0) {
        return rt_done(cudaErrorInvalidValue);
    }
    return submit(&c, &(request){__func__, NULL, CALLER, true, kind});
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    char d[96], s[96];
    ENTER_HOT("%s <- %s, %zu kind=%d %s", log_pointer(dst, d, sizeof(d)),
              log_pointer(src, s, sizeof(s)), bytes, (int)kind, sg_name_stream(stream));
    copy c = flat(dst, src, bytes);
    if (src == NULL && bytes > 0) {
        return rt_done(cudaErrorInvalidValue);
    }
    return submit(&c, &(request){__func__, stream, CALLER, false, kind});
}

cudaError_t cudaMemcpyPeerAsync(void *dst, int to, const void *src, int from, size_t bytes,
                                cudaStream_t stream)
{
    ENTER_HOT("%zu dev%d -> dev%d %s", bytes, from, to, sg_name_stream(stream));
    sg_memory a, b;
    if (!sg_memory_find(dst, &a) || !sg_memory_find(src, &b) || sg_device_visible(a.device) != to ||
        sg_device_visible(b.device) != from) {
        return rt_done(cudaErrorInvalidValue);
    }
    copy c = flat(dst, src, bytes);
    return submit(&c, &(request){__func__, stream, CALLER, false, cudaMemcpyDeviceToDevice});
}

cudaError_t cudaMemcpyPeer(void *dst, int to, const void *src, int from, size_t bytes)
{
    cudaError_t error = cudaMemcpyPeerAsync(dst, to, src, from, bytes, NULL);
    return error == cudaSuccess ? cudaStreamSynchronize(NULL) : error;
}

static copy rows(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width,
                 size_t height)
{
    return (copy){.dst = dst,
                  .src = src,
                  .bytes = width,
                  .rows = height,
                  .dst_pitch = dpitch,
                  .src_pitch = spitch};
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t stream)
{
    ENTER_HOT("%zu x %zu kind=%d %s", width, height, (int)kind, sg_name_stream(stream));
    if (src == NULL || width > dpitch || width > spitch) {
        return rt_done(src == NULL ? cudaErrorInvalidValue : cudaErrorInvalidPitchValue);
    }
    copy c = rows(dst, dpitch, src, spitch, width, height);
    return submit(&c, &(request){__func__, stream, CALLER, false, kind});
}

cudaError_t cudaMemcpy2D(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width,
                         size_t height, enum cudaMemcpyKind kind)
{
    ENTER("%zu x %zu kind=%d", width, height, (int)kind);
    if (src == NULL || width > dpitch || width > spitch) {
        return rt_done(src == NULL ? cudaErrorInvalidValue : cudaErrorInvalidPitchValue);
    }
    copy c = rows(dst, dpitch, src, spitch, width, height);
    return submit(&c, &(request){__func__, NULL, CALLER, true, kind});
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream)
{
    char d[96];
    ENTER_HOT("%s, %d, %zu %s", log_pointer(dst, d, sizeof(d)), value, bytes,
              sg_name_stream(stream));
    copy c = flat(dst, NULL, bytes);
    c.value = value;
    return submit(&c, &(request){__func__, stream, CALLER, false, cudaMemcpyDefault});
}

/* Asynchronous with regard to the host, as on a GPU. */
cudaError_t cudaMemset(void *dst, int value, size_t bytes)
{
    char d[96];
    ENTER("%s, %d, %zu", log_pointer(dst, d, sizeof(d)), value, bytes);
    copy c = flat(dst, NULL, bytes);
    c.value = value;
    return submit(&c, &(request){__func__, NULL, CALLER, false, cudaMemcpyDefault});
}

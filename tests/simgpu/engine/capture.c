/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream capture. A capture has an origin stream; other streams join it by waiting for a mark that
 * was recorded in it and must have come back (the origin waits for them) before it ends. Each
 * stream in a capture knows on which nodes its next operation depends; a mark is a copy of that
 * set.
 *
 * Rules that CUDA leaves to an error code are findings too: an error in a capture is easily
 * dropped, and the graph is then silently missing.
 */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BRANCHES = 64 };

struct sg_capture {
    uint64_t id;
    int mode;
    bool invalid;
    sg_stream *origin;
    pthread_t thread;
    sg_graph *graph;
    sg_stream *members[MAX_BRANCHES];
    int n_members;
    struct sg_capture *next;
};

static sg_capture *captures;
static uint64_t next_id;
static __thread int thread_mode = SG_CAPTURE_GLOBAL;

SG_PRINTF(3, 4) static int invalidate(sg_capture *c, int error, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    c->invalid = true;
    sg_finding("capture", "%s", text);
    return error;
}

static void set_nodes(sg_stream *s, const int *nodes, size_t n)
{
    int *copy = n > 0 ? sg_must(malloc(n * sizeof(*copy))) : NULL;
    if (n > 0) {
        memcpy(copy, nodes, n * sizeof(*copy));
    }
    free(s->cap_nodes);
    s->cap_nodes = copy;
    s->n_cap_nodes = n;
}

static void add_node(sg_stream *s, int node)
{
    for (size_t i = 0; i < s->n_cap_nodes; i++) {
        if (s->cap_nodes[i] == node) {
            return;
        }
    }
    s->cap_nodes = sg_must(realloc(s->cap_nodes, (s->n_cap_nodes + 1) * sizeof(int)));
    s->cap_nodes[s->n_cap_nodes++] = node;
}

static bool join(sg_capture *c, sg_stream *s)
{
    if (c->n_members == MAX_BRANCHES) {
        return false;
    }
    s->capture = c;
    s->branch = c->n_members;
    c->graph->branch_device[c->n_members] = s->device;
    c->members[c->n_members++] = s;
    c->graph->branches = c->n_members;
    return true;
}

int sg_capture_begin(sg_stream *stream, int mode)
{
    sg_lock();
    int error = SG_OK;
    if (stream->capture != NULL) {
        error = SG_ERR_INVALID_VALUE;
    } else if (stream->legacy) {
        error = SG_ERR_CAPTURE_UNSUPPORTED;
        sg_finding("capture", "%s cannot be captured", stream->name);
    } else {
        sg_capture *c = sg_must(calloc(1, sizeof(*c)));
        c->id = ++next_id;
        c->mode = mode;
        c->origin = stream;
        c->thread = pthread_self();
        c->graph = sg_graph_new();
        c->next = captures;
        captures = c;
        join(c, stream);
    }
    sg_unlock();
    return error;
}

/* Marks in `reached` all nodes that the stream's next operation would come after. */
static void reach(const sg_graph *g, const sg_stream *s, bool *reached)
{
    for (size_t i = 0; i < s->n_cap_nodes; i++) {
        reached[s->cap_nodes[i]] = true;
    }
    for (size_t n = g->n; n-- > 0;) {
        for (size_t i = 0; reached[n] && i < g->nodes[n].n_deps; i++) {
            reached[g->nodes[n].deps[i]] = true;
        }
    }
}

static const sg_stream *unjoined(const sg_capture *c)
{
    bool *reached = sg_must(calloc(c->graph->n + 1, sizeof(bool)));
    const sg_stream *found = NULL;
    reach(c->graph, c->origin, reached);
    for (int m = 1; m < c->n_members && found == NULL; m++) {
        for (size_t i = 0; i < c->members[m]->n_cap_nodes; i++) {
            if (!reached[c->members[m]->cap_nodes[i]]) {
                found = c->members[m];
            }
        }
    }
    free(reached);
    return found;
}

static void dissolve(sg_capture *c)
{
    for (int m = 0; m < c->n_members; m++) {
        set_nodes(c->members[m], NULL, 0);
        c->members[m]->capture = NULL;
    }
    sg_capture **at = &captures;
    while (*at != c) {
        at = &(*at)->next;
    }
    *at = c->next;
    free(c);
}

static int check_end(sg_capture *c, const sg_stream *stream)
{
    const sg_stream *left;
    if (c->invalid) {
        return SG_ERR_CAPTURE_INVALIDATED;
    }
    if (c->origin != stream) {
        return invalidate(c, SG_ERR_CAPTURE_UNMATCHED, "the capture of %s is ended on %s",
                          c->origin->name, stream->name);
    }
    if (c->mode != SG_CAPTURE_RELAXED && !pthread_equal(c->thread, pthread_self())) {
        return invalidate(c, SG_ERR_CAPTURE_WRONG_THREAD,
                          "the capture of %s is ended by another thread", c->origin->name);
    }
    left = unjoined(c);
    if (left != NULL) {
        return invalidate(c, SG_ERR_CAPTURE_UNJOINED,
                          "the capture of %s ends while %s has not come back", c->origin->name,
                          left->name);
    }
    return SG_OK;
}

int sg_capture_end(sg_stream *stream, sg_graph **out)
{
    sg_lock();
    sg_capture *c = stream->capture;
    int error = SG_ERR_INVALID_VALUE;
    *out = NULL;
    if (c != NULL) {
        error = check_end(c, stream);
        sg_graph *graph = c->graph;
        dissolve(c);
        if (error == SG_OK) {
            *out = graph;
        } else {
            sg_graph_destroy(graph);
        }
    }
    sg_unlock();
    return error;
}

uint64_t sg_capture_id(const sg_stream *stream, int *status_out)
{
    sg_lock();
    const sg_capture *c = stream->capture;
    uint64_t id = c != NULL ? c->id : 0;
    *status_out = c == NULL ? 0 : c->invalid ? 2 : 1;
    sg_unlock();
    return id;
}

sg_graph *sg_capture_graph(const sg_stream *stream)
{
    return stream->capture != NULL ? stream->capture->graph : NULL;
}

int sg_capture_exchange_mode(int mode)
{
    int old = thread_mode;
    thread_mode = mode;
    return old;
}

static bool forbids(const sg_capture *c)
{
    if (thread_mode == SG_CAPTURE_RELAXED || c->mode == SG_CAPTURE_RELAXED) {
        return false;
    }
    if (c->mode == SG_CAPTURE_GLOBAL && thread_mode == SG_CAPTURE_GLOBAL) {
        return true;
    }
    return pthread_equal(c->thread, pthread_self());
}

int sg_capture_forbids(const sg_stream *stream, const char *call)
{
    int error = SG_OK;
    sg_lock();
    if (stream != NULL && stream->capture != NULL) {
        error = invalidate(stream->capture, SG_ERR_CAPTURE_UNSUPPORTED,
                           "%s on %s, which is being captured", call, stream->name);
    } else if (stream != NULL && stream->legacy) {
        for (sg_capture *c = captures; c != NULL && error == SG_OK; c = c->next) {
            if ((c->origin->flags & SG_STREAM_NONBLOCKING) == 0 &&
                c->origin->device == stream->device) {
                error = invalidate(c, SG_ERR_CAPTURE_IMPLICIT,
                                   "%s on the legacy stream while %s, which it waits for, is being "
                                   "captured",
                                   call, c->origin->name);
            }
        }
    }
    for (sg_capture *c = captures; c != NULL && error == SG_OK; c = c->next) {
        if (forbids(c)) {
            error = invalidate(c, SG_ERR_CAPTURE_UNSUPPORTED, "%s while %s is being captured", call,
                               c->origin->name);
        }
    }
    sg_unlock();
    return error;
}

bool sg_mark_captured(const sg_mark *mark)
{
    return mark->capture != 0;
}

/* ---- what goes into the graph ---- */

static sg_node *node_new(sg_stream *s)
{
    sg_graph *g = s->capture->graph;
    if (g->n == g->cap) {
        g->cap = g->cap == 0 ? 32 : 2 * g->cap;
        g->nodes = sg_must(realloc(g->nodes, g->cap * sizeof(g->nodes[0])));
    }
    sg_node *node = &g->nodes[g->n];
    memset(node, 0, sizeof(*node));
    node->branch = s->branch;
    node->device = s->device;
    node->deps = s->cap_nodes;
    node->n_deps = s->n_cap_nodes;
    s->cap_nodes = NULL;
    s->n_cap_nodes = 0;
    add_node(s, (int)g->n);
    g->n++;
    return node;
}

int sg_capture_add(sg_stream *stream, const sg_op_desc *desc)
{
    sg_capture *c = stream->capture;
    if (c->invalid) {
        return SG_ERR_CAPTURE_INVALIDATED;
    }
    if (desc->again == NULL) {
        return invalidate(c, SG_ERR_CAPTURE_UNSUPPORTED, "%s cannot be captured (on %s)",
                          desc->label, stream->name);
    }
    sg_node *node = node_new(stream);
    node->desc = *desc;
    node->desc.label = sg_must(strdup(desc->label));
    sg_range *ranges = sg_must(malloc((desc->n_ranges + 1) * sizeof(*ranges)));
    if (desc->n_ranges > 0) {
        memcpy(ranges, desc->ranges, desc->n_ranges * sizeof(*ranges));
    }
    node->desc.ranges = ranges;
    return SG_OK;
}

int sg_capture_call(sg_stream *stream, void (*launch)(void *arg, sg_stream *stream), void *arg,
                    const char *label)
{
    sg_lock();
    int error = SG_ERR_INVALID_VALUE;
    if (stream->capture != NULL && stream->capture->invalid) {
        error = SG_ERR_CAPTURE_INVALIDATED;
    } else if (stream->capture != NULL) {
        sg_node *node = node_new(stream);
        node->desc.label = sg_must(strdup(label));
        node->desc.arg = arg;
        node->launch = launch;
        error = SG_OK;
    }
    sg_unlock();
    return error;
}

void sg_capture_mark(sg_stream *stream, sg_mark *mark)
{
    mark->capture = stream->capture->id;
    mark->n_nodes = stream->n_cap_nodes;
    mark->nodes = sg_must(malloc((mark->n_nodes + 1) * sizeof(int)));
    if (mark->n_nodes > 0) {
        memcpy(mark->nodes, stream->cap_nodes, mark->n_nodes * sizeof(int));
    }
}

static sg_capture *capture_of(const sg_mark *mark)
{
    for (sg_capture *c = captures; c != NULL; c = c->next) {
        if (c->id == mark->capture) {
            return c;
        }
    }
    return NULL;
}

int sg_capture_wait(sg_stream *stream, sg_mark *mark, const char *label)
{
    sg_capture *c = stream->capture, *of = capture_of(mark);
    if (c != NULL && c->invalid) {
        return SG_ERR_CAPTURE_INVALIDATED;
    }
    if (c != NULL && mark->capture == 0) {
        return invalidate(c, SG_ERR_CAPTURE_ISOLATION,
                          "%s: %s is being captured and waits for an event that is not", label,
                          stream->name);
    }
    if (of == NULL) {
        sg_finding("capture", "%s: %s waits for an event of a capture that is over", label,
                   stream->name);
        return SG_ERR_CAPTURED_EVENT;
    }
    if (c != NULL && c != of) {
        of->invalid = true;
        return invalidate(c, SG_ERR_CAPTURE_MERGE, "%s: %s would merge two captures", label,
                          stream->name);
    }
    if (c == NULL && (stream->legacy || !join(of, stream))) {
        return invalidate(of, SG_ERR_CAPTURE_IMPLICIT, "%s: %s cannot join a capture", label,
                          stream->name);
    }
    for (size_t i = 0; i < mark->n_nodes; i++) {
        add_node(stream, mark->nodes[i]);
    }
    return SG_OK;
}

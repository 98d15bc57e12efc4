/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs. A launch is written out in the engine's own terms: one hidden stream per captured stream
 * (a branch), which waits for the launching stream, runs its nodes in order, and is waited for by
 * the launching stream; an edge between branches is a mark and a wait. So replayed work meets the
 * same schedules, races and deadlocks as other work, and two branches without an edge are
 * unordered.
 *
 * Two launches of one executable graph do not overlap, as CUDA has it.
 */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sg_graph_exec {
    sg_graph *graph;
    sg_stream *branches[64];
    sg_mark *last;
    unsigned long launches;
    struct sg_graph_exec *next;
};

typedef struct known_graph {
    sg_graph *graph;
    struct known_graph *next;
} known_graph;

static known_graph *graphs; /* handles that the program holds */
static sg_graph_exec *execs;

sg_graph *sg_graph_new(void)
{
    sg_graph *graph = sg_must(calloc(1, sizeof(*graph)));
    known_graph *k = sg_must(calloc(1, sizeof(*k)));
    graph->refs = 1;
    k->graph = graph;
    k->next = graphs;
    graphs = k;
    return graph;
}

sg_graph *sg_graph_keep(sg_graph *graph)
{
    graph->refs++;
    return graph;
}

static void graph_drop(sg_graph *graph)
{
    if (--graph->refs > 0) {
        return;
    }
    for (size_t i = 0; i < graph->n; i++) {
        sg_node *node = &graph->nodes[i];
        if (node->desc.release != NULL) {
            node->desc.release(node->desc.arg);
        }
        free((char *)(uintptr_t)node->desc.label);
        free((sg_range *)(uintptr_t)node->desc.ranges);
        free(node->deps);
    }
    free(graph->nodes);
    free(graph);
}

bool sg_graph_known(const void *graph)
{
    sg_lock();
    const known_graph *k = graphs;
    while (k != NULL && k->graph != graph) {
        k = k->next;
    }
    sg_unlock();
    return k != NULL;
}

void sg_graph_destroy(sg_graph *graph)
{
    sg_lock();
    known_graph **at = &graphs;
    while (*at != NULL && (*at)->graph != graph) {
        at = &(*at)->next;
    }
    if (*at != NULL) {
        known_graph *k = *at;
        *at = k->next;
        free(k);
        graph_drop(graph);
    }
    sg_unlock();
}

size_t sg_graph_nodes(const sg_graph *graph)
{
    return graph->n;
}

static void graphs_left(void)
{
    for (const known_graph *k = graphs; k != NULL; k = k->next) {
        sg_finding("leak", "a graph of %zu nodes is never destroyed", k->graph->n);
    }
    for (const sg_graph_exec *e = execs; e != NULL; e = e->next) {
        sg_finding("leak", "an executable graph of %zu nodes is never destroyed", e->graph->n);
    }
}

int sg_graph_instantiate(sg_graph *graph, sg_graph_exec **out)
{
    static bool watched;
    sg_lock();
    if (!watched) {
        watched = true;
        sg_at_exit(graphs_left);
    }
    sg_graph_exec *exec = sg_must(calloc(1, sizeof(*exec)));
    exec->graph = sg_graph_keep(graph);
    for (int b = 0; b < graph->branches; b++) {
        sg_stream *s = sg_stream_make(graph->branch_device[b], SG_STREAM_NONBLOCKING, 0, true);
        snprintf(s->name, sizeof(s->name), "branch %d of a graph (dev%d)", b, s->device);
        exec->branches[b] = s;
    }
    exec->next = execs;
    execs = exec;
    *out = exec;
    sg_unlock();
    return SG_OK;
}

bool sg_graph_exec_known(const void *exec)
{
    sg_lock();
    const sg_graph_exec *e = execs;
    while (e != NULL && e != exec) {
        e = e->next;
    }
    sg_unlock();
    return e != NULL;
}

/* The nodes that another branch waits for need marks. */
static bool *awaited(const sg_graph *g)
{
    bool *needs = sg_must(calloc(g->n + 1, sizeof(bool)));
    for (size_t i = 0; i < g->n; i++) {
        for (size_t d = 0; d < g->nodes[i].n_deps; d++) {
            int dep = g->nodes[i].deps[d];
            needs[dep] = needs[dep] || g->nodes[dep].branch != g->nodes[i].branch;
        }
    }
    return needs;
}

static void launch_node(sg_graph_exec *exec, size_t i, sg_mark **marks, bool needs_mark)
{
    const sg_node *node = &exec->graph->nodes[i];
    sg_stream *s = exec->branches[node->branch];
    char label[256];
    for (size_t d = 0; d < node->n_deps; d++) {
        if (marks[node->deps[d]] != NULL) {
            sg_stream_wait_mark(s, marks[node->deps[d]], "an edge of a graph");
        }
    }
    if (node->launch != NULL) {
        node->launch(node->desc.arg, s);
    } else {
        sg_op_desc desc = node->desc;
        snprintf(label, sizeof(label), "%s (launch %lu of a graph)", node->desc.label,
                 exec->launches);
        desc.label = label;
        desc.arg = desc.again(desc.arg);
        desc.again = NULL;
        sg_op_queue(s, &desc, NULL, 0);
    }
    if (needs_mark) {
        marks[i] = sg_mark_record(s, "an edge of a graph");
    }
}

static void launch(sg_graph_exec *exec, sg_stream *stream)
{
    const sg_graph *g = exec->graph;
    bool *needs = awaited(g);
    sg_mark **marks = sg_must(calloc(g->n + 1, sizeof(marks[0])));
    exec->launches++;
    if (exec->last != NULL) {
        sg_stream_wait_mark(stream, exec->last, "the last launch of the graph");
    }
    sg_mark *begin = sg_mark_record(stream, "the begin of a graph");
    for (int b = 0; b < g->branches; b++) {
        sg_stream_wait_mark(exec->branches[b], begin, "the begin of a graph");
    }
    for (size_t i = 0; i < g->n; i++) {
        launch_node(exec, i, marks, needs[i]);
    }
    for (int b = 0; b < g->branches; b++) {
        sg_mark *end = sg_mark_record(exec->branches[b], "the end of a branch");
        sg_stream_wait_mark(stream, end, "the end of a graph");
        sg_mark_release(end);
    }
    sg_mark_release(exec->last);
    exec->last = sg_mark_record(stream, "the end of a graph");
    sg_mark_release(begin);
    for (size_t i = 0; i < g->n; i++) {
        sg_mark_release(marks[i]);
    }
    free(marks);
    free(needs);
}

int sg_graph_launch(sg_graph_exec *exec, sg_stream *stream)
{
    sg_lock();
    int error = sg_device_error(stream->device);
    if (error == SG_OK && stream->capture != NULL) {
        error = SG_ERR_CAPTURE_UNSUPPORTED;
        sg_finding("capture",
                   "a graph is launched on %s, which is being captured: child graphs "
                   "are not simulated",
                   stream->name);
    } else if (error == SG_OK) {
        launch(exec, stream);
    }
    sg_unlock();
    return error;
}

static bool same_shape(const sg_graph *a, const sg_graph *b)
{
    if (a->n != b->n || a->branches != b->branches) {
        return false;
    }
    for (size_t i = 0; i < a->n; i++) {
        const sg_node *x = &a->nodes[i], *y = &b->nodes[i];
        if (x->desc.run != y->desc.run || x->launch != y->launch || x->branch != y->branch ||
            x->n_deps != y->n_deps ||
            (x->n_deps > 0 && memcmp(x->deps, y->deps, x->n_deps * sizeof(int)) != 0)) {
            return false;
        }
    }
    return true;
}

int sg_graph_update(sg_graph_exec *exec, sg_graph *graph)
{
    int error = SG_OK;
    sg_lock();
    if (same_shape(exec->graph, graph)) {
        sg_graph *old = exec->graph;
        exec->graph = sg_graph_keep(graph);
        graph_drop(old);
    } else {
        error = 910;
    }
    sg_unlock();
    return error;
}

int sg_graph_exec_destroy(sg_graph_exec *exec)
{
    sg_lock();
    sg_graph_exec **at = &execs;
    while (*at != NULL && *at != exec) {
        at = &(*at)->next;
    }
    int error = SG_ERR_INVALID_VALUE;
    if (*at != NULL) {
        *at = exec->next;
        if (exec->last != NULL && !exec->last->done) {
            sg_finding("graph-pending", "a graph is destroyed while launch %lu is pending",
                       exec->launches);
        }
        for (int b = 0; b < exec->graph->branches; b++) {
            sg_stream_destroy(exec->branches[b]);
        }
        sg_mark_release(exec->last);
        graph_drop(exec->graph);
        free(exec);
        error = SG_OK;
    }
    sg_unlock();
    return error;
}

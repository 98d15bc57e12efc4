/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs made by stream capture. Building one node by node is refused. */
#include "api.h"

#include <string.h>

static sg_graph *graph_of(cudaGraph_t graph, const char *call)
{
    if (!sg_graph_known(graph)) {
        sg_finding("dead-graph", "%s is given a graph that was destroyed or never made", call);
        return NULL;
    }
    return (sg_graph *)graph;
}

static sg_graph_exec *exec_of(cudaGraphExec_t exec, const char *call)
{
    if (!sg_graph_exec_known(exec)) {
        sg_finding("dead-graph", "%s is given an executable graph that was destroyed or never made",
                   call);
        return NULL;
    }
    return (sg_graph_exec *)exec;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    ENTER_ALWAYS("%s", "");
    sg_graph *g = graph_of(graph, __func__);
    if (g == NULL) {
        return rt_done(cudaErrorInvalidValue);
    }
    sg_graph_destroy(g);
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    ENTER("%s", "");
    if (nodes != NULL) {
        sg_refuse("cudaGraphGetNodes with a list");
    }
    sg_graph *g = graph_of(graph, __func__);
    if (g == NULL || count == NULL) {
        return rt_done(cudaErrorInvalidValue);
    }
    *count = sg_graph_nodes(g);
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph,
                                          unsigned long long flags)
{
    ENTER("flags=%llu", flags);
    sg_graph *g = graph_of(graph, __func__);
    if (g == NULL || out == NULL) {
        return rt_done(cudaErrorInvalidValue);
    }
    sg_graph_exec *exec;
    cudaError_t error = (cudaError_t)sg_graph_instantiate(g, &exec);
    *out = (cudaGraphExec_t)exec;
    return rt_done(error);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    return cudaGraphInstantiateWithFlags(out, graph, flags);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
    ENTER("%s", sg_name_stream(stream));
    return rt_done(exec_of(exec, __func__) != NULL ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    cudaError_t error;
    ENTER_HOT("%s", sg_name_stream(stream));
    sg_graph_exec *e = exec_of(exec, __func__);
    if (e == NULL) {
        return rt_done(cudaErrorInvalidValue);
    }
    sg_stream *s = rt_stream(stream, __func__, &error);
    return s != NULL ? rt_done((cudaError_t)sg_graph_launch(e, s)) : error;
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo *info)
{
    ENTER("%s", "");
    sg_graph_exec *e = exec_of(exec, __func__);
    sg_graph *g = graph_of(graph, __func__);
    if (e == NULL || g == NULL) {
        return rt_done(cudaErrorInvalidValue);
    }
    cudaError_t error = (cudaError_t)sg_graph_update(e, g);
    if (info != NULL) {
        memset(info, 0, sizeof(*info));
        info->result = error == cudaSuccess ? cudaGraphExecUpdateSuccess
                                            : cudaGraphExecUpdateErrorTopologyChanged;
    }
    return rt_done(error);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    ENTER_ALWAYS("%s", "");
    sg_graph_exec *e = exec_of(exec, __func__);
    return rt_done(e != NULL ? (cudaError_t)sg_graph_exec_destroy(e) : cudaErrorInvalidValue);
}

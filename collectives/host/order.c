/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of summation, cut at the borders of nodes.
 *
 * Normal: a node's ranks are one fragment, summed by a balanced tree; a balanced tree over the
 * nodes adds the fragments. Reproducible: one balanced tree over all ranks; its largest subtrees
 * that lie within a node are that node's fragments, what is above them is the top. Both have the
 * same form, so one algorithm (reduce.c) serves both; they differ in the number of fragments and in
 * whether a 16-bit fragment is rounded before it crosses to another node.
 *
 * Local indices count a node's ranks in rank order, so the ranks of a subtree within a node are
 * consecutive there too, and the subtree is the balanced tree of its size.
 */
#include "host/host.h"

#include <stdlib.h>

#include "core/mem.h"

/* A fragment found while walking the tree over ranks, left to right. */
typedef struct cut {
    int first_rank, ranks, node;
    int index; /* among all fragments, counted node by node */
} cut;

typedef struct walk {
    const tt_layout *layout;
    cut *cut;
    int cuts, at;
} walk;

static bool within_node(const tt_layout *layout, int first, int n)
{
    for (int i = 1; i < n; i++)
        if (layout->node[first + i] != layout->node[first])
            return false;
    return true;
}

static void find_cuts(walk *w, int first, int n)
{
    if (within_node(w->layout, first, n)) {
        w->cut[w->cuts++] = (cut){first, n, w->layout->node[first], 0};
        return;
    }
    int left = tt_tree_left(n);
    find_cuts(w, first, left);
    find_cuts(w, first + left, n - left);
}

/* The tree above the cuts, whose leaves are the cuts' indices. */
static tutti_status build_top(walk *w, int first, int n, tt_tree *out)
{
    tt_tree part[2] = {{0}, {0}};
    const cut *next = &w->cut[w->at];
    if (next->first_rank == first && next->ranks == n) {
        w->at++;
        return tt_tree_balanced(next->index, 1, out);
    }
    int left = tt_tree_left(n);
    tutti_status status = build_top(w, first, left, &part[0]);
    if (status == TUTTI_OK)
        status = build_top(w, first + left, n - left, &part[1]);
    if (status == TUTTI_OK)
        status = tt_tree_over(part, 2, out);
    tt_tree_free(&part[0]);
    tt_tree_free(&part[1]);
    return status;
}

static tutti_status allocate(tt_order *order, int nodes, int cuts, int own)
{
    order->nodes = nodes;
    order->own = own;
    TT_TRY(tt_calloc((size_t)nodes + 1, sizeof *order->first, &order->first));
    TT_TRY(tt_calloc((size_t)cuts, sizeof *order->partial, &order->partial));
    return tt_calloc((size_t)own, sizeof *order->fragment, &order->fragment);
}

/* Counts the cuts node by node and makes this node's fragments. */
static tutti_status take_cuts(tt_order *order, walk *w, int node)
{
    int index = 0, own = 0;
    for (int i = 0; i < w->cuts; i++)
        own += w->cut[i].node == node;
    TT_TRY(allocate(order, w->layout->nodes, w->cuts, own));
    for (int n = 0; n < w->layout->nodes; n++) {
        order->first[n] = index;
        for (int i = 0; i < w->cuts; i++) {
            cut *c = &w->cut[i];
            if (c->node != n)
                continue;
            order->partial[index] = c->ranks > 1;
            if (n == node)
                TT_TRY(tt_tree_balanced(w->layout->local[c->first_rank], c->ranks,
                                        &order->fragment[index - order->first[n]]));
            c->index = index++;
        }
    }
    order->first[w->layout->nodes] = index;
    return TUTTI_OK;
}

/* Whether the tree from node `at` on is the balanced one over the leaves first ... first + n - 1.
 */
static bool is_balanced(const tt_tree *tree, int at, int first, int n)
{
    const tt_tree_node *node = &tree->node[at];
    if (n == 1 || node->leaf >= 0)
        return n == 1 && node->leaf == first;
    const int left = tt_tree_left(n);
    return is_balanced(tree, node->left, first, left) &&
           is_balanced(tree, node->right, first + left, n - left);
}

static tutti_status reproducible_order(const tt_layout *layout, int node, tt_order *order)
{
    walk w = {.layout = layout};
    TT_TRY(tt_calloc((size_t)layout->size, sizeof *w.cut, &w.cut));
    find_cuts(&w, 0, layout->size);
    tutti_status status = take_cuts(order, &w, node);
    if (status == TUTTI_OK)
        status = build_top(&w, 0, layout->size, &order->top);
    free(w.cut);
    return status;
}

static tutti_status two_level_order(const tt_layout *layout, int node, tt_order *order)
{
    TT_TRY(allocate(order, layout->nodes, layout->nodes, 1));
    for (int n = 0; n <= layout->nodes; n++)
        order->first[n] = n;
    TT_TRY(tt_tree_balanced(0, layout->node_size[node], &order->fragment[0]));
    return tt_tree_balanced(0, layout->nodes, &order->top);
}

tutti_status tt_order_create(const tt_layout *layout, int node, bool reproducible,
                             tt_order *order_out)
{
    tutti_status status = reproducible ? reproducible_order(layout, node, order_out)
                                       : two_level_order(layout, node, order_out);
    if (status != TUTTI_OK) {
        tt_order_free(order_out);
        return status;
    }
    order_out->pairs = true;
    for (int n = 0; n <= layout->nodes; n++)
        order_out->pairs = order_out->pairs && order_out->first[n] == n;
    order_out->pairs =
        order_out->pairs && is_balanced(&order_out->top, order_out->top.root, 0, layout->nodes);
    return TUTTI_OK;
}

void tt_order_free(tt_order *order)
{
    tt_tree_free(&order->top);
    if (order->fragment != NULL)
        for (int i = 0; i < order->own; i++)
            tt_tree_free(&order->fragment[i]);
    free(order->fragment);
    free(order->partial);
    free(order->first);
    *order = (tt_order){0};
}

size_t tt_order_node_bytes(const tt_order *order, int node, tutti_dtype dtype)
{
    size_t bytes = 0;
    for (int i = order->first[node]; i < order->first[node + 1]; i++)
        bytes += tt_operand_size(dtype, order->partial[i]);
    return bytes;
}

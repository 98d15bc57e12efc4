/* SPDX-License-Identifier: Apache-2.0 */
/* Summation trees. */
#include <stdlib.h>

#include "core/mem.h"
#include "host/kernels.h"

int tt_tree_left(int n)
{
    int power = 1;

    while (power < n - power)
        power *= 2;
    return power;
}

/* Joins the nodes root[0 ... n-1] (NULL: node i is i + first) and returns the node on top. */
static int join(tt_tree *tree, const int *root, int first, int n)
{
    int left, at;

    if (n == 1)
        return root != NULL ? root[first] : first;
    left = tt_tree_left(n);
    at = tree->nodes++;
    tree->node[at].leaf = -1;
    tree->node[at].left = join(tree, root, first, left);
    tree->node[at].right = join(tree, root, first + left, n - left);
    return at;
}

tutti_status tt_tree_balanced(int first_leaf, int n, tt_tree *out)
{
    tt_tree tree = {0};

    TT_TRY(tt_calloc(2 * (size_t)n, sizeof *tree.node, &tree.node));
    for (; tree.nodes < n; tree.nodes++)
        tree.node[tree.nodes] = (tt_tree_node){-1, -1, first_leaf + tree.nodes};
    tree.root = join(&tree, NULL, 0, n);
    *out = tree;
    return TUTTI_OK;
}

static void copy_part(tt_tree *tree, const tt_tree *part)
{
    int base = tree->nodes;

    for (int i = 0; i < part->nodes; i++) {
        tt_tree_node node = part->node[i];
        if (node.leaf < 0) {
            node.left += base;
            node.right += base;
        }
        tree->node[tree->nodes++] = node;
    }
}

tutti_status tt_tree_over(const tt_tree *part, int n, tt_tree *out)
{
    tt_tree tree = {0};
    size_t nodes = (size_t)n;
    tutti_status status;
    int *root;

    for (int i = 0; i < n; i++)
        nodes += (size_t)part[i].nodes;
    TT_TRY(tt_calloc((size_t)n, sizeof *root, &root));
    status = tt_calloc(nodes, sizeof *tree.node, &tree.node);
    if (status != TUTTI_OK)
        goto free_root;
    for (int i = 0; i < n; i++) {
        root[i] = tree.nodes + part[i].root;
        copy_part(&tree, &part[i]);
    }
    tree.root = join(&tree, root, 0, n);
    *out = tree;

free_root:
    free(root);
    return status;
}

void tt_tree_free(tt_tree *tree)
{
    free(tree->node);
    *tree = (tt_tree){0};
}

/* Arranges entries, given in any order, in the arrays of a tree; lists the leaves of a tree. */
#include "fault.h"
#include "tree.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

struct naming {
    const uint32_t *offsets;
    const uint8_t *names;
};

static int compare_entries(const struct naming *by, uint32_t a, uint32_t b)
{
    return fffs_compare_names(by->names + by->offsets[a], by->offsets[a + 1] - by->offsets[a],
                              by->names + by->offsets[b], by->offsets[b + 1] - by->offsets[b]);
}

static int compare_for_qsort(const void *a, const void *b, void *by)
{
    return compare_entries(by, *(const uint32_t *)a, *(const uint32_t *)b);
}

/* Sorts one directory's entries. They are nearly always sorted, which costs only one pass. */
static void sort_directory(uint32_t *rows, size_t count, const struct naming *by)
{
    for (size_t i = 1; i < count; i++) {
        if (compare_entries(by, rows[i - 1], rows[i]) > 0) {
            qsort_r(rows, count, sizeof *rows, compare_for_qsort, (void *)by);
            return;
        }
    }
}

/* A counting sort of entries by directory: children[first[d]] to children[first[d + 1] - 1] are those of d. */
static int group_by_directory(uint64_t entries, uint64_t nodes, const uint32_t *parent, const uint32_t *node,
                              const uint8_t *is_directory, uint32_t *first, uint32_t *children)
{
    for (uint64_t i = 0; i < entries; i++) {
        if (parent[i] >= nodes || node[i] >= nodes || node[i] == 0 || !is_directory[parent[i]])
            return -EINVAL;
        first[parent[i] + 1]++;
    }
    for (uint64_t d = 0; d < nodes; d++)
        first[d + 1] += first[d];
    for (uint64_t i = entries; i-- > 0;) /* backwards, filling each directory from its end: stable */
        children[--first[parent[i] + 1]] = (uint32_t)i;
    /* Now first[d + 1] is where d begins: shift back. */
    for (uint64_t d = 0; d < nodes; d++)
        first[d] = first[d + 1];
    first[nodes] = (uint32_t)entries;
    return 0;
}

/* Walks the directories breadth first and numbers nodes as they are met; by_rank is also the queue. */
static int number_nodes(uint64_t entries, uint64_t nodes, const uint32_t *entry_node, const struct naming *by,
                        const uint8_t *is_directory, const uint32_t *first, uint32_t *children, uint32_t *by_rank,
                        uint32_t *rank, uint32_t *entry_nodes, uint32_t *name_offsets, uint8_t *names)
{
    uint64_t emitted = 0, numbered = 1;
    uint32_t used = 0;

    memset(rank, 0xff, nodes * sizeof *rank);
    rank[0] = 0;
    by_rank[0] = 0;
    for (uint64_t r = 0; r < numbered; r++) {
        uint32_t d = by_rank[r];

        if (!is_directory[d])
            continue;
        sort_directory(children + first[d], first[d + 1] - first[d], by);
        for (uint32_t i = first[d]; i < first[d + 1]; i++) {
            uint32_t row = children[i], node = entry_node[row];
            uint32_t length = by->offsets[row + 1] - by->offsets[row];

            if (rank[node] == FFFS_UNSET) {
                by_rank[numbered] = node;
                rank[node] = (uint32_t)numbered++;
            } else if (is_directory[node]) {
                return -ELOOP;
            }
            entry_nodes[emitted] = rank[node];
            name_offsets[emitted++] = used;
            memcpy(names + used, by->names + by->offsets[row], length);
            used += length;
        }
    }
    name_offsets[emitted] = used;
    return emitted == entries && numbered == nodes ? 0 : -EINVAL;
}

int fffs_tree_order(uint64_t entries, uint64_t nodes, const uint32_t *entry_parent, const uint32_t *entry_node,
                    const uint32_t *in_name_offsets, const uint8_t *in_names, const uint8_t *is_directory,
                    uint32_t *rank, uint32_t *entry_nodes, uint32_t *name_offsets, uint8_t *names)
{
    struct naming by = {in_name_offsets, in_names};
    int status = -EINVAL;

    if (nodes == 0 || nodes >= FFFS_UNSET || entries >= FFFS_UNSET || !is_directory[0])
        return status;
    uint32_t *first = calloc(nodes + 1, sizeof *first);
    uint32_t *children = malloc((entries + 1) * sizeof *children);
    uint32_t *by_rank = malloc(nodes * sizeof *by_rank);
    if (!first || !children || !by_rank)
        status = -ENOMEM;
    else
        status = group_by_directory(entries, nodes, entry_parent, entry_node, is_directory, first, children);
    if (!status)
        status = number_nodes(entries, nodes, entry_node, &by, is_directory, first, children, by_rank, rank,
                              entry_nodes, name_offsets, names);
    free(first);
    free(children);
    free(by_rank);
    return status;
}

int fffs_tree_leaves(const fffs_tree *tree, uint32_t *leaves, uint64_t *count)
{
    /* The next and the last entry of each directory above. No valid tree is deeper. */
    uint32_t next[FFFS_PATH_MAX / 2 + 2], end[FFFS_PATH_MAX / 2 + 2];
    size_t depth = 0;
    uint8_t *seen = fffs_allocate_zeroed(tree->nodes, 1);

    *count = 0;
    if (!seen)
        return -ENOMEM;
    next[0] = tree->ref[0];
    end[0] = tree->ref[0] + tree->count[0];
    for (;;) {
        if (next[depth] == end[depth]) {
            if (depth == 0)
                break;
            depth--;
            continue;
        }
        uint32_t node = tree->entry_nodes[next[depth]++];
        if (S_ISDIR(tree->mode[node])) {
            next[++depth] = tree->ref[node];
            end[depth] = tree->ref[node] + tree->count[node];
        } else if (!seen[node]) {
            seen[node] = 1;
            leaves[(*count)++] = node;
        }
    }
    free(seen);
    return 0;
}

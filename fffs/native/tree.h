/* Shared by the sources of the tree of names; contract.h has their functions. */
#ifndef FFFS_TREE_H
#define FFFS_TREE_H

#include "fffs.h"

#include <string.h>

/* Not the number of a node or an entry: there are fewer. */
#define FFFS_UNSET UINT32_MAX

/* The order of names in a directory: by bytes, and a name before those that begin with it. Returns a number below, at
 * or above 0. */
static inline int fffs_compare_names(const uint8_t *a, size_t length_a, const uint8_t *b, size_t length_b)
{
    size_t common = length_a < length_b ? length_a : length_b;
    int order = common ? memcmp(a, b, common) : 0;

    if (order)
        return order;
    return length_a < length_b ? -1 : length_a > length_b;
}

#endif

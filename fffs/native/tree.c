/* Searches a tree: names in directories, and paths with symbolic links. */
#include "tree.h"

#include <errno.h>
#include <sys/stat.h>

int fffs_tree_lookup(const fffs_tree *tree, uint32_t node, const uint8_t *name, size_t length, uint32_t *found)
{
    if (node >= tree->nodes || !S_ISDIR(tree->mode[node]))
        return -ENOTDIR;
    uint32_t low = tree->ref[node], high = low + tree->count[node];
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        uint32_t start = tree->name_offsets[middle];
        int order = fffs_compare_names(tree->names + start, tree->name_offsets[middle + 1] - start, name, length);

        if (order == 0) {
            *found = tree->entry_nodes[middle];
            return 0;
        }
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return -ENOENT;
}

/* A path, or the target of a link, of which a part has been followed. */
struct way {
    const uint8_t *rest;
    size_t length;
    bool done;
};

/* Returns the length of the next part, up to a '/' or the end. As in a split at '/', "a/" has two parts, "" one. */
static size_t next_part(struct way *way, const uint8_t **part)
{
    const uint8_t *slash = way->length ? memchr(way->rest, '/', way->length) : NULL;
    size_t length = slash ? (size_t)(slash - way->rest) : way->length;

    *part = way->rest;
    way->done = !slash;
    way->rest += length + (slash ? 1 : 0);
    way->length -= length + (slash ? 1 : 0);
    return length;
}

int fffs_tree_follow(const fffs_tree *tree, const uint8_t *path, size_t length, uint32_t *found)
{
    /* The last node is the current one. No path of a valid tree is longer than FFFS_PATH_MAX, so none is deeper. */
    uint32_t trail[FFFS_PATH_MAX / 2 + 2] = {0};
    struct way ways[FFFS_LINKS_MAX + 1] = {{path, length, false}};
    size_t depth = 0, way = 0, links = 0, steps = 0;

    if (length && path[0] == '/')
        return -ENOENT;
    for (;;) {
        const uint8_t *part;
        uint32_t node;

        while (ways[way].done && way > 0)
            way--;
        if (ways[way].done)
            break;
        if (steps++ == FFFS_STEPS_MAX)
            return -ELOOP;
        size_t size = next_part(&ways[way], &part);
        if (size == 0 || (size == 1 && part[0] == '.'))
            continue;
        if (size == 2 && part[0] == '.' && part[1] == '.') {
            if (way == 0 || depth == 0 || !S_ISDIR(tree->mode[trail[depth]]))
                return -ENOENT;
            depth--;
            continue;
        }
        if (fffs_tree_lookup(tree, trail[depth], part, size, &node))
            return -ENOENT;
        if (!S_ISLNK(tree->mode[node])) {
            trail[++depth] = node;
            continue;
        }
        const uint8_t *target = tree->targets + tree->ref[node];
        if (target[0] == '/')
            return -ENOENT;
        if (++links > FFFS_LINKS_MAX)
            return -ELOOP;
        ways[++way] = (struct way){target, tree->count[node], false};
    }
    *found = trail[depth];
    return 0;
}

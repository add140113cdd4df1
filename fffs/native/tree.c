/* The tree of names: ordering entries into its arrays, validating arrays that came from a file, looking names up. */
#include "fffs.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define UNSET UINT32_MAX

static int compare_bytes(const uint8_t *a, size_t length_a, const uint8_t *b, size_t length_b)
{
    size_t common = length_a < length_b ? length_a : length_b;
    int order = common ? memcmp(a, b, common) : 0;

    if (order)
        return order;
    return length_a < length_b ? -1 : length_a > length_b;
}

/* ---------------------------------------------------------------- ordering */

struct naming {
    const uint32_t *offsets;
    const uint8_t *names;
};

static int compare_entries(const struct naming *by, uint32_t a, uint32_t b)
{
    return compare_bytes(by->names + by->offsets[a], by->offsets[a + 1] - by->offsets[a], by->names + by->offsets[b],
                         by->offsets[b + 1] - by->offsets[b]);
}

static int compare_for_qsort(const void *a, const void *b, void *by)
{
    return compare_entries(by, *(const uint32_t *)a, *(const uint32_t *)b);
}

/* Sorts one directory's entries. They nearly always come sorted, and then one pass is all it costs. */
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
    for (uint64_t i = entries; i-- > 0;) /* backwards, taking each directory's slots from its end: stable */
        children[--first[parent[i] + 1]] = (uint32_t)i;
    /* Now first[d + 1] is where d begins: shift back. */
    for (uint64_t d = 0; d < nodes; d++)
        first[d] = first[d + 1];
    first[nodes] = (uint32_t)entries;
    return 0;
}

/* Walks the directories breadth first, numbering nodes as they are met; by_rank doubles as the queue. */
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

            if (rank[node] == UNSET) {
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

    if (nodes == 0 || nodes >= UNSET || entries >= UNSET || !is_directory[0])
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

/* ---------------------------------------------------------------- validation */

struct finding {
    const char **why;
    uint64_t *where;
};

static int refuse(struct finding found, const char *why, uint64_t where)
{
    *found.why = why;
    *found.where = where;
    return -EINVAL;
}

/* Entries whose names are checked together: these fit the first-level cache, so that a second look is nearly free. */
enum { NAMES_RUN = 1024 };

/* The names from begin to end one by one, after something unusual was seen among them. */
static int validate_each_name(const fffs_tree *t, uint64_t begin, uint64_t end, struct finding found)
{
    for (uint64_t i = begin; i < end; i++) {
        uint32_t start = t->name_offsets[i], after = t->name_offsets[i + 1];
        const uint8_t *name = t->names + start;

        if (after <= start)
            return refuse(found, "a name is empty, or the names' offsets go backwards", i);
        if (after - start > FFFS_NAME_MAX)
            return refuse(found, "a name is longer than 255 bytes", i);
        if (after > t->names_size)
            return refuse(found, "a name lies outside its array", i);
        if (name[0] == '.' && (after - start == 1 || (after - start == 2 && name[1] == '.')))
            return refuse(found, "a name is '.' or '..'", i);
    }
    return 0;
}

/* Whether each name from begin to end lies in the array and has 3 to 255 bytes. No branches: compilers make vectors
 * of it. */
static bool have_usual_lengths(const fffs_tree *t, uint64_t begin, uint64_t end)
{
    const uint32_t *offsets = t->name_offsets;
    uint32_t unusual = offsets[end] > t->names_size;

    for (uint64_t i = begin; i < end; i++) {
        uint32_t length = offsets[i + 1] - offsets[i];

        unusual |=
            (uint32_t)(offsets[i + 1] <= offsets[i]) | (uint32_t)(length <= 2) | (uint32_t)(length > FFFS_NAME_MAX);
    }
    return !unusual;
}

/* Names: offsets ascend and end with the array; each is 1 to 255 bytes, without '/' and NUL, and not "." or "..". */
static int validate_names(const fffs_tree *t, struct finding found)
{
    const uint32_t *offsets = t->name_offsets;

    if (offsets[0] != 0 || offsets[t->entries] != t->names_size)
        return refuse(found, "the names do not fill their array", 0);
    for (uint64_t begin = 0, end; begin < t->entries; begin = end) {
        end = begin + NAMES_RUN < t->entries ? begin + NAMES_RUN : t->entries;
        if (!have_usual_lengths(t, begin, end)) {
            int status = validate_each_name(t, begin, end, found);
            if (status)
                return status;
        }
        const uint8_t *names = t->names + offsets[begin];
        size_t size = offsets[end] - offsets[begin];
        if (memchr(names, '/', size) || memchr(names, 0, size))
            return refuse(found, "a name contains '/' or NUL", begin);
    }
    return 0;
}

/* Eight bytes as a number that compares as they do. */
static uint64_t load_word(const uint8_t *bytes)
{
    uint64_t word;

    memcpy(&word, bytes, sizeof word);
    return __builtin_bswap64(word);
}

/* Whether the name of entry i - 1 sorts before that of entry i. The names must be valid. By words: a call of memcmp
 * for each of millions of names would take as long as all the rest. */
static bool ascends(const fffs_tree *t, uint32_t i)
{
    uint32_t a = t->name_offsets[i - 1], b = t->name_offsets[i], end = t->name_offsets[i + 1];
    uint32_t common = b - a < end - b ? b - a : end - b;

    /* Words may reach past the two names, but not past the array. */
    if ((uint64_t)b + common + 8 > t->names_size)
        return compare_bytes(t->names + a, b - a, t->names + b, end - b) < 0;
    for (uint32_t k = 0; k < common; k += 8) {
        uint32_t beyond = common - k < 8 ? 8 * (8 - (common - k)) : 0; /* bits of the words that are not the names' */
        uint64_t x = load_word(t->names + a + k) >> beyond, y = load_word(t->names + b + k) >> beyond;

        if (x != y)
            return x < y;
    }
    return b - a < end - b;
}

/* Directories share out the entries in node order, so that none overlaps another, and their names strictly ascend.
 * path has for each directory the length of what comes before a name in it. */
static int validate_directory(const fffs_tree *t, uint64_t node, uint64_t *next, uint16_t *path, struct finding found)
{
    uint32_t first = t->ref[node], count = t->count[node], subdirectories = 0;

    if (first != *next || count > t->entries - *next)
        return refuse(found, "the directories do not share out the entries", node);
    *next += count;
    for (uint32_t i = first; i < first + count; i++) {
        uint32_t child = t->entry_nodes[i];

        if (i > first && !ascends(t, i))
            return refuse(found, "names in a directory are duplicated or not sorted", i);
        /* path[node] counts the '/' that follows the directory's own name. */
        uint32_t length = path[node] + t->name_offsets[i + 1] - t->name_offsets[i];

        if (length > FFFS_PATH_MAX)
            return refuse(found, "a path is longer than 4095 bytes", i);
        if (!S_ISDIR(t->mode[child]))
            continue;
        /* A parent's number below its child's rules out cycles. */
        if (t->parent[child] != node || child <= node)
            return refuse(found, "a directory is not where its parent says", child);
        path[child] = (uint16_t)(length + 1);
        subdirectories++;
    }
    if (t->nlink[node] != subdirectories + 2)
        return refuse(found, "a directory's link count is wrong", node);
    return 0;
}

/* How many names a node has. seen is NULL where all have one, but the root. */
static uint32_t count_names(const uint32_t *seen, uint64_t node)
{
    return seen ? seen[node] : node != 0;
}

static int validate_node(const fffs_tree *t, uint64_t node, uint64_t records, const uint32_t *seen,
                         struct finding found)
{
    switch (t->mode[node] & S_IFMT) {
    case S_IFDIR:
        if (count_names(seen, node) != (node != 0))
            return refuse(found, "a directory has no name or several", node);
        return 0;
    case S_IFREG:
        if (t->ref[node] >= records)
            return refuse(found, "a file names a record that is not there", node);
        break;
    case S_IFLNK:
        if (t->count[node] == 0 || t->count[node] > FFFS_TARGET_MAX || t->ref[node] > t->targets_size ||
            t->count[node] > t->targets_size - t->ref[node])
            return refuse(found, "a symbolic link's target lies outside its array", node);
        if (memchr(t->targets + t->ref[node], 0, t->count[node]))
            return refuse(found, "a symbolic link's target contains NUL", node);
        break;
    default: return refuse(found, "a node is neither file, directory nor symbolic link", node);
    }
    if (t->nlink[node] == 0 || t->nlink[node] != count_names(seen, node))
        return refuse(found, "a link count is wrong", node);
    return 0;
}

/* Nodes that are looked at together: few, so that a directory among files costs little. */
enum { RUN = 128 };

/* Whether the nodes from begin to end are all files, good ones, where each has one name and so needs one link. Nearly
 * all are, and this takes no branch for each. */
static bool are_plain_files(const fffs_tree *t, uint64_t begin, uint64_t end, uint64_t records)
{
    uint32_t last = records < UINT32_MAX ? (uint32_t)records : UINT32_MAX, others = 0;

    for (uint64_t i = begin; i < end; i++)
        others |= (uint32_t)((t->mode[i] & S_IFMT) ^ S_IFREG) | (t->nlink[i] ^ 1) | (uint32_t)(t->ref[i] >= last);
    return !others;
}

static int validate_structure(const fffs_tree *t, uint64_t records, uint32_t *seen, uint16_t *path,
                              struct finding found)
{
    uint64_t next = 0;
    int status = 0;

    for (uint64_t i = 0; seen && i < t->entries; i++) {
        if (t->entry_nodes[i] >= t->nodes)
            return refuse(found, "an entry leads to no node", i);
        seen[t->entry_nodes[i]]++;
    }
    for (uint64_t begin = 0, end; begin < t->nodes; begin = end) {
        end = begin + RUN < t->nodes ? begin + RUN : t->nodes;
        if (!seen && are_plain_files(t, begin, end, records))
            continue;
        for (uint64_t node = begin; !status && node < end; node++) {
            status = validate_node(t, node, records, seen, found);
            if (!status && S_ISDIR(t->mode[node]))
                status = validate_directory(t, node, &next, path, found);
        }
        if (status)
            return status;
    }
    if (next != t->entries)
        return refuse(found, "an entry belongs to no directory", next);
    return 0;
}

/* Whether entry i leads to node i + 1, and so every node has one name. It is so in each tree without hard links that
 * fffs_tree_order made, and then nothing has to be counted. */
static bool has_no_hard_links(const fffs_tree *t)
{
    uint32_t different = 0;

    for (uint32_t i = 0; i < (uint32_t)t->entries; i++)
        different |= t->entry_nodes[i] ^ (i + 1);
    return !different && t->nodes == t->entries + 1;
}

int fffs_tree_validate(const fffs_tree *tree, uint64_t records, const char **why, uint64_t *where)
{
    struct finding found = {why, where};
    int status;

    /* Numbers are 32 bits wide, and UINT32_MAX is taken. */
    if (tree->nodes >= UNSET || tree->entries >= UNSET || tree->names_size >= UNSET || tree->targets_size >= UNSET)
        return refuse(found, "the tree is too large", 0);
    if (tree->nodes == 0 || !S_ISDIR(tree->mode[0]) || tree->parent[0] != 0)
        return refuse(found, "there is no root directory", 0);
    if (tree->nodes > tree->entries + 1)
        return refuse(found, "there are more nodes than names", 0);
    status = validate_names(tree, found);
    if (status)
        return status;
    bool each_once = has_no_hard_links(tree);
    uint32_t *seen = each_once ? NULL : calloc(tree->nodes, sizeof *seen);
    uint16_t *path = calloc(tree->nodes, sizeof *path);
    status = (seen || each_once) && path ? validate_structure(tree, records, seen, path, found) : -ENOMEM;
    free(seen);
    free(path);
    return status;
}

/* ---------------------------------------------------------------- lookup */

int fffs_tree_lookup(const fffs_tree *tree, uint32_t node, const uint8_t *name, size_t length, uint32_t *found)
{
    if (node >= tree->nodes || !S_ISDIR(tree->mode[node]))
        return -ENOTDIR;
    uint32_t low = tree->ref[node], high = low + tree->count[node];
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        uint32_t start = tree->name_offsets[middle];
        int order = compare_bytes(tree->names + start, tree->name_offsets[middle + 1] - start, name, length);

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

/* The next part up to a '/', or the end. As with a split at each '/', "a/" has two parts, and "" one. */
static size_t next_part(struct way *way, const uint8_t **part)
{
    const uint8_t *slash = way->length ? memchr(way->rest, '/', way->length) : NULL;
    size_t length = slash ? (size_t)(slash - way->rest) : way->length;

    *part = way->rest;
    way->done = !slash;
    way->rest += length + (slash != NULL);
    way->length -= length + (slash != NULL);
    return length;
}

int fffs_tree_follow(const fffs_tree *tree, const uint8_t *path, size_t length, uint32_t *found)
{
    /* The last one is where we are. No path of a valid tree is longer than FFFS_PATH_MAX, so none is deeper. */
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
        if (fffs_tree_lookup(tree, trail[depth], part, size, &node) != 0)
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

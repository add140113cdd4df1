/* Validates a tree whose arrays came from a file: everything that walking and searching them relies on. */
#include "tree.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

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

/* Entries whose names are checked together: they fit the first-level cache, so that a second pass is nearly free. */
enum { NAMES_RUN = 1024 };

/* Checks the names from begin to end one by one, because one of them is unusual. */
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

/* Whether each name from begin to end lies in the array and has 3 to 255 bytes. Vectorizable: no branches. */
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

/* Checks names: offsets ascend and end with the array; each has 1 to 255 bytes, no '/' or NUL, and is not "." or
 * "..". */
static int validate_names(const fffs_tree *t, struct finding found)
{
    const uint32_t *offsets = t->name_offsets;

    if (offsets[0] || offsets[t->entries] != t->names_size)
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

/* Returns eight bytes as a number that compares as they do. */
static uint64_t load_word(const uint8_t *bytes)
{
    uint64_t word;

    memcpy(&word, bytes, sizeof word);
    return __builtin_bswap64(word);
}

/* Whether the name of entry i - 1 sorts before that of entry i. The names must be valid. Compares words: calling
 * memcmp for millions of names would take as long as all the rest. */
static bool ascends(const fffs_tree *t, uint32_t i)
{
    uint32_t a = t->name_offsets[i - 1], b = t->name_offsets[i], end = t->name_offsets[i + 1];
    uint32_t common = b - a < end - b ? b - a : end - b;

    /* Words may reach past the two names, but not past the array. */
    if ((uint64_t)b + common + 8 > t->names_size)
        return fffs_compare_names(t->names + a, b - a, t->names + b, end - b) < 0;
    for (uint32_t k = 0; k < common; k += 8) {
        uint32_t beyond = common - k < 8 ? 8 * (8 - (common - k)) : 0; /* bits beyond the names */
        uint64_t x = load_word(t->names + a + k) >> beyond, y = load_word(t->names + b + k) >> beyond;

        if (x != y)
            return x < y;
    }
    return b - a < end - b;
}

/* Checks that directories partition the entries in node order, so that none overlaps another, and that their names
 * strictly ascend. path has for each directory the length of what comes before a name in it. */
static int validate_directory(const fffs_tree *t, uint64_t node, uint64_t *next, uint16_t *path, struct finding found)
{
    uint32_t first = t->ref[node], count = t->count[node], subdirectories = 0;

    if (first != *next || count > t->entries - *next)
        return refuse(found, "the directories do not partition the entries", node);
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
            return refuse(found, "a directory's parent number is wrong", child);
        path[child] = (uint16_t)(length + 1);
        subdirectories++;
    }
    if (t->nlink[node] != subdirectories + 2)
        return refuse(found, "a directory's link count is wrong", node);
    return 0;
}

/* Returns how many names a node has. If seen is NULL, all have one but the root. */
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

/* Nodes that are checked together: few, so that a directory among files costs little. */
enum { RUN = 128 };

/* Whether the nodes from begin to end are all valid files, in a tree where each has one name and so one link. Nearly
 * all are, and this has no branches. */
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
            return refuse(found, "an entry refers to no node", i);
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

/* Whether entry i refers to node i + 1, so that every node has one name. This holds for each tree without hard links
 * that fffs_tree_order made, and saves counting. */
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

    /* Numbers have 32 bits, and UINT32_MAX is reserved. */
    if (tree->nodes >= FFFS_UNSET || tree->entries >= FFFS_UNSET || tree->names_size >= FFFS_UNSET ||
        tree->targets_size >= FFFS_UNSET)
        return refuse(found, "the tree is too large", 0);
    if (tree->nodes == 0 || !S_ISDIR(tree->mode[0]) || tree->parent[0])
        return refuse(found, "there is no root directory", 0);
    if (tree->nodes > tree->entries + 1)
        return refuse(found, "there are more nodes than names", 0);
    int status = validate_names(tree, found);
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

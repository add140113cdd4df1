/* Fuzzes the tree of names: fffs_tree_validate accepts exactly the valid trees, and these can be used in all ways.
 *
 * Input: one byte that says what follows; then either the arrays of a tree as a trailer has them, without padding, and a path in
 * it, or entries in any order for fffs_tree_order. */
#include "entries.h"
#include "follow.h"

/* Entries up to which the slow definition of a tree is asked too. */
enum { COMPARED = 600 };

/* ---------------------------------------------------------------- arrays as a file has them */

static void fuzz_arrays(struct input *in)
{
    uint64_t nodes = take(in, 2), entries = take(in, 2), names_size = take(in, 2), targets_size = take(in, 2);
    uint64_t records = take(in, 2), where = 0, again = 0;
    const char *why = NULL, *why_again = NULL;
    fffs_tree tree = {.mtime = take_array(in, nodes * 8),
                      .nlink = take_array(in, nodes * 4),
                      .ref = take_array(in, nodes * 4),
                      .count = take_array(in, nodes * 4),
                      .parent = take_array(in, nodes * 4),
                      .mode = take_array(in, nodes * 2),
                      .name_offsets = take_array(in, (entries + 1) * 4),
                      .entry_nodes = take_array(in, entries * 4),
                      .names = take_array(in, names_size),
                      .targets = take_array(in, targets_size),
                      .nodes = nodes,
                      .entries = entries,
                      .names_size = names_size,
                      .targets_size = targets_size};
    int status = fffs_tree_validate(&tree, records, &why, &where);

    CHECK(status == 0 || (status == -EINVAL && why && *why));
    CHECK(fffs_tree_validate(&tree, records, &why_again, &again) == status && why == why_again && where == again);
    if (status == 0) {
        walk_tree(&tree, records);
        follow_tree(&tree, in->at, in->left);
    }
    const void *arrays[] = {tree.mtime, tree.nlink, tree.ref, tree.count, tree.parent,
                            tree.mode, tree.name_offsets, tree.entry_nodes, tree.names, tree.targets};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free((void *)arrays[i]);
}

/* ---------------------------------------------------------------- entries in any order */

/* Names, one after the other: a length, then the bytes, or (with a length of 0xff) 255 times the next one. */
static void take_names(struct input *in, struct entries *e)
{
    uint32_t used = 0;

    e->names = exactly(e->entries * FFFS_NAME_MAX);
    for (uint64_t i = 0; i < e->entries; i++) {
        size_t length = take(in, 1);

        e->name_offsets[i] = used;
        if (length == FFFS_NAME_MAX)
            memset(e->names + used, (int)take(in, 1), length);
        else
            for (size_t k = 0; k < length; k++)
                e->names[used + k] = (uint8_t)take(in, 1);
        used += (uint32_t)length;
    }
    e->name_offsets[e->entries] = used;
    e->names = realloc(e->names, used ? used : 1);
    CHECK(e->names);
}

static void fuzz_entries(struct input *in, size_t width)
{
    static const uint16_t kinds[] = {S_IFDIR | 0755, S_IFREG | 0644, S_IFLNK | 0777, S_IFIFO};
    struct entries e = {.nodes = take(in, width), .entries = take(in, width)};

    /* Bounded by what the input can describe, so that no input is slow for being short. */
    if (e.nodes > in->left || e.entries > in->left)
        return;
    e.targets_size = take(in, 1);
    e.parent = exactly(e.entries * 4);
    e.node = exactly(e.entries * 4);
    e.name_offsets = exactly((e.entries + 1) * 4);
    e.mode = exactly(e.nodes * 2);
    e.ref = exactly(e.nodes * 4);
    e.count = exactly(e.nodes * 4);
    e.targets = take_array(in, e.targets_size);
    for (uint64_t i = 0; i < e.nodes; i++) {
        e.mode[i] = kinds[take(in, 1) % 4];
        if (!S_ISDIR(e.mode[i]))
            e.ref[i] = (uint32_t)take(in, 1);
        if (S_ISLNK(e.mode[i]))
            e.count[i] = (uint32_t)take(in, 1);
    }
    for (uint64_t i = 0; i < e.entries; i++) {
        e.parent[i] = (uint32_t)take(in, width);
        e.node[i] = (uint32_t)take(in, width);
    }
    take_names(in, &e);
    check_entries(&e, 200, e.entries <= COMPARED);
    free_entries(&e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    uint64_t kind = take(&in, 1) % 3;

    if (kind == 0)
        fuzz_arrays(&in);
    else
        fuzz_entries(&in, kind);
    return 0;
}

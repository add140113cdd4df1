/* A tree from entries in any order, as fffs/tree/builder.py makes it of fffs_tree_order; and what must come of it. */
#ifndef ENTRIES_H
#define ENTRIES_H

#include "follow.h"

/* Names and nodes before they are ordered. The arrays belong to the struct. */
struct entries {
    uint64_t entries, nodes, targets_size;
    uint32_t *parent, *node; /* [entries] */
    uint32_t *name_offsets;  /* [entries + 1] */
    uint8_t *names, *targets;
    uint16_t *mode;          /* [nodes], and so are the others */
    uint32_t *ref, *count;   /* of files and symbolic links */
};

static inline void free_entries(struct entries *e)
{
    void *arrays[] = {e->parent, e->node, e->name_offsets, e->names, e->targets, e->mode, e->ref, e->count};

    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
}

/* ---------------------------------------------------------------- what must come of them, by the definition */

static inline int same_place(const struct entries *e, uint64_t a, uint64_t b)
{
    size_t length = e->name_offsets[a + 1] - e->name_offsets[a];

    return e->parent[a] == e->parent[b] && length == e->name_offsets[b + 1] - e->name_offsets[b] &&
           memcmp(e->names + e->name_offsets[a], e->names + e->name_offsets[b], length) == 0;
}

/* The length of the path of an entry, or more than any path has when it hangs below itself. */
static inline uint64_t path_length(const struct entries *e, const uint64_t *entry_of, uint64_t entry)
{
    uint64_t length = 0;

    for (;;) {
        length += e->name_offsets[entry + 1] - e->name_offsets[entry];
        if (e->parent[entry] == 0 || length > FFFS_PATH_MAX)
            return length;
        length++;
        entry = entry_of[e->parent[entry]];
    }
}

static inline int are_good_nodes(const struct entries *e, const uint64_t *names, uint64_t records)
{
    for (uint64_t i = 0; i < e->nodes; i++) {
        if (S_ISDIR(e->mode[i])) {
            if (names[i] != (i != 0))
                return 0;
            continue;
        }
        if (names[i] == 0)
            return 0;
        if (S_ISREG(e->mode[i]) ? e->ref[i] >= records
                                : !S_ISLNK(e->mode[i]) || e->count[i] == 0 || e->count[i] > FFFS_TARGET_MAX ||
                                      (uint64_t)e->ref[i] + e->count[i] > e->targets_size ||
                                      memchr(e->targets + e->ref[i], 0, e->count[i]) != NULL)
            return 0;
    }
    return 1;
}

static inline int are_good_names(const struct entries *e, const uint64_t *entry_of)
{
    for (uint64_t i = 0; i < e->entries; i++) {
        if (!is_name(e->names + e->name_offsets[i], e->name_offsets[i + 1] - e->name_offsets[i]))
            return 0;
        if (path_length(e, entry_of, i) > FFFS_PATH_MAX)
            return 0;
        for (uint64_t k = 0; k < i; k++)
            if (same_place(e, i, k))
                return 0;
    }
    return 1;
}

/* Whether the entries form a tree, slowly. */
static inline int is_tree(const struct entries *e, uint64_t records)
{
    uint64_t *names = exactly(e->nodes * sizeof *names);
    uint64_t *entry_of = exactly(e->nodes * sizeof *entry_of); /* a directory's only one */
    int good = e->nodes > 0 && S_ISDIR(e->mode[0]);

    for (uint64_t i = 0; good && i < e->entries; i++) {
        good = e->parent[i] < e->nodes && e->node[i] < e->nodes && S_ISDIR(e->mode[e->parent[i]]);
        if (good) {
            names[e->node[i]]++;
            entry_of[e->node[i]] = i;
        }
    }
    good = good && are_good_nodes(e, names, records) && are_good_names(e, entry_of);
    free(names);
    free(entry_of);
    return good;
}

/* ---------------------------------------------------------------- ordering and validating them */

/* Fills the columns that follow from the order: build_tree of fffs/tree/builder.py. */
static inline void fill_columns(const struct entries *e, const uint32_t *rank, const uint32_t *entry_nodes, int64_t *mtime,
                                uint32_t *nlink, uint32_t *ref, uint32_t *count, uint32_t *parent, uint16_t *mode)
{
    for (uint64_t i = 0; i < e->nodes; i++) {
        mtime[i] = 0;
        mode[rank[i]] = e->mode[i];
        nlink[rank[i]] = S_ISDIR(e->mode[i]) ? 2 : 0;
        ref[rank[i]] = S_ISDIR(e->mode[i]) ? 0 : e->ref[i];
        count[rank[i]] = S_ISDIR(e->mode[i]) ? 0 : e->count[i];
    }
    for (uint64_t i = 0; i < e->entries; i++) {
        uint32_t directory = rank[e->parent[i]];

        count[directory]++;
        if (S_ISDIR(e->mode[e->node[i]])) {
            parent[rank[e->node[i]]] = directory;
            nlink[directory]++;
        }
        if (!S_ISDIR(mode[entry_nodes[i]]))
            nlink[entry_nodes[i]]++;
    }
    uint32_t next = 0;
    for (uint64_t i = 0; i < e->nodes; i++) {
        if (S_ISDIR(mode[i])) {
            ref[i] = next;
            next += count[i];
        }
    }
}

/* Orders, validates and walks; ends the process when what comes of the entries is not what must. */
static inline void check_entries(const struct entries *e, uint64_t records, int compare)
{
    uint8_t *is_directory = exactly(e->nodes), *names = exactly(e->name_offsets[e->entries]);
    uint32_t *rank = exactly(e->nodes * 4), *entry_nodes = exactly(e->entries * 4);
    uint32_t *name_offsets = exactly((e->entries + 1) * 4);
    const char *why = NULL;
    uint64_t where = 0;

    for (uint64_t i = 0; i < e->nodes; i++)
        is_directory[i] = S_ISDIR(e->mode[i]);
    int status = fffs_tree_order(e->entries, e->nodes, e->parent, e->node, e->name_offsets, e->names, is_directory,
                                 rank, entry_nodes, name_offsets, names);
    CHECK(status == 0 || status == -EINVAL || status == -ELOOP);
    if (status == 0) {
        int64_t *mtime = exactly(e->nodes * 8);
        uint32_t *nlink = exactly(e->nodes * 4), *ref = exactly(e->nodes * 4), *count = exactly(e->nodes * 4);
        uint32_t *parent = exactly(e->nodes * 4);
        uint16_t *mode = exactly(e->nodes * 2);

        for (uint64_t i = 0; i < e->nodes; i++)
            CHECK(rank[i] < e->nodes);
        for (uint64_t i = 0; i < e->entries; i++)
            CHECK(entry_nodes[i] < e->nodes);
        CHECK(rank[0] == 0 && name_offsets[e->entries] == e->name_offsets[e->entries]);
        fill_columns(e, rank, entry_nodes, mtime, nlink, ref, count, parent, mode);
        fffs_tree tree = {mtime, nlink, ref, count, parent, mode, name_offsets, entry_nodes, names, e->targets,
                          e->nodes, e->entries, e->name_offsets[e->entries], e->targets_size};
        status = fffs_tree_validate(&tree, records, &why, &where);
        CHECK(status == 0 || (status == -EINVAL && why && *why));
        if (status == 0) {
            walk_tree(&tree, records);
            follow_tree(&tree, e->targets, e->targets_size);
        }
        void *arrays[] = {mtime, nlink, ref, count, parent, mode};
        for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
            free(arrays[i]);
    }
    if (compare)
        CHECK((status == 0) == is_tree(e, records));
    void *arrays[] = {is_directory, names, rank, entry_nodes, name_offsets};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
}

#endif

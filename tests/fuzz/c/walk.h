/* A tree that fffs_tree_validate has passed, seen by someone who trusts nothing: all of it is walked and looked up. */
#ifndef WALK_H
#define WALK_H

#include <errno.h>
#include <sys/stat.h>

#include "check.h"

/* Lookups of absent names are compared with a search through the whole directory, up to this many entries. */
enum { PROBED = 32 };

static inline int is_name(const uint8_t *name, size_t length)
{
    if (length == 0 || length > FFFS_NAME_MAX || memchr(name, '/', length) || memchr(name, 0, length))
        return 0;
    return !(length == 1 && name[0] == '.') && !(length == 2 && name[0] == '.' && name[1] == '.');
}

static inline const uint8_t *name_of(const fffs_tree *t, uint64_t entry)
{
    return t->names + t->name_offsets[entry];
}

static inline size_t length_of(const fffs_tree *t, uint64_t entry)
{
    CHECK(entry < t->entries && t->name_offsets[entry + 1] >= t->name_offsets[entry]);
    CHECK(t->name_offsets[entry + 1] <= t->names_size);
    return t->name_offsets[entry + 1] - t->name_offsets[entry];
}

static inline int comes_before(const uint8_t *a, size_t length_a, const uint8_t *b, size_t length_b)
{
    int order = memcmp(a, b, length_a < length_b ? length_a : length_b);

    return order < 0 || (order == 0 && length_a < length_b);
}

/* Looks up a name that may or may not be there: the answer must be that of a search through the directory. */
static inline void probe(const fffs_tree *t, uint32_t directory, const uint8_t *name, size_t length)
{
    uint32_t found = UINT32_MAX, expected = UINT32_MAX;
    int status = fffs_tree_lookup(t, directory, name, length, &found);

    for (uint64_t i = t->ref[directory]; i < (uint64_t)t->ref[directory] + t->count[directory]; i++)
        if (length_of(t, i) == length && memcmp(name_of(t, i), name, length) == 0)
            expected = t->entry_nodes[i];
    CHECK(status == (expected == UINT32_MAX ? -ENOENT : 0) && found == expected);
}

static inline void probe_around(const fffs_tree *t, uint32_t directory, uint64_t entry)
{
    size_t length = length_of(t, entry);
    uint8_t *name = exactly(length + 1);

    memcpy(name, name_of(t, entry), length);
    for (int change = -1; change <= 1; change++) {
        name[length - 1] = (uint8_t)(name_of(t, entry)[length - 1] + change);
        probe(t, directory, name, length - 1);
        probe(t, directory, name, length);
        probe(t, directory, name, length + 1); /* with a NUL */
    }
    free(name);
}

struct walk {
    uint32_t *queue;  /* [nodes] directories in the order they are met */
    uint32_t *prefix; /* [nodes] length of a directory's path with the '/' after it */
    uint32_t *seen;   /* [nodes] how many names lead there */
    uint64_t queued;
};

static inline void walk_entry(const fffs_tree *t, struct walk *w, uint32_t directory, uint64_t entry, uint32_t *subdirectories)
{
    size_t length = length_of(t, entry);
    uint32_t child = t->entry_nodes[entry], found = UINT32_MAX;

    CHECK(child < t->nodes && is_name(name_of(t, entry), length));
    CHECK(w->prefix[directory] + length <= FFFS_PATH_MAX);
    if (entry > t->ref[directory])
        CHECK(comes_before(name_of(t, entry - 1), length_of(t, entry - 1), name_of(t, entry), length));
    CHECK(fffs_tree_lookup(t, directory, name_of(t, entry), length, &found) == 0 && found == child);
    w->seen[child]++;
    if (!S_ISDIR(t->mode[child]))
        return;
    CHECK(w->seen[child] == 1 && child > directory && t->parent[child] == directory);
    w->prefix[child] = w->prefix[directory] + (uint32_t)length + 1;
    w->queue[w->queued++] = child;
    ++*subdirectories;
}

static inline void walk_directory(const fffs_tree *t, struct walk *w, uint32_t directory)
{
    uint64_t first = t->ref[directory], end = first + t->count[directory];
    uint32_t subdirectories = 0;

    CHECK(end <= t->entries);
    for (uint64_t entry = first; entry < end; entry++)
        walk_entry(t, w, directory, entry, &subdirectories);
    CHECK(t->nlink[directory] == 2 + subdirectories);
    for (uint64_t entry = first; entry < end && end - first <= PROBED; entry++)
        probe_around(t, directory, entry);
    probe(t, directory, (const uint8_t *)"", 0);
}

static inline void walk_node(const fffs_tree *t, const struct walk *w, uint64_t node, uint64_t records)
{
    uint32_t found;

    if (S_ISDIR(t->mode[node])) {
        CHECK(w->seen[node] == (node != 0));
        return;
    }
    CHECK(w->seen[node] > 0 && t->nlink[node] == w->seen[node]);
    CHECK(fffs_tree_lookup(t, (uint32_t)node, (const uint8_t *)"a", 1, &found) == -ENOTDIR);
    if (S_ISREG(t->mode[node])) {
        CHECK(t->ref[node] < records);
        return;
    }
    CHECK(S_ISLNK(t->mode[node]) && t->count[node] >= 1 && t->count[node] <= FFFS_TARGET_MAX);
    CHECK((uint64_t)t->ref[node] + t->count[node] <= t->targets_size);
    CHECK(!memchr(t->targets + t->ref[node], 0, t->count[node]));
}

/* Ends the process unless everything that a reader of a valid tree relies on holds. */
static inline void walk_tree(const fffs_tree *t, uint64_t records)
{
    struct walk w = {exactly(t->nodes * 4), exactly(t->nodes * 4), exactly(t->nodes * 4), 1};
    uint64_t entries = 0;
    uint32_t found;

    for (uint64_t k = 0; k < w.queued; k++) {
        walk_directory(t, &w, w.queue[k]);
        entries += t->count[w.queue[k]];
    }
    CHECK(entries == t->entries);
    for (uint64_t node = 0; node < t->nodes; node++)
        walk_node(t, &w, node, records);
    CHECK(fffs_tree_lookup(t, (uint32_t)t->nodes, (const uint8_t *)"a", 1, &found) == -ENOTDIR);
    free(w.queue);
    free(w.prefix);
    free(w.seen);
}

#endif

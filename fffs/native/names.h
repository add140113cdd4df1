/* The table of names in an archive (names_table.c), for names.c. Used by one thread at a time. */
#ifndef FFFS_NAMES_H
#define FFFS_NAMES_H

#include "fffs.h"

struct fffs_names {
    fffs_names_columns columns; /* its arrays are owned */
    size_t entries_room, names_room, targets_room;
    uint32_t *slots;    /* owned: a hash table with open addressing, of entry + 1; 0: free */
    size_t slots_count; /* a power of two, more than the entries */
    uint64_t key;
    bool stripped; /* a slash at the beginning of a name was noted */
};

/* One name in a path. */
struct fffs_part {
    const uint8_t *name;
    uint32_t size;
};

/* Adds a note without special text about a path, and returns it. There must be room. */
fffs_note *fffs_names_note(fffs_names *names, int kind, const uint8_t *path, size_t size);

/* Counts memory for a name or a target. Returns 0, or -EINVAL with a note. */
int fffs_names_count(fffs_names *names, size_t size);

/* Returns the entry + 1 of a name in a folder, or 0. */
uint32_t fffs_names_find(const fffs_names *names, uint32_t parent, struct fffs_part part);

/* Appends an entry without content, which replaces an existing one of its name. Returns 0; -EINVAL with a note; or
 * -ENOMEM. */
int fffs_names_append(fffs_names *names, uint32_t parent, struct fffs_part part, uint32_t *entry);

#endif

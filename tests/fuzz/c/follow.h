/* Paths through a valid tree, followed by fffs_tree_follow and by the words of contract.h, slowly: both must agree. */
#ifndef FOLLOW_H
#define FOLLOW_H

#include "walk.h"

/* Paths to so many of a tree's entries are followed. */
enum { FOLLOWED = 48 };

struct pace {
    unsigned links, steps;
};

static inline uint32_t search(const fffs_tree *t, uint32_t directory, const uint8_t *name, size_t length)
{
    if (S_ISDIR(t->mode[directory]))
        for (uint64_t i = t->ref[directory]; i < (uint64_t)t->ref[directory] + t->count[directory]; i++)
            if (length_of(t, i) == length && memcmp(name_of(t, i), name, length) == 0)
                return t->entry_nodes[i];
    return UINT32_MAX;
}

static inline int follow_slowly(const fffs_tree *t, uint32_t *at, const uint8_t *path, size_t length, int in_link,
                                struct pace *pace);

static inline int follow_part(const fffs_tree *t, uint32_t *at, const uint8_t *part, size_t length, int in_link,
                              struct pace *pace)
{
    if (++pace->steps > FFFS_STEPS_MAX)
        return -ELOOP;
    if (length == 0 || (length == 1 && part[0] == '.'))
        return 0;
    if (length == 2 && part[0] == '.' && part[1] == '.') {
        if (!in_link || *at == 0 || !S_ISDIR(t->mode[*at]))
            return -ENOENT;
        *at = t->parent[*at];
        return 0;
    }
    uint32_t node = search(t, *at, part, length);
    if (node == UINT32_MAX)
        return -ENOENT;
    if (!S_ISLNK(t->mode[node])) {
        *at = node;
        return 0;
    }
    const uint8_t *target = t->targets + t->ref[node];
    if (target[0] == '/')
        return -ENOENT;
    if (++pace->links > FFFS_LINKS_MAX)
        return -ELOOP;
    return follow_slowly(t, at, target, t->count[node], 1, pace);
}

static inline int follow_slowly(const fffs_tree *t, uint32_t *at, const uint8_t *path, size_t length, int in_link,
                                struct pace *pace)
{
    size_t start = 0;
    int status = 0;

    for (size_t i = 0; !status && i <= length; i++) {
        if (i < length && path[i] != '/')
            continue;
        status = follow_part(t, at, path + start, i - start, in_link, pace);
        start = i + 1;
    }
    return status;
}

/* The path in memory of exactly its length. A file's ".." needs to know where it was come from: left to the real one. */
static inline void check_follow(const fffs_tree *t, const uint8_t *path, size_t length)
{
    uint8_t *part = exactly(length);
    uint32_t found = UINT32_MAX, expected = 0;
    struct pace pace = {0, 0};

    memcpy(part, path, length);
    int status = fffs_tree_follow(t, part, length, &found);
    int model = length && path[0] == '/' ? -ENOENT : follow_slowly(t, &expected, path, length, 0, &pace);
    CHECK(status == model);
    CHECK(status ? found == UINT32_MAX : found == expected && found < t->nodes && !S_ISLNK(t->mode[found]));
    free(part);
}

/* The path of an entry, ending where the buffer does; NULL: the tree has no such short one. */
static inline uint8_t *path_of(const fffs_tree *t, uint64_t entry, uint8_t *buffer, size_t room)
{
    uint8_t *at = buffer + room;

    for (;;) {
        size_t length = length_of(t, entry);
        uint32_t directory = 0;
        uint64_t above = 0;

        CHECK((size_t)(at - buffer) >= length + 1);
        at -= length;
        memcpy(at, name_of(t, entry), length);
        while (!S_ISDIR(t->mode[directory]) || entry < t->ref[directory] ||
               entry >= (uint64_t)t->ref[directory] + t->count[directory])
            CHECK(++directory < t->nodes);
        if (directory == 0)
            return at;
        *--at = '/';
        while (t->entry_nodes[above] != directory)
            CHECK(++above < t->entries);
        entry = above;
    }
}

/* Ends the process unless paths lead where they must: those of the first entries, all links from the root, and one more. */
static inline void follow_tree(const fffs_tree *t, const uint8_t *path, size_t length)
{
    static uint8_t buffer[FFFS_PATH_MAX + 2 + 8];
    const size_t room = FFFS_PATH_MAX + 2;

    check_follow(t, path, length);
    for (uint64_t i = 0; i < t->entries && i < FOLLOWED; i++) {
        uint8_t *at = path_of(t, i, buffer, room);
        size_t size = (size_t)(buffer + room - at);

        check_follow(t, at, size);
        memcpy(buffer + room, "/..//./a", 8);
        for (size_t more = 1; more <= 8; more++)
            check_follow(t, at, size + more);
    }
    for (uint64_t node = 0; node < t->nodes && node < FOLLOWED; node++)
        if (S_ISLNK(t->mode[node]))
            check_follow(t, t->targets + t->ref[node], t->count[node]);
}

#endif

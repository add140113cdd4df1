/* Detects that a file changes while it is open (watch.c); for store.c. */
#ifndef FFFS_WATCH_H
#define FFFS_WATCH_H

#include "fffs.h"

#include <stdatomic.h>

/* One open file. The caller owns the descriptor. */
struct fffs_watch {
    int fd;
    _Atomic uint32_t generation; /* incremented when a change is noticed; begins with 1 */
    _Atomic int64_t rests_from;  /* from when on it is resting, on watch.c's clock */
    _Atomic int64_t seen[5];     /* size and times in this generation */
};

/* The state of a file at a moment: (generation << 1), and 1 if it is resting. Never 0. */
typedef uint32_t fffs_mark;

/* Begins to watch an open file. keeps_times: as in fffs_file. Returns 0 with the current *size, or -errno. */
int fffs_watch_init(struct fffs_watch *watch, int fd, bool keeps_times, int64_t *size);

/* Returns the current mark. It must be taken before the data that it is for is read. Thread-safe. */
fffs_mark fffs_watch_mark(struct fffs_watch *watch);

/* Checks that the file has not changed since the mark was taken: 0; -ESTALE; or -errno of fstat. Thread-safe. */
int fffs_watch_look(struct fffs_watch *watch, fffs_mark mark);

/* Whether data that was read and checked under a mark may be read again without a check. */
static inline bool fffs_mark_rests(fffs_mark mark)
{
    return mark & 1;
}

/* Whether both marks are of one generation of the file. */
static inline bool fffs_mark_agrees(fffs_mark mark, fffs_mark other)
{
    return mark >> 1 == other >> 1;
}

#endif

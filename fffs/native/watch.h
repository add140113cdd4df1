/* Noticing that a file changes while it is open (watch.c); for store.c. */
#ifndef FFFS_WATCH_H
#define FFFS_WATCH_H

#include "fffs.h"

#include <stdatomic.h>

/* One open file. Owns nothing: the descriptor is the caller's. */
struct fffs_watch {
    int fd;
    _Atomic uint32_t generation; /* goes up by one whenever a change is noticed; begins with 1 */
    _Atomic int64_t rests_from;  /* since when its times are believed, on watch.c's clock */
    _Atomic int64_t seen[5];     /* what fstat showed in this generation */
};

/* What is known about a moment: (generation << 1), and 1 if the file rests. Never 0. */
typedef uint32_t fffs_mark;

/* Begins to watch an open file. keeps_times: as in fffs_file. 0, with *size as it is now, or -errno. */
int fffs_watch_init(struct fffs_watch *watch, int fd, bool keeps_times, int64_t *size);

/* The mark of now. To be taken before what it is to stand for is read. Any thread. */
fffs_mark fffs_watch_mark(struct fffs_watch *watch);

/* Whether the file has not changed since the mark was taken: 0; -ESTALE; or -errno of fstat. Any thread. */
int fffs_watch_look(struct fffs_watch *watch, fffs_mark mark);

/* Whether what was read and checked under a mark may be read again without a check. */
static inline bool fffs_mark_rests(fffs_mark mark)
{
    return mark & 1;
}

/* Whether both are of one generation of the file. */
static inline bool fffs_mark_agrees(fffs_mark mark, fffs_mark other)
{
    return mark >> 1 == other >> 1;
}

#endif

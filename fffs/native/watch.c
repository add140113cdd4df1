/* Detects that a file changes while it is open.
 *
 * A file has a generation, which is incremented whenever fstat shows another size or time than before. (ctime is
 * included because mtime can be set back.) The kernel sets the times before it changes data, so bytes that were read
 * before an fstat that shows the old times are old bytes.
 *
 * The reverse does not hold: while a process writes, unchanged times do not prove unchanged data. The times are set
 * when a write(2) begins, and not again until it ends; or when a page of a shared mapping is first written to, and not
 * again until it was written back, which takes half a minute. Their granularity is 10 ms on most file systems and 2 s
 * on some. So times are believed only after they have been the same for a while: the file is resting. Until then every
 * read is checked.
 *
 * On a file system that another machine or program serves, fstat answers from a cache of unknown age. On tmpfs a write
 * through a mapping never sets a time. Files there are never resting. */
#include "watch.h"
#include "fault.h"
#include "fork.h"
#include "object_cache.h"
#include "objects.h"
#include "remote.h"

#include <pthread.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>

/* Seconds from its last change until a file is resting: longer than dirty pages wait to be written back, see above. */
#define REST 60

/* Instead of a time: the file is never resting. */
#define NEVER INT64_MAX

#define SECOND 1000000000LL

/* Held during moves to a new generation. Under it there is no allocation, no other lock and no system call but reading
 * the clock. A forked child inherits it unlocked: see fork.c. */
static pthread_mutex_t moves = PTHREAD_MUTEX_INITIALIZER;

void fffs_watch_before_fork(void)
{
    pthread_mutex_lock(&moves);
}

void fffs_watch_after_fork(bool child)
{
    (void)child; /* no move is in progress: see above */
    pthread_mutex_unlock(&moves);
}

static int64_t nanoseconds(struct timespec time)
{
    return time.tv_sec * SECOND + time.tv_nsec;
}

/* Monotonic, in nanoseconds. The coarse clock is cheap enough for each read, and seconds are all that matters. */
static int64_t now(void)
{
    struct timespec time;
    int32_t ahead = 0;

    clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    fffs_fault(FFFS_FAULT_CLOCK, &ahead);
    return nanoseconds(time) + ahead * SECOND;
}

static int look(int fd, int64_t seen[5])
{
    struct stat found;

    if (fffs_is_remote(fd)) { /* one version of an object: its bytes never change, but its cache may be damaged */
        struct fffs_object_cache *cache = fffs_object_cache_at(FFFS_OBJECT_FD - fd);

        seen[0] = fffs_object_size(FFFS_OBJECT_FD - fd);
        seen[1] = cache ? (int64_t)fffs_object_cache_drops(cache) : 0;
        return seen[0] < 0 ? -EBADF : 0;
    }
    if (fstat(fd, &found) != 0)
        return -errno;
    seen[0] = found.st_size;
    seen[1] = found.st_mtim.tv_sec;
    seen[2] = found.st_mtim.tv_nsec;
    seen[3] = found.st_ctim.tv_sec;
    seen[4] = found.st_ctim.tv_nsec;
    return 0;
}

int fffs_unchanged(int fd, const fffs_stamp *stamp)
{
    struct stat now;

    if (fffs_is_remote(fd))
        return 0;
    if (fstat(fd, &now))
        return -errno;
    if (stamp->inode && (now.st_ino != stamp->inode || now.st_dev != stamp->device))
        return -ESTALE;
    return now.st_size == stamp->size && now.st_mtim.tv_sec == stamp->mtime &&
                   now.st_mtim.tv_nsec == stamp->mtime_nanoseconds
               ? 0
               : -ESTALE;
}

static bool same(struct fffs_watch *watch, const int64_t seen[5])
{
    for (int i = 0; i < 5; i++)
        if (atomic_load(&watch->seen[i]) != seen[i])
            return false;
    return true;
}

int64_t fffs_file_system(int fd)
{
    struct statfs system;
    int32_t result;

    if (fffs_fault(FFFS_FAULT_FILE_SYSTEM, &result))
        return result;
    /* 32 bits, in a signed type on some systems. */
    return fstatfs(fd, &system) != 0 ? -errno : (int64_t)(uint32_t)system.f_type;
}

/* A clock that was set forward makes files old: only a change within that time before a file is opened goes
 * unnoticed. */
static int64_t first_rest(bool keeps_times, const int64_t seen[5])
{
    struct timespec wall;
    int32_t ahead = 0;
    int64_t age;

    if (!keeps_times)
        return NEVER;
    clock_gettime(CLOCK_REALTIME, &wall);
    fffs_fault(FFFS_FAULT_CLOCK, &ahead);
    age = nanoseconds(wall) + ahead * SECOND - (seen[3] * SECOND + seen[4]);
    return age > REST * SECOND ? 0 : now() + REST * SECOND;
}

int fffs_watch_init(struct fffs_watch *watch, int fd, bool keeps_times, int64_t *size)
{
    int64_t seen[5] = {0};
    int status = look(fd, seen);

    if (status)
        return status;
    watch->fd = fd;
    atomic_init(&watch->generation, 1);
    atomic_init(&watch->rests_from, first_rest(keeps_times, seen));
    for (int i = 0; i < 5; i++)
        atomic_init(&watch->seen[i], seen[i]);
    *size = seen[0];
    return 0;
}

fffs_mark fffs_watch_mark(struct fffs_watch *watch)
{
    uint32_t generation = atomic_load(&watch->generation);
    int64_t rests_from = atomic_load(&watch->rests_from);

    return generation << 1 | (rests_from == 0 || (rests_from != NEVER && now() >= rests_from));
}

/* A move stores first rests_from, then the generation, then seen. So a thread that finds the new generation does not
 * believe it at once, and a thread that finds the new values in seen also finds the new generation. */
int fffs_watch_look(struct fffs_watch *watch, fffs_mark mark)
{
    int64_t seen[5] = {0};
    int status = look(watch->fd, seen);

    if (status)
        return status;
    if (!same(watch, seen)) {
        pthread_mutex_lock(&moves);
        if (!same(watch, seen)) {
            if (atomic_load(&watch->rests_from) != NEVER)
                atomic_store(&watch->rests_from, now() + REST * SECOND);
            atomic_fetch_add(&watch->generation, 1);
            for (int i = 0; i < 5; i++)
                atomic_store(&watch->seen[i], seen[i]);
        }
        pthread_mutex_unlock(&moves);
    }
    return fffs_mark_agrees(mark, atomic_load(&watch->generation) << 1) ? 0 : -ESTALE;
}

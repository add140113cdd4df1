/* Noticing that a file changes while it is open.
 *
 * A file has a generation, which goes up whenever fstat shows a size or time other than before. (ctime is among them
 * because mtime can be set back.) The kernel sets the times before it changes data, so bytes read before a look that
 * shows the old times are old bytes.
 *
 * The reverse does not hold: that the times stay does not mean that the data does, once somebody is writing. The
 * times are set when a write(2) begins, and not again until it ends; or when a page of a shared mapping is written to
 * for the first time, and not again until it has been written back, which takes half a minute; and they have a
 * granularity, of 10 ms on most file systems and 2 s on some. So times are believed only after they have been the
 * same for a while: the file rests. Until then whoever reads has to check what he reads each time.
 *
 * On a file system that another machine or another program serves, fstat answers from a cache, for as long as that
 * likes. On tmpfs a write through a mapping sets no time at all, ever. Files there never rest. */
#include "watch.h"
#include "fault.h"
#include "fork.h"

#include <pthread.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>

/* How many seconds after its last change a file rests: longer than a dirty page waits to be written back, see above. */
#define REST 60

/* Instead of a time: the file never rests. */
#define NEVER INT64_MAX

#define SECOND 1000000000LL

/* Held for moves to a new generation. No allocation, no other lock and no system call happens under it but reading
 * the clock, and a child of fork inherits it free: see fork.c. */
static pthread_mutex_t moves = PTHREAD_MUTEX_INITIALIZER;

void fffs_watch_before_fork(void)
{
    pthread_mutex_lock(&moves);
}

void fffs_watch_after_fork(bool child)
{
    (void)child; /* a move is over or has not begun: see above */
    pthread_mutex_unlock(&moves);
}

static int64_t nanoseconds(struct timespec time)
{
    return time.tv_sec * SECOND + time.tv_nsec;
}

/* Steady, in nanoseconds. Coarse: this is asked for each read, and seconds are all that matters. */
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

    if (fstat(fd, &now))
        return -errno;
    if (stamp->least >= 0 && now.st_size >= stamp->least)
        return 0;
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
    /* 32 bits, though some systems have them in a type with a sign. */
    return fstatfs(fd, &system) != 0 ? -errno : (int64_t)(uint32_t)system.f_type;
}

/* A clock that was set back makes files old: then only a change within that time before we open a file goes
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

/* A move stores first when the file rests, then the generation, then what was seen. So who finds the new generation
 * does not believe it at once, and who finds the new values as what was seen also finds the new generation. */
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

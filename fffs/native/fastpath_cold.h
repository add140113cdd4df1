/* Reads that must wait for a disk (fastpath_cold.c): queued, and handed out so that one file's disk, which may not
 * answer, leaves threads for the others. */
#ifndef FFFS_FASTPATH_COLD_H
#define FFFS_FASTPATH_COLD_H

#include "fffs.h"

#include <linux/fuse.h>
#include <pthread.h>

struct fffs_cold_read {
    struct fffs_cold_read *next;
    struct fffs_cold_lane *lane;
    int64_t began; /* on fffs_now's clock */
    size_t length;
    uint8_t message[sizeof(struct fuse_in_header) + sizeof(struct fuse_read_in)];
};

struct fffs_cold_queue {
    struct fffs_cold_read *first, **last;
};

/* The reads of one source file. */
struct fffs_cold_lane {
    int busy;                       /* those that are ready or being done: FFFS_FAST_LANE at most */
    struct fffs_cold_queue backlog; /* the others */
};

struct fffs_cold {
    size_t files;
    struct fffs_cold_lane *lanes; /* ours; one per file */
    int limit;                    /* threads there may be */
    /* Starts thread number so many, from 0. True: it runs. Called with the mutex held. */
    bool (*start)(void *owner, int number);
    void *owner;
    pthread_mutex_t mutex; /* guards the rest, and the lanes */
    pthread_cond_t more;
    struct fffs_cold_queue ready;
    int ready_count, waiting; /* reads in ready, and in it and all backlogs */
    int started, idle;        /* threads */
    bool ending;
};

/* For reads of so many files, done by at most limit threads. 0 or -ENOMEM; to be closed in either case. */
int fffs_cold_open(struct fffs_cold *cold, size_t files, int limit, bool (*start)(void *owner, int number),
                   void *owner);

/* Frees all reads that nobody did. No thread may be running. */
void fffs_cold_close(struct fffs_cold *cold);

/* Queues a read of a file, and starts another thread when there are more reads than idle threads. The message is
 * copied. 0; -ENOMEM: it is not queued; -EAGAIN: it is, but there is no thread. Any thread. */
int fffs_cold_put(struct fffs_cold *cold, size_t file, const uint8_t *message, size_t length, int64_t began);

/* The next read, the caller's until fffs_cold_done. NULL: there is none; with wait only after fffs_cold_end. */
struct fffs_cold_read *fffs_cold_next(struct fffs_cold *cold, bool wait);

/* Frees a read that was done; the next of its file takes its place. */
void fffs_cold_done(struct fffs_cold *cold, struct fffs_cold_read *read);

/* From now on nobody waits for a read. Any thread. */
void fffs_cold_end(struct fffs_cold *cold);

/* How many threads were started, and how many reads nobody has begun. Any thread. */
void fffs_cold_usage(struct fffs_cold *cold, int *started, int *waiting);

#endif

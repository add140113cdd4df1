/* Reads that must wait for a disk (fastpath_cold.c): queued, with a limit for each disk, so that one that does not
 * answer leaves threads for others. */
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

/* The reads of the files on one disk. */
struct fffs_cold_lane {
    int busy;                       /* reads that are ready or in progress: at most FFFS_FAST_LANE */
    struct fffs_cold_queue backlog; /* further reads */
};

struct fffs_cold {
    size_t count;
    struct fffs_cold_lane *lanes; /* [count], owned */
    int limit;                    /* the most threads */
    /* Starts a thread; the first number is 0. Returns whether it runs. Called with the mutex held. */
    bool (*start)(void *owner, int number);
    void *owner;
    pthread_mutex_t mutex; /* guards the members below, and the lanes */
    pthread_cond_t more;
    struct fffs_cold_queue ready;
    int ready_count, waiting; /* reads in ready; reads in ready and all backlogs */
    int started, idle;        /* threads */
    bool ending;
};

/* For reads in this many lanes by at most limit threads. Returns 0 or -ENOMEM; call fffs_cold_close in either case. */
int fffs_cold_open(struct fffs_cold *cold, size_t count, int limit, bool (*start)(void *owner, int number),
                   void *owner);

/* Frees everything, including reads that were not done. No thread may be running. */
void fffs_cold_close(struct fffs_cold *cold);

/* Queues a read in the lane of this number, and starts another thread if there are more reads than idle threads. Copies
 * the message. Returns 0; -ENOMEM: it is not queued; -EAGAIN: it is queued, but there is no thread. Thread-safe. */
int fffs_cold_put(struct fffs_cold *cold, size_t number, const uint8_t *message, size_t length, int64_t began);

/* Returns the next read, which the caller owns until fffs_cold_done; or NULL if none is ready. With wait, waits for
 * one until fffs_cold_end. Thread-safe. */
struct fffs_cold_read *fffs_cold_next(struct fffs_cold *cold, bool wait);

/* Frees a read that was done; the next one of its lane becomes ready. Thread-safe. */
void fffs_cold_done(struct fffs_cold *cold, struct fffs_cold_read *read);

/* Ends all waiting for reads, now and later. Thread-safe. */
void fffs_cold_end(struct fffs_cold *cold);

/* Returns how many threads were started, and how many reads are queued. Thread-safe. */
void fffs_cold_usage(struct fffs_cold *cold, int *started, int *waiting);

#endif

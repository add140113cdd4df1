/* What a fast path consists of: for fastpath.c, which makes and ends it, and fastpath_workers.c, whose threads run it. */
#ifndef FFFS_FASTPATH_H
#define FFFS_FASTPATH_H

#include "fastpath_answers.h"
#include "fastpath_cold.h"
#include "fastpath_counters.h"
#include "fastpath_events.h"
#include "fastpath_init.h"
#include "fastpath_kernel.h"

#include <pthread.h>

/* A thread. */
struct fffs_worker {
    struct fffs_fastpath *path;
    pthread_t thread;
    struct fffs_counters counters;
    uint8_t *message, *reply; /* pooled buffers, or NULL */
    _Atomic bool running;
};

struct fffs_fastpath {
    struct fffs_fast_view view;
    struct fffs_kernel kernel;
    struct fffs_init init;
    struct fffs_events events;
    struct fffs_cold cold;
    struct fffs_worker *workers; /* ours: the relay, then hot ones, then cold ones */
    int relays, hot;             /* how many of them were started; cold knows how many of its */
    _Atomic bool stopping;
    pthread_mutex_t starting; /* held until all are there who read messages */
};

/* Starts the relay and as many hot threads as there may be, at least one. 0 or -errno, and then no message has been
 * read; threads may be running all the same, and are told to stop. */
int fffs_workers_start(struct fffs_fastpath *path);

/* The same for a cold one, for struct fffs_cold: owner is the fast path. */
bool fffs_workers_start_cold(void *owner, int number);

/* Ends those that run; false when some still do after so many seconds. */
bool fffs_workers_end(struct fffs_fastpath *path, double seconds);

/* How many were started, of all kinds. */
int fffs_workers_count(struct fffs_fastpath *path);

#endif

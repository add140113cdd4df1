/* The structure of a fast path: fastpath.c makes and ends it, the threads of fastpath_workers.c run it. */
#ifndef FFFS_FASTPATH_H
#define FFFS_FASTPATH_H

#include "fastpath_answers.h"
#include "fastpath_cold.h"
#include "fastpath_counters.h"
#include "fastpath_events.h"
#include "fastpath_init.h"
#include "fastpath_kernel.h"

#include <pthread.h>

/* A thread of a fast path. */
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
    struct fffs_worker *workers; /* owned: the relay, then hot ones, then cold ones */
    int relays, hot;             /* threads started; cold counts its own */
    _Atomic bool stopping;
    pthread_mutex_t starting; /* held until all threads that read messages are started */
};

/* Starts the relay and all hot threads that the system allows, at least one. Returns 0; or -errno, and then no message
 * has been read; threads may be running, but are told to stop. */
int fffs_workers_start(struct fffs_fastpath *path);

/* Starts a cold thread, for struct fffs_cold: owner is the fast path. Returns whether it runs. */
bool fffs_workers_start_cold(void *owner, int number);

/* Ends the threads. Returns false if some still run after this many seconds. */
bool fffs_workers_end(struct fffs_fastpath *path, double seconds);

/* Returns the number of threads started, of all kinds. */
int fffs_workers_count(struct fffs_fastpath *path);

#endif

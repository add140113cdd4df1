/* Helper threads (threads.c): one pool per process. How many there may be is set by functions of contract.h. */
#ifndef FFFS_THREADS_H
#define FFFS_THREADS_H

#include "fffs.h"

#include <stdatomic.h>

/* What helpers are wanted for; each kind has a limit of its own on how many threads may work at it in a process. */
enum { FFFS_HOT = 0, FFFS_COLD = 1 };

/* Work that any number of threads may share. On its caller's stack. */
struct fffs_job {
    void (*run)(void *work); /* called at most once by each helper that joins; returns when no work is left */
    void *work;              /* the caller's */
    struct fffs_job *next;
    int kind, reserved, wanted; /* under the pool's lock */
    _Atomic int active;         /* helpers inside run */
};

/* Publishes a job and wakes up to that many helpers, fewer where there are no more, or none. Never waits. Any thread;
 * the same thread must retire the job. */
void fffs_job_offer(struct fffs_job *job, int kind, void (*run)(void *work), void *work, int helpers);

/* Withdraws the job, and waits for the helpers that had joined. Afterwards nobody looks at it. */
void fffs_job_retire(struct fffs_job *job);

/* The limit for FFFS_HOT (caller included) is fffs_engine_set_threads; this is helpers for FFFS_COLD. */
enum { FFFS_COLD_HELPERS = 31 };

/* Says that a job for up to so many helpers, at least one, follows at once: those that sleep wake up meanwhile. Only a
 * hint; nothing has to follow. Any thread. */
void fffs_threads_expect(int helpers);

/* Helper threads alive. Any thread. */
int fffs_threads_alive(void);

#endif

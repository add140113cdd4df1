/* Helper threads (threads.c): one pool per process. Functions of contract.h limit their number. */
#ifndef FFFS_THREADS_H
#define FFFS_THREADS_H

#include "fffs.h"

#include <stdatomic.h>

/* Starts a detached thread that gets no signals. Returns false if the system refuses it. Thread-safe. */
bool fffs_thread_start(void *(*run)(void *unused));

/* Kinds of jobs. Each kind has its own limit of threads in a process. */
enum { FFFS_HOT = 0, FFFS_COLD = 1 };

/* Work that any number of threads may share. Lives on its caller's stack. */
struct fffs_job {
    void (*run)(void *work); /* called at most once by each helper that joins; returns when no work is left */
    void *work;              /* owned by the caller */
    struct fffs_job *next;
    int kind, reserved, wanted; /* under the pool's lock */
    _Atomic int active;         /* helpers inside run */
};

/* Publishes a job and wakes at most this many helpers, fewer or none if there are no more. Never waits. Thread-safe;
 * the same thread must retire the job. */
void fffs_job_offer(struct fffs_job *job, int kind, void (*run)(void *work), void *work, int helpers);

/* Withdraws the job, and waits for the helpers that joined it. Afterwards no thread uses it. */
void fffs_job_retire(struct fffs_job *job);

/* The limit of helpers for FFFS_COLD. fffs_engine_set_threads sets that for FFFS_HOT, caller included. */
enum { FFFS_COLD_HELPERS = 31 };

/* Announces a job for up to this many helpers, at least one, so that sleeping ones wake up meanwhile. Only a hint: no
 * job has to follow. Thread-safe. */
void fffs_threads_expect(int helpers);

/* Returns the number of helper threads. Thread-safe. */
int fffs_threads_alive(void);

#endif

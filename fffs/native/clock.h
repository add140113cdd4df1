/* The clock that durations are measured with. */
#ifndef FFFS_CLOCK_H
#define FFFS_CLOCK_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

/* Nanoseconds. */
#define FFFS_SECOND INT64_C(1000000000)

/* Nanoseconds of a clock that only goes forward. */
static inline int64_t fffs_now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * FFFS_SECOND + time.tv_nsec;
}

/* Makes a condition for fffs_condition_wait. */
static inline void fffs_condition_init(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

/* Waits for a condition, for some milliseconds: also if somebody sets the time of day back meanwhile. */
static inline void fffs_condition_wait(pthread_cond_t *condition, pthread_mutex_t *mutex, int milliseconds)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += milliseconds * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(condition, mutex, &until);
}

#endif

/* The clock that durations are measured with. */
#ifndef FFFS_CLOCK_H
#define FFFS_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Nanoseconds of a clock that only goes forward. */
static inline int64_t fffs_now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

#endif

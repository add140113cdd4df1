/* Whether a transfer stalls: it brings fewer bytes in a second than any line that is of use.
 *
 * libcurl's own limit (CURLOPT_LOW_SPEED_TIME) compares an average of five seconds. A transfer that stalls is noticed that much
 * later, and libcurl does not tell when it was fast last. */
#ifndef FFFS_STALL_H
#define FFFS_STALL_H

#include "clock.h"

/* Bytes per second below which a transfer stalls: 64 of them have more over any line that is of use. */
enum { FFFS_SLOWEST = 256 };

/* The speed of a transfer. Times are nanoseconds on fffs_now's clock. */
struct fffs_speed {
    int64_t begun;
    int64_t fast;   /* when it brought more than FFFS_SLOWEST bytes within a second last; 0: never */
    int64_t second; /* when the second began in which these bytes came */
    int64_t bytes;
};

/* Notes bytes that came. */
static inline void fffs_speed_note(struct fffs_speed *speed, int64_t now, int64_t bytes)
{
    if (now - speed->second >= FFFS_SECOND) {
        speed->second = now;
        speed->bytes = 0;
    }
    speed->bytes += bytes;
    if (speed->bytes > FFFS_SLOWEST)
        speed->fast = now;
}

/* Returns since when it stalls. */
static inline int64_t fffs_speed_stalls_since(const struct fffs_speed *speed)
{
    return speed->fast ? speed->fast : speed->begun;
}

#endif

/* Records of objects that are read before somebody asks for them (remote_ahead.c): see fffs_remote_prefetch. */
#ifndef FFFS_REMOTE_AHEAD_H
#define FFFS_REMOTE_AHEAD_H

#include "fffs.h"

/* Serves requests from records that were prefetched, with the same checksum. Waits for those that are on their way, unless
 * *cancel is set. Moves the requests that it did not serve to the front, and returns their number. Thread-safe. */
size_t fffs_ahead_take(fffs_request **some, size_t count, const int32_t *cancel);

/* Has a range of an object fetched into its cache. Returns at once. Thread-safe. */
void fffs_ahead_fill(int fd, int64_t offset, int64_t length);

/* Drops what was prefetched of an object. No thread reads it afterwards. Thread-safe. */
void fffs_ahead_forget(int32_t number);

#endif

/* Reads of objects, through their caches (remote.c). Requests name an object by its fd: see FFFS_OBJECT_FD. */
#ifndef FFFS_REMOTE_H
#define FFFS_REMOTE_H

#include "fffs.h"

static inline bool fffs_is_remote(int fd)
{
    return fd <= FFFS_OBJECT_FD;
}

/* As fffs_remote_read_batch, without what was prefetched. */
int fffs_remote_read_now(fffs_request *requests, size_t count, const int32_t *cancel);

/* Fetches what is missing of a range into the object's cache. Failures only have the effect that it is missing later. */
void fffs_remote_fill(int fd, int64_t offset, int64_t length, const int32_t *cancel);

/* Whether the cache seems to have a range. Thread-safe. */
bool fffs_remote_is_cached(int fd, int64_t offset, int64_t length);

/* Has the cache forget a range, which turned out to be damaged. Thread-safe. */
void fffs_remote_drop(int fd, int64_t offset, int64_t length);

/* Has all processes verify again what they read of the object's cache, because it was damaged. Thread-safe. */
void fffs_remote_suspect(int fd);

/* Returns the descriptor of the cache if it has a range, without waiting for the network; or -EAGAIN. Counts as a read of the
 * range, which may have the next one fetched. verified, wait: see fffs_object_cache_has. Thread-safe. */
int fffs_remote_hot_fd(int fd, int64_t offset, int64_t length, bool verified, bool wait);

#endif

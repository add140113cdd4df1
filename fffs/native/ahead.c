/* Telling the kernel what will be wanted before it is read. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>

#include "engine.h"

/* Errors are those of the read to come. */
static void announce(int fd, int64_t start, int64_t end)
{
    if (start >= 0 && start < end)
        (void)posix_fadvise(fd, start, end - start, POSIX_FADV_WILLNEED);
}

/* Makes a range that of the blocks it is in: a disk gives blocks of 64 KiB about as often as it gives 8 KiB, so
 * neighbours cost next to nothing. What of a block is in memory is not read again. False: there are no such. */
static bool widen(int64_t block, int64_t *start, int64_t *end)
{
    if (block == 0 || *start < 0 || *end > INT64_MAX - block)
        return false;
    *start -= *start % block;
    *end = (*end - 1) / block * block + block;
    return true;
}

void fffs_prefetch(const fffs_request *requests, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const fffs_request *request = &requests[i];
        int64_t start = request->offset, end;

        if (request->length <= 0 || start > INT64_MAX - request->length)
            continue;
        end = start + request->length;
        (void)widen(request->around, &start, &end);
        announce(request->fd, start, end);
    }
}

void fffs_announce_blocks(fffs_piece *const *pieces, size_t count)
{
    int64_t from = 0, to = 0; /* what was announced last ... */
    int fd = -1;              /* ... of this file */

    for (size_t i = 0; i < count; i++) {
        const fffs_piece *piece = pieces[i];
        int64_t start = piece->offset, end = start + piece->length;

        if (!widen(piece->around, &start, &end))
            continue;
        if (fd != piece->fd || start < from || start > to) {
            fd = piece->fd;
            from = to = start;
        }
        announce(fd, to, end);
        to = end > to ? end : to;
    }
}

/* Telling the kernel what will be wanted before it is read. */
#include <fcntl.h>

#include "ahead.h"

/* What was announced last: from there to there of this file. */
struct announcement {
    int fd;
    int64_t from, to;
};

/* Announces a range, but for what of it was announced just before. Errors are those of the read to come. */
static void announce(struct announcement *last, int fd, int64_t start, int64_t end)
{
    if (start < 0 || start >= end)
        return;
    if (fd != last->fd || start < last->from || start > last->to)
        *last = (struct announcement){fd, start, start};
    if (end <= last->to)
        return;
    (void)posix_fadvise(fd, last->to, end - last->to, POSIX_FADV_WILLNEED);
    last->to = end;
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
    struct announcement last = {-1, 0, 0};

    for (size_t i = 0; i < count; i++) {
        const fffs_request *request = &requests[i];
        int64_t start = request->offset, end;

        if (request->length <= 0 || start > INT64_MAX - request->length)
            continue;
        end = start + request->length;
        (void)widen(request->around, &start, &end);
        announce(&last, request->fd, start, end);
    }
}

void fffs_announce_blocks(struct fffs_piece *const *pieces, size_t count)
{
    struct announcement last = {-1, 0, 0};

    for (size_t i = 0; i < count; i++) {
        const struct fffs_piece *piece = pieces[i];
        int64_t start = piece->offset, end = start + piece->length;

        if (widen(piece->around, &start, &end))
            announce(&last, piece->fd, start, end);
    }
}

/* Announces ranges of files to the kernel before they are read. */
#include <fcntl.h>

#include "ahead.h"

/* The range that was announced last. */
struct announcement {
    int fd;
    int64_t from, to;
};

/* Announces a range, except for what was announced just before. Errors are left to the read that follows. */
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

/* Widens a range to whole blocks: a disk gives blocks of 64 KiB about as often as it gives 8 KiB, so neighbours cost
 * next to nothing. Cached parts of a block are not read again. Returns false if there are no blocks. */
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

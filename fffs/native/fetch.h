/* Ranges of objects, fetched into pieces (fetch.c), and how pieces become ranges (fetch_plan.c). */
#ifndef FFFS_FETCH_H
#define FFFS_FETCH_H

#include "batch.h"
#include "silence.h"

/* Bytes between two pieces that are fetched and dropped rather than asked for by another request. */
enum { FFFS_GAP = 16 * 1024 };

/* Consecutive bytes of an object that one request asks for, and the pieces that lie in them. Owned by the fetch. */
struct fffs_range {
    int32_t object;
    uint32_t server, turn;      /* its number in the batch's silence, and the number of the range among those of it */
    int64_t place, end;         /* the next byte that is expected, and where the range ends */
    struct fffs_piece **pieces; /* [count] by offset */
    uint32_t count;
    uint32_t finished;       /* the pieces before this one are finished */
    uint32_t tries;          /* without a new byte */
    int status;              /* -errno of the last of these tries */
    uint32_t offences;       /* answers that were not what was asked for */
    bool part;               /* of a range that failed; another part stands for it */
    bool without_range;      /* the server is asked for all: it said neither which bytes there are, nor how many */
    int64_t since;           /* when the first of these tries began; 0: none did */
    int64_t not_before;      /* when the next may begin */
    struct fffs_range *next; /* in the list of those that wait for that */
};

/* A batch of requests that are fetched from objects. */
typedef struct fffs_fetch fffs_fetch;

/* Begins a batch, which the caller owns until fffs_fetch_end. The requests, their destinations and *silence must stay until then.
 * Returns 0; -ELIBACC: there is no libcurl; or -ENOMEM. */
int fffs_fetch_begin(fffs_request *requests, size_t count, struct fffs_silence *silence, fffs_fetch **fetch);

/* Fetches for so many milliseconds at most. Returns 0 if all is done, or -EAGAIN. One thread at a time. */
int fffs_fetch_run(fffs_fetch *fetch, int32_t milliseconds);

/* Ends a batch, also one that is not done. The statuses are those of fffs_remote_read_batch, but nothing is fetched once more.
 * Returns 0 or -EIO as fffs_read_batch. */
int fffs_fetch_end(fffs_fetch *fetch);

/* The object that a request's fd names, or -1: it is a descriptor. */
static inline int32_t fffs_object_of(int32_t fd)
{
    return fd <= FFFS_OBJECT_FD ? FFFS_OBJECT_FD - fd : -1;
}

/* Sorts pieces by object and offset, and joins near ones to ranges, of at most most bytes. *ranges has room for as many as there are pieces. Returns the
 * number of ranges. Pure. */
size_t fffs_plan_ranges(struct fffs_piece **pieces, size_t count, int64_t most, struct fffs_range *ranges);

/* Divides the rest of a range into at most so many parts, which have its tries and times. The range becomes the first part; *last and
 * those before it have room for the others. Returns the number of parts, or 0: it stays as it is, because all is of one request, or
 * the object may end before it. Pure. */
size_t fffs_divide_range(struct fffs_range *range, uint32_t most, struct fffs_range *last);

/* Gives bytes of the object from range->place on to the pieces that they belong to. length is at most what the range still
 * expects. */
void fffs_range_take(struct fffs_range *range, const uint8_t *data, size_t length);

#endif

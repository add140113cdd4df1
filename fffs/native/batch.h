/* Batches: requests split into pieces, which several threads take (batch.c). */
#ifndef FFFS_BATCH_H
#define FFFS_BATCH_H

#include "piece.h"

#include <stdatomic.h>

/* The most pieces of a batch that needs no allocation. */
enum { FFFS_FEW_PIECES = 16 };

/* Lives on the stack of its caller, which alone opens and closes it. */
struct fffs_batch {
    fffs_request *requests;
    size_t count;
    struct fffs_piece *pieces;
    size_t piece_count;
    /* The pieces that the hot phase leaves, with room for all: from the front those that would wait, and from the back
     * those on file systems without RWF_NOWAIT. */
    struct fffs_piece **left;
    struct fffs_piece **plain; /* pieces for plain reads */
    size_t plain_count;
    uint64_t bytes;
    bool direct;  /* pieces with align bypass the page cache: there is a backend, and more than one piece */
    size_t group; /* pieces that a thread takes at a time */
    /* Shared by the threads: */
    _Alignas(64) _Atomic size_t cursor;
    _Alignas(64) _Atomic size_t miss_count;
    _Atomic size_t blind_count;
    _Atomic int misses_in_row;
    struct fffs_piece few_pieces[FFFS_FEW_PIECES];
    struct fffs_piece *few_left[FFFS_FEW_PIECES];
};

/* Whether this is not the checksum that a request expects. */
static inline bool fffs_is_bad(const fffs_request *request, uint32_t actual)
{
    return request->check != FFFS_CHECK_NONE && !(request->check & FFFS_CHECK_COMPUTE) && actual != request->expected;
}

/* Splits the requests, owned by the caller, into pieces. Returns 0; or -errno, and then there is nothing to close. */
int fffs_batch_open(struct fffs_batch *batch, fffs_request *requests, size_t count);

/* Combines the pieces of each request, sets its status and frees the batch. No thread may have a piece any more.
 * Returns 0; or -EIO if at least one status is not 0. */
int fffs_batch_close(struct fffs_batch *batch);

#endif

/* A batch: requests cut into pieces, which several threads then take (batch.c). */
#ifndef FFFS_BATCH_H
#define FFFS_BATCH_H

#include "piece.h"

#include <stdatomic.h>

/* Pieces of a batch that needs no allocation. */
enum { FFFS_FEW_PIECES = 16 };

/* On its caller's stack, who alone opens and closes it. */
struct fffs_batch {
    fffs_request *requests;
    size_t count;
    struct fffs_piece *pieces;
    size_t piece_count;
    /* What the hot phase leaves, room for all: pieces that would wait from the front, and from the back those on file
     * systems that do not tell. */
    struct fffs_piece **left;
    struct fffs_piece **plain; /* those to be read plainly */
    size_t plain_count;
    uint64_t bytes;
    bool direct;  /* what is to be read past the page cache can be: alone a piece is not worth a ring */
    size_t group; /* pieces that a thread takes at a time */
    /* Shared by the threads: */
    _Alignas(64) _Atomic size_t cursor;
    _Alignas(64) _Atomic size_t miss_count;
    _Atomic size_t blind_count;
    _Atomic int misses_in_row;
    struct fffs_piece few_pieces[FFFS_FEW_PIECES];
    struct fffs_piece *few_left[FFFS_FEW_PIECES];
};

/* Cuts the requests, which stay the caller's, into pieces. 0; or -errno, and then there is nothing to close. */
int fffs_batch_open(struct fffs_batch *batch, fffs_request *requests, size_t count);

/* Joins the pieces of each request, judges it, and frees the batch. No thread may have a piece any more. 0; -EIO: at
 * least one request's status is not 0. */
int fffs_batch_close(struct fffs_batch *batch);

#endif

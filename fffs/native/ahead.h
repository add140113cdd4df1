/* Announces ranges of files to the kernel (ahead.c); fffs_prefetch is in contract.h. */
#ifndef FFFS_AHEAD_H
#define FFFS_AHEAD_H

#include "piece.h"

/* Makes the kernel begin to read the blocks around pieces that have some. Sort by file and offset. Thread-safe. */
void fffs_announce_blocks(struct fffs_piece *const *pieces, size_t count);

#endif

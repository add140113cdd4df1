/* Telling the kernel what will be wanted (ahead.c); fffs_prefetch is in contract.h. */
#ifndef FFFS_AHEAD_H
#define FFFS_AHEAD_H

#include "piece.h"

/* Lets the kernel begin to read the blocks around pieces, where these want it. Best sorted by file and
 * offset. Any thread. */
void fffs_announce_blocks(struct fffs_piece *const *pieces, size_t count);

#endif

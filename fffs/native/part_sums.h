/* Checksums of the parts of blocks that were verified (part_sums.c). */
#ifndef FFFS_PART_SUMS_H
#define FFFS_PART_SUMS_H

#include "fffs.h"

/* Bytes of a part: few enough to be fetched for a page of a file. */
enum { FFFS_PART = 16 * 1024, FFFS_PARTS = FFFS_BLOCK / FFFS_PART };

/* The parts of some blocks, the last ones that were noted. Not thread-safe. */
struct fffs_part_sums;

/* Returns an empty one, which the caller frees with free; or NULL. */
struct fffs_part_sums *fffs_part_sums_new(void);

/* Computes the checksums of the parts of a block. sums: [FFFS_PARTS]. */
void fffs_part_sums_compute(const uint8_t *block, uint64_t size, uint32_t *sums);

/* Keeps the checksums of the block of an object that begins at an offset. sums: [FFFS_PARTS], copied. */
void fffs_part_sums_note(struct fffs_part_sums *all, int32_t fd, int64_t offset, const uint32_t *sums);

/* Copies the checksums of that block. Returns false if they are not known. */
bool fffs_part_sums_find(const struct fffs_part_sums *all, int32_t fd, int64_t offset, uint32_t *sums);

#endif

/* Checksums of the parts of blocks that were verified.
 *
 * The checksum of a record or block covers all of it, but readers want ranges of it, one after the other. Where no cache keeps what
 * was verified, each range is fetched again, and its parts are compared with what they were then. */
#include "part_sums.h"
#include "crc.h"
#include "fault.h"

#include <string.h>

/* Blocks that are known: those of 4 GiB take about one MiB. */
enum { ROOM = 4096 };

struct fffs_part_sums {
    struct block {
        int64_t offset; /* + 1; 0: none */
        int32_t fd;
        uint32_t sums[FFFS_PARTS];
    } blocks[ROOM];
};

static size_t place_of(int32_t fd, int64_t offset)
{
    uint64_t mixed = ((uint64_t)offset + ((uint64_t)(uint32_t)fd << 44)) * UINT64_C(0x9e3779b97f4a7c15);

    return mixed >> 32 & (ROOM - 1);
}

struct fffs_part_sums *fffs_part_sums_new(void)
{
    return fffs_allocate_zeroed(1, sizeof(struct fffs_part_sums));
}

void fffs_part_sums_compute(const uint8_t *block, uint64_t size, uint32_t *sums)
{
    memset(sums, 0, FFFS_PARTS * sizeof *sums);
    for (uint64_t begin = 0; begin < size; begin += FFFS_PART)
        sums[begin / FFFS_PART] =
            fffs_checksum(FFFS_CHECK_CRC32C, 0, block + begin, size - begin < FFFS_PART ? size - begin : FFFS_PART);
}

void fffs_part_sums_note(struct fffs_part_sums *all, int32_t fd, int64_t offset, const uint32_t *sums)
{
    struct block *block = &all->blocks[place_of(fd, offset)];

    block->offset = offset + 1;
    block->fd = fd;
    memcpy(block->sums, sums, sizeof block->sums);
}

bool fffs_part_sums_find(const struct fffs_part_sums *all, int32_t fd, int64_t offset, uint32_t *sums)
{
    const struct block *block = &all->blocks[place_of(fd, offset)];
    bool found = block->offset == offset + 1 && block->fd == fd;

    if (found)
        memcpy(sums, block->sums, sizeof block->sums);
    return found;
}

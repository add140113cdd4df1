/* Compares the blocks of caches that nobody reads at the moment, or that others read meanwhile.
 *
 * A reader writes the bytes of a block before its entry in the map, and all write the same bytes. So a block with an entry that
 * differs from it is damaged, and removing its entry, even one that another process has just written again, only costs a
 * request. Its bytes stay: a hole would destroy those that another process has just repaired. */
#include "object_cache.h"
#include "fault.h"

#include <string.h>

enum { BLOCK = FFFS_CACHE_BLOCK, HEAD = FFFS_CACHE_HEAD, SOME = 256 };

/* Reads until the end of the file or an error, and returns how many bytes there were. */
static size_t read_some(int fd, uint8_t *data, size_t size, int64_t offset)
{
    size_t done = 0;

    while (done < size) {
        int64_t got = fffs_pread(fd, data + done, size - done, offset + (int64_t)done);

        if (got <= 0)
            break;
        done += (size_t)got;
    }
    return done;
}

/* Checks at most SOME blocks. memory: [SOME * BLOCK]. Returns 0 or -errno. */
static int check_some(int data_fd, int map_fd, int64_t size, int64_t first, int64_t count, uint8_t *memory,
                      fffs_cache_checked *sums)
{
    uint32_t entries[SOME] = {0};
    const uint32_t absent = 0;
    int64_t left = size - first * BLOCK, bytes = left < count * BLOCK ? left : count * BLOCK, present = 0;
    int status = 0;

    (void)read_some(map_fd, (uint8_t *)entries, (size_t)count * sizeof *entries,
                    HEAD + first * (int64_t)sizeof *entries);
    for (int64_t i = 0; i < count; i++)
        present += entries[i] != 0;
    if (!present)
        return 0;
    sums->blocks += (uint64_t)present;
    int64_t got = (int64_t)read_some(data_fd, memory, (size_t)bytes, first * BLOCK);
    for (int64_t i = 0; i < count && !status; i++) {
        int64_t length = bytes - i * BLOCK < BLOCK ? bytes - i * BLOCK : BLOCK;

        if (!entries[i] ||
            (i * BLOCK + length <= got && fffs_object_cache_entry(memory + i * BLOCK, (size_t)length) == entries[i]))
            continue;
        sums->damaged++;
        status = fffs_write_fully(map_fd, HEAD + (first + i) * (int64_t)sizeof absent, (const uint8_t *)&absent,
                                  sizeof absent);
    }
    return status;
}

int fffs_cache_check(int data_fd, int map_fd, int64_t size, int64_t offset, int64_t length, fffs_cache_checked *sums)
{
    uint64_t damaged = sums->damaged;
    int64_t block = offset / BLOCK, end = offset + length < size ? offset + length : size;
    uint8_t *memory = fffs_buffer_take(SOME * BLOCK);
    int status = memory ? 0 : -ENOMEM;

    for (; !status && block * BLOCK < end; block += SOME) {
        int64_t count = (end - block * BLOCK + BLOCK - 1) / BLOCK;

        status = check_some(data_fd, map_fd, size, block, count < SOME ? count : SOME, memory, sums);
    }
    fffs_buffer_give(memory);
    if (sums->damaged != damaged)
        fffs_object_cache_note_drop(map_fd, size);
    return status;
}

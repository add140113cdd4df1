/* Blocks of large records: their checksums, from the file's table or learned from a check of the whole record, and which of them were
 * verified. */
#include "clock.h"
#include "crc.h"
#include "fault.h"
#include "remote.h"
#include "store_file.h"

#include <stdlib.h>
#include <string.h>

bool fffs_store_believes(_Atomic fffs_mark *verified, fffs_mark now)
{
    fffs_mark then = atomic_load(verified);

    return fffs_mark_rests(then) && fffs_mark_agrees(then, now);
}

void fffs_store_keep(_Atomic fffs_mark *verified, fffs_mark mark)
{
    if (!fffs_store_believes(verified, mark))
        atomic_store(verified, mark);
}

/* Blocks that are read at a time: enough to keep a disk busy, in bounded memory. */
enum { GROUP = 256 };

/* Computes the checksums of all blocks of a record, and *whole, their combination, to compare with the record's. */
static int checksum_blocks(const struct fffs_store_file *file, uint64_t row, uint64_t count, uint32_t *checksums,
                           uint32_t *whole)
{
    fffs_request *requests = fffs_allocate(GROUP * sizeof *requests);
    int status = requests ? 0 : -ENOMEM;

    *whole = 0;
    for (uint64_t begin = 0; !status && begin < count; begin += GROUP) {
        uint64_t some = count - begin < GROUP ? count - begin : GROUP;

        for (uint64_t i = 0; i < some; i++) {
            int64_t offset = file->source.starts[row] + (int64_t)((begin + i) * FFFS_BLOCK);
            int64_t rest = file->source.ends[row] - offset;

            requests[i] = (fffs_request){.offset = offset,
                                         .length = rest < FFFS_BLOCK ? rest : FFFS_BLOCK,
                                         .fd = file->source.fd,
                                         .check = file->source.check | FFFS_CHECK_COMPUTE};
        }
        status = fffs_read_batch(requests, some);
        status = status == -EIO ? 0 : status;
        for (uint64_t i = 0; !status && i < some; i++) {
            status = requests[i].status;
            checksums[begin + i] = requests[i].actual;
            *whole =
                fffs_checksum_combine(file->source.check, *whole, requests[i].actual, (uint64_t)requests[i].length);
        }
    }
    free(requests);
    return status;
}

/* Checks all of a record. *learned, which the caller frees, has its blocks with the checksums of the bytes that were
 * read: these are right whatever the file does meanwhile. If it did not change, the blocks are verified. */
static int learn(struct fffs_store_file *file, uint64_t row, fffs_mark mark, struct fffs_blocks **learned)
{
    uint64_t count = ((uint64_t)(file->source.ends[row] - file->source.starts[row]) - 1) / FFFS_BLOCK + 1;
    struct fffs_blocks *blocks =
        fffs_allocate_zeroed(1, sizeof *blocks + count * (sizeof(uint32_t) + sizeof(fffs_mark)));
    uint32_t *checksums = (uint32_t *)(blocks + 1), whole;
    int status;

    if (!blocks)
        return -ENOMEM;
    *blocks = (struct fffs_blocks){checksums, (_Atomic fffs_mark *)(checksums + count), count, NULL};
    status = checksum_blocks(file, row, count, checksums, &whole);
    if (!status && whole != file->source.checksums[row] && fffs_is_remote(file->source.fd)) {
        /* A byte may have changed on its way, or in the cache. */
        fffs_remote_drop(file->source.fd, file->source.starts[row],
                         file->source.ends[row] - file->source.starts[row]);
        status = checksum_blocks(file, row, count, checksums, &whole);
        if (!status && whole == file->source.checksums[row]) /* otherwise the store has it so */
            fffs_remote_suspect(file->source.fd);
    }
    if (!status && whole != file->source.checksums[row])
        status = -EBADMSG;
    if (!status && fffs_watch_look(&file->watch, mark) == 0)
        for (uint64_t i = 0; i < count; i++)
            atomic_store(&blocks->verified[i], mark);
    if (status)
        free(blocks);
    else
        *learned = blocks;
    return status;
}

/* The same, once for all threads that need the record. The file owns the blocks. What a store does not give is an error for all that
 * waited for it: to ask again would take each of them as long. */
static int learn_once(struct fffs_store_file *file, uint64_t row, fffs_mark mark)
{
    int64_t begin = fffs_now();
    struct fffs_store_check *mine = fffs_store_begin_check(file->store, file->first + row);
    struct fffs_blocks *learned = NULL;

    if (!mine)
        return -ENOMEM;
    int status = fffs_is_remote(file->source.fd) ? fffs_store_failure_since(file->store, mine->record, begin) : 0;
    if (!status && !atomic_load(&file->learned[row])) {
        status = learn(file, row, mark, &learned);
        if (status && fffs_is_remote(file->source.fd))
            fffs_store_note_failure(file->store, mine->record, status);
    }
    if (learned) {
        learned->next = atomic_load(&file->all_learned);
        while (!atomic_compare_exchange_weak(&file->all_learned, &learned->next, learned))
            ;
        atomic_store(&file->learned[row], learned);
    }
    fffs_store_end_check(file->store, mine);
    return status;
}

/* ---------------------------------------------------------------- reading */

/* Returns the position of row among the file's big records, or -1. */
static int64_t find_big(const fffs_file *file, uint64_t row)
{
    uint64_t low = 0, high = file->bigs;

    while (low < high) {
        uint64_t middle = low + (high - low) / 2;

        if (file->big_records[middle] == row)
            return (int64_t)middle;
        if (file->big_records[middle] < row)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

bool fffs_store_known_blocks(const struct fffs_store_file *file, uint64_t row, struct fffs_blocks *blocks)
{
    const struct fffs_blocks *learned = atomic_load(&file->learned[row]);
    int64_t big = learned ? -1 : find_big(&file->source, row);

    if (learned) {
        *blocks = *learned;
    } else if (big >= 0) {
        uint64_t first = file->source.big_first_blocks[big];

        *blocks = (struct fffs_blocks){file->source.block_checksums + first, file->block_verified + first,
                                       file->source.big_first_blocks[big + 1] - first, NULL};
    }
    return learned || big >= 0;
}

/* Reads one block of a large record: its part inside [start, start + length) goes to its place in dest. Sets *plain if
 * it is not checked. */
static int read_block(struct fffs_store_file *file, uint64_t row, const struct fffs_blocks *blocks, uint64_t block,
                      uint64_t start, uint64_t length, uint8_t *dest, int flags, fffs_mark mark, bool *plain)
{
    uint64_t record_length = (uint64_t)(file->source.ends[row] - file->source.starts[row]);
    uint64_t begin = block * FFFS_BLOCK;
    uint64_t size = record_length - begin < FFFS_BLOCK ? record_length - begin : FFFS_BLOCK;
    uint64_t from = start > begin ? start : begin;
    uint64_t to = start + length < begin + size ? start + length : begin + size;
    int64_t offset = file->source.starts[row] + (int64_t)begin;
    uint32_t expected = blocks->checksums[block];

    if (fffs_store_believes(&blocks->verified[block], mark)) {
        int status = fffs_store_read_again(file, offset, size, from - begin, to - from, dest + (from - start), flags);

        *plain |= status != -ENOKEY;
        if (status != -ENOKEY)
            return status;
    }
    if (from == begin && to == begin + size)
        return fffs_store_read_checked(file, offset, size, expected, dest + (from - start), flags);
    uint8_t *scratch = fffs_buffer_take(size);
    if (!scratch)
        return -ENOMEM;
    int status = fffs_store_read_checked(file, offset, size, expected, scratch, flags);
    if (!status) {
        fffs_store_note_parts(file, offset, size, scratch);
        memcpy(dest + (from - start), scratch + (from - begin), to - from);
    }
    fffs_buffer_give(scratch);
    return status;
}

int fffs_store_look_again(struct fffs_store_file *file, fffs_mark mark, bool plain)
{
    int status = fffs_watch_look(&file->watch, mark);

    return status == -ESTALE && !plain ? 0 : status;
}

static int read_blocks(struct fffs_store_file *file, uint64_t row, const struct fffs_blocks *blocks, uint64_t start,
                       uint64_t length, uint8_t *dest, int flags, fffs_mark mark)
{
    uint64_t first = start / FFFS_BLOCK, last = (start + length - 1) / FFFS_BLOCK;
    bool plain = false;
    int status = 0;

    for (uint64_t block = first; !status && block <= last; block++)
        status = read_block(file, row, blocks, block, start, length, dest, flags, mark, &plain);
    if (!status)
        status = fffs_store_look_again(file, mark, plain);
    for (uint64_t block = first; !status && block <= last; block++)
        fffs_store_keep(&blocks->verified[block], mark);
    return status;
}

int fffs_store_read_large(struct fffs_store_file *file, uint64_t row, uint64_t start, uint64_t length, uint8_t *dest,
                          int flags, fffs_mark mark)
{
    struct fffs_blocks blocks;

    if (!fffs_store_known_blocks(file, row, &blocks)) {
        bool waits = !(flags & (FFFS_READ_NOWAIT | FFFS_READ_LOCAL));
        int status = waits ? learn_once(file, row, mark) : -EAGAIN;

        if (status)
            return status;
        fffs_store_known_blocks(file, row, &blocks);
    }
    return read_blocks(file, row, &blocks, start, length, dest, flags, mark);
}

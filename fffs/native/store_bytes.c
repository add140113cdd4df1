/* Bytes of the files of a store: of the file system, of an object's cache, or of an object that no cache keeps. */
#include "crc.h"
#include "fault.h"
#include "object_totals.h"
#include "part_sums.h"
#include "remote.h"
#include "store_file.h"

#include <string.h>

/* Reads bytes of an object that no cache has. Returns -ENOKEY if nothing shows whether they are right, and something must. */
static int fetch(const struct fffs_store_file *file, int64_t offset, uint64_t length, uint8_t *dest, int flags)
{
    if (file->source.check != FFFS_CHECK_NONE && !(flags & FFFS_READ_UNVERIFIED))
        return -ENOKEY;
    return fffs_read_one(file->source.fd, offset, (int64_t)length, dest, FFFS_CHECK_NONE, 0);
}

/* Reads bytes of an object and sets *fd to -1; or sets it to the descriptor of its cache, which has them. */
static int read_object(const struct fffs_store_file *file, int64_t offset, uint64_t length, uint8_t *dest, int flags,
                       int *fd)
{
    /* Blocks of the cache are compared with its own checksums if nothing else will be. */
    bool verified = file->source.check == FFFS_CHECK_NONE;
    int hot = fffs_remote_hot_fd(file->source.fd, offset, (int64_t)length, verified, flags & FFFS_READ_LOCAL);

    if (hot >= 0) {
        *fd = hot;
        return 0;
    }
    if (flags & (FFFS_READ_NOWAIT | FFFS_READ_LOCAL))
        return -EAGAIN;
    *fd = -1;
    return fetch(file, offset, length, dest, flags);
}

/* Reads exactly length bytes of a file of the system. With FFFS_READ_NOWAIT, returns -EAGAIN unless all are in the page cache. */
static int read_file(int fd, int64_t offset, uint64_t length, uint8_t *dest, int flags)
{
    int64_t (*read)(int, void *, size_t, int64_t) = flags & FFFS_READ_NOWAIT ? fffs_pread_nowait : fffs_pread;
    uint64_t done = 0;

    while (done < length) {
        int64_t got = read(fd, dest + done, length - done, offset + (int64_t)done);

        if (got > 0) {
            done += (uint64_t)got;
            continue;
        }
        if (got == 0)
            return -ENODATA;
        if (got == -EINTR)
            continue;
        /* Without RWF_NOWAIT the file system returns EOPNOTSUPP: treated as cold. */
        if ((flags & FFFS_READ_NOWAIT) && (got == -EAGAIN || got == -EOPNOTSUPP))
            return -EAGAIN;
        return fffs_file_error(got);
    }
    return 0;
}

int fffs_store_read_plain(const struct fffs_store_file *file, int64_t offset, uint64_t length, uint8_t *dest,
                          int flags)
{
    if (!fffs_is_remote(file->source.fd))
        return read_file(file->source.fd, offset, length, dest, flags);
    int fd, status = read_object(file, offset, length, dest, flags, &fd);

    if (status || fd < 0)
        return status;
    status = read_file(fd, offset, length, dest, flags);
    if (status && status != -EAGAIN) { /* the store has what the disk of the cache lost */
        fffs_remote_drop(file->source.fd, offset, (int64_t)length);
        status = flags & (FFFS_READ_NOWAIT | FFFS_READ_LOCAL) ? -EAGAIN : fetch(file, offset, length, dest, flags);
    } else if (!status) {
        fffs_total_add(FFFS_TOTAL_ASKED, length);
        fffs_total_add(FFFS_TOTAL_HITS, length);
    }
    return status;
}

int fffs_store_read_checked(const struct fffs_store_file *file, int64_t offset, uint64_t length, uint32_t expected,
                            uint8_t *dest, int flags)
{
    bool small = dest && length <= FFFS_BLOCK && !fffs_is_remote(file->source.fd);

    if ((flags & (FFFS_READ_NOWAIT | FFFS_READ_LOCAL)) || small) {
        int status = fffs_store_read_plain(file, offset, length, dest, flags);

        if (status || fffs_checksum(file->source.check, 0, dest, length) == expected)
            return status;
        /* The store has the bytes that the cache lost. */
        return fffs_is_remote(file->source.fd) ? -EAGAIN : -EBADMSG;
    }
    return fffs_read_one(file->source.fd, offset, (int64_t)length, dest, file->source.check, expected);
}

/* ---------------------------------------------------------------- parts of blocks */

void fffs_store_note_parts(const struct fffs_store_file *file, int64_t offset, uint64_t size, const uint8_t *block)
{
    uint32_t sums[FFFS_PARTS];

    if (!fffs_is_remote(file->source.fd) || fffs_remote_is_cached(file->source.fd, offset, (int64_t)size))
        return;
    fffs_part_sums_compute(block, size, sums);
    fffs_store_lock();
    if (!file->store->sums)
        file->store->sums = fffs_part_sums_new();
    if (file->store->sums)
        fffs_part_sums_note(file->store->sums, file->source.fd, offset, sums);
    fffs_store_unlock();
}

/* Fetches bytes [from, from + length) of such a block. Returns -ENOKEY if it is not remembered, or they are not those of then. */
static int fetch_parts(const struct fffs_store_file *file, int64_t offset, uint64_t size, uint64_t from,
                       uint64_t length, uint8_t *dest)
{
    uint64_t begin = from / FFFS_PART * FFFS_PART, end = ((from + length - 1) / FFFS_PART + 1) * FFFS_PART;
    uint32_t then[FFFS_PARTS], now[FFFS_PARTS];

    end = end < size ? end : size;
    fffs_store_lock();
    bool known = file->store->sums && fffs_part_sums_find(file->store->sums, file->source.fd, offset, then);
    fffs_store_unlock();
    if (!known)
        return -ENOKEY;
    uint8_t *parts = fffs_buffer_take(end - begin);
    if (!parts)
        return -ENOMEM;
    int status =
        fffs_read_one(file->source.fd, offset + (int64_t)begin, (int64_t)(end - begin), parts, FFFS_CHECK_NONE, 0);
    if (!status) {
        fffs_part_sums_compute(parts, end - begin, now);
        if (memcmp(now, then + begin / FFFS_PART, ((end - begin - 1) / FFFS_PART + 1) * sizeof *now))
            status = -ENOKEY;
    }
    if (!status)
        memcpy(dest, parts + (from - begin), length);
    fffs_buffer_give(parts);
    return status;
}

int fffs_store_read_again(const struct fffs_store_file *file, int64_t offset, uint64_t size, uint64_t from,
                          uint64_t length, uint8_t *dest, int flags)
{
    int status = fffs_store_read_plain(file, offset + (int64_t)from, length, dest, flags);

    return status == -ENOKEY ? fetch_parts(file, offset, size, from, length, dest) : status;
}

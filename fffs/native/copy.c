/* Copies a range of one file into another and computes its checksums, for packing and unpacking. */
#include "crc.h"
#include "fault.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static int write_fully(int fd, int64_t offset, const uint8_t *data, size_t length)
{
    while (length > 0) {
        ssize_t put = pwrite(fd, data, length, offset);

        if (put == 0)
            return -EIO;
        if (put < 0 && errno != EINTR)
            return -errno;
        if (put > 0) {
            data += put;
            offset += put;
            length -= (size_t)put;
        }
    }
    return 0;
}

/* Reads length bytes. Returns 0 or -errno; -ENODATA if the file ends before. */
static int read_fully(int fd, int64_t offset, uint8_t *buffer, size_t length)
{
    size_t done = 0;

    while (done < length) {
        ssize_t got = pread(fd, buffer + done, length - done, offset + (int64_t)done);

        if (got == 0)
            return -ENODATA;
        if (got < 0 && errno != EINTR)
            return fffs_file_error(-errno);
        if (got > 0)
            done += (size_t)got;
    }
    return 0;
}

int fffs_copy(int in_fd, int64_t in_offset, int out_fd, int64_t out_offset, int64_t length, uint32_t check,
              uint32_t *crc, uint32_t *block_crcs, int *failed_fd)
{
    size_t size = length < FFFS_BLOCK ? (size_t)length : FFFS_BLOCK;
    uint8_t *buffer = fffs_buffer_take(size);
    int status = 0;

    *crc = 0;
    *failed_fd = in_fd;
    if (!buffer)
        return -ENOMEM;
    for (int64_t done = 0; !status && done < length; done += (int64_t)size) {
        if (length - done < (int64_t)size)
            size = (size_t)(length - done);
        status = read_fully(in_fd, in_offset + done, buffer, size);
        if (status)
            break;
        /* A chunk is a block: one pass gives both checksums. */
        uint32_t block = fffs_checksum(check, 0, buffer, size);
        *crc = done ? fffs_checksum_combine(check, *crc, block, size) : block;
        if (block_crcs)
            *block_crcs++ = block;
        *failed_fd = out_fd;
        status = write_fully(out_fd, out_offset + done, buffer, size);
        if (!status)
            *failed_fd = in_fd;
    }
    fffs_buffer_give(buffer);
    return status;
}

int fffs_syncfs(int fd)
{
    return syncfs(fd) == 0 ? 0 : -errno;
}

int fffs_start_writing(int fd)
{
    return sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE) == 0 ? 0 : -errno;
}

int fffs_clean_pages(int fd)
{
    const unsigned all = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;

    return sync_file_range(fd, 0, 0, all) == 0 ? 0 : -errno;
}

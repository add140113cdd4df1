/* Copies bytes between files and computes or compares their checksums, for packing and unpacking. */
#include "crc.h"
#include "descriptor.h"
#include "fault.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
        status = fffs_write_fully(out_fd, out_offset + done, buffer, size);
        if (!status)
            *failed_fd = in_fd;
    }
    fffs_buffer_give(buffer);
    return status;
}

/* ---------------------------------------------------------------- many small files, for packing */

int fffs_is_same(int fd, const fffs_status *then)
{
    struct stat now;

    return fstat(fd, &now) == 0 && now.st_dev == then->device && (!then->inode || now.st_ino == then->inode) &&
           now.st_size == then->size && now.st_mode == then->mode && now.st_mtim.tv_sec == then->mtime &&
           now.st_mtim.tv_nsec == then->mtime_ns && now.st_ctim.tv_sec == then->ctime &&
           now.st_ctim.tv_nsec == then->ctime_ns;
}

int fffs_ends_at(int fd, int64_t offset)
{
    uint8_t byte;
    ssize_t got;

    do
        got = pread(fd, &byte, 1, offset);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return fffs_file_error(-errno);
    return got ? -EOVERFLOW : 0;
}

/* Reads a file of the size in its status into the buffer. */
static int read_file(int folder_fd, const char *name, const fffs_status *status, uint8_t *buffer)
{
    /* It may have been replaced by a link (ELOOP), a FIFO, or a socket (ENXIO). */
    int fd = openat(folder_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0)
        return -errno;
    int failed = fffs_is_same(fd, status) ? read_fully(fd, 0, buffer, (size_t)status->size) : -ESTALE;
    if (!failed)
        failed = fffs_ends_at(fd, status->size);
    if ((!failed || failed == -EOVERFLOW) && !fffs_is_same(fd, status))
        failed = -ESTALE;
    close(fd);
    return failed;
}

/* Small records that are written together. */
struct output {
    int fd;
    int64_t offset;  /* of the bytes in the buffer */
    uint8_t *buffer; /* FFFS_BLOCK bytes */
    size_t used;
};

static int flush(struct output *out)
{
    int status = fffs_write_fully(out->fd, out->offset, out->buffer, out->used);

    out->offset += (int64_t)out->used;
    out->used = 0;
    return status;
}

/* Makes room for a file at an offset: in the buffer, with zeros before it, or in the empty buffer. */
static int make_room(struct output *out, int64_t offset, size_t size, uint8_t **place)
{
    int status = 0;

    if (offset + (int64_t)size > out->offset + FFFS_BLOCK) {
        status = flush(out);
        out->offset = offset; /* in a new file, the gap reads as zeros */
    }
    size_t at = (size_t)(offset - out->offset);
    memset(out->buffer + out->used, 0, at - out->used);
    *place = out->buffer + at;
    out->used = at + size;
    return status;
}

int fffs_copy_files(const fffs_scan_columns *columns, int folder_fd, const uint32_t *entries, uint64_t count,
                    int out_fd, const int64_t *offsets, uint32_t *checksums, uint64_t *failed, int *failed_fd)
{
    char name[FFFS_NAME_MAX + 1];
    struct output out = {out_fd, offsets[0], fffs_buffer_take(FFFS_BLOCK), 0};
    int status = out.buffer ? 0 : -ENOMEM;

    *failed_fd = folder_fd;
    for (*failed = 0; !status && *failed < count; ++*failed) {
        uint32_t entry = entries[*failed];
        const fffs_status *then = &columns->statuses[entry];
        size_t length = columns->name_offsets[entry + 1] - columns->name_offsets[entry];
        uint8_t *place;

        if (length > FFFS_NAME_MAX) {
            status = -ENAMETOOLONG;
            break;
        }
        status = make_room(&out, offsets[*failed], (size_t)then->size, &place);
        if (status) {
            *failed_fd = out_fd;
            break;
        }
        memcpy(name, columns->names + columns->name_offsets[entry], length);
        name[length] = 0;
        status = read_file(folder_fd, name, then, place);
        if (status) {
            out.used = (size_t)(place - out.buffer);
            break;
        }
        checksums[*failed] = fffs_crc32(0, place, (size_t)then->size);
    }
    if (out.buffer && *failed_fd != out_fd) {
        int written = flush(&out);

        *failed_fd = written ? out_fd : folder_fd;
        status = written ? written : status;
    }
    fffs_buffer_give(out.buffer);
    return status;
}

int fffs_put_files(const uint8_t *data, const int64_t *starts, const uint32_t *records, uint64_t count, int out_fd,
                   const int64_t *offsets, const int64_t *sizes, uint32_t *checksums)
{
    struct output out = {out_fd, 0, fffs_buffer_take(FFFS_BLOCK), 0};
    int64_t next = -1; /* where the neighbour of the last file begins */
    int status = out.buffer ? 0 : -ENOMEM;

    for (uint64_t i = 0; !status && i < count; i++) {
        uint32_t k = records[i];
        size_t size = (size_t)sizes[k];
        uint8_t *place;

        if (offsets[k] != next) {
            status = flush(&out);
            out.offset = offsets[k];
        }
        if (!status)
            status = make_room(&out, offsets[k], size, &place);
        if (status)
            break;
        if (size)
            memcpy(place, data + starts[i], size);
        checksums[k] = fffs_crc32(0, place, size);
        next = offsets[k + 1];
    }
    if (!status)
        status = flush(&out);
    fffs_buffer_give(out.buffer);
    return status;
}

/* ---------------------------------------------------------------- many small files, for unpacking */

/* Creates a file. Returns a descriptor or -errno. */
static int create(int folder_fd, const char *name)
{
    return fffs_above_standard(openat(folder_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
}

/* Sets mode and time. Returns 0 or -errno; 1 if the file system does not let them set, as files/rights.py knows it. */
static int set_attributes(int fd, mode_t mode, int64_t mtime)
{
    const int64_t second = 1000000000;
    bool before = mtime % second < 0; /* division rounds towards 0 */
    struct timespec time = {mtime / second - before, mtime % second + (before ? second : 0)};
    int32_t status = 0, fault;

    if (fffs_fault(FFFS_FAULT_ATTRIBUTES, &fault))
        status = fault;
    else if (fchmod(fd, mode) != 0 || futimens(fd, (const struct timespec[2]){time, time}) != 0)
        status = -errno;
    return status == -EPERM || status == -ENOSYS || status == -EOPNOTSUPP ? 1 : status;
}

/* Makes file number i. Returns 0, 1 or -errno. */
static int make_file(const fffs_new_files *files, int folder_fd, uint64_t i)
{
    char name[FFFS_NAME_MAX + 1];
    const fffs_tree *tree = files->tree;
    uint32_t entry = files->entries[i], node = tree->entry_nodes[entry];
    size_t length = tree->name_offsets[entry + 1] - tree->name_offsets[entry];
    const uint8_t *data = files->data + (files->starts[i] - files->offset);

    memcpy(name, tree->names + tree->name_offsets[entry], length);
    name[length] = 0;
    int fd = create(folder_fd, name);
    if (fd < 0)
        return fd;
    int status = fffs_write_fully(fd, 0, data, (size_t)(files->ends[i] - files->starts[i]));
    if (!status)
        status = set_attributes(fd, tree->mode[node] & files->mode_mask, tree->mtime[node]);
    /* Network file systems may report here that they could not write. */
    if (close(fd) != 0 && status >= 0 && errno != EINTR)
        status = -errno;
    return status;
}

int fffs_make_files(const fffs_new_files *files, int folder_fd, uint64_t *next, uint64_t *plain)
{
    for (; *next < files->count; ++*next) {
        int64_t start = files->starts[*next], length = files->ends[*next] - start;

        if (files->check != FFFS_CHECK_NONE && fffs_checksum(files->check, 0, files->data + (start - files->offset),
                                                             (size_t)length) != files->checksums[*next])
            return -EBADMSG;
        int status = make_file(files, folder_fd, *next);
        if (status < 0)
            return status == -EBADMSG ? -EIO : status; /* ext4 means that the disk's own checksums are wrong */
        *plain += (uint64_t)status;
    }
    return 0;
}

/* ---------------------------------------------------------------- writing to the disk */

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

/* The transport between the kernel and the fast path (fastpath_kernel.c): /dev/fuse. Another one, such as FUSE over
 * io_uring, would be another file with these two functions. */
#ifndef FFFS_FASTPATH_KERNEL_H
#define FFFS_FASTPATH_KERNEL_H

#include "fastpath_answers.h"

/* The largest message of a read-only file system: FUSE_MIN_READ_BUFFER, and the room that the kernel demands before
 * the reply to FUSE_INIT. */
enum { FFFS_MESSAGE_ROOM = 160 * 1024 };

/* The header of a reply ends at the end of a page: the kernel copies what follows page by page, and whole pages
 * fastest. So a buffer for replies has FFFS_REPLY_BUFFER bytes, and the reply begins at FFFS_REPLY_START. */
enum {
    FFFS_REPLY_START = 4096 - sizeof(struct fuse_out_header),
    FFFS_REPLY_BUFFER = FFFS_REPLY_START + FFFS_REPLY_ROOM
};

/* A connection. The caller owns the descriptor. Constant while threads use it. */
struct fffs_kernel {
    int fd;
};

/* Waits for a whole message and reads it; message has FFFS_MESSAGE_ROOM bytes. Returns its length; 0: none is there,
 * as after a signal; or -errno when the connection has ended. Thread-safe. */
int64_t fffs_kernel_read(const struct fffs_kernel *kernel, uint8_t *message);

/* Writes a whole reply. Returns false if the kernel refuses it: the request was cancelled, or the connection has
 * ended, which the next read reports. Thread-safe. */
bool fffs_kernel_write(const struct fffs_kernel *kernel, const void *reply, size_t length);

#endif

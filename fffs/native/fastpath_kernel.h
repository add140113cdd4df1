/* The transport between the kernel and the fast path (fastpath_kernel.c): /dev/fuse. Another one, as FUSE over
 * io_uring, would be another file with these two functions. */
#ifndef FFFS_FASTPATH_KERNEL_H
#define FFFS_FASTPATH_KERNEL_H

#include "fastpath_answers.h"

/* The largest message a read-only file system gets: FUSE_MIN_READ_BUFFER, and what the kernel demands before INIT's
 * answer. */
enum { FFFS_MESSAGE_ROOM = 160 * 1024 };

/* A reply's header ends where a page does: the kernel copies what follows page by page, and fastest between whole
 * ones. So a buffer for replies has this many bytes, and the reply begins at FFFS_REPLY_START. */
enum {
    FFFS_REPLY_START = 4096 - sizeof(struct fuse_out_header),
    FFFS_REPLY_BUFFER = FFFS_REPLY_START + FFFS_REPLY_ROOM
};

/* A connection. The descriptor is the caller's. Constant while threads use it. */
struct fffs_kernel {
    int fd;
};

/* Waits for a message and reads it, whole. Its length; 0: there is none just now, as after a signal; or -errno, when
 * the connection has ended. message has FFFS_MESSAGE_ROOM bytes. Any thread. */
int64_t fffs_kernel_read(const struct fffs_kernel *kernel, uint8_t *message);

/* Writes a whole reply. False: the kernel did not take it, because nobody waits for it any more or the connection has
 * ended, which the next read will say. Any thread. */
bool fffs_kernel_write(const struct fffs_kernel *kernel, const void *reply, size_t length);

#endif

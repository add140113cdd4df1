/* The transport between the kernel and the fast path.
 *
 * Facts about the kernel that this depends on (fs/fuse/dev.c):
 *   - one read returns one whole message, one write must hold one whole reply; both are safe from any thread;
 *   - a read blocks until there is a message, and gives ENODEV once the file system is unmounted or the connection
 *     aborted;
 *   - a reply to a request that was cancelled gives ENOENT: not an error;
 *   - a read buffer must hold the largest WRITE; its size is in the reply to INIT, here 4096. */
#include "fastpath_kernel.h"

#include <errno.h>
#include <unistd.h>

int64_t fffs_kernel_read(const struct fffs_kernel *kernel, uint8_t *message)
{
    ssize_t got = read(kernel->fd, message, FFFS_MESSAGE_ROOM);

    if (got > 0)
        return got;
    if (got == 0)
        return -ENODEV;
    if (errno == EINTR || errno == EAGAIN || errno == ENOENT) /* ENOENT: cancelled meanwhile */
        return 0;
    return -errno;
}

bool fffs_kernel_write(const struct fffs_kernel *kernel, const void *reply, size_t length)
{
    return write(kernel->fd, reply, length) == (ssize_t)length;
}

/* Keeps descriptors above those of the standard streams, for the reasons in fffs/base/descriptors.py. */
#ifndef FFFS_DESCRIPTOR_H
#define FFFS_DESCRIPTOR_H

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* Takes the result of open(2), and returns a descriptor of the same open file above 2, or -errno. */
static inline int fffs_above_standard(int fd)
{
    if (fd < 0)
        return -errno;
    if (fd > STDERR_FILENO)
        return fd;
    int above = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), status = -errno;
    close(fd);
    return above < 0 ? status : above;
}

#endif

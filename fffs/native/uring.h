/* The io_uring backend (uring.c), for Linux 5.6 and later if no sandbox forbids it. */
#ifndef FFFS_URING_H
#define FFFS_URING_H

#include "contexts.h"

extern const struct fffs_backend fffs_uring;

#endif

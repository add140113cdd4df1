/* The first message of a connection, FUSE_INIT (fastpath_init.c). The library replies to it, because it must know what
 * was negotiated. What it has no option for is then set in its reply. */
#ifndef FFFS_FASTPATH_INIT_H
#define FFFS_FASTPATH_INIT_H

#include "fffs.h"

#include <stdatomic.h>

/* The state between the request and its reply. All zeros at first. */
struct fffs_init {
    _Atomic uint64_t unique; /* of the request; 0: no reply is due */
    _Atomic uint64_t flags;  /* flags that the kernel offers */
};

/* Examines a message, at least a header, on its way to the library. Thread-safe. */
void fffs_init_note(struct fffs_init *init, const uint8_t *message, size_t length);

/* Examines a reply, at least a header, on its way to the kernel. If it is the one to FUSE_INIT, sets what the fast
 * path supports (larger reads, no OPEN, no OPENDIR, cached links), and returns true, once. Thread-safe. */
bool fffs_init_answer(struct fffs_init *init, const fffs_fastpath_config *config, uint8_t *reply, size_t length);

#endif

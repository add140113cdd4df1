/* The first message of a connection, FUSE_INIT (fastpath_init.c). The library answers it, since it needs to know what
 * was agreed on; what the library has no option for is set in its answer. */
#ifndef FFFS_FASTPATH_INIT_H
#define FFFS_FASTPATH_INIT_H

#include "fffs.h"

#include <stdatomic.h>

/* What is to be remembered between the request and its answer. All zeros at first. */
struct fffs_init {
    _Atomic uint64_t unique; /* of the request; 0: none is being answered */
    _Atomic uint64_t flags;  /* what the kernel offers */
};

/* Looks at a message, at least a header, on its way to the library. Any thread. */
void fffs_init_note(struct fffs_init *init, const uint8_t *message, size_t length);

/* Looks at a reply, at least a header, on its way to the kernel. If it is the answer to FUSE_INIT: sets in it what the
 * fast path does (larger reads, no OPEN, no OPENDIR, cached links), and returns true, once. Any thread. */
bool fffs_init_answer(struct fffs_init *init, const fffs_fastpath_config *config, uint8_t *reply, size_t length);

#endif

/* Replies to the kernel's requests (fastpath_answers.c): no threads, no descriptors but the store's. */
#ifndef FFFS_FASTPATH_ANSWERS_H
#define FFFS_FASTPATH_ANSWERS_H

#include "fffs.h"

#include <linux/fuse.h>

/* Room for the reply to the largest READ. */
enum { FFFS_REPLY_ROOM = FFFS_READ_MAX + sizeof(struct fuse_out_header) };

/* The data that replies are made from. Constant while threads run. Owns nothing. */
struct fffs_fast_view {
    fffs_fastpath_config config;
    const fffs_tree *tree;
    fffs_store *store;
};

/* The result of a request. */
struct fffs_fast_answer {
    int64_t length;  /* bytes of the reply; 0: no reply; -EREMOTE: forward to the library; -EAGAIN: would wait */
    int kind;        /* FFFS_FAST_* */
    int32_t status;  /* error of a read as -errno, for the log, or 0 */
    uint64_t record; /* of a read */
};

/* Makes the reply to a message of length bytes, which may be unaligned and is not trusted. reply has FFFS_REPLY_ROOM
 * bytes and 8-byte alignment. how: FFFS_READ_NOWAIT, FFFS_READ_LOCAL,
 * or 0: reads wait as long as they take. Thread-safe. */
struct fffs_fast_answer fffs_fast_answer_request(const struct fffs_fast_view *view, const uint8_t *message,
                                                 size_t length, uint8_t *reply, int how);

#endif

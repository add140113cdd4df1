/* Answers to the kernel's requests (fastpath_answers.c): no threads, no descriptors but the store's. */
#ifndef FFFS_FASTPATH_ANSWERS_H
#define FFFS_FASTPATH_ANSWERS_H

#include "fffs.h"

#include <linux/fuse.h>

/* Room for the answer to the largest READ. */
enum { FFFS_REPLY_ROOM = FFFS_READ_MAX + sizeof(struct fuse_out_header) };

/* What answering needs: all of it constant while threads run. Owns nothing. */
struct fffs_fast_view {
    fffs_fastpath_config config;
    const fffs_tree *tree;
    fffs_store *store;
};

/* What became of a request. */
struct fffs_fast_answer {
    int64_t length;  /* bytes of the reply; 0: none is due; -EREMOTE: the library's; -EAGAIN: would have to wait */
    int kind;        /* FFFS_FAST_* */
    int32_t status;  /* a read's failure as -errno, for the log, or 0 */
    uint64_t record; /* of a read */
};

/* Answers the message (length bytes, unaligned content allowed, nothing about it believed) into reply, which has
 * FFFS_REPLY_ROOM bytes and 8-byte alignment. wait: reads may wait. Any thread. */
struct fffs_fast_answer fffs_fast_answer_request(const struct fffs_fast_view *view, const uint8_t *message,
                                                 size_t length, uint8_t *reply, bool wait);

#endif

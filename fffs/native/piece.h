/* Pieces: what a batch is cut into, and what becomes of a read of one (piece.c). */
#ifndef FFFS_PIECE_H
#define FFFS_PIECE_H

#include "fffs.h"

/* The most that reads past the page cache may want their places to be multiples of: what pooled memory is. */
enum { FFFS_ALIGN_MAX = 4096 };

static inline bool fffs_is_alignment(uint32_t align)
{
    return (align & (align - 1)) == 0 && align <= FFFS_ALIGN_MAX;
}

/* A piece's status until it is finished; no errno is positive. */
enum { FFFS_PENDING = 1 };

/* At most FFFS_BLOCK of one request. Owned by the batch; at any time one thread or one I/O in flight has it. */
struct fffs_piece {
    uint8_t *dest;  /* room for length bytes, or NULL: the bytes are checked and dropped */
    int64_t offset; /* in the file */
    uint32_t length;
    uint32_t done; /* bytes read so far; crc covers exactly these */
    uint32_t crc;
    int32_t fd;
    int32_t status; /* FFFS_PENDING, 0 or -errno */
    uint32_t request;
    uint32_t check;  /* FFFS_CHECK_* */
    uint32_t around; /* as in the request */
    uint32_t align;  /* the same */
    int32_t direct_fd;
};

/* Takes the result of one read of data (the bytes after piece->done): counts and checksums a positive one, finishes
 * the piece at its end, at the end of the file and at an error of the file itself. True when the piece is finished;
 * else it needs another read, or, after an error that may be the backend's, a plain one. The piece's owner. */
bool fffs_piece_read(struct fffs_piece *piece, int64_t result, const uint8_t *data);

static inline int64_t fffs_piece_offset(const struct fffs_piece *piece)
{
    return piece->offset + piece->done;
}

/* Reads a piece as far as the page cache has it, or, with wait set, to its end. 0 when it is finished, -EOPNOTSUPP
 * when its file system cannot tell what is cached, -EAGAIN when a read would have to wait, or plain reads must decide
 * for another reason. *scratch is the thread's, NULL at first, to be given back: where bytes go that nobody wants.
 * The piece's owner. */
int fffs_piece_read_hot(struct fffs_piece *piece, uint8_t **scratch, bool wait);

/* Reads a piece to its end, waiting as long as it takes: what comes out is final. The piece's owner. */
void fffs_piece_read_plain(struct fffs_piece *piece, uint8_t **scratch);

#endif

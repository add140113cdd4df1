/* Pieces: the parts of a batch, and how they are read (piece.c). */
#ifndef FFFS_PIECE_H
#define FFFS_PIECE_H

#include "fffs.h"

/* The largest alignment that reads past the page cache may need: that of pooled memory. */
enum { FFFS_ALIGN_MAX = 4096 };

static inline bool fffs_is_alignment(uint32_t align)
{
    return (align & (align - 1)) == 0 && align <= FFFS_ALIGN_MAX;
}

/* The status of an unfinished piece; no other status is positive. */
enum { FFFS_PENDING = 1 };

/* At most FFFS_BLOCK of one request. Owned by the batch; one thread or one read in flight has it at a time. */
struct fffs_piece {
    uint8_t *dest;  /* room for length bytes, or NULL: check the bytes and drop them */
    int64_t offset; /* in the file */
    uint32_t length;
    uint32_t done; /* bytes read so far; crc covers exactly these */
    uint32_t crc;
    int32_t fd;
    int32_t status; /* FFFS_PENDING, 0 or -errno */
    uint32_t request;
    uint32_t check;  /* FFFS_CHECK_* */
    uint32_t around; /* as in the request */
    uint32_t align;  /* as in the request */
    int32_t direct_fd;
};

/* Handles the result of a read into data (the bytes after piece->done): counts and checksums the bytes, and finishes
 * the piece at its end, at the end of the file and at an error of the file itself. Returns true if the piece is
 * finished; else it needs another read, or, after an error that may be the backend's, a plain one. For the thread that
 * has the piece. */
bool fffs_piece_read(struct fffs_piece *piece, int64_t result, const uint8_t *data);

static inline int64_t fffs_piece_offset(const struct fffs_piece *piece)
{
    return piece->offset + piece->done;
}

/* Reads a piece as far as it is in the page cache or, with wait, to its end. Returns 0 if it is finished; -EOPNOTSUPP
 * if its file system cannot tell what is cached; -EAGAIN if a read would wait, or if plain reads must decide for
 * another reason. *scratch takes bytes without a dest: NULL at first, owned by the caller, which returns it to the
 * pool. For the thread that has the piece. */
int fffs_piece_read_hot(struct fffs_piece *piece, uint8_t **scratch, bool wait);

/* Reads a piece to its end, however long that takes. Its status is then final. *scratch and threads: as above. */
void fffs_piece_read_plain(struct fffs_piece *piece, uint8_t **scratch);

#endif

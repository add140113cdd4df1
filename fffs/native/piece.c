/* Reads pieces, as far as they are in the page cache or to their end, and evaluates the results of reads. */
#include "piece.h"
#include "crc.h"
#include "fault.h"

#include <errno.h>
#include <time.h>

/* Bytes that a thread reads before it checksums them: any second-level cache still has them then. */
enum { HOT_CHUNK = 256 * 1024 };

/* How often a plain read may fail with EAGAIN or EINTR before that error is final. */
enum { AGAIN_LIMIT = 1000 };

/* Whether an error may say nothing about the file: then a plain blocking read decides. */
static bool is_backends_error(int64_t error)
{
    switch (error) {
    case -EAGAIN: /* would wait, or is busy */
    case -EINTR:
    case -EOPNOTSUPP: /* no RWF_NOWAIT on this file system; opcode unknown to this kernel */
    case -ENOSYS:     /* forbidden, or missing */
    case -EPERM:
    case -EACCES:
    case -EINVAL: /* the same from older kernels */
    case -ENOMEM:
    case -ENOBUFS:
    case -EBUSY:
    case -ECANCELED: return true;
    default: return false;
    }
}

bool fffs_piece_read(struct fffs_piece *piece, int64_t result, const uint8_t *data)
{
    if (result > 0) {
        piece->crc = fffs_checksum(piece->check, piece->crc, data, (size_t)result);
        piece->done += (uint32_t)result;
        if (piece->done < piece->length)
            return false;
        piece->status = 0;
    } else if (result == 0) {
        piece->status = -ENODATA;
    } else if (is_backends_error(result)) {
        return false;
    } else {
        piece->status = fffs_file_error(result);
    }
    return true;
}

/* Returns where the next bytes of a piece go: its dest, or a scratch buffer of the thread, taken when first needed; or
 * NULL. */
static uint8_t *piece_data(struct fffs_piece *piece, uint8_t **scratch)
{
    if (piece->dest)
        return piece->dest + piece->done;
    if (!*scratch)
        *scratch = fffs_buffer_take(FFFS_BLOCK);
    return *scratch;
}

int fffs_piece_read_hot(struct fffs_piece *piece, uint8_t **scratch, bool wait)
{
    for (;;) {
        uint32_t rest = piece->length - piece->done, size = rest < HOT_CHUNK ? rest : HOT_CHUNK;
        uint8_t *data = piece_data(piece, scratch);

        if (!data)
            return -EAGAIN;
        int64_t result = (wait ? fffs_pread : fffs_pread_nowait)(piece->fd, data, size, fffs_piece_offset(piece));
        if (fffs_piece_read(piece, result, data))
            return 0;
        if (result <= 0)
            return result == -EOPNOTSUPP ? -EOPNOTSUPP : -EAGAIN;
    }
}

void fffs_piece_read_plain(struct fffs_piece *piece, uint8_t **scratch)
{
    const struct timespec moment = {0, 100000};
    int again = 0;

    while (piece->status == FFFS_PENDING) {
        uint8_t *data = piece_data(piece, scratch);

        if (!data) {
            piece->status = -ENOMEM;
            return;
        }
        int64_t result = fffs_pread(piece->fd, data, piece->length - piece->done, fffs_piece_offset(piece));
        if (fffs_piece_read(piece, result, data) || result > 0)
            continue;
        if ((result != -EINTR && result != -EAGAIN) || again++ == AGAIN_LIMIT)
            piece->status = (int32_t)result;
        else if (result == -EAGAIN)
            nanosleep(&moment, NULL);
    }
}

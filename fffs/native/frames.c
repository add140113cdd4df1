/* Finds the records of files that are a sequence of frames, TFRecord and OFRecord: goes from frame to frame by their
 * lengths, with small reads that skip the data.
 *
 * A file of large records costs one read of at most 16 bytes per frame: the tail of one and the head of the next. If
 * frames are small, one larger read covers many. */
#include "fault.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    TF_HEAD = 12, /* length, and its masked CRC-32C */
    TF_TAIL = 4,  /* the data's masked CRC-32C */
    OF_HEAD = 8   /* length */
};

/* After a frame below SMALL the next read is PIECE bytes. From a warm cache, copying SMALL bytes costs as much as a
 * system call; a disk reads that many for any one of them. */
enum { SMALL = 4096, PIECE = 65536 };

/* The last bytes read of the file, from begin on. */
struct window {
    uint8_t *data; /* PIECE bytes */
    int64_t begin;
    int64_t size;
    int fd;
};

/* Returns the bytes of the file from position on, at least as many as asked (at most PIECE); the window owns them. If
 * they are not there yet, reads up to wanted bytes. NULL: *status is -errno; -ENODATA if the file became shorter. */
static const uint8_t *look(struct window *window, int64_t position, int64_t least, int64_t wanted, int *status)
{
    if (position >= window->begin && position + least <= window->begin + window->size)
        return window->data + (position - window->begin);
    window->begin = position;
    window->size = 0;
    while (window->size < least) {
        int64_t got = fffs_pread(window->fd, window->data + window->size, (size_t)(wanted - window->size),
                                 position + window->size);

        if (got == -EINTR)
            continue;
        if (got <= 0) {
            *status = got == 0 ? -ENODATA : fffs_file_error(got);
            return NULL;
        }
        window->size += got;
    }
    return window->data;
}

static inline uint32_t load_32(const uint8_t *data)
{
    uint32_t word;

    memcpy(&word, data, sizeof word);
    return word;
}

static inline uint32_t unmasked(uint32_t masked)
{
    uint32_t rotated = masked - 0xA282EAD8u;

    return rotated >> 17 | rotated << 15;
}

uint32_t fffs_crc32c_mask(uint32_t crc)
{
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

/* Returns FFFS_FRAME_* for the frame at head. The file has left bytes from there on, at least a head. */
static int examine(fffs_frames *frames, const uint8_t *head, int64_t left)
{
    bool tf = frames->kind == FFFS_FRAMES_TFRECORD;
    uint64_t length;

    memcpy(&length, head, sizeof length);
    frames->length = length;
    if (tf && frames->check && unmasked(load_32(head + 8)) != fffs_crc32c(0, head, 8))
        return FFFS_FRAME_LENGTH_CHECKSUM;
    if (!tf && length > INT64_MAX)
        return FFFS_FRAME_LENGTH_NEGATIVE;
    left -= tf ? TF_HEAD + TF_TAIL : OF_HEAD;
    if (left < 0 || length > (uint64_t)left)
        return FFFS_FRAME_CUT;
    /* In a hole of the file, which has no frames, each 8 zeros look like an empty record. */
    frames->empty = length == 0 && !(tf && frames->check) ? frames->empty + 1 : 0;
    return frames->empty > FFFS_EMPTY_FRAMES ? FFFS_FRAME_EMPTIES : FFFS_FRAME_GOOD;
}

int fffs_frames_scan(fffs_frames *frames, int64_t *ends, uint32_t *checksums, size_t room, size_t *count)
{
    const int64_t head = frames->kind == FFFS_FRAMES_TFRECORD ? TF_HEAD : OF_HEAD;
    const int64_t tail = frames->kind == FFFS_FRAMES_TFRECORD ? TF_TAIL : 0;
    struct window window = {.data = fffs_allocate(PIECE), .fd = frames->fd};
    int64_t wanted = PIECE;
    int status = 0;

    *count = 0;
    frames->fault = FFFS_FRAME_GOOD;
    if (!window.data)
        return -ENOMEM;
    while (*count < room && frames->position < frames->size) {
        int64_t begin = frames->position, left = frames->size - begin;

        frames->length = 0;
        if (left < head) {
            frames->fault = FFFS_FRAME_CUT_HEAD;
            break;
        }
        const uint8_t *bytes = look(&window, begin, head, wanted < left ? wanted : left, &status);
        if (!bytes)
            break;
        frames->fault = examine(frames, bytes, left);
        if (frames->fault != FFFS_FRAME_GOOD)
            break;
        int64_t end = begin + head + (int64_t)frames->length;
        wanted = frames->length < SMALL ? PIECE : tail + head;
        if (tail) {
            left = frames->size - end;
            bytes = look(&window, end, tail, wanted < left ? wanted : left, &status);
            if (!bytes)
                break;
            checksums[*count] = unmasked(load_32(bytes));
        }
        ends[(*count)++] = end;
        frames->position = end + tail;
    }
    free(window.data);
    return status;
}

/* The headers of tar archives, for the C sources that read these (tar_header.c). Thread-safe. */
#ifndef FFFS_TAR_H
#define FFFS_TAR_H

#include "fffs.h"

#include <string.h>

enum { FFFS_TAR_BLOCK = 512 };

/* Numbers of a header have up to 95 bits, and the nanoseconds of a time 30 more. */
typedef __int128 fffs_number;

/* Bytes that the caller of a function owns. */
struct fffs_text {
    const uint8_t *data;
    size_t size;
};

/* The fields of a header that are used. name and target are in the block, or in joined. */
struct fffs_tar_header {
    uint8_t joined[155 + 1 + 100];
    struct fffs_text name, target;
    fffs_number mtime; /* in nanoseconds */
    fffs_number size;
    uint32_t mode;
    uint8_t kind; /* '0' for all types of regular files */
};

/* Types without data, whose size is ignored. */
static inline bool fffs_tar_has_no_data(uint8_t kind)
{
    return kind >= '1' && kind <= '6';
}

/* Returns the bytes of a field up to a zero. */
static inline struct fffs_text fffs_tar_text(const uint8_t *field, size_t size)
{
    const uint8_t *end = size ? memchr(field, 0, size) : NULL;

    return (struct fffs_text){field, end ? (size_t)(end - field) : size};
}

/* Parses a block. Returns NULL or what is wrong, a constant string; if the size is below 0, it belongs behind that. */
const char *fffs_tar_parse_header(const uint8_t *block, struct fffs_tar_header *header);

#endif

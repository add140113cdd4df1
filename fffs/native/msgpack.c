/* Walks through msgpack before objects are made of it. The msgpack library allocates a list when it finds its length,
 * so that a few bytes could claim much memory; and a container takes up to 72 times as many bytes as its encoding.
 *
 * The walk goes from front to back, allocates nothing and does not recurse: it only counts the values that must still
 * follow. The library limits how deep containers may be nested. */
#include "fffs.h"

/* What values take in CPython 3.11, beside the bytes of a text. A list has a reference to each value; equal small
 * numbers and texts of one character are one object. */
enum { REFERENCE = 8, NUMBER_SIZE = 32, TEXT_SIZE = 64, EXTENSION_SIZE = 128, LIST_SIZE = 64, DICT_SIZE = 64 };

/* A place in a dictionary, beyond the references to key and value. The smallest dictionary with items has three. */
enum { PLACE = 24, PLACES = 3 };

enum kind { INVALID, SMALL, NUMBER, TEXT, EXTENSION, LIST, DICT };

/* For each code from 0xc0 to 0xdf the kind, the bytes of its length, and how many bytes follow beside these. */
static const struct {
    uint8_t kind, width, extra;
} forms[32] = {
    {SMALL, 0, 0},      {INVALID, 0, 0},   {SMALL, 0, 0},     {SMALL, 0, 0},     {TEXT, 1, 0},      {TEXT, 2, 0},
    {TEXT, 4, 0},       {EXTENSION, 1, 1}, {EXTENSION, 2, 1}, {EXTENSION, 4, 1}, {NUMBER, 0, 4},    {NUMBER, 0, 8},
    {NUMBER, 0, 1},     {NUMBER, 0, 2},    {NUMBER, 0, 4},    {NUMBER, 0, 8},    {NUMBER, 0, 1},    {NUMBER, 0, 2},
    {NUMBER, 0, 4},     {NUMBER, 0, 8},    {EXTENSION, 0, 2}, {EXTENSION, 0, 3}, {EXTENSION, 0, 5}, {EXTENSION, 0, 9},
    {EXTENSION, 0, 17}, {TEXT, 1, 0},      {TEXT, 2, 0},      {TEXT, 4, 0},      {LIST, 2, 0},      {LIST, 4, 0},
    {DICT, 2, 0},       {DICT, 4, 0},
};

struct value {
    enum kind kind;
    uint64_t count; /* of a container: its items; else the bytes after the head */
};

/* Reads the head of the value at *at, which is inside, and moves *at behind it. Returns 0 or FFFS_MSGPACK_*. */
static int read_head(const uint8_t *data, size_t size, size_t *at, struct value *value)
{
    uint8_t code = data[(*at)++];
    unsigned width;

    value->count = 0;
    value->kind = SMALL;
    if (code < 0x80 || code >= 0xe0)
        return 0;
    if (code < 0xc0) {
        value->kind = code < 0x90 ? DICT : code < 0xa0 ? LIST : TEXT;
        value->count = code < 0xa0 ? code & 15 : code & 31;
        return 0;
    }
    value->kind = forms[code - 0xc0].kind;
    width = forms[code - 0xc0].width;
    if (value->kind == INVALID)
        return FFFS_MSGPACK_CODE;
    if (size - *at < width)
        return FFFS_MSGPACK_TRUNCATED;
    for (; width; width--)
        value->count = value->count << 8 | data[(*at)++];
    value->count += forms[code - 0xc0].extra;
    return 0;
}

/* Returns how many bytes of memory a value takes, without the reference to it and without the values in it. */
static uint64_t memory_of(const struct value *value)
{
    uint64_t places = value->count > PLACES ? value->count : PLACES;

    switch (value->kind) {
    case NUMBER: return NUMBER_SIZE;
    case TEXT: return value->count > 1 ? TEXT_SIZE + value->count : 0;
    case EXTENSION: return EXTENSION_SIZE + value->count;
    case LIST: return LIST_SIZE;
    case DICT: return DICT_SIZE + (value->count ? places * PLACE + (places - value->count) * 2 * REFERENCE : 0);
    default: return 0;
    }
}

int fffs_msgpack_check(const uint8_t *data, size_t size, uint64_t memory)
{
    uint64_t awaited = 1, used = 0;
    size_t at = 0;
    int status;

    for (; awaited; awaited--) {
        struct value value;

        if (at == size)
            return FFFS_MSGPACK_TRUNCATED;
        status = read_head(data, size, &at, &value);
        if (status)
            return status;
        used += REFERENCE + memory_of(&value);
        if (value.kind == LIST || value.kind == DICT) {
            awaited += value.kind == DICT ? 2 * value.count : value.count;
            if (awaited - 1 > size - at) /* each has a byte at least; this one is read already */
                return FFFS_MSGPACK_CLAIM;
        } else {
            if (value.count > size - at)
                return FFFS_MSGPACK_TRUNCATED;
            at += value.count;
        }
        if (used > memory)
            return FFFS_MSGPACK_MEMORY;
    }
    return 0;
}

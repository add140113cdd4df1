/* UTF-8 in names (packed_pickle*.c). */
#ifndef FFFS_UTF8_H
#define FFFS_UTF8_H

#include "fffs.h"

/* Returns the length of the UTF-8 sequence at text, of which left bytes (at least 1) can be read, or 0. Accepts
 * surrogates, because a str may have lone ones. */
static inline size_t fffs_utf8_length(const uint8_t *text, size_t left)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    size_t length = text[0] < 0x80   ? 1
                    : text[0] < 0xc0 ? 0
                    : text[0] < 0xe0 ? 2
                    : text[0] < 0xf0 ? 3
                    : text[0] < 0xf8 ? 4
                                     : 0;

    if (length == 0 || length > left)
        return 0;
    uint32_t code = length == 1 ? text[0] : text[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (text[i] & 0x3f);
    }
    return code >= least[length] && code <= 0x10ffff ? length : 0;
}

/* Whether the sequence at text, of this length, is a surrogate (U+D800 to U+DFFF), which UTF-8 proper does not have. */
static inline bool fffs_utf8_is_surrogate(const uint8_t *text, size_t length)
{
    return length == 3 && text[0] == 0xed && text[1] >= 0xa0;
}

#endif

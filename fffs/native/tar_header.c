/* Parses single headers of tar archives. */
#include "tar.h"

#define SECOND 1000000000

/* Offsets of the fields of a header. */
enum {
    MODE = 100,
    OWNER = 108,
    GROUP = 116,
    SIZE = 124,
    MTIME = 136,
    CHECKSUM = 148,
    KIND = 156,
    TARGET = 157,
    MAGIC = 257,
    PREFIX = 345
};

/* The digits of a number: the field up to a zero, without blanks around them. */
static struct fffs_text digits_of(const uint8_t *field, size_t size)
{
    struct fffs_text text = fffs_tar_text(field, size);

    while (text.size && text.data[text.size - 1] == ' ')
        text.size--;
    while (text.size && *text.data == ' ') {
        text.data++;
        text.size--;
    }
    return text;
}

static bool has_digit(const uint8_t *field, size_t size)
{
    return field[0] & 0x80 || digits_of(field, size).size;
}

/* Parses a number: octal, or binary if the first bit is set. Returns false if it is neither. */
static bool parse_number(const uint8_t *field, size_t size, fffs_number *value)
{
    unsigned __int128 sum = 0;

    if (field[0] & 0x80) {
        /* Two's complement without the first bit. */
        sum = field[0] & 0x40 ? ~(unsigned __int128)0 << 7 : 0;
        sum |= field[0] & 0x7f;
        for (size_t i = 1; i < size; i++)
            sum = sum << 8 | field[i];
        *value = (fffs_number)sum;
        return true;
    }
    struct fffs_text text = digits_of(field, size);
    for (size_t i = 0; i < text.size; i++) {
        if (text.data[i] < '0' || text.data[i] > '7')
            return false;
        sum = sum << 3 | (text.data[i] & 7);
    }
    *value = (fffs_number)sum;
    return true;
}

static const char NOT_OCTAL[] = "a field of its header is not an octal number";

/* Compares a header's checksum, a sum of bytes, which some programs add as signed. Returns NULL or what is wrong. */
static const char *check_sum(const uint8_t *block)
{
    fffs_number stored;
    unsigned sum = 8 * ' ', high = 0;

    if (!has_digit(block + CHECKSUM, 8))
        return "its header has no checksum";
    if (!parse_number(block + CHECKSUM, 8, &stored))
        return NOT_OCTAL;
    for (size_t i = 0; i < FFFS_TAR_BLOCK; i++) {
        sum += block[i];
        high += block[i] >> 7;
    }
    for (size_t i = CHECKSUM; i < KIND; i++) {
        sum -= block[i];
        high -= block[i] >> 7;
    }
    return stored == sum || stored == (fffs_number)sum - 256 * (fffs_number)high
               ? NULL
               : "the checksum of its header is wrong";
}

const char *fffs_tar_parse_header(const uint8_t *block, struct fffs_tar_header *header)
{
    const char *why = check_sum(block);
    fffs_number mode;

    header->size = 0;
    if (why)
        return why;
    header->name = fffs_tar_text(block, 100);
    header->target = fffs_tar_text(block + TARGET, 100);
    struct fffs_text prefix = fffs_tar_text(block + PREFIX, 155);
    /* Some programs wrote another version than "00" behind the magic number. GNU's own headers have a blank in place of
     * its NUL, and other fields in place of the prefix. */
    if (prefix.size && memcmp(block + MAGIC, "ustar", 6) == 0) {
        memcpy(header->joined, prefix.data, prefix.size);
        header->joined[prefix.size] = '/';
        memcpy(header->joined + prefix.size + 1, header->name.data, header->name.size);
        header->name = (struct fffs_text){header->joined, prefix.size + 1 + header->name.size};
    }
    header->kind = block[KIND] == 0 || block[KIND] == '7' ? '0' : block[KIND];
    if (!fffs_tar_has_no_data(header->kind) && !parse_number(block + SIZE, 12, &header->size))
        return NOT_OCTAL;
    if (header->size < 0)
        return "its size is ";
    if (!parse_number(block + MODE, 8, &mode) || !parse_number(block + MTIME, 12, &header->mtime))
        return NOT_OCTAL;
    header->mode = (uint32_t)(mode & 07777);
    header->mtime *= SECOND;
    return NULL;
}

/* Returns whether a header without a magic number has a name, valid numbers, a known type and a size that fits. */
static bool is_old(const uint8_t *block, int64_t size)
{
    static const struct {
        size_t at, size;
    } fields[] = {{MODE, 8}, {OWNER, 8}, {GROUP, 8}, {SIZE, 12}, {MTIME, 12}}, texts[] = {{0, 100}, {TARGET, 100}};
    fffs_number values[5];

    for (size_t i = 0; i < 2; i++)
        for (size_t k = fffs_tar_text(block + texts[i].at, texts[i].size).size; k < texts[i].size; k++)
            if (block[texts[i].at + k])
                return false; /* names are padded with zeros */
    for (size_t i = 0; i < 5; i++) {
        const uint8_t *field = block + fields[i].at;

        if (!has_digit(field, fields[i].size) || !parse_number(field, fields[i].size, &values[i]) ||
            (values[i] < 0 && fields[i].at != MTIME))
            return false;
    }
    if (block[KIND] && (block[KIND] < '0' || block[KIND] > '6'))
        return false;
    return size < 0 || fffs_tar_has_no_data(block[KIND]) || FFFS_TAR_BLOCK + values[3] <= size;
}

/* Returns whether a header without a magic number is the label of a volume, by GNU tar: a name, a time, and zeros. */
static bool is_label(const uint8_t *block)
{
    fffs_number time;

    for (size_t i = MODE; i < FFFS_TAR_BLOCK; i++)
        if (block[i] && (i < MTIME || i > KIND))
            return false;
    return block[KIND] == 'V' && has_digit(block + MTIME, 12) && parse_number(block + MTIME, 12, &time);
}

int fffs_tar_is_header(const uint8_t *block, int64_t size, int old)
{
    if (!block[0] || check_sum(block))
        return 0;
    return memcmp(block + MAGIC, "ustar", 5) == 0 || (old && (is_old(block, size) || is_label(block)));
}

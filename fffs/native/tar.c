/* Parses the headers of tar archives of all formats, from pieces of any size. */
#include "grow.h"
#include "tar.h"

enum {
    BLOCK = FFFS_TAR_BLOCK,
    HEADER_MAX = 1 << 20, /* bytes of an extended header */
    HEADERS_MAX = 8,      /* extended headers before one member */
    NOTES_EACH = 8        /* more notes than one member gives */
};

/* Sizes are limited to this: no archive is as large. */
#define SIZE_LIMIT ((int64_t)1 << 62)

/* A value that an extended header gives. */
struct value {
    uint8_t *data; /* owned */
    size_t size, room;
    bool given;
};

enum { PATH, LINKPATH, LENGTH, TIME, KEYS };
static const char *const KEY_NAMES[KEYS] = {"path", "linkpath", "size", "mtime"};

/* Whose extended headers: of POSIX for the next member, of POSIX for all members, of GNU for the next one. */
enum { OWN, SHARED, LONG, LAYERS };

struct fffs_tar {
    fffs_names *names;
    struct value values[LAYERS][KEYS];
    bool sparse[LAYERS]; /* one of the keys for sparse files has a value */
    struct value name;   /* of the last member */
    uint64_t position;   /* of the next byte to parse, in the archive */
    uint64_t begin;      /* of the first header of the member */
    uint64_t skip;       /* bytes of its data that follow */
    int headers;         /* extended headers of the member so far */
};

/* ---------------------------------------------------------------- errors */

static fffs_note *add_note(struct fffs_tar *tar, int kind)
{
    fffs_names_columns *columns = fffs_names_get(tar->names);
    fffs_note *note = &columns->notes[columns->notes_count++];

    *note = (fffs_note){.kind = kind, .before = "", .after = "", .position = tar->begin};
    return note;
}

static int fail(struct fffs_tar *tar, int kind, const char *why)
{
    add_note(tar, kind)->before = why;
    return -EINVAL;
}

static int damaged(struct fffs_tar *tar, const char *why)
{
    return fail(tar, FFFS_NOTE_DAMAGED, why);
}

static int damaged_by(struct fffs_tar *tar, const char *before, fffs_number value, const char *after)
{
    fffs_note *note = add_note(tar, FFFS_NOTE_DAMAGED);

    note->before = before;
    note->after = after;
    note->between = FFFS_BETWEEN_NUMBER;
    note->high = (int64_t)(value >> 64);
    note->low = (uint64_t)value;
    return -EINVAL;
}

/* ---------------------------------------------------------------- extended headers */

static int set(struct value *value, const uint8_t *data, size_t size)
{
    if (fffs_grow(&value->data, &value->room, size + 1, 1))
        return -ENOMEM;
    if (size)
        memcpy(value->data, data, size);
    value->size = size;
    value->given = true;
    return 0;
}

static bool is_digits(const uint8_t *data, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (data[i] < '0' || data[i] > '9')
            return false;
    return true;
}

static uint64_t decimal(const uint8_t *data, size_t size)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < size; i++)
        sum = sum * 10 + (data[i] & 15);
    return sum;
}

static bool begins_with(struct fffs_text text, const char *start)
{
    return text.size >= strlen(start) && memcmp(text.data, start, strlen(start)) == 0;
}

/* Keeps a key and its value. An empty value of a key for sparse files does not cancel an earlier one. */
static int keep(struct fffs_tar *tar, int layer, struct fffs_text key, struct fffs_text value)
{
    if (value.size && (begins_with(key, "GNU.sparse.") || begins_with(key, "SCHILY.realsize")))
        tar->sparse[layer] = true;
    for (int k = 0; k < KEYS; k++)
        if (key.size == strlen(KEY_NAMES[k]) && memcmp(key.data, KEY_NAMES[k], key.size) == 0)
            return set(&tar->values[layer][k], value.data, value.size);
    return 0;
}

/* Parses the records "LENGTH KEY=VALUE\n" of a POSIX extended header. */
static int parse_extended(struct fffs_tar *tar, int layer, struct fffs_text data)
{
    for (size_t at = 0; at < data.size;) {
        const uint8_t *record = data.data + at;
        size_t left = data.size - at;
        const uint8_t *blank = memchr(record, ' ', left < 20 ? left : 20);
        size_t digits = blank ? (size_t)(blank - record) : 0;
        uint64_t length = digits && is_digits(record, digits) ? decimal(record, digits) : 0;

        if (length > left || length < digits + 2 || record[length - 1] != '\n')
            return damaged(tar, "its extended header is not a list of keys and values");
        struct fffs_text value = {memchr(blank + 1, '=', length - digits - 2), 0};
        if (!value.data)
            return damaged(tar, "a key of its extended header has no value");
        struct fffs_text key = {blank + 1, (size_t)(value.data - blank - 1)};
        value.data++;
        value.size = (size_t)(record + length - 1 - value.data);
        int status = keep(tar, layer, key, value);
        if (status)
            return status;
        at += length;
    }
    return 0;
}

/* The value that extended headers give for a key, or one of size 0. POSIX headers take precedence over GNU's in any
 * order, and an empty value cancels that of a global header. */
static const struct value *find_value(const struct fffs_tar *tar, int key)
{
    const struct value *value = &tar->values[tar->values[OWN][key].given ? OWN : SHARED][key];

    return value->size ? value : &tar->values[LONG][key];
}

/* Converts a decimal number of seconds to nanoseconds, rounded down, as by tar. Returns false if it is none. */
static bool parse_time(struct fffs_text text, fffs_number *nanoseconds)
{
    bool negative = text.data[0] == '-', more = false;
    const uint8_t *data = text.data + negative, *end = text.data + text.size;
    const uint8_t *point = memchr(data, '.', (size_t)(end - data));
    size_t whole = (size_t)((point ? point : end) - data), part = point ? (size_t)(end - point - 1) : 0;

    if (whole + part == 0 || whole > 20 || !is_digits(data, whole) || (part && !is_digits(point + 1, part)))
        return false;
    fffs_number sum = 0;
    for (size_t i = 0; i < whole; i++)
        sum = sum * 10 + (data[i] & 15);
    for (size_t i = 0; i < 9; i++)
        sum = sum * 10 + (i < part ? point[1 + i] & 15 : 0);
    for (size_t i = 9; i < part; i++)
        more = more || point[1 + i] != '0';
    *nanoseconds = negative ? -sum - more : sum;
    return true;
}

/* ---------------------------------------------------------------- members */

/* Replaces what a header says by the values of extended headers. */
static int apply(struct fffs_tar *tar, struct fffs_tar_header *header)
{
    const struct value *path = find_value(tar, PATH), *link = find_value(tar, LINKPATH);
    const struct value *length = find_value(tar, LENGTH), *time = find_value(tar, TIME);

    if (path->size)
        header->name = (struct fffs_text){path->data, path->size};
    if (link->size)
        header->target = (struct fffs_text){link->data, link->size};
    if (header->kind == 'S' || tar->sparse[OWN] || tar->sparse[SHARED]) {
        fffs_note *note = add_note(tar, FFFS_NOTE_SPARSE);

        note->path_size = header->name.size < FFFS_NOTED ? header->name.size : FFFS_NOTED;
        memcpy(note->path, header->name.data, note->path_size);
        return -EINVAL;
    }
    if (length->size && !fffs_tar_has_no_data(header->kind)) {
        if (length->size > 18 || !is_digits(length->data, length->size))
            return damaged(tar, "its extended header has an invalid size");
        header->size = (fffs_number)decimal(length->data, length->size);
    }
    if (time->size && !parse_time((struct fffs_text){time->data, time->size}, &header->mtime))
        return damaged(tar, "its extended header has an invalid time");
    /* Tars before 1988 mark folders with a slash. The whole name counts: a header may have only its first 100 bytes. */
    if (header->kind == '0' && header->name.size && header->name.data[header->name.size - 1] == '/')
        header->kind = '5';
    return 0;
}

/* Adds the member of a header, whose data begins at place, to the names. */
static int add_member(struct fffs_tar *tar, struct fffs_tar_header *header, uint64_t place)
{
    int status = apply(tar, header);

    if (status)
        return status;
    if (set(&tar->name, header->name.data, header->name.size))
        return -ENOMEM;
    int64_t size = header->size < SIZE_LIMIT ? (int64_t)header->size : SIZE_LIMIT;
    fffs_number nearest = header->mtime < INT64_MIN   ? INT64_MIN
                          : header->mtime > INT64_MAX ? INT64_MAX
                                                      : header->mtime;
    const fffs_member member = {
        .name = header->name.data,
        .name_size = header->name.size,
        .target = header->target.data,
        .target_size = header->target.size,
        .place = (int64_t)place,
        .size = size,
        .mtime = (int64_t)nearest,
        .mode = header->mode,
        .what = header->kind,
        .far = nearest != header->mtime,
        .kind = header->kind == 'D' ? '5' : header->kind,
    };
    tar->skip = ((uint64_t)size + BLOCK - 1) / BLOCK * BLOCK;
    tar->headers = 0;
    for (int k = 0; k < KEYS; k++)
        tar->values[OWN][k].given = false, tar->values[LONG][k].size = 0;
    tar->sparse[OWN] = false;
    if (header->kind == 'M')
        return fail(tar, FFFS_NOTE_VOLUME, "");
    return header->kind == 'V' ? 0 : fffs_names_add(tar->names, &member);
}

/* Keeps the values of an extended header. */
static int add_extended(struct fffs_tar *tar, uint8_t kind, struct fffs_text content)
{
    struct fffs_text text = fffs_tar_text(content.data, content.size);
    int status;

    if (kind == 'L' || kind == 'K')
        status = set(&tar->values[LONG][kind == 'L' ? PATH : LINKPATH], text.data, text.size);
    else
        status = parse_extended(tar, kind == 'g' ? SHARED : OWN, content);
    if (!status && ++tar->headers == HEADERS_MAX)
        return damaged(tar, "more than 8 extended headers");
    return status;
}

static bool is_zero(const uint8_t *block)
{
    return block[0] == 0 && memcmp(block, block + 1, BLOCK - 1) == 0;
}

/* Parses the header at data, of which a block is there. Sets step->used, or step->wanted if more is needed. */
static int parse_one(struct fffs_tar *tar, const uint8_t *data, size_t size, int last, fffs_tar_step *step)
{
    struct fffs_tar_header header;

    step->used = 0;
    if (tar->headers == 0)
        tar->begin = tar->position;
    if (is_zero(data)) {
        step->used = BLOCK;
        return FFFS_TAR_END;
    }
    const char *why = fffs_tar_parse_header(data, &header);
    if (why)
        return header.size < 0 ? damaged_by(tar, why, header.size, "") : damaged(tar, why);
    if (!header.kind || !strchr("xgXLK", header.kind)) {
        step->used = BLOCK;
        return add_member(tar, &header, tar->position + BLOCK);
    }
    if (header.size > HEADER_MAX)
        return damaged_by(tar, "an extended header of ", header.size, " bytes");
    step->wanted = BLOCK + ((size_t)header.size + BLOCK - 1) / BLOCK * BLOCK;
    if (size >= step->wanted) {
        step->used = step->wanted;
        return add_extended(tar, header.kind, (struct fffs_text){data + BLOCK, (size_t)header.size});
    }
    return last ? fail(tar, FFFS_NOTE_CUT, "the archive ends in an extended header") : 0;
}

/* ---------------------------------------------------------------- the interface */

int fffs_tar_parse(fffs_tar *tar, const uint8_t *data, size_t size, int last, fffs_tar_step *step)
{
    const fffs_names_columns *columns = fffs_names_get(tar->names);
    size_t at = 0;
    int status = FFFS_TAR_MORE;

    *step = (fffs_tar_step){.wanted = BLOCK};
    while (status == FFFS_TAR_MORE) {
        size_t passed = tar->skip < size - at ? (size_t)tar->skip : size - at;
        fffs_tar_step one = {.wanted = BLOCK};

        at += passed;
        tar->skip -= passed;
        tar->position += passed;
        if (tar->skip)
            break;
        if (columns->notes_count > FFFS_NOTES - NOTES_EACH)
            status = FFFS_TAR_NOTES;
        else if (size - at >= BLOCK)
            status = parse_one(tar, data + at, size - at, last, &one);
        else if (last)
            status = fail(tar, FFFS_NOTE_CUT, "the archive ends without its end mark");
        at += one.used;
        tar->position += one.used;
        step->wanted = one.wanted;
        if (!one.used)
            break;
    }
    step->used = at;
    step->skip = status < 0 ? 0 : tar->skip;
    step->name = tar->name.data;
    step->name_size = tar->name.size;
    tar->position += tar->skip;
    tar->skip = 0;
    return status;
}

int fffs_tar_new(fffs_names *names, fffs_tar **tar)
{
    fffs_tar *made = fffs_allocate_zeroed(1, sizeof *made);

    if (!made)
        return -ENOMEM;
    made->names = names;
    *tar = made;
    return 0;
}

void fffs_tar_free(fffs_tar *tar)
{
    for (int layer = 0; layer < LAYERS; layer++)
        for (int k = 0; k < KEYS; k++)
            free(tar->values[layer][k].data);
    free(tar->name.data);
    free(tar);
}

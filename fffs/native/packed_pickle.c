/* Decodes the tree of a packed folder that ffrecord wrote: a pickle, of which no object is built.
 *
 * A pickle is a program for a stack machine: running an unknown one runs unknown code. This machine has only the
 * opcodes that CPython's pickler emits (protocols 2 to 5) for nested OrderedDicts of str to int, and refuses
 * all others:
 *
 *     value  = int | dict
 *     dict   = OrderedDict () REDUCE, then any number of  key value SETITEM  |  MARK (key value)* SETITEMS
 *     key    = str, or one that was memoised before
 *
 * Bounds, each against a known attack:
 *   - the memo accepts only the next index, as the pickler does, so that no index can claim memory;
 *   - the stack and the memo grow by one item per opcode at most, so by a multiple of the input;
 *   - all names together are at most a few times as long as the pickle;
 *   - a dictionary cannot be fetched from the memo, so none has two places, and none contains itself;
 *   - there is no recursion: depth costs stack items, not C stack (and the tree's own limit refuses deep trees). */
#include "fffs.h"
#include "utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The limit of all names together: this many bytes, or this many times the pickle's size if that is more. */
#define NAMES_LEAST ((uint64_t)1 << 20)
#define NAMES_FACTOR 8

enum kind { MARK, STRING, INTEGER, DICTIONARY, CONSTRUCTOR, EMPTY_TUPLE };

struct item {
    enum kind kind;
    uint32_t length; /* STRING: its length in the pickle */
    int64_t value;   /* STRING: its offset; INTEGER: the number; DICTIONARY: its number */
};

struct items {
    struct item *at;
    size_t count;
    size_t room;
};

struct machine {
    const uint8_t *data;
    size_t size;
    size_t next;  /* position in data */
    size_t frame; /* end of the frame that next is in, or 0 */
    struct items stack;
    struct items memo;
    fffs_packed_pickle *out;
    const char *why;
    int status;
};

/* ---------------------------------------------------------------- small parts */

static int refuse(struct machine *m, const char *why)
{
    m->why = why;
    m->status = -EINVAL;
    return -1;
}

static int push(struct machine *m, struct items *items, struct item item)
{
    if (items->count == items->room) {
        size_t room = items->room ? 2 * items->room : 64;
        struct item *more = realloc(items->at, room * sizeof *more);

        if (!more) {
            m->why = "out of memory";
            m->status = -ENOMEM;
            return -1;
        }
        items->at = more;
        items->room = room;
    }
    items->at[items->count++] = item;
    return 0;
}

static int pop(struct machine *m, enum kind kind, struct item *item)
{
    if (m->stack.count == 0 || m->stack.at[m->stack.count - 1].kind != kind)
        return refuse(m, "it is not a tree of names and record numbers");
    *item = m->stack.at[--m->stack.count];
    return 0;
}

/* Reads the next bytes as a little-endian number. */
static int take_number(struct machine *m, size_t width, uint64_t *number)
{
    if (m->size - m->next < width)
        return refuse(m, "it ends too early");
    *number = 0;
    for (size_t i = 0; i < width; i++)
        *number |= (uint64_t)m->data[m->next + i] << (8 * i);
    m->next += width;
    return 0;
}

/* ---------------------------------------------------------------- names */

/* Converts a pickled str to the bytes of a file name, as os.fsencode does: U+DC80 to U+DCFF each stand for one byte
 * that is not valid UTF-8. name has room for length bytes. Returns the length, or -1. */
static int encode_name(struct machine *m, const uint8_t *text, size_t length, uint8_t *name)
{
    size_t put = 0;

    for (size_t i = 0; i < length;) {
        size_t n = fffs_utf8_length(text + i, length - i);

        if (n == 0)
            return refuse(m, "a name is not UTF-8");
        if (fffs_utf8_is_surrogate(text + i, n)) {
            uint32_t code = 0xd000u | (text[i + 1] & 0x3fu) << 6 | (text[i + 2] & 0x3fu);

            if (code < 0xdc80 || code > 0xdcff)
                return refuse(m, "a name contains a surrogate that encodes no byte");
            name[put++] = (uint8_t)code;
        } else {
            memcpy(name + put, text + i, n);
            put += n;
        }
        i += n;
    }
    if (put == 0 || put > FFFS_NAME_MAX)
        return refuse(m, put ? "a name is longer than 255 bytes" : "a name is empty");
    if (memchr(name, '/', put) || memchr(name, 0, put))
        return refuse(m, "a name contains '/' or NUL");
    if (name[0] == '.' && (put == 1 || (put == 2 && name[1] == '.')))
        return refuse(m, "a name is '.' or '..'");
    return (int)put;
}

/* ---------------------------------------------------------------- opcodes with an effect */

/* Adds the entry key of dictionary, which refers to value. */
static int set_item(struct machine *m, struct item dictionary, struct item key, struct item value)
{
    fffs_packed_pickle *out = m->out;
    /* Every byte of a name takes at most three in the pickle. */
    uint8_t name[3 * FFFS_NAME_MAX];

    if (key.kind != STRING)
        return refuse(m, "a name is not a str");
    if (value.kind == INTEGER ? value.value < 0 : value.kind != DICTIONARY)
        return refuse(m, "a name refers to neither a record number nor a folder");
    if (key.length > sizeof name)
        return refuse(m, "a name is longer than 255 bytes");
    int length = encode_name(m, m->data + key.value, key.length, name);
    if (length < 0)
        return -1;
    /* Two bytes fetch a name from the memo, and must not claim a hundred bytes. */
    if (out->names_size > NAMES_LEAST && out->names_size > NAMES_FACTOR * m->size)
        return refuse(m, "its names are out of proportion to its size");
    if (out->entries >= UINT32_MAX - 1 || out->names_size + (uint64_t)length >= UINT32_MAX)
        return refuse(m, "there are too many names");
    if (out->names) {
        out->entry_parent[out->entries] = (uint32_t)dictionary.value;
        out->entry_child[out->entries] = value.kind == DICTIONARY ? (uint32_t)value.value : 0;
        out->entry_record[out->entries] = value.kind == DICTIONARY ? -1 : value.value;
        out->name_offsets[out->entries] = (uint32_t)out->names_size;
        memcpy(out->names + out->names_size, name, (size_t)length);
    }
    out->entries++;
    out->names_size += (uint64_t)length;
    return 0;
}

static int set_items(struct machine *m)
{
    size_t mark = m->stack.count;

    while (mark > 0 && m->stack.at[mark - 1].kind != MARK)
        mark--;
    if (mark < 2 || m->stack.at[mark - 2].kind != DICTIONARY || (m->stack.count - mark) % 2)
        return refuse(m, "it is not a tree of names and record numbers");
    struct item dictionary = m->stack.at[mark - 2];
    for (size_t i = mark; i < m->stack.count; i += 2)
        if (set_item(m, dictionary, m->stack.at[i], m->stack.at[i + 1]))
            return -1;
    m->stack.count = mark - 1;
    return 0;
}

static int set_one_item(struct machine *m)
{
    size_t count = m->stack.count;

    if (count < 3 || m->stack.at[count - 3].kind != DICTIONARY)
        return refuse(m, "it is not a tree of names and record numbers");
    if (set_item(m, m->stack.at[count - 3], m->stack.at[count - 2], m->stack.at[count - 1]))
        return -1;
    m->stack.count = count - 2;
    return 0;
}

static int put_string(struct machine *m, size_t width)
{
    uint64_t length;

    if (take_number(m, width, &length))
        return -1;
    if (length > m->size - m->next)
        return refuse(m, "it ends too early");
    if (length > UINT32_MAX)
        return refuse(m, "a name is longer than 255 bytes");
    struct item item = {STRING, (uint32_t)length, (int64_t)m->next};
    m->next += length;
    return push(m, &m->stack, item);
}

static int put_integer(struct machine *m, size_t width)
{
    uint64_t number;

    if (take_number(m, width, &number))
        return -1;
    if (width == 4) /* BININT is signed */
        number = (uint64_t)(int64_t)(int32_t)number;
    return push(m, &m->stack, (struct item){INTEGER, 0, (int64_t)number});
}

/* LONG1: a length, then that many bytes of two's complement. */
static int put_long(struct machine *m)
{
    uint64_t width, number;

    if (take_number(m, 1, &width))
        return -1;
    if (width > 8)
        return refuse(m, "a record number is too large");
    if (take_number(m, width, &number))
        return -1;
    if (width > 0 && width < 8 && number >> (8 * width - 1))
        number |= UINT64_MAX << (8 * width);
    return push(m, &m->stack, (struct item){INTEGER, 0, (int64_t)number});
}

static int memoise(struct machine *m, size_t width)
{
    uint64_t index = m->memo.count;

    if (width && take_number(m, width, &index))
        return -1;
    if (index != m->memo.count || m->stack.count == 0)
        return refuse(m, "its memo indexes are not consecutive");
    if (m->stack.at[m->stack.count - 1].kind == MARK) /* as Python's unpickler does */
        return refuse(m, "it memoises a MARK, which is no object");
    return push(m, &m->memo, m->stack.at[m->stack.count - 1]);
}

static int recall(struct machine *m, size_t width)
{
    uint64_t index;

    if (take_number(m, width, &index))
        return -1;
    if (index >= m->memo.count)
        return refuse(m, "it uses a memo entry that was never set");
    if (m->memo.at[index].kind != STRING && m->memo.at[index].kind != CONSTRUCTOR)
        return refuse(m, "a folder appears in two places");
    return push(m, &m->stack, m->memo.at[index]);
}

#define ONLY_ORDERED_DICT "it loads a global other than collections.OrderedDict"

static int put_global(struct machine *m)
{
    static const char wanted[] = "collections\nOrderedDict\n";
    size_t length = sizeof wanted - 1;

    if (m->size - m->next < length || memcmp(m->data + m->next, wanted, length))
        return refuse(m, ONLY_ORDERED_DICT);
    m->next += length;
    return push(m, &m->stack, (struct item){CONSTRUCTOR, 0, 0});
}

static int is_text(const struct machine *m, struct item item, const char *text)
{
    return item.length == strlen(text) && memcmp(m->data + item.value, text, item.length) == 0;
}

static int put_stack_global(struct machine *m)
{
    struct item module, name;

    if (pop(m, STRING, &name) || pop(m, STRING, &module))
        return -1;
    if (!is_text(m, module, "collections") || !is_text(m, name, "OrderedDict"))
        return refuse(m, ONLY_ORDERED_DICT);
    return push(m, &m->stack, (struct item){CONSTRUCTOR, 0, 0});
}

static int reduce(struct machine *m)
{
    struct item item;

    if (pop(m, EMPTY_TUPLE, &item) || pop(m, CONSTRUCTOR, &item))
        return -1;
    if (m->out->directories >= UINT32_MAX - 1)
        return refuse(m, "there are too many folders");
    return push(m, &m->stack, (struct item){DICTIONARY, 0, (int64_t)m->out->directories++});
}

/* Frames only help readers of streams. But readers that use them must see the same opcodes. */
static int begin_frame(struct machine *m)
{
    uint64_t length;

    if (take_number(m, 8, &length))
        return -1;
    if (length > m->size - m->next)
        return refuse(m, "it ends too early");
    if (m->frame)
        return refuse(m, "its frames overlap");
    m->frame = length ? m->next + length : 0;
    return 0;
}

/* ---------------------------------------------------------------- the machine */

/* Runs one opcode. Returns 0 to go on, 1 after STOP, -1 when refused. */
static int step(struct machine *m)
{
    uint64_t version;

    switch (m->data[m->next++]) {
    case 0x80: /* PROTO */
        return take_number(m, 1, &version) ? -1 : version > 5 ? refuse(m, "its protocol is unknown") : 0;
    case 0x95: return begin_frame(m);
    case '(': return push(m, &m->stack, (struct item){MARK, 0, 0});
    case ')': return push(m, &m->stack, (struct item){EMPTY_TUPLE, 0, 0});
    case 'c': return put_global(m);
    case 0x93: return put_stack_global(m);
    case 'R': return reduce(m);
    case 0x8c: return put_string(m, 1); /* SHORT_BINUNICODE */
    case 'X': return put_string(m, 4);
    case 0x8d: return put_string(m, 8);
    case 'K': return put_integer(m, 1);
    case 'M': return put_integer(m, 2);
    case 'J': return put_integer(m, 4);
    case 0x8a: return put_long(m);
    case 0x94: return memoise(m, 0);
    case 'q': return memoise(m, 1);
    case 'r': return memoise(m, 4);
    case 'h': return recall(m, 1);
    case 'j': return recall(m, 4);
    case 's': return set_one_item(m);
    case 'u': return set_items(m);
    case '.': return 1;
    default: return refuse(m, "it contains an opcode that no packed folder contains");
    }
}

static int run(struct machine *m)
{
    struct item root;
    int result = 0;

    while (result == 0) {
        if (m->next >= m->size)
            return refuse(m, "it ends too early");
        if (m->next == m->frame)
            m->frame = 0;
        result = step(m);
        if (result >= 0 && m->frame && m->next > m->frame)
            return refuse(m, "its frames overlap");
    }
    if (result < 0 || pop(m, DICTIONARY, &root))
        return -1;
    /* The root is made first, and every other dictionary must be in another one. */
    if (m->stack.count || root.value)
        return refuse(m, "it is not a tree of names and record numbers");
    m->out->consumed = m->next;
    if (m->out->names)
        m->out->name_offsets[m->out->entries] = (uint32_t)m->out->names_size;
    return 0;
}

int fffs_packed_pickle_decode(const uint8_t *data, size_t size, fffs_packed_pickle *out, const char **why,
                              uint64_t *where)
{
    struct machine m = {.data = data, .size = size, .out = out};

    out->entries = out->names_size = out->directories = out->consumed = 0;
    run(&m);
    free(m.stack.at);
    free(m.memo.at);
    *why = m.why;
    *where = m.next;
    return m.status;
}

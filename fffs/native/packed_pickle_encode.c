/* Encodes a tree as the pickle that ffrecord reads: nested OrderedDicts of names to record numbers.
 *
 * The same tree always gives the same bytes. Those of Python's pickler depend on its version, and on which equal
 * strings are the same object. */
#include "tree.h"
#include "utf8.h"

#include <sys/stat.h>

/* An open dictionary: the entries of its directory that are left, and the length of the path before their names. */
struct level {
    uint32_t next, end, prefix;
};

struct encoder {
    const fffs_tree *tree;
    uint8_t *out; /* NULL: only count */
    uint64_t size;
    struct level levels[FFFS_PATH_MAX / 2 + 2]; /* no valid tree is deeper */
    size_t depth;
    uint8_t path[FFFS_PATH_MAX + 1]; /* of the open directory with its '/', then of an entry in it */
};

static inline void put(struct encoder *e, const void *data, size_t size)
{
    if (e->out)
        memcpy(e->out + e->size, data, size);
    e->size += size;
}

/* An opcode, then width bytes of a little-endian number. */
static inline void put_number(struct encoder *e, uint8_t opcode, uint64_t number, size_t width)
{
    put(e, &opcode, 1);
    put(e, &number, width);
}

/* Converts a name as os.fsdecode does and encodes it with its lone surrogates. text has room for three times the
 * length. Returns the length of text. */
static size_t decode_name(const uint8_t *name, size_t length, uint8_t *text)
{
    size_t size = 0;

    for (size_t i = 0; i < length;) {
        size_t n = fffs_utf8_length(name + i, length - i);

        if (n && !fffs_utf8_is_surrogate(name + i, n)) {
            memcpy(text + size, name + i, n);
            size += n;
            i += n;
            continue;
        }
        /* A byte that is not valid UTF-8 becomes U+DC80 to U+DCFF. */
        text[size++] = 0xed;
        text[size++] = 0xb0 | name[i] >> 6;
        text[size++] = 0x80 | (name[i] & 0x3f);
        i++;
    }
    return size;
}

static void put_name(struct encoder *e, const uint8_t *name, size_t length)
{
    uint8_t text[3 * FFFS_NAME_MAX];
    size_t size = decode_name(name, length, text);

    put_number(e, 'X', size, 4); /* BINUNICODE */
    put(e, text, size);
}

static void put_record(struct encoder *e, uint32_t record)
{
    if (record < 1u << 8)
        put_number(e, 'K', record, 1); /* BININT1 */
    else if (record < 1u << 16)
        put_number(e, 'M', record, 2); /* BININT2 */
    else if (record < 1u << 31)
        put_number(e, 'J', record, 4); /* BININT, signed */
    else {
        put(e, "\x8a", 1); /* LONG1: the number of bytes, and a number with a sign */
        put_number(e, 5, record, 5);
    }
}

static void open_directory(struct encoder *e, uint32_t node, size_t prefix)
{
    uint32_t first = e->tree->ref[node];

    e->levels[e->depth++] = (struct level){first, first + e->tree->count[node], (uint32_t)prefix};
    put(e, ")R(", 3); /* EMPTY_TUPLE, REDUCE: a new dictionary; MARK */
}

static void put_entry(struct encoder *e, uint32_t entry, size_t prefix)
{
    const fffs_tree *tree = e->tree;
    uint32_t node = tree->entry_nodes[entry], start = tree->name_offsets[entry];
    size_t length = tree->name_offsets[entry + 1] - start;
    const uint8_t *name = tree->names + start;

    if (!S_ISREG(tree->mode[node]))
        memcpy(e->path + prefix, name, length);
    if (S_ISDIR(tree->mode[node])) {
        e->path[prefix + length] = '/';
        put_name(e, name, length);
        put(e, "h\0", 2); /* BINGET: the class */
        open_directory(e, node, prefix + length + 1);
        return;
    }
    if (S_ISLNK(tree->mode[node]) && fffs_tree_follow(tree, e->path, prefix + length, &node))
        return;
    if (S_ISREG(tree->mode[node])) {
        put_name(e, name, length);
        put_record(e, tree->ref[node]);
    }
}

uint64_t fffs_packed_pickle_encode(const fffs_tree *tree, uint8_t *out)
{
    static const char begin[] = "\x80\2"                      /* PROTO */
                                "ccollections\nOrderedDict\n" /* GLOBAL */
                                "q";                          /* BINPUT: the class is 0 (the end of this string) */
    struct encoder e;

    e.tree = tree;
    e.out = out;
    e.size = e.depth = 0;
    put(&e, begin, sizeof begin);
    open_directory(&e, 0, 0);
    while (e.depth) {
        struct level *level = &e.levels[e.depth - 1];

        if (level->next < level->end) {
            put_entry(&e, level->next++, level->prefix);
            continue;
        }
        put(&e, "u", 1); /* SETITEMS */
        e.depth--;
    }
    put(&e, ".", 1); /* STOP */
    return e.size;
}

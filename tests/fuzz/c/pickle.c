/* Fuzzes the pickle of a packed folder: decoding is repeatable, its memory bounded, and names form a tree or are refused.
 *
 * Input: the pickle, without the magic bytes. */
#include "entries.h"

/* How much memory a decoding may hold, for each byte of the pickle and beside that. */
enum { MEMORY_FACTOR = 64, MEMORY_LEAST = 16384 };

/* Entries up to which the slow definition of a tree is asked too. */
enum { COMPARED = 600 };

/* ---------------------------------------------------------------- counting memory, where a sanitizer can tell */

typedef void (*on_malloc)(const volatile void *, size_t);
typedef void (*on_free)(const volatile void *);
int __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free) __attribute__((weak));
size_t __sanitizer_get_allocated_size(const volatile void *) __attribute__((weak));

/* Of this thread: libFuzzer has one that watches memory, and takes some of it when it begins. */
static _Thread_local int counting;
static size_t held, most;

static void count_malloc(const volatile void *memory, size_t size)
{
    (void)memory;
    if (!counting)
        return;
    held += size;
    most = held > most ? held : most;
}

static void count_free(const volatile void *memory)
{
    if (counting && memory)
        held -= __sanitizer_get_allocated_size(memory);
}

static void start_counting(void)
{
    static int installed;

    if (!installed && __sanitizer_install_malloc_and_free_hooks)
        __sanitizer_install_malloc_and_free_hooks(count_malloc, count_free);
    installed = 1;
    held = most = 0;
    counting = 1;
}

/* ---------------------------------------------------------------- decoding */

struct answer {
    int status;
    const char *why;
    uint64_t where;
};

static struct answer decode(const uint8_t *data, size_t size, fffs_packed_pickle *out)
{
    struct answer answer = {0};

    start_counting();
    answer.status = fffs_packed_pickle_decode(data, size, out, &answer.why, &answer.where);
    counting = 0;
    CHECK(held == 0 && most <= MEMORY_FACTOR * size + MEMORY_LEAST);
    CHECK(answer.status == 0 || (answer.status == -EINVAL && answer.why && *answer.why));
    CHECK(answer.where <= size);
    return answer;
}

/* Decodes data, which is no larger than that, in memory of its own: reading past the end is seen. */
static struct answer decode_part(const uint8_t *data, size_t size, fffs_packed_pickle *out)
{
    uint8_t *part = exactly(size);

    memcpy(part, data, size);
    struct answer answer = decode(part, size, out);
    free(part);
    return answer;
}

static void free_decoded(fffs_packed_pickle *decoded)
{
    free(decoded->entry_parent);
    free(decoded->entry_child);
    free(decoded->entry_record);
    free(decoded->name_offsets);
    free(decoded->names);
}

/* Every number is where contract.h says it is, every name is one, and every folder but the root has one place. */
static void check_decoded(const fffs_packed_pickle *decoded)
{
    uint8_t *places = exactly(decoded->directories);

    CHECK(decoded->directories >= 1 && decoded->name_offsets[0] == 0);
    for (uint64_t i = 0; i < decoded->entries; i++) {
        uint32_t start = decoded->name_offsets[i], end = decoded->name_offsets[i + 1];
        int is_file = decoded->entry_record[i] >= 0;

        CHECK(end >= start && end <= decoded->names_size && is_name(decoded->names + start, end - start));
        CHECK(decoded->entry_parent[i] < decoded->directories);
        CHECK(decoded->entry_child[i] < decoded->directories);
        CHECK(is_file ? decoded->entry_child[i] == 0 : decoded->entry_record[i] == -1 && decoded->entry_child[i] > 0);
        if (!is_file)
            CHECK(places[decoded->entry_child[i]]++ == 0);
    }
    CHECK(decoded->name_offsets[decoded->entries] == decoded->names_size);
    for (uint64_t i = 1; i < decoded->directories; i++)
        CHECK(places[i] == 1);
    free(places);
}

/* ---------------------------------------------------------------- the tree of what was decoded */

static int compare_records(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

/* The entries' records, ascending, each once; gives how many. records has room for one per entry. */
static uint64_t distinct_records(const fffs_packed_pickle *decoded, uint32_t *records)
{
    uint64_t count = 0, distinct = 0;

    for (uint64_t i = 0; i < decoded->entries; i++)
        if (decoded->entry_record[i] >= 0)
            records[count++] = (uint32_t)decoded->entry_record[i];
    qsort(records, count, sizeof *records, compare_records);
    for (uint64_t i = 0; i < count; i++)
        if (i == 0 || records[i] != records[i - 1])
            records[distinct++] = records[i];
    return distinct;
}

/* Folders by their numbers, then a file for each record: decode of fffs/tree/packed_pickle.py. */
static void check_tree_of(const fffs_packed_pickle *decoded)
{
    uint32_t *records = exactly(decoded->entries * 4 + 4);
    uint64_t distinct = distinct_records(decoded, records);
    struct entries e = {.entries = decoded->entries, .nodes = decoded->directories + distinct};

    e.parent = decoded->entry_parent;
    e.name_offsets = decoded->name_offsets;
    e.names = decoded->names;
    e.node = exactly(e.entries * 4);
    e.mode = exactly(e.nodes * 2);
    e.ref = exactly(e.nodes * 4);
    e.count = exactly(e.nodes * 4);
    e.targets = exactly(0);
    for (uint64_t i = 0; i < e.nodes; i++)
        e.mode[i] = i < decoded->directories ? S_IFDIR | 0755 : S_IFREG | 0644;
    for (uint64_t i = 0; i < distinct; i++)
        e.ref[decoded->directories + i] = records[i];
    for (uint64_t i = 0; i < e.entries; i++) {
        uint32_t record = (uint32_t)decoded->entry_record[i];
        uint32_t *found = bsearch(&record, records, distinct, sizeof *records, compare_records);

        e.node[i] = decoded->entry_record[i] < 0 ? decoded->entry_child[i]
                                                 : (uint32_t)(decoded->directories + (uint64_t)(found - records));
    }
    check_entries(&e, (uint64_t)UINT32_MAX, e.entries <= COMPARED);
    free(e.node);
    free(e.mode);
    free(e.ref);
    free(e.count);
    free(e.targets);
    free(records);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fffs_packed_pickle sizes = {0}, decoded, again = {0};
    struct answer answer = decode_part(data, size, &sizes);
    int small = 1;

    if (answer.status)
        return 0;
    CHECK(sizes.consumed >= 1 && sizes.consumed <= size && data[sizes.consumed - 1] == '.');
    decoded = sizes;
    decoded.entry_parent = exactly(sizes.entries * 4);
    decoded.entry_child = exactly(sizes.entries * 4);
    decoded.entry_record = exactly(sizes.entries * 8);
    decoded.name_offsets = exactly((sizes.entries + 1) * 4);
    decoded.names = exactly(sizes.names_size);
    CHECK(decode_part(data, size, &decoded).status == 0);
    CHECK(decoded.entries == sizes.entries && decoded.names_size == sizes.names_size);
    CHECK(decoded.directories == sizes.directories && decoded.consumed == sizes.consumed);
    check_decoded(&decoded);
    /* What follows STOP changes nothing (but a frame that reaches past it must fit); without STOP it is no pickle. */
    if (decode_part(data, sizes.consumed, &again).status == 0)
        CHECK(again.entries == sizes.entries && again.names_size == sizes.names_size);
    else
        CHECK(memchr(data, 0x95, sizes.consumed));
    CHECK(decode_part(data, sizes.consumed - 1, &again).status == -EINVAL);
    /* Records that do not fit into a tree's 32 bits are refused by build_tree, before all this. */
    for (uint64_t i = 0; i < decoded.entries; i++)
        small = small && decoded.entry_record[i] < (int64_t)UINT32_MAX;
    if (small)
        check_tree_of(&decoded);
    free_decoded(&decoded);
    return 0;
}
